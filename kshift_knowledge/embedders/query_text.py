"""Cuts a question to what a model reads, with care for words and characters; knows no model."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Callable

_LONGEST_TOKEN = 128  # Characters; the longest of cl100k is a run of that many blanks.
_LONGEST_WORD = 200  # Characters given up to end on a blank; Chinese has none to end on.
_WIDEST_CHARACTER = 64  # Code points looked back; nothing that is written is longer.
_JOINER = "\u200d"
_SKIN_TONES = range(0x1F3FB, 0x1F400)  # They colour the emoji before them.
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)  # Two of them make one flag.


def fit_to_model(text: str, counter: Callable[[str], int], max_tokens: int) -> tuple[str, bool]:
    """
    Return the longest start of *text* within *max_tokens*, and whether text was left out.

    counter: the number of tokens of a text. A text that fits comes back untouched. The cut falls
    on a blank where one is near, and never inside a character: accents, joined emoji and flags
    stay whole.
    """
    if len(text) <= _LONGEST_TOKEN * max_tokens and counter(text) <= max_tokens:
        return text, False
    text = text.strip()
    head = text[: _LONGEST_TOKEN * max_tokens]
    fitting = range(len(head) + 1)
    end = bisect_right(fitting, max_tokens, key=lambda end: counter(head[:end])) - 1
    end = _border_before(text, end)
    while end and counter(text[:end]) > max_tokens:
        end = _border_before(text, end - 1)  # A longer text may have fewer tokens, so recount.
    kept = text[:end].rstrip()
    return kept, len(kept) < len(text)


def _border_before(text: str, end: int) -> int:
    """Move *end* back to a blank if one is near, else out of the character it stands in."""
    if end >= len(text):
        return len(text)
    for place in range(end, max(end - _LONGEST_WORD, 0), -1):
        if text[place].isspace():
            return place
    for place in range(end, max(end - _WIDEST_CHARACTER, 0), -1):
        if not _is_inside_character(text, place):
            return place
    return max(end, 0)


def _is_inside_character(text: str, place: int) -> bool:
    before, after = text[place - 1], text[place]
    if _JOINER in (before, after) or ord(after) in _SKIN_TONES:
        return True
    if ord(before) in _FLAG_LETTERS and ord(after) in _FLAG_LETTERS:
        return _flag_letters_before(text, place) % 2 == 1
    return unicodedata.category(after).startswith("M")


def _flag_letters_before(text: str, place: int) -> int:
    start = place
    while start and ord(text[start - 1]) in _FLAG_LETTERS:
        start -= 1
    return place - start
