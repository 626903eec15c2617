"""From hits to what people and prompts read: headers, prompt text, links to real files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from kshift_knowledge.records import Hit, StoredChunk

# A content line that a reader of the prompt could take for one of our headers.
_HEADER_LIKE = re.compile(r"^(?=[^\S\n]*\\*\[[^\n]*#\d+\])", re.MULTILINE)


def header(chunk: StoredChunk) -> str:
    """`[Audience#2]`: the name may hold any character; the index follows the last `#`."""
    return f"[{chunk.item_name}#{chunk.chunk_index}]"


def prompt_block(chunk: StoredChunk, content: str) -> str:
    """One hit in the context: header, line end, content with forged headers escaped."""
    return f"{header(chunk)}\n{escaped(content)}"


def escaped(content: str) -> str:
    """Content with a backslash before each line that looks like a header of ours."""
    return _HEADER_LIKE.sub(_BACKSLASH, content)


_BACKSLASH = r"\\"


def format_for_prompt(hits: Iterable[Hit]) -> str:
    """The context: blocks joined by one blank line, nothing else; empty for no hits."""
    return "\n\n".join(prompt_block(hit.chunk, hit.content) for hit in hits)


def citation_payload(hits: Sequence[Hit]) -> list[dict[str, Any]]:
    """What a product stores beside a generated text: one entry per hit, in rank order."""
    return [
        {
            "project_file_id": hit.chunk.project_file_id,
            "name": hit.chunk.item_name,
            "file": hit.chunk.file,
            "chunk_index": hit.chunk.chunk_index,
            "source_url": hit.chunk.source_url,
            "path": citation_path(hit.chunk),
        }
        for hit in hits
    ]


def citation_path(chunk: StoredChunk) -> str:
    """The page of this API that shows the cited chunk inside its item, or the whole item."""
    place = f"/accounts/{chunk.account_id}/projects/{chunk.project_id}"
    query = "" if chunk.chunk_index is None else f"?chunk={chunk.chunk_index}"
    return f"{place}/files/{chunk.project_file_id}{query}"
