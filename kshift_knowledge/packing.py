"""Packing: which of the ranked chunks reach the context, whole or cut, within the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kshift_knowledge.citations import prompt_block
from kshift_knowledge.records import Dropped, Hit, StoredChunk

_JOINT = "\n\n"
# Less of a chunk than this says nothing and only costs a header.
_SMALLEST_EXCERPT_CHARS = 80


@dataclass(frozen=True, slots=True)
class Packed:
    """hits in packing order and, in rank order, what did not fit."""

    hits: tuple[Hit, ...]
    dropped: tuple[Dropped, ...]


def pack(
    ranked: Sequence[StoredChunk], max_chars: int, *, pinned: Sequence[StoredChunk] = ()
) -> Packed:
    """
    Fill a context of at most *max_chars* characters, headers and joints included.

    ranked must not contain pinned chunks. Pins come first: whole when they all fit, else in at
    most half of the budget. Ranked chunks follow in order, whole; the first that does not fit is
    cut at a word border, and everything behind it is dropped, so that hits followed by dropped
    is the ranked list.
    """
    pins_fit = _length(pinned) <= max_chars
    hits, dropped_pins = _fill(pinned, max_chars if pins_fit else max_chars // 2, [], pinned=True)
    hits, dropped = _fill(ranked, max_chars, hits, pinned=False)
    return Packed(tuple(hits), tuple(dropped_pins + dropped))


def _length(chunks: Sequence[StoredChunk]) -> int:
    return len(_JOINT.join(prompt_block(chunk, chunk.content) for chunk in chunks))


def _fill(
    chunks: Sequence[StoredChunk], max_chars: int, hits: list[Hit], *, pinned: bool
) -> tuple[list[Hit], list[Dropped]]:
    hits = list(hits)
    used = len(_JOINT.join(prompt_block(hit.chunk, hit.content) for hit in hits))
    dropped: list[Dropped] = []
    for chunk in chunks:
        room = max_chars - used - (len(_JOINT) if hits else 0)
        content = "" if dropped else _fit(chunk, room)
        if not content:
            dropped.append(Dropped(chunk.item_name, chunk.chunk_index, "budget"))
            continue
        used = max_chars - room + len(prompt_block(chunk, content))
        hits.append(
            Hit(
                rank=len(hits) + 1,
                chunk=chunk,
                content=content,
                excerpts=((chunk.char_start, chunk.char_start + len(content)),),
                is_truncated=len(content) < len(chunk.content),
                is_pinned=pinned,
            )
        )
    return hits, dropped


def _fit(chunk: StoredChunk, room: int) -> str:
    """The chunk's content, or its longest beginning that ends at a word border and fits."""
    if len(prompt_block(chunk, chunk.content)) <= room:
        return chunk.content
    length = room - len(prompt_block(chunk, ""))
    while length >= _SMALLEST_EXCERPT_CHARS:
        content = _cut_at_word(chunk.content, length)
        excess = len(prompt_block(chunk, content)) - room
        if excess <= 0:
            return content if len(content) >= _SMALLEST_EXCERPT_CHARS else ""
        length -= excess
    return ""


def _cut_at_word(text: str, length: int) -> str:
    if length >= len(text) or text[length].isspace():
        return text[:length].rstrip()
    cut = text[:length]
    at_blank = max(cut.rfind(" "), cut.rfind("\n"))
    # A text without blanks (Japanese, a long link) is cut where it must be.
    return (cut[:at_blank] if at_blank > length // 2 else cut).rstrip()
