"""Measures spans of one text in tokens after encoding it once; knows no Markdown and no chunks."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kshift_knowledge.tokens import TokenCounter

# Where counts add up (see TokenCounter): at the start of a line that shows something, in front of
# a blank behind a visible character, and in front of full-width punctuation behind a letter.
_BORDER = re.compile(
    r"(?<=\S) |(?<=[ぁ-ゖァ-ヺー一-龥가-힣])[。、，．！？：；」）]|(?<=[\r\n])(?=[^\S\r\n]*+\S)"
)
_MARKS = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_HEAD_CHARS = 256  # how far to look for a border before the whole span is counted
_TAIL_CHARS = 48
_SLACK = 16  # by how much an estimate from whole tokens may be off


class TokenRuler:
    """
    Token counts of spans of *text*; offsets are code points.

    Spans begin at a line that shows something or at a visible character and end behind one.
    """

    def __init__(self, text: str, counter: TokenCounter) -> None:
        self._text = text
        self._counter = counter
        # bisect finds its way in a view of integers twice as fast as numpy's own search.
        self._ends: memoryview[int] = counter.token_ends(text).data

    def count(self, start: int, end: int) -> int:
        """
        Return exactly what the counter says of text[start:end].

        Only the edges are encoded again, from and to the nearest place where counts add up.
        """
        text = self._text
        head = start if start == 0 or text[start - 1] in "\r\n" else self._next_border(start, end)
        tail = self._last_border(start, end)
        if head < 0 or head > tail:
            return self._counter.count(text[start:end])
        tokens = bisect_right(self._ends, tail) - bisect_right(self._ends, head)
        if start < head:
            tokens += self._counter.count(text[start:head])
        if tail < end:
            tokens += _count_tail(self._counter, text[tail:end])
        return tokens

    def count_within(self, start: int, end: int, limit: int) -> int | None:
        """Return the exact count if it is at most *limit*; does not look at a span far above it."""
        if self._estimate(start, end) > limit + _SLACK:
            return None
        tokens = self.count(start, end)
        return tokens if tokens <= limit else None

    def fits(self, start: int, end: int, limit: int) -> bool:
        """Tell whether the count is at most *limit*; exact where it is near."""
        if self._estimate(start, end) <= limit - _SLACK:
            return True
        return self.count_within(start, end, limit) is not None

    def _estimate(self, start: int, end: int) -> int:
        """Return the number of whole tokens that text[start:end] touches."""
        return bisect_left(self._ends, end) + 1 - bisect_right(self._ends, start)

    def reach(self, start: int, tokens: int) -> int:
        """Return the offset behind the last of about *tokens* tokens from *start*; > start."""
        last = bisect_right(self._ends, start) + tokens - 1
        return self._ends[last] if last < len(self._ends) else len(self._text)

    def reach_back(self, end: int, tokens: int) -> int:
        """Return the offset where about the last *tokens* tokens before *end* begin."""
        first = bisect_left(self._ends, end) + 1 - tokens
        return self._ends[first - 1] if first > 0 else 0

    def _next_border(self, start: int, end: int) -> int:
        """Return the first place behind *start* where counts add up, -1 if none is near."""
        border = _BORDER.search(self._text, start + 1, min(end, start + _HEAD_CHARS))
        return border.start() if border else -1

    def _last_border(self, start: int, end: int) -> int:
        """Return the last place up to *end* where counts add up, -1 if none is near."""
        text, run = self._text, end
        if text[end - 1].isalnum() and (end == len(text) or text[end] in " \r\n"):
            return end
        first = max(start + 1, end - _TAIL_CHARS)
        while run > first and text[run - 1] in _MARKS:
            run -= 1
        if run < end and (text[run - 1] in "\r\n" or text[run - 1].isalnum()):
            return run
        blank = text.rfind(" ", first, end)
        if blank > 0 and not text[blank - 1].isspace():
            return blank
        last = -1
        for border in _BORDER.finditer(text, first, end):
            last = border.start()
        return last


@lru_cache(maxsize=4096)
def _count_tail(counter: TokenCounter, tail: str) -> int:
    """Most chunks end in the same few marks, and each call of the encoder costs some 5 µs."""
    return counter.count(tail)
