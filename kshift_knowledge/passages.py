"""Cuts chunks into passages, the small pieces that are searched and packed; knows no store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kshift_knowledge.embedded_text import embedded_text
from kshift_knowledge.lexical import Lexemes, lexemes
from kshift_knowledge.records import Chunk
from kshift_knowledge.seams import (
    character_border,
    last_word_end,
    next_character_border,
    text_end,
)
from kshift_knowledge.tokens import TokenCounter
from kshift_knowledge.units import Span, Unit, find_units, visible_spans

# UTF-8 bytes of a token of cl100k, about: on examples/knowledge English 4.2, Japanese 2.8.
_TOKEN_BYTES = 4
_MAX_TABLE_HEAD_CHARS = 400  # a wider head would drown its rows in the embedded text


@dataclass(frozen=True, slots=True)
class Passage:
    """
    A piece of one chunk: whole sentences, list entries, table rows or lines, about of one size.

    The range is in the item's text. heading_path: the titles open at its text, outermost first.
    table_head: for rows below the head of a table, the range of that head's first line, which
    may lie before the chunk.
    """

    char_start: int
    char_end: int
    heading_path: tuple[str, ...]
    table_head: Span | None


def cut_passages(
    text: str, chunks: Sequence[Chunk], passage_tokens: int
) -> list[tuple[Passage, ...]]:
    """
    Return the passages of each of *chunks*, which were cut from *text* in this order.

    passage_tokens: the size aimed at; a passage is longer only where one unit is, up to twice.
    Every visible character of a chunk lies in exactly one of its passages. A heading begins a
    passage, and ends one only where nothing follows it. Where two chunks overlap, both have the
    same passages, so that shared text is embedded once and offered once.
    """
    units = find_units(text)
    target = passage_tokens * _TOKEN_BYTES
    starts = [*(chunk.char_start for chunk in chunks[1:]), len(text)]
    passages: list[tuple[Passage, ...]] = []
    first = end_before = 0
    for chunk, next_start in zip(chunks, starts, strict=False):
        while units[first].end <= chunk.char_start:
            first += 1
        seams = [at for at in (end_before, next_start) if chunk.char_start < at < chunk.char_end]
        pieces = _pieces(text, units[first:], chunk, sorted(seams), target)
        passages.append(tuple(_grouped(text, pieces, seams, target)))
        end_before = chunk.char_end
    return passages


def passage_text(
    passage: Passage, text: str, chunk: Chunk, title: str | None, counter: TokenCounter
) -> str:
    """Return the text that is embedded of *passage*: title, headings, table head, its own text."""
    content = text[passage.char_start : passage.char_end]
    if passage.table_head:
        content = f"{_head_row(passage, text)}\n{content}"
    inner = replace(chunk, content=content, heading_path=passage.heading_path)
    return embedded_text(inner, title, counter)


def passage_lexemes(passage: Passage, text: str, item_name: str) -> tuple[Lexemes, int]:
    """
    Return what is searched of *passage* by words, and how many lexemes stand before its own text.

    item_name: also one that only comes from the file's name; it is in no vector.
    """
    before = lexemes("\n".join((item_name, *passage.heading_path, _head_row(passage, text))))
    own = lexemes(text[passage.char_start : passage.char_end])
    return np.concatenate([before, own]), len(before)


def _head_row(passage: Passage, text: str) -> str:
    start, end = passage.table_head or (0, 0)
    return text[start : min(end, start + _MAX_TABLE_HEAD_CHARS)]


def _pieces(
    text: str, units: Iterable[Unit], chunk: Chunk, seams: Sequence[int], target: int
) -> Iterator[tuple[Span, Unit]]:
    """Yield the spans of *units* in *chunk*, cut at *seams*; too long ones in parts of target."""
    for unit in units:
        if unit.start >= chunk.char_end:
            return
        start, end = max(unit.start, chunk.char_start), min(unit.end, chunk.char_end)
        borders = [start]
        for goal in (*(at for at in seams if start < at < end), end):
            while _is_longer(text, borders[-1], goal, 2 * target):
                borders.append(_cut(text, borders[-1], target))
            borders.append(goal)
        for span in visible_spans(text, borders):
            yield span, unit


def _cut(text: str, start: int, target: int) -> int:
    """Return the last good place within *target* bytes behind *start*, or behind the first sign."""
    fitting = len(text[start : start + target].encode()[:target].decode(errors="ignore"))
    limit = max(start + fitting, next_character_border(text, start, start + 1))
    limit = text_end(text, limit)
    return last_word_end(text, start, limit) or character_border(text, start, limit)


def _is_longer(text: str, start: int, end: int, size: int) -> bool:
    return len(text[start : min(end, start + size + 1)].encode()) > size


def _grouped(
    text: str, pieces: Iterable[tuple[Span, Unit]], seams: Sequence[int], target: int
) -> Iterator[Passage]:
    """Yield passages of as many pieces as fit into *target* bytes, none across one of *seams*."""
    held: list[tuple[Span, Unit]] = []
    for span, unit in pieces:
        if held:
            start, end = held[0][0][0], span[1]
            is_full = unit.is_head or _is_longer(text, start, end, target)
            is_behind_seam = any(start < at <= span[0] for at in seams)
            if is_behind_seam or (is_full and not held[-1][1].is_head):
                yield _passage(held)
                held = []
        held.append((span, unit))
    if held:
        yield _passage(held)


def _passage(held: Sequence[tuple[Span, Unit]]) -> Passage:
    body = next((unit for _, unit in held if not unit.is_head), held[-1][1])
    return Passage(held[0][0][0], held[-1][0][1], held[-1][1].heading_path, body.table_head)
