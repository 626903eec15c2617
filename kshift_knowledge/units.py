"""Finds the smallest pieces of a text that mean something alone; knows no tokens and no chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from kshift_knowledge.markdown_blocks import Kind, Outline, read_outline, uniform_line_ends
from kshift_knowledge.seams import character_border, next_character_border

Span = tuple[int, int]

# Behind a sentence, unless what follows goes on in small letters ("e.g. this").
_SENTENCE_END = re.compile(
    r"[.!?…؟۔।][\"'”’»)\]*_`]*\s+(?![a-z])|[。！？．｡][」』”’）\"')\]]*\s*|\n[^\S\n]*\n\s*"
)
_ENTRY = re.compile(r"[ \t]*(?:>[ \t]*)*(?:(?:[-+*]|\d{1,9}[.)])[ \t]|<)")
_DELIMITER_ROW = re.compile(r"[ \t]*\|?[ \t:|]*-[ \t:|-]*$")


@dataclass(frozen=True, slots=True)
class Unit:
    """
    A sentence, a heading, a table row or a line of a fence; list entries part sentences too.

    start and end: code point offsets of its first and behind its last visible character.
    block: the number of its block in the text. is_head: a heading; it belongs to what follows.
    heading_path: the titles that are open at it, its own included, outermost first.
    table_head: for a row below the head of a table, the span of that head's first line.
    """

    start: int
    end: int
    block: int
    is_head: bool
    heading_path: tuple[str, ...]
    table_head: Span | None


def find_units(text: str) -> list[Unit]:
    """Return the units of *text* in order; every visible character lies in exactly one."""
    uniform = uniform_line_ends(text)
    outline = read_outline(uniform)
    paths = _heading_paths(outline)
    borders = pairwise([*outline.starts, len(uniform)])
    units: list[Unit] = []
    for block, ((start, end), kind) in enumerate(zip(borders, outline.kinds, strict=True)):
        head = _table_head(uniform, start, end) if kind is Kind.ROWS else None
        is_head = kind is Kind.HEADING
        units.extend(
            Unit(*span, block, is_head, paths[block], head if head and span[0] > start else None)
            for span in visible_spans(uniform, _borders(uniform, start, end, kind, head))
        )
    return units


def visible_spans(text: str, borders: list[int]) -> Iterator[Span]:
    """Yield the spans between *borders* without the blanks around them, and none of only blanks."""
    for start, after in pairwise(borders):
        piece = text[start:after]
        end = start + len(piece.rstrip())
        first = after - len(piece.lstrip())
        if first < end:
            # An accent may sit on a blank.
            yield (character_border(text, start - 1, first) if first > start else first), end


def sentence_ends(text: str) -> list[int]:
    """Return the offsets in *text* behind each line and each sentence that shows something."""
    lines = pairwise(_line_starts(text, 0, len(text)))
    return [
        end
        for start, after in lines
        for _, end in visible_spans(text, _sentences(text, start, after))
    ]


def _heading_paths(outline: Outline) -> list[tuple[str, ...]]:
    headings = {heading.block: heading for heading in outline.headings}
    open_titles: list[tuple[int, str]] = []
    paths: list[tuple[str, ...]] = []
    for block in range(len(outline.starts)):
        if heading := headings.get(block):
            open_titles = [entry for entry in open_titles if entry[0] < heading.level]
            open_titles.append((heading.level, heading.title))
            paths.append(tuple(title for _, title in open_titles if title))
        else:
            paths.append(paths[-1] if paths else ())
    return paths


def _table_head(text: str, start: int, end: int) -> Span | None:
    """Return the span of the first row, None where no delimiter row follows it."""
    head_end = text.find("\n", start, end)
    if head_end < 0:
        return None
    line_end = text.find("\n", head_end + 1, end)
    under = text[head_end + 1 : line_end if line_end >= 0 else end]
    if not _DELIMITER_ROW.match(under):
        return None
    return start, start + len(text[start:head_end].rstrip())


def _borders(text: str, start: int, end: int, kind: Kind, head: Span | None) -> list[int]:
    match kind:
        case Kind.HEADING | Kind.RULE:
            return [start, end]
        case Kind.PROSE:
            return _sentences(text, start, end)
        case Kind.LINES:
            return _entries(text, start, end)
        case _:
            lines = _line_starts(text, start, end)
            return [lines[0], *lines[2:]] if head else lines


def _line_starts(text: str, start: int, end: int) -> list[int]:
    """Return where the lines of text[start:end] begin, and *end*."""
    starts = []
    while start < end:
        starts.append(start)
        start = text.find("\n", start, end) + 1 or end
    return [*starts, end]


def _entries(text: str, start: int, end: int) -> list[int]:
    """Return the borders of list entries and of the sentences in them."""
    lines = _line_starts(text, start, end)
    starts = [at for at in lines[1:-1] if _ENTRY.match(text, at, end)]
    entries = pairwise([start, *starts, end])
    return [at for first, after in entries for at in _sentences(text, first, after)[:-1]] + [end]


def _sentences(text: str, start: int, end: int) -> list[int]:
    """Return the borders of the sentences of text[start:end], *start* and *end* included."""
    behind = [match.end() for match in _SENTENCE_END.finditer(text, start, end)]
    borders = [next_character_border(text, start, at) for at in behind if at < end]
    # An accent on the last sign of the text has no border behind it.
    inner = [at for at in borders if at < end and character_border(text, start, at) == at]
    return [start, *inner, end]
