"""The text that is embedded of a chunk: where it stands, then its content; and that text's hash."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from kshift_knowledge.records import Chunk
from kshift_knowledge.tokens import TokenCounter

TEXT_FORMAT = 1  # goes up whenever the same chunk would be embedded as another text
PREFIX_TOKENS = 128  # on top of the chunk's own: docs/decisions.md#embedded-text


def embedded_text(chunk: Chunk, title: str | None, counter: TokenCounter) -> str:
    """
    Return the prefix, a blank line and the content; the content alone where there is no prefix.

    title: the front-matter name; a name that only comes from the file is left out, so that a
    rename costs nothing. Where title and headings take more than 128 tokens the outermost
    headings go first, for the nearest one says most; then the end of the prefix.
    """
    prefix = _prefix(title, chunk.heading_path, counter)
    return f"{prefix}\n\n{chunk.content}" if prefix else chunk.content


def prefix_tokens(chunk: Chunk, title: str | None, counter: TokenCounter) -> int:
    """Return how many tokens the prefix adds, its blank line included; at most 128."""
    prefix = _prefix(title, chunk.heading_path, counter)
    return counter.count(f"{prefix}\n\n") if prefix else 0


def embed_hash(text: str) -> bytes:
    """Return the SHA-256 by which the vector of *text* is found again."""
    return sha256(text.encode()).digest()


def passage_hash(text: str) -> bytes:
    """
    Return what embed_hash() is for chunks; never the same, also for the same text.

    Vectors of passages are kept at half precision and must not be taken for a chunk's. No item
    holds a NUL.
    """
    return sha256(b"passage\0" + text.encode()).digest()


@lru_cache(maxsize=4096)
def _prefix(title: str | None, headings: tuple[str, ...], counter: TokenCounter) -> str:
    for outermost in range(max(1, len(headings))):
        parts = (title or "", *headings[outermost:])
        prefix = "\n".join(" ".join(part.split()) for part in parts if part.strip())
        if counter.count(f"{prefix}\n\n") <= PREFIX_TOKENS:
            return prefix
    return _shortened(prefix, counter)


def _shortened(prefix: str, counter: TokenCounter) -> str:
    ends = counter.token_ends(prefix).tolist()
    for end in reversed(ends[: PREFIX_TOKENS - 1]):
        shorter = prefix[:end].rstrip()
        if counter.count(f"{shorter}\n\n") <= PREFIX_TOKENS:
            return shorter
    return ""
