"""Texts as people and scrapers write them, and worse ones, for property tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# fmt: off
WORDS = [
    "account", "audience", "brand", "budget", "campaign", "channel", "chunk", "customer",
    "deadline", "evidence", "feature", "headline", "insight", "journey", "keyword", "launch",
    "market", "message", "objection", "passage", "pricing", "project", "quarter", "question",
    "retention", "review", "segment", "setting", "signal", "story", "template", "tone", "trial",
]
# fmt: on

# Each of these has broken some tokenizer, Markdown reader or splitter.
NASTY_PIECES = (
    "<|endoftext|>",
    "\u2028",
    "\u2029",
    "\x85",
    "\x0b",
    "\x0c",
    "\x00",
    "\x1c",
    "\ufeff",
    "\u200b",
    "\u00a0",
    "\u3000",
    "\t",
    "\r",
    "\r\n",
    "\n",
    "\n\n",
    " ",
    "    ",
    "👨‍👩‍👧‍👦",
    "🇯🇵🇩🇪🇫🇷",
    "👍🏽",
    "é",
    "e\u0301\u0323\u0300",
    "ก็",
    "한국어",
    "日本語の文章です。",
    "改行なし、句点なし",
    "مرحبا بالعالم",
    "١٢٣٤٥٦٧",
    "𝔘𝔫𝔦",
    "a" * 300,
    "^" * 300,
    "=" * 70,
    "-" * 5,
    "```",
    "~~~~",
    "# ",
    "####### ",
    "> ",
    "- ",
    "1. ",
    "| a | b |",
    "|---|---|",
    "<div>",
    "<!--",
    "-->",
    "---",
    "...",
    "word",
    "Sentence one. ",
    "don't",
    "foo_bar(baz);",
)

words = st.sampled_from(WORDS)


def examples(number: int) -> settings:
    """Try *number* texts, however slow the machine is today."""
    return settings(
        max_examples=number, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


def phrases(least: int, most: int) -> st.SearchStrategy[str]:
    return st.lists(words, min_size=least, max_size=most).map(" ".join)


sentences = phrases(3, 14).map(lambda text: f"{text.capitalize()}.")
paragraphs = st.lists(sentences, min_size=1, max_size=9).map(" ".join)
wrapped_paragraphs = st.lists(sentences, min_size=1, max_size=9).map("\n".join)
lists = st.lists(sentences, min_size=1, max_size=9).map(lambda items: "- " + "\n- ".join(items))
fences = st.lists(phrases(1, 8), min_size=1, max_size=30).map(
    lambda lines: "\n".join(["```python", "# not a heading", *lines, "```"])
)
tables = st.lists(phrases(1, 6), min_size=1, max_size=30).map(
    lambda cells: "\n".join(["| name | note |", "| --- | --- |", *(f"| x | {c} |" for c in cells)])
)
quotes = st.lists(sentences, min_size=1, max_size=5).map(lambda lines: "> " + "\n> ".join(lines))
blocks = st.one_of(paragraphs, paragraphs, wrapped_paragraphs, lists, fences, tables, quotes)


def headings(first: int = 1, last: int = 6) -> st.SearchStrategy[str]:
    return st.builds(
        lambda level, title: f"{'#' * level} {title}", st.integers(first, last), phrases(1, 4)
    )


documents = st.lists(st.one_of(headings(), blocks, blocks), max_size=25).map("\n\n".join)
nasty_texts = st.lists(
    st.one_of(st.sampled_from(NASTY_PIECES), words, st.text(max_size=8)), max_size=120
).map("".join)
front_matters = st.just("---\nname: Notes\n# a comment, not a heading\nlabels: [a, b]\n---\n")
any_texts = st.one_of(
    documents, nasty_texts, st.tuples(front_matters, documents, nasty_texts).map("".join)
).map(lambda text: text.encode("utf-8", "ignore").decode())
