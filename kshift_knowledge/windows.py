"""Slides a window over a section that is too large for one chunk; knows a page, not its outline."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kshift_knowledge.markdown_blocks import HEADING, LINES, ROWS, VERBATIM, Kind
from kshift_knowledge.seams import (
    character_border,
    first_line_start,
    first_sentence_start,
    first_word_start,
    last_line_start,
    last_sentence_start,
    last_word_end,
    next_character_border,
    next_text,
    next_visible,
    text_end,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kshift_knowledge.token_ruler import TokenRuler

_LINE_KINDS = (ROWS, VERBATIM)  # their lines mean something only when whole


@dataclass(frozen=True, slots=True)
class Page:
    """
    One text, its blocks and its measure. text has LF as its only line end.

    starts: the offset of each block, and the end of the text.
    bodies: which blocks are more than a heading or a rule.
    """

    text: str
    kinds: Sequence[Kind]
    starts: Sequence[int]
    bodies: Sequence[bool]
    ruler: TokenRuler

    def block_at(self, offset: int) -> int:
        return bisect_right(self.starts, offset, hi=len(self.kinds)) - 1

    def end(self, block: int) -> int:
        """Return the offset behind the last visible character of *block*."""
        return text_end(self.text, self.starts[block + 1])


class Window(NamedTuple):
    """The span of a chunk, its exact number of tokens, and where the text it alone adds begins."""

    start: int
    end: int
    tokens: int
    fresh: int


@dataclass(frozen=True, slots=True)
class WindowCutter:
    """Cuts spans of *page* into windows of at most chunk_tokens that share overlap_tokens."""

    page: Page
    chunk_tokens: int
    overlap_tokens: int

    def windows(self, start: int, fresh: int, last: int) -> Iterator[Window]:
        """
        Yield the windows from offset *start* to the end of block *last*; one when all of it fits.

        fresh: where the text from *start* that no earlier window holds begins.
        Every window holds visible text that neither neighbour holds, and text that is no heading.
        """
        page, end = self.page, self.page.end(last)
        tokens = page.ruler.count_within(start, end, self.chunk_tokens)
        if tokens is None:
            body_end = self._body_end(start, last)
            fresh = next_visible(page.text, fresh)
        while tokens is None:
            window, cut = self._window(start, fresh, body_end)
            yield window
            start, fresh = self._next_start(window, cut), next_visible(page.text, cut)
            tokens = page.ruler.count_within(start, end, self.chunk_tokens)
        yield Window(start, end, tokens, fresh)

    def _body_end(self, start: int, last: int) -> int:
        for block in range(last, -1, -1):
            if self.page.end(block) <= start:
                break
            if self.page.bodies[block]:
                return self.page.end(block)
        return self.page.end(last)

    def _window(self, start: int, fresh: int, body_end: int) -> tuple[Window, int]:
        """Return the fullest window from *start* that ends well, and where it was cut."""
        page, budget = self.page, self.chunk_tokens
        while True:
            far = max(min(page.ruler.reach(start, budget), body_end - 1), fresh + 1)
            cut = self._cut(start, fresh, far)
            end = text_end(page.text, cut)
            tokens = page.ruler.count(start, end)
            if tokens <= self.chunk_tokens:
                return Window(start, end, tokens, fresh), cut
            budget -= tokens - self.chunk_tokens
            assert budget > 0, "one character has more tokens than a window"

    def _cut(self, start: int, fresh: int, far: int) -> int:
        """Return the best place behind *fresh* with nothing visible, or little, beyond *far*."""
        page = self.page
        block = page.block_at(far)
        least = max(fresh, page.ruler.reach(start, self.chunk_tokens // 2))
        for border in range(block, 0, -1):
            if page.starts[border] <= least:
                break
            if page.bodies[border - 1]:
                return page.starts[border]
        after = max(least, page.starts[block])
        found = None
        if page.kinds[block] in _LINE_KINDS:
            found = self._before_whole_lines(block, fresh, least, far)
        elif page.kinds[block] is LINES:
            found = last_line_start(page.text, after, far)
        elif page.kinds[block] is HEADING and page.starts[block] > fresh:
            found = page.starts[block]  # half a window of headings
        return (
            found
            or last_sentence_start(page.text, after, far)
            or last_word_end(page.text, after, far)
            or character_border(page.text, fresh, far)
        )

    def _before_whole_lines(self, block: int, fresh: int, least: int, far: int) -> int | None:
        """Return where to cut so that a fence, or else the next line of it or a table, is whole."""
        page = self.page
        begin = page.starts[block]
        may_part = begin > fresh and page.bodies[block - 1]
        if may_part and page.kinds[block] is VERBATIM and self._fits(begin, page.end(block)):
            return begin
        at = last_line_start(page.text, max(begin, fresh), far) or (begin if may_part else None)
        if at is None or at > least:
            return at
        line_end = page.text.find("\n", at, page.ruler.reach(at, self.chunk_tokens) + 1)
        return at if line_end >= 0 and self._fits(at, line_end) else None

    def _next_start(self, window: Window, cut: int) -> int:
        """Return where the next window starts: inside this one if an overlap makes sense there."""
        text = self.page.text
        resume = next_text(text, cut)
        for tokens in (self.overlap_tokens, self.overlap_tokens - 4):
            at = self._overlap_start(window, tokens) if tokens > 0 else None
            if at is None or not self._leaves_room(at, resume):
                return resume
            if self.page.ruler.count(at, window.end) <= self.overlap_tokens:
                return at
        return resume

    def _overlap_start(self, window: Window, tokens: int) -> int | None:
        """Return the first good start among the last *tokens* of *window*, if any."""
        page = self.page
        earliest = max(page.ruler.reach_back(window.end, tokens), window.fresh + 1)
        last = page.block_at(window.end - 1)
        for block in range(page.block_at(earliest), last + 1):
            at: int | None = page.starts[block]
            if page.starts[block] < earliest:
                at = self._start_inside(block, window, earliest)
            if at is not None and at < window.end:
                return next_text(page.text, at)
        if page.kinds[last] in _LINE_KINDS or earliest >= window.end:
            return None
        word = first_word_start(page.text, earliest, window.end)
        at = word or next_character_border(page.text, window.fresh, earliest)
        return at if at < window.end else None

    def _start_inside(self, block: int, window: Window, earliest: int) -> int | None:
        page, kind = self.page, self.page.kinds[block]
        end = min(page.end(block), window.end)
        line = first_line_start(page.text, earliest - 1, end)
        if kind in _LINE_KINDS:
            was_whole = page.starts[block] >= window.start and page.end(block) <= window.end
            return None if kind is VERBATIM and was_whole else line
        sentence = first_sentence_start(page.text, earliest, end)
        return (line or sentence) if kind is LINES else sentence

    def _leaves_room(self, at: int, resume: int) -> bool:
        """Tell whether a window from *at* still holds what comes next and should stay whole."""
        page = self.page
        visible = next_visible(page.text, resume)
        block = page.block_at(visible)
        goal = visible + 1
        if page.kinds[block] in _LINE_KINDS:
            is_whole = page.kinds[block] is VERBATIM and page.starts[block] == resume
            if is_whole and self._fits(resume, page.end(block)):
                goal = page.end(block)
            else:
                goal = page.text.find("\n", visible, page.ruler.reach(at, self.chunk_tokens) + 1)
        return goal >= 0 and self._fits(at, goal)

    def _fits(self, start: int, end: int) -> bool:
        return self.page.ruler.fits(start, end, self.chunk_tokens)
