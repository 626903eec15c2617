"""Headers, prompt text and citations: what a reader of the context can rely on."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranked_chunks import chunk_of, hit_of

from kshift_knowledge.citations import citation_payload, format_for_prompt, header, prompt_block

HEADER = re.compile(r"\[[^\n]*#\d+\]")


def test_the_context_is_headers_and_contents_joined_by_one_blank_line() -> None:
    hits = [
        hit_of(chunk_of("Fear of theft.\n\nAnd of rain.", name="Audience", index=2)),
        hit_of(chunk_of("Bold, short.", name="Brand Styles", index=0)),
    ]

    assert format_for_prompt(hits) == (
        "[Audience#2]\nFear of theft.\n\nAnd of rain.\n\n[Brand Styles#0]\nBold, short."
    )
    assert format_for_prompt([]) == ""


def test_a_name_may_hold_anything_since_the_index_follows_the_last_hash() -> None:
    assert header(chunk_of("x", name="C# [draft] #9", index=3)) == "[C# [draft] #9#3]"


@pytest.mark.parametrize(
    ("content", "escaped"),
    [
        ("[Audience#2]", "\\[Audience#2]"),
        ("see\n[A#0] and more", "see\n\\[A#0] and more"),
        ("  \t[A#1]", "\\  \t[A#1]"),
        ("\\[A#1]", "\\\\[A#1]"),
        ("[A [b] #7#12]", "\\[A [b] #7#12]"),
        ("[A#1]\n[B#2]", "\\[A#1]\n\\[B#2]"),
        ("in a line [A#1]", "in a line [A#1]"),
        ("[no number#]", "[no number#]"),
        ("[link](#1)", "[link](#1)"),
        ("[A\n#1]", "[A\n#1]"),
    ],
)
def test_a_content_line_that_looks_like_a_header_gets_a_backslash(
    content: str, escaped: str
) -> None:
    assert prompt_block(chunk_of(content, name="Note"), content) == f"[Note#0]\n{escaped}"


@given(st.lists(st.text("[]#01\\ \nA", max_size=30), max_size=4))
def test_no_content_can_add_a_header_or_be_read_back_wrongly(contents: list[str]) -> None:
    blocks = [prompt_block(chunk_of(content or "-"), content) for content in contents]

    for content, block in zip(contents, blocks, strict=True):
        first, *lines = block.split("\n")
        assert HEADER.fullmatch(first)
        assert not any(HEADER.match(line.lstrip()) for line in lines)
        # Taking one backslash from lines that look like an escaped header gives the text back.
        restored = [re.sub(r"^\\(?=\s*\\*\[[^\n]*#\d+\])", "", line) for line in lines]
        assert "\n".join(restored) == content


def test_citations_name_the_file_and_the_page_of_each_hit_in_order() -> None:
    hits = [
        hit_of(chunk_of("a", name="Audience", index=2, source_url="https://example.com/a")),
        hit_of(chunk_of("b", name="Brand Styles", index=0)),
    ]

    assert citation_payload(hits) == [
        {
            "project_file_id": 5,
            "name": "Audience",
            "file": "note.md",
            "chunk_index": 2,
            "source_url": "https://example.com/a",
            "path": "/accounts/1/projects/2/files/5?chunk=2",
        },
        {
            "project_file_id": 5,
            "name": "Brand Styles",
            "file": "note.md",
            "chunk_index": 0,
            "source_url": None,
            "path": "/accounts/1/projects/2/files/5?chunk=0",
        },
    ]
    assert citation_payload([]) == []
