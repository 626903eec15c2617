"""Packs the best passages of ranked chunks into a budget; knows neither scores nor a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from kshift_knowledge.citations import prompt_block
from kshift_knowledge.records import Dropped, Hit, StoredChunk
from kshift_knowledge.seams import character_border, last_word_end, text_end
from kshift_knowledge.units import Span, sentence_ends

_JOINT = "\n\n"  # between two hits in the context
_GAP = "\n…\n"  # between two excerpts of a hit
# Less of a sentence than this says nothing and only costs a header.
_SMALLEST_PART_CHARS = 80


@dataclass(frozen=True, slots=True)
class Excerpt:
    """
    A passage that may be packed: a range of the item's text inside the chunk.

    table_head: the range of the head row that its table rows need, None when there is none or it
    lies outside the chunk.
    """

    chunk_id: int
    char_start: int
    char_end: int
    table_head: Span | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """
    What may be packed: chunks in the order of their hits, excerpts in the order of their worth.

    Every chunk has an excerpt. Ranked chunks stand where their first excerpts do; pinned ones may
    keep an order of their own.
    """

    chunks: Sequence[StoredChunk] = ()
    excerpts: Sequence[Excerpt] = ()

    @classmethod
    def ranked(cls, chunks: Iterable[StoredChunk], excerpts: Iterable[Excerpt]) -> Self:
        """Return the choice of *chunks*, in any order, by the order of their *excerpts* alone."""
        by_id = {chunk.chunk_id: chunk for chunk in chunks}
        kept = [excerpt for excerpt in excerpts if excerpt.chunk_id in by_id]
        return cls([by_id[number] for number in dict.fromkeys(e.chunk_id for e in kept)], kept)


@dataclass(frozen=True, slots=True)
class Packed:
    """hits in the order of the context, and what did not fit, pins first, in the same order."""

    hits: tuple[Hit, ...]
    dropped: tuple[Dropped, ...]


def pack(ranked: Choice, max_chars: int, *, pinned: Choice = Choice()) -> Packed:
    """
    Fill a context of at most *max_chars* characters, headers and joints included.

    Everything is packed whole where all of it fits. Else pins come first: whole when all of them
    fit, otherwise their best excerpts in at most half of the budget. Then the excerpts of ranked
    chunks follow in their order; the first that does not fit is cut behind a sentence, and what
    comes after it is left out. Excerpts that adjoin are joined as they stand in the text, others
    of a chunk by a line "…".

    So hits followed by what was dropped is the ranked list, and, pins apart, a larger budget
    packs everything that a smaller one does.
    """
    pins = _whole(pinned.chunks, max_chars) or _best(pinned, max_chars // 2)
    room = max_chars - pins.size - (len(_JOINT) if pins.ranges else 0)
    rest = _whole(ranked.chunks, room) or _best(ranked, room)
    hits = [
        *pins.hits(pinned.chunks, first_rank=1, is_pinned=True),
        *rest.hits(ranked.chunks, first_rank=len(pins.ranges) + 1, is_pinned=False),
    ]
    dropped = [
        Dropped(chunk.item_name, chunk.chunk_index, "budget")
        for choice, filling in ((pinned, pins), (ranked, rest))
        for chunk in choice.chunks
        if chunk.chunk_id not in filling.ranges
    ]
    return Packed(tuple(hits), tuple(dropped))


class _Filling:
    """The ranges of each chunk that are packed so far, and how many characters they take."""

    def __init__(self, chunks: Sequence[StoredChunk], max_chars: int) -> None:
        self.ranges: dict[int, tuple[Span, ...]] = {}
        self.size = 0
        self._chunks = {chunk.chunk_id: chunk for chunk in chunks}
        self._max_chars = max_chars

    def add(self, chunk_id: int, spans: Sequence[Span]) -> bool:
        """Pack *spans* too, if they fit."""
        chunk = self._chunks[chunk_id]
        before = self.ranges.get(chunk_id, ())
        after = _joined(chunk, [*before, *spans])
        size = self.size + len(prompt_block(chunk, _content(chunk, after)))
        if before:
            size -= len(prompt_block(chunk, _content(chunk, before)))
        elif self.ranges:
            size += len(_JOINT)
        if size > self._max_chars:
            return False
        self.ranges[chunk_id], self.size = after, size
        return True

    def add_part(self, excerpt: Excerpt) -> None:
        """Pack the longest beginning of *excerpt* that fits and ends behind a sentence."""
        chunk = self._chunks[excerpt.chunk_id]
        start = excerpt.char_start
        text = chunk.content[start - chunk.char_start : excerpt.char_end - chunk.char_start]
        head = _head_spans(excerpt)
        for end in reversed(sentence_ends(text)[:-1]):
            if self.add(chunk.chunk_id, [*head, (start, start + end)]):
                return
        if not self.ranges:
            self._add_words(chunk, start, text)

    def _add_words(self, chunk: StoredChunk, start: int, text: str) -> None:
        """Pack what fits of a first sentence that is longer than the whole budget."""
        at = min(len(text), self._max_chars)
        while at >= _SMALLEST_PART_CHARS:
            at = text_end(text, at)
            at = last_word_end(text, at // 2, at) or character_border(text, 0, at)
            if self.add(chunk.chunk_id, [(start, start + text_end(text, at))]):
                return
            at -= 1

    def hits(
        self, chunks: Sequence[StoredChunk], *, first_rank: int, is_pinned: bool
    ) -> Iterator[Hit]:
        packed = (chunk for chunk in chunks if chunk.chunk_id in self.ranges)
        for rank, chunk in enumerate(packed, first_rank):
            ranges = self.ranges[chunk.chunk_id]
            is_truncated = ranges != ((chunk.char_start, chunk.char_end),)
            yield Hit(rank, chunk, _content(chunk, ranges), ranges, is_truncated, is_pinned)


def _whole(chunks: Sequence[StoredChunk], max_chars: int) -> _Filling | None:
    """Return all of *chunks* whole, None when they do not fit."""
    filling = _Filling(chunks, max_chars)
    fits = all(
        filling.add(chunk.chunk_id, [(chunk.char_start, chunk.char_end)]) for chunk in chunks
    )
    return filling if fits else None


def _best(choice: Choice, max_chars: int) -> _Filling:
    filling = _Filling(choice.chunks, max_chars)
    for excerpt in choice.excerpts:
        span = (excerpt.char_start, excerpt.char_end)
        if not filling.add(excerpt.chunk_id, [*_head_spans(excerpt), span]):
            filling.add_part(excerpt)
            break
    return filling


def _head_spans(excerpt: Excerpt) -> list[Span]:
    return [excerpt.table_head] if excerpt.table_head else []


def _joined(chunk: StoredChunk, spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return *spans* in order, those with only blanks between them as one; the whole if it is."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and not _text(chunk, joined[-1][1], start).strip():
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    first, last = joined[0][0], joined[-1][1]
    around = _text(chunk, chunk.char_start, first) + _text(chunk, last, chunk.char_end)
    if len(joined) == 1 and not around.strip():
        return ((chunk.char_start, chunk.char_end),)
    return tuple(joined)


def _content(chunk: StoredChunk, ranges: Sequence[Span]) -> str:
    return _GAP.join(_text(chunk, start, end) for start, end in ranges)


def _text(chunk: StoredChunk, start: int, end: int) -> str:
    return chunk.content[start - chunk.char_start : max(end, start) - chunk.char_start]
