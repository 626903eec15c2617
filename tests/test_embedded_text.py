"""What is embedded of a chunk: title and headings in front, bounded, and hashed as it is."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_text import any_texts, examples, phrases

from kshift_knowledge.chunker import Chunker
from kshift_knowledge.embedded_text import embed_hash, embedded_text, prefix_tokens
from kshift_knowledge.tokens import ApproximateCounter, TokenCounter, token_counter

counter = token_counter()
CHUNK = Chunker().cut("# Guide\n\nIntro.\n\n## Voice\n\n### Tone\n\nWarm.\n\n## End\n\nBye.")[1]

titles = st.none() | phrases(1, 4) | phrases(100, 300) | st.text(max_size=40)
paths = st.lists(phrases(1, 4) | phrases(30, 60) | st.text(max_size=40), max_size=6).map(tuple)


def without_surrogates(text: str) -> str:
    return text.encode("utf-8", "ignore").decode()


def test_title_and_headings_stand_in_front_of_the_content() -> None:
    assert embedded_text(CHUNK, "Brand", counter) == (
        "Brand\nGuide\nVoice\n\n## Voice\n\n### Tone\n\nWarm."
    )


def test_without_title_and_headings_the_content_stands_alone() -> None:
    (chunk,) = Chunker().cut("Only text.")

    assert embedded_text(chunk, None, counter) == "Only text."
    assert prefix_tokens(chunk, None, counter) == 0


def test_the_outermost_headings_give_way_first() -> None:
    path = tuple(f"{level} {'word ' * 50}".strip() for level in "abcde")

    text = embedded_text(replace(CHUNK, heading_path=path), "Brand", counter)

    assert text.startswith(f"Brand\n{path[3]}\n{path[4]}\n\n")


@pytest.mark.parametrize("using", [counter, ApproximateCounter()], ids=lambda using: using.name)
@examples(100)
@given(text=any_texts, title=titles, path=paths)
def test_the_prefix_adds_at_most_128_tokens_and_exactly_what_it_says(
    using: TokenCounter, text: str, title: str | None, path: tuple[str, ...]
) -> None:
    title = title and without_surrogates(title)
    path = tuple(map(without_surrogates, path))

    for chunk in Chunker(64, 16, counter=using).cut(text):
        placed = replace(chunk, heading_path=path)
        added = prefix_tokens(placed, title, using)
        assert added <= 128
        assert using.count(embedded_text(placed, title, using)) == chunk.token_count + added


def test_the_hash_is_the_sha256_of_the_whole_embedded_text() -> None:
    text = embedded_text(CHUNK, "Brand", counter)

    assert embed_hash(text) == hashlib.sha256(text.encode()).digest()
    assert embed_hash(text) != embed_hash(embedded_text(CHUNK, "Other", counter))
