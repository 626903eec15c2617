"""Outlines agree with CommonMark, for which markdown-it-py (a part of rich) speaks here."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from strategies_text import any_texts, documents, examples

from kshift_knowledge.markdown_blocks import Kind, read_outline, uniform_line_ends

REFERENCE = MarkdownIt("commonmark").enable("table")

# fmt: off
LINES = [
    "", "", "foo", "bar baz", "#nospace", "####### seven", "# a", "## b", "   ### c", "    # d",
    "# closed ##", "##", "===", "---", "=", "-", "***", "* * *", "- - -",
    "```", "````", "~~~", "  ```", "    ```", "  ~~~~", "```js", "``` a`b",
    "- x", "- ", "  - y", "+ p", "1. one", "14. x", "- # h", "- ```", "  # in", "   cont",
    "  text", "    code", "\tTab",
    "> q", "> ```", "> # h", "<div>", "</div>", "<!-- c", "-->", "<pre>", "</pre>",
    "<b>x</b>", "<Card>", "<script>", "</script>", "<?php", "?>",
    "| a | b |", "|---|---|", "a | b", "--|--",
]
# fmt: on


def reference_headings(text: str) -> list[tuple[int, int]]:
    """Return line and level of each heading that stands in no list and no quote."""
    tokens = REFERENCE.parse(text)
    found = [token for token in tokens if token.type == "heading_open" and token.level == 0]
    return [(token.map[0], int(token.tag[1])) for token in found if token.map]


def our_headings(text: str) -> list[tuple[int, int]]:
    line_starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    outline = read_outline(text)
    return [
        (bisect_right(line_starts, outline.starts[heading.block]) - 1, heading.level)
        for heading in outline.headings
    ]


def titles(text: str) -> list[str]:
    return [heading.title for heading in read_outline(text).headings]


@examples(600)
@given(st.lists(st.sampled_from(LINES), max_size=9).map("\n".join))
def test_headings_are_those_of_commonmark_in_any_mixture_of_lines(text: str) -> None:
    text = f"start\n\n{text}"  # a leading --- would be front matter, which CommonMark lacks

    assert our_headings(text) == reference_headings(text)


@examples(100)
@given(documents)
def test_headings_are_those_of_commonmark_in_documents(text: str) -> None:
    assert our_headings(text) == reference_headings(text)


@examples(100)
@given(any_texts)
def test_blocks_begin_at_lines_that_show_something_in_order(text: str) -> None:
    text = uniform_line_ends(text)

    starts = read_outline(text).starts

    assert starts == sorted(set(starts))
    assert all(start == 0 or text[start - 1] == "\n" for start in starts)
    assert all(text[start:].split("\n", 1)[0].strip() for start in starts)
    assert not text[: starts[0] if starts else len(text)].strip()


def test_every_trap_of_fences_and_headings_in_one_file_is_seen_through() -> None:
    text = """Intro before any heading.

# Real one

```python
# not a heading
```

~~~
# not a heading either
~~~

1. step

    ```bash
    # indented fence in a list
    ```

````md
```
# nested, not a heading
```
````

Setext main
===========

Setext
sub
---

## Closed hashes ##

#No space is no heading

    # indented code is no heading

```
unclosed fence
# still code to the end of the file
"""

    assert titles(text) == ["Real one", "Setext main", "Setext sub", "Closed hashes"]


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("# one", "one"),
        ("#\tone", "one"),
        ("###### six #", "six"),
        ("# one \\#", "one \\#"),
        ("# C#", "C#"),
        ("# # one", "# one"),
        ("##", ""),
        ("### ###", ""),
        (f"# {'x' * 300}", "x" * 200),
    ],
)
def test_a_title_is_its_text_without_hashes(line: str, title: str) -> None:
    assert titles(line) == [title]


@pytest.mark.parametrize("end", ["---", "..."])
def test_front_matter_is_one_block_without_headings(end: str) -> None:
    text = f"---\nname: Notes\n# comment\n\nlabels: []\n{end}\n# Title\n"

    outline = read_outline(text)

    assert outline.kinds == [Kind.VERBATIM, Kind.HEADING]
    assert [heading.title for heading in outline.headings] == ["Title"]


@pytest.mark.parametrize("text", ["---\nname: x\n\n# Title", "---\n\ntext\n\n---\n\n# Title"])
def test_what_only_looks_like_front_matter_hides_no_heading(text: str) -> None:
    assert titles(text) == ["Title"]


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_line_feeds_and_returns_end_a_line(sign: str) -> None:
    assert titles(f"foo{sign}# bar") == []


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_every_line_end_of_markdown_counts_and_moves_no_offset(line_end: str) -> None:
    text = line_end.join(["# one", "", "text", "", "two", "---", ""])

    outline = read_outline(uniform_line_ends(text))

    assert [text[start:][:4] for start in outline.starts] == ["# on", "text", f"two{line_end[0]}"]
    assert [heading.title for heading in outline.headings] == ["one", "two"]


def test_tables_fences_and_lists_are_blocks_of_their_kind() -> None:
    text = (
        "intro\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "- one\n- two\n  ```\n  x\n  ```\n  more\n\n"
        "> quote\nlazy\n\n```\ncode\n\ncode\n```\ntext\n***\n"
    )

    outline = read_outline(text)

    blocks = zip(outline.kinds, outline.starts, strict=True)
    assert [(kind.name, text[at:].partition("\n")[0]) for kind, at in blocks] == [
        ("PROSE", "intro"),
        ("ROWS", "| a | b |"),
        ("LINES", "- one"),
        ("VERBATIM", "  ```"),
        ("LINES", "  more"),
        ("LINES", "> quote"),
        ("VERBATIM", "```"),
        ("PROSE", "text"),
        ("RULE", "***"),
    ]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "\n".join("  " * level + "- item" for level in range(400)),
        ">" * 600 + " deep\n" * 600,
        "# " + " " * 300_000 + "x",
        "-" * 300_000 + "x",
        "- " * 150_000 + "x",
        "a | b\n|" + "-" * 300_000 + "x",
        "a | b\n|" + " " * 300_000 + "x",
        "<a " + "b=c " * 100_000,
        "<a " + " " * 300_000,
        "`" * 300_000 + "x`",
        "foo\n" + "=" * 300_000 + "x",
        "---\na: b\n" + "\n" * 300_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_no_text_makes_reading_slow_or_deep(text: str) -> None:
    assert read_outline(text).starts[0] == 0
