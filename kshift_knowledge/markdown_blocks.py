"""Finds the blocks and headings of a Markdown text by CommonMark's rules; knows no tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from typing import NamedTuple

from kshift_knowledge.html_blocks import html_block_end

TITLE_CHARS = 200  # a heading of a megabyte must not travel with every chunk below it


class Kind(IntEnum):
    """What a block is, as far as cutting needs to know."""

    HEADING = 0
    RULE = 1  # a thematic break
    PROSE = 2  # a paragraph
    LINES = 3  # list items, quotes, HTML, indented code
    ROWS = 4  # a table
    VERBATIM = 5  # a fence or front matter


# Reading a member off its class costs 0.2 µs in Python 3.11, as much as everything else per line.
HEADING, RULE, PROSE, LINES, ROWS, VERBATIM = Kind


class Heading(NamedTuple):
    """A heading that is no part of a list or quote. block: its number; level: 1 to 6."""

    block: int
    level: int
    title: str


@dataclass(frozen=True, slots=True)
class Outline:
    """
    The blocks of a text, in order, as two lists of one length, and its headings.

    starts: code point offset of each block's first line; blank lines belong to the block before.
    """

    starts: list[int]
    kinds: list[Kind]
    headings: list[Heading]


def read_outline(text: str) -> Outline:
    """Return the blocks of *text*, whose lines end at LF and nowhere else: uniform_line_ends."""
    scanner = _Scanner(text.split("\n"))
    scanner.scan()
    return Outline(scanner.starts, scanner.kinds, scanner.headings)


def uniform_line_ends(text: str) -> str:
    """Return *text* with LF as the only line end and every other character at its old offset."""
    if "\r" not in text:
        return text
    return text.replace("\r\n", " \n").replace("\r", "\n")


# One opener per line, after at most three blanks: CommonMark 0.31, sections 4 and 5.
_OPENER = re.compile(
    r" {0,3}(?:"
    r"(?P<heading>#{1,6})(?:[ \t]|$)"
    r"|(?P<fence>`{3,}(?=[^`]*$)|~{3,})"
    r"|(?P<quote>>)"
    r"|(?P<rule>(?:(?:\*[ \t]*+){3,}+|(?:-[ \t]*+){3,}+|(?:_[ \t]*+){3,}+)$)"
    r"|(?:[-+*]|(?P<number>\d{1,9})[.)])(?P<item>[ \t]+|$)"
    r"|(?P<html><)(?=[A-Za-z/!?])"
    r")"
)
_OPENER_SIGNS = frozenset(" #`~>*-_+<0123456789")
_SETEXT = re.compile(r" {0,3}(?:=+|-+)[ \t]*$")
_CELL = r"[ \t]*+:?-+:?[ \t]*+"
_DELIMITER_ROW = re.compile(rf" {{0,3}}\|?{_CELL}(?:\|{_CELL})*+\|?[ \t]*$")
_INNER_FENCE = re.compile(r"(?:(?:[-+*>]|\d{1,9}[.)])[ \t]+)*+(`{3,}(?=[^`]*$)|~{3,})")
_YAML_LINE = re.compile(r"[^\s:][^:]*:|#|-")

# What the next line may go on with; an item is one of the outermost list.
_NOTHING, _PARAGRAPH, _TABLE, _CODE, _QUOTE, _ITEM = range(6)


class _Scanner:
    """One pass over the lines; the attributes say what is open where the current line begins."""

    def __init__(self, lines: list[str]) -> None:
        self.starts: list[int] = []
        self.kinds: list[Kind] = []
        self.headings: list[Heading] = []
        self._lines = lines
        self._offsets = [0, *accumulate(map(len, lines))]  # without line ends
        self._paragraph = 0  # first line of the open paragraph
        self._item_indent = 0  # column where the text of the open item begins
        self._mark = ""  # the open item's, if it is one sign, a blank and text
        self._is_empty_item = False  # only its mark so far
        self._in_item_block = False  # no blank line or end of a fence since its last block began
        self._close()

    def _close(self, then: int = _NOTHING) -> None:
        self._open = then
        self._is_lazy = False  # a paragraph in a list or quote may go on without its marks
        self._inner_fence = ""  # the fence that is open in a list or quote

    def _add(self, number: int, kind: Kind) -> None:
        self.starts.append(self._offsets[number] + number)
        self.kinds.append(kind)

    def _add_heading(self, number: int, level: int, title: str) -> None:
        self.headings.append(Heading(len(self.starts), level, title[:TITLE_CHARS]))
        self._add(number, HEADING)

    def _drop_last(self) -> None:
        self.starts.pop()
        self.kinds.pop()

    def scan(self) -> None:
        resume = self._take_front_matter()
        for number, line in enumerate(self._lines):
            if number < resume:
                continue
            if not line or line.isspace():
                if self._open:
                    self._take_blank()
            elif line[0].isalpha():  # most lines, and none of them opens anything but a paragraph
                if self._open != _PARAGRAPH:
                    self._take_text(number, line)
            else:
                resume = self._take(number, line)

    def _take_front_matter(self) -> int:
        """Take leading YAML as one block: neither its rules nor its comments make headings."""
        if self._lines[0].rstrip() != "---":
            return 0
        for number, line in enumerate(self._lines[1:], start=1):
            if line.rstrip() in ("---", "..."):
                self._add(0, VERBATIM)
                return number + 1
            if number == 1 and not _YAML_LINE.match(line):
                return 0
        return 0

    def _take_blank(self) -> None:
        if self._open == _ITEM and not self._is_empty_item:
            self._in_item_block = self._is_lazy = False
        else:
            self._close()

    def _take(self, number: int, line: str) -> int:
        """Take a line that shows something, or a whole fence or HTML block; return the next one."""
        if self._open == _ITEM and self._goes_on_with_item(number, line):
            return number + 1
        if self._open == _PARAGRAPH and self._ends_paragraph(number, line):
            return number + 1
        opener = _OPENER.match(line) if line[0] in _OPENER_SIGNS else None
        if opener is None:
            self._take_text(number, line)
            return number + 1
        match opener.lastgroup:
            case "item" if self._may_open_item(opener, line):
                self._take_item(number, line, opener)
            case "heading":
                self._close()
                self._add_heading(number, len(opener["heading"]), _atx_title(line))
            case "fence":
                self._close()
                self._add(number, VERBATIM)
                return self._after_fence(number + 1, opener["fence"])
            case "rule":
                self._close()
                self._add(number, RULE)
            case "quote":
                self._take_quote(number, line)
            case "html" if end := self._html_end(line):
                self._close()
                self._add(number, LINES)
                return self._after_html(number, end)
            case _:
                self._take_text(number, line)
        return number + 1

    def _goes_on_with_item(self, number: int, line: str) -> bool:
        if line[:2] == self._mark and self._in_item_block and not self._inner_fence:
            sign = line[2:3]  # most lines of lists are one more item with text, "- text"
            if sign and sign not in " \t#`~" and sign != line[0]:
                self._is_lazy = True
                return True
        if line[0] in " \t" and _columns(line) >= self._item_indent:
            self._take_inside_item(number, line)
            return True
        return False

    def _ends_paragraph(self, number: int, line: str) -> bool:
        """Turn the open paragraph into a heading or a table if *line* underlines it as one."""
        if _SETEXT.match(line):
            title = " ".join(part.strip() for part in self._lines[self._paragraph : number])
            self._drop_last()
            self._add_heading(self._paragraph, 1 if "=" in line else 2, title)
            self._close()
            return True
        head = self._lines[number - 1]
        if "|" not in line or "|" not in head or not _DELIMITER_ROW.match(line):
            return False
        if _cells(head) != _cells(line):
            return False
        if self._paragraph == number - 1:  # else what stands above the head row stays a paragraph
            self._drop_last()
        self._add(number - 1, ROWS)
        self._close(_TABLE)
        return True

    def _take_text(self, number: int, line: str) -> None:
        if self._is_lazy or self._open == _PARAGRAPH:
            return
        if _columns(line) >= 4:
            if self._open != _CODE:
                self._close(_CODE)
                self._add(number, LINES)
        elif self._open != _TABLE:
            self._close(_PARAGRAPH)
            self._add(number, ROWS if line.lstrip(" ")[0] == "|" else PROSE)
            self._paragraph = number

    def _take_quote(self, number: int, line: str) -> None:
        if self._open != _QUOTE:
            self._close(_QUOTE)
            self._add(number, LINES)
        self._look_inside(line.lstrip(" \t>"))

    def _may_open_item(self, opener: re.Match[str], line: str) -> bool:
        """Only an item with text, and with number 1 if it has any, interrupts a paragraph."""
        if self._open != _PARAGRAPH:
            return True
        return opener.end() < len(line.rstrip()) and opener["number"] in (None, "1")

    def _take_item(self, number: int, line: str, opener: re.Match[str]) -> None:
        goes_on = self._open == _ITEM and self._in_item_block and not self._inner_fence
        self._close(_ITEM)
        mark, end = opener.span("item")  # a tab can stand only behind the mark
        text = line[end:]
        gap = len(line[:end].expandtabs(4)) - mark if text else 0
        self._item_indent = mark + (gap if 1 <= gap <= 4 else 1)
        self._mark = line[:2] if mark == 1 and gap == 1 else ""
        self._is_empty_item = not text or text.isspace()
        self._look_inside(text)
        if self._inner_fence:
            self._add(number, VERBATIM)
        elif not goes_on:
            self._add(number, LINES)
        self._in_item_block = True

    def _take_inside_item(self, number: int, line: str) -> None:
        self._is_empty_item = False
        was_fence = bool(self._inner_fence)
        self._look_inside(line.lstrip(" \t"))
        if was_fence:
            self._in_item_block = bool(self._inner_fence)
        elif self._inner_fence or not self._in_item_block:
            self._add(number, VERBATIM if self._inner_fence else LINES)
            self._in_item_block = True

    def _look_inside(self, text: str) -> None:
        """Follow the fences and paragraphs of a list or quote; *text* lacks indent and marks."""
        if self._inner_fence:
            if _closes(self._inner_fence, text):
                self._inner_fence = ""
            return
        if "```" in text or "~~~" in text:
            fence = _INNER_FENCE.match(text)
            self._inner_fence = fence[1] if fence else ""
        self._is_lazy = not self._inner_fence and text[:1] not in ("", "#")

    def _after_fence(self, number: int, fence: str) -> int:
        for after in range(number, len(self._lines)):
            line = self._lines[after]
            if fence in line and _columns(line) < 4 and _closes(fence, line):
                return after + 1
        return len(self._lines)

    def _html_end(self, line: str) -> re.Pattern[str] | None:
        in_text = self._is_lazy or self._open in (_PARAGRAPH, _TABLE)
        return html_block_end(line, in_text)

    def _after_html(self, number: int, end: re.Pattern[str]) -> int:
        for after in range(number, len(self._lines)):
            line = self._lines[after]
            if end.search(line):
                return after + 1
        return len(self._lines)


def _columns(line: str) -> int:
    """Return the width of the indent, tabs going to the next multiple of four."""
    if line[0] not in " \t":
        return 0
    indent = line[: len(line) - len(line.lstrip(" \t"))]
    return len(indent.expandtabs(4))


def _closes(fence: str, line: str) -> bool:
    mark = line.strip(" \t")
    return len(mark) >= len(fence) and not mark.strip(fence[0])


def _cells(row: str) -> int:
    inner = row.strip(" \t").removeprefix("|").removesuffix("|")
    return inner.count("|") - inner.count("\\|") + 1


def _atx_title(line: str) -> str:
    text = line.strip(" \t").lstrip("#").strip(" \t")
    without_closing = text.rstrip("#")
    if not without_closing or without_closing[-1] in " \t":
        return without_closing.rstrip(" \t")
    return text
