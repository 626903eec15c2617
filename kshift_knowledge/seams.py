"""Finds where running text may be cut; knows no tokens and no Markdown blocks."""

from __future__ import annotations

import re
import unicodedata

_SENTENCE_END = re.compile(
    r"[.!?…][\"'”’»)\]*_`]*\s+|[。！？．｡][」』”’）\"')\]]*\s*|\n[^\S\n]*\n\s*"
)
_VISIBLE = re.compile(r"\S")
_WORD_START = re.compile(r"(?<=\s)\S")
_CLUSTER_CHARS = 64  # a longer run of combining marks is cut like any other text
_INDENT_CHARS = 40  # a deeper indent is not worth its tokens


def next_visible(text: str, at: int) -> int:
    """Return the offset of the first visible character at or after *at*."""
    visible = _VISIBLE.search(text, at)
    return visible.start() if visible else len(text)


def next_text(text: str, at: int) -> int:
    """Return where text goes on at or after *at*: at the start of its line, else in the line."""
    visible = next_visible(text, at)
    line_end = text.rfind("\n", max(at - 1, visible - _INDENT_CHARS, 0), visible)
    if line_end >= 0:
        return line_end + 1
    return at if at == 0 and visible <= _INDENT_CHARS else visible


def text_end(text: str, at: int) -> int:
    """Return the offset behind the last visible character before *at*."""
    while at > 0 and text[at - 1].isspace():
        at -= 1
    return at


def first_line_start(text: str, after: int, limit: int) -> int | None:
    """Return the first start of a line in (after, limit)."""
    line_end = text.find("\n", after, limit - 1)
    return line_end + 1 if line_end >= 0 else None


def last_line_start(text: str, after: int, limit: int) -> int | None:
    """Return the last start of a line behind *after* with nothing visible beyond *limit*."""
    line_end = text.rfind("\n", after, limit + 1)
    return line_end + 1 if line_end >= 0 else None


def first_sentence_start(text: str, after: int, limit: int) -> int | None:
    """Return the first start of a sentence in (after, limit)."""
    end = _SENTENCE_END.search(text, after, limit)
    return end.end() if end and end.end() < limit else None


def last_sentence_start(text: str, after: int, limit: int) -> int | None:
    """Return the last start of a sentence behind *after*; at most one character beyond *limit*."""
    start = None
    for end in _SENTENCE_END.finditer(text, after, limit + 1):
        start = end.end()
    return start


def first_word_start(text: str, at: int, limit: int) -> int | None:
    """Return the first start of a word in [at, limit)."""
    word = _WORD_START.search(text, at, limit)
    return word.start() if word else None


def last_word_end(text: str, after: int, limit: int) -> int | None:
    """Return the last place in (after, limit] that lies between two words."""
    if limit == len(text) or text[limit].isspace():
        return limit
    words = text[after:limit].rsplit(None, 1)
    at = limit - len(words[-1]) if words else limit
    return at if at > after else None


def character_border(text: str, after: int, at: int) -> int:
    """Return the last place in (after, at] that is not inside what a reader sees as one sign."""
    for border in range(at, max(after, at - _CLUSTER_CHARS), -1):
        if border == len(text) or not _is_inside_sign(text, after, border):
            return border
    return at


def next_character_border(text: str, after: int, at: int) -> int:
    """Return the first place at or behind *at* that is not inside one sign begun after *after*."""
    for border in range(at, min(len(text), at + _CLUSTER_CHARS)):
        if not _is_inside_sign(text, after, border):
            return border
    return at


def _is_inside_sign(text: str, after: int, at: int) -> bool:
    """Tell whether *at* lies in a grapheme cluster: the common cases of Unicode's annex 29."""
    before, char = text[at - 1], text[at]
    if before == "\u200d" or char == "\u200d":
        return True
    if unicodedata.category(char)[0] == "M" or "\U0001f3fb" <= char <= "\U0001f3ff":
        return True
    if _is_flag_letter(char):
        first = at
        while first > after and _is_flag_letter(text[first - 1]):
            first -= 1
        return (at - first) % 2 == 1
    return "\u1160" <= char <= "\u11ff" or "\U000e0020" <= char <= "\U000e007f"


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"
