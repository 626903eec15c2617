"""Cuts a question to what a model reads, with care for words and characters; knows no model."""

from __future__ import annotations

import unicodedata

from kshift_knowledge.tokens import TokenCounter

_LONGEST_WORD = 200  # Characters given up to end on a blank; Chinese has none to end on.
_WIDEST_CHARACTER = 64  # Code points looked back; nothing that is written is longer.
_JOINER = "\u200d"
_SKIN_TONES = range(0x1F3FB, 0x1F400)  # They colour the emoji before them.
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)  # Two of them make one flag.


def fit_to_model(text: str, counter: TokenCounter, max_tokens: int) -> tuple[str, bool]:
    """
    Return the longest start of *text* within *max_tokens*, and whether text was left out.

    A text that fits comes back untouched. The cut falls on a blank where one is near, and never
    inside a character: accents, joined emoji and flags stay whole.
    """
    if len(counter.token_ends(text)) <= max_tokens:
        return text, False
    text = text.strip()
    ends = counter.token_ends(text)
    end = _border_before(text, int(ends[max_tokens - 1])) if len(ends) > max_tokens else len(text)
    while end and counter.count(text[:end]) > max_tokens:
        end = _border_before(text, end - 1)  # A token that was cut in two counts as more.
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
