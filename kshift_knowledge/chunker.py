"""Cuts an item's text into the chunks that are embedded and cited; knows no store or embedder."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from typing import TYPE_CHECKING

from kshift_knowledge.errors import ItemError, SettingsError
from kshift_knowledge.markdown_blocks import (
    HEADING,
    RULE,
    Heading,
    Outline,
    read_outline,
    uniform_line_ends,
)
from kshift_knowledge.records import Chunk
from kshift_knowledge.seams import next_text
from kshift_knowledge.token_ruler import TokenRuler
from kshift_knowledge.tokens import TokenCounter, token_counter
from kshift_knowledge.windows import Page, Window, WindowCutter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PIPELINE_VERSION = 2  # goes up whenever the same text would give other chunks, passages or words
MIN_CHUNK_TOKENS = 64  # below that a heading and one sentence no longer meet
MAX_CHUNK_TOKENS = 8_000  # the provider reads 8,192, and the prefix comes on top


class Chunker:
    """
    Cuts by structure: sections and paragraphs, merged up to chunk_tokens of cl100k_base.

    No chunk reaches across a heading of the highest level that the text uses more than once, so
    an edit moves no border outside its own top section. A section that is too large is cut by a
    sliding window whose neighbours share about overlap_tokens; nothing else overlaps.

    Raises SettingsError when the sizes make no sense. Source: docs/decisions.md#chunker.
    """

    def __init__(
        self,
        chunk_tokens: int = 512,
        overlap_tokens: int = 64,
        *,
        counter: TokenCounter | None = None,
    ) -> None:
        _check_sizes(chunk_tokens, overlap_tokens)
        self.chunk_tokens = chunk_tokens
        self.overlap_tokens = overlap_tokens
        self._counter = counter

    @property
    def counter(self) -> TokenCounter:
        """The counter in use, loaded at first use; its name belongs beside every stored count."""
        if self._counter is None:
            self._counter = token_counter()
        return self._counter

    def cut(self, text: str) -> list[Chunk]:
        """
        Return the chunks of *text* in order; none when it shows nothing.

        Every visible character lies in some chunk, and no chunk has blanks at its end or more
        than chunk_tokens tokens. Raises ItemError on a lone surrogate.
        """
        uniform = uniform_line_ends(text)
        outline = read_outline(uniform)
        if not outline.starts:
            return []
        page = _read_page(uniform, outline, self._measure(text))
        paths = _HeadingPaths(outline.headings)
        return [
            _chunk(text, index, window, paths.at(page.block_at(window.start)))
            for index, window in enumerate(self._windows(page, outline.headings))
        ]

    def _measure(self, text: str) -> TokenRuler:
        try:
            return TokenRuler(text, self.counter)
        except UnicodeEncodeError as exc:
            raise ItemError(
                f"The text holds a lone surrogate at character {exc.start}.",
                hint="Save the file as UTF-8.",
                code="not_unicode",
            ) from exc

    def _windows(self, page: Page, headings: Sequence[Heading]) -> Iterator[Window]:
        cutter = WindowCutter(page, self.chunk_tokens, self.overlap_tokens)
        for sections in _top_sections(page, headings):
            yield from self._pack(page, cutter, sections)

    def _pack(
        self, page: Page, cutter: WindowCutter, sections: Sequence[tuple[int, int]]
    ) -> Iterator[Window]:
        """Yield the windows of one top section: sections merged while they fit, else cut."""
        start = fresh = page.starts[sections[0][0]]
        held = -1  # the last block of the open chunk
        for first, last in sections:
            if not self._fits(page, start, last):
                fits_alone = self._fits(page, page.starts[first], last)
                if held >= 0 and (fits_alone or not self._is_small(page, start, held)):
                    yield from cutter.windows(start, fresh, held)
                    start = fresh = page.starts[first]
                if not fits_alone:
                    *full, tail = cutter.windows(start, fresh, last)
                    yield from full
                    start, fresh = tail.start, tail.fresh
            held = last
        yield from cutter.windows(start, fresh, held)

    def _fits(self, page: Page, start: int, last: int) -> bool:
        return page.ruler.fits(start, page.end(last), self.chunk_tokens)

    def _is_small(self, page: Page, start: int, last: int) -> bool:
        """Tell whether what ends with block *last* may as well begin the windows of the next."""
        return page.ruler.fits(start, page.end(last), self.chunk_tokens // 2)


def _check_sizes(chunk_tokens: int, overlap_tokens: int) -> None:
    wrong = []
    if not MIN_CHUNK_TOKENS <= chunk_tokens <= MAX_CHUNK_TOKENS:
        wrong.append(
            f"chunk_tokens is {chunk_tokens}, not between {MIN_CHUNK_TOKENS} and {MAX_CHUNK_TOKENS}"
        )
    if not 0 <= overlap_tokens <= chunk_tokens // 2:
        wrong.append(f"overlap_tokens is {overlap_tokens}, not between 0 and half of chunk_tokens")
    if wrong:
        raise SettingsError(
            f"Wrong chunk sizes: {'; '.join(wrong)}.",
            hint="Set KSHIFT_CHUNK_TOKENS and KSHIFT_CHUNK_OVERLAP_TOKENS, by default 512 and 64.",
        )


def _read_page(text: str, outline: Outline, ruler: TokenRuler) -> Page:
    starts = [next_text(text, at) if text[at] in " \t" else at for at in outline.starts]
    bodies = [kind is not HEADING and kind is not RULE for kind in outline.kinds]
    return Page(text, outline.kinds, [*starts, len(text)], bodies, ruler)


def _top_sections(page: Page, headings: Sequence[Heading]) -> Iterator[list[tuple[int, int]]]:
    """
    Yield the sections, as first and last block, of each stretch that no chunk may leave.

    Stretches part at the headings of the highest level used more than once, and behind the first
    of those at any higher one; sections at any heading. What has no body joins what follows it
    (the last one what precedes it): no chunk is headings only, unless the text is.
    """
    level = _parting_level(headings)
    borders, is_behind = [0], False
    for heading in headings:
        if heading.level == level or (is_behind and heading.level < level):
            is_behind = True
            borders.append(heading.block)
    blocks = [heading.block for heading in headings]
    for first, last in _with_bodies(page, borders, len(page.kinds)):
        inner = blocks[bisect_right(blocks, first) : bisect_right(blocks, last)]
        yield _with_bodies(page, [first, *inner], last + 1) if inner else [(first, last)]


def _parting_level(headings: Sequence[Heading]) -> int:
    """Return the highest level, thus the lowest number, that is used more than once, else 0."""
    once: set[int] = set()
    twice: set[int] = set()
    for heading in headings:
        (twice if heading.level in once else once).add(heading.level)
    return min(twice, default=0)


def _with_bodies(page: Page, borders: Sequence[int], end: int) -> list[tuple[int, int]]:
    """Turn ascending borders into stretches that each hold a body, if there is any body."""
    stretches: list[tuple[int, int]] = []
    first = before = borders[0]
    for after in (*borders[1:], end):
        if True in page.bodies[before:after]:
            stretches.append((first, after - 1))
            first = after
        before = after
    if first < end:
        begin = stretches.pop()[0] if stretches else first
        stretches.append((begin, end - 1))
    return stretches


class _HeadingPaths:
    """The titles that are open at each block, outermost first."""

    def __init__(self, headings: Sequence[Heading]) -> None:
        self._blocks = [heading.block for heading in headings]
        self._paths: list[tuple[str, ...]] = [()]
        above: list[tuple[int, tuple[str, ...]]] = []  # level and path of the open headings
        for heading in headings:
            while above and above[-1][0] >= heading.level:
                above.pop()
            path = above[-1][1] if above else ()
            path = (*path, heading.title) if heading.title else path
            above.append((heading.level, path))
            self._paths.append(path)

    def at(self, block: int) -> tuple[str, ...]:
        """Return the path at *block*, with its own title if it is a heading."""
        return self._paths[bisect_right(self._blocks, block)]


def _chunk(text: str, index: int, window: Window, heading_path: tuple[str, ...]) -> Chunk:
    content = text[window.start : window.end]
    return Chunk(
        index=index,
        content=content,
        content_hash=hashlib.sha256(content.encode()).hexdigest(),
        char_start=window.start,
        char_end=window.end,
        heading_path=heading_path,
        token_count=window.tokens,
    )
