"""Words are compared as people read them, and weigh by how rare they are in the pool asked."""

from __future__ import annotations

from collections import Counter
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshift_knowledge.lexical import (
    K1,
    MAX_QUERY_LEXEMES,
    B,
    LexicalPool,
    Matches,
    lexemes,
    match,
    words,
)


def pool_of(*chunks: list[str]) -> LexicalPool:
    """A pool of chunks, each a list of the texts of its passages."""
    texts = [lexemes(text) for chunk in chunks for text in chunk]
    return LexicalPool(
        lexemes=np.concatenate([*texts, np.array([], dtype=np.uint32)]),
        own_starts=np.cumsum([0, *map(len, texts)])[:-1],
        ends=np.cumsum([len(text) for text in texts], dtype=np.int64),
        owners=np.repeat(np.arange(len(chunks)), [len(chunk) for chunk in chunks]),
        chunk_count=len(chunks),
    )


def ask(question: str, *chunks: list[str]) -> Matches:
    return match(pool_of(*chunks), lexemes(question))


# Words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Prices of BIKES, studies and glasses", ["price", "bike", "study", "glasse"]),
        ("It's 30–60 link_shared U.S. #00cfff", ["30", "60", "link", "shared", "u", "00cfff"]),
        ("Café CAFE\u0301 naïve ﬁne Straße", ["cafe", "cafe", "naive", "fine", "strasse"]),
        ("東京の天気は？", ["東京", "京の", "の天", "天気", "気は"]),
        ("ﾃｽﾄ 水 Q10です", ["テス", "スト", "水", "q10", "です"]),
        ("한국어는", ["한국", "국어", "어는"]),
        ("كتابٌ می‌روم كردن ٣٤ ۳۴", ["کتاب", "می", "روم", "کردن", "34", "34"]),
        ("हिन्दी में।", ["हिन्दी", "में"]),
        ("ภาษา", ["ภา", "าษ", "ษา"]),
        ("👍🏽 — … |---|", []),
        ("", []),
    ],
)
def test_words_are_folded_as_their_language_needs(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(st.text(st.characters(max_codepoint=127)))
def test_a_letter_beyond_ascii_changes_no_other_word(text: str) -> None:
    assert words(f"{text} é") == [*words(text), "e"]


@given(st.text())
def test_every_text_has_as_many_lexemes_as_words(text: str) -> None:
    assert len(lexemes(text)) == len(words(text))


# Matches


def test_a_rare_word_weighs_more_than_a_common_one() -> None:
    chunks = [["bike shop", "pump"], ["bike lane"], ["bike rack"]]

    matches = ask("bike pump", *chunks)

    assert matches.chunks[0] > matches.chunks[1]
    assert matches.passages[1] > matches.passages[0] > 0


def test_words_that_the_pool_does_not_hold_lower_every_score() -> None:
    chunks = [["bike shop"], ["pump"]]

    plain, diluted = ask("bike", *chunks), ask("bike espresso machine", *chunks)

    assert 0 < diluted.chunks[0] < plain.chunks[0]


def test_one_is_what_a_text_of_average_length_with_each_word_once_has() -> None:
    matches = ask("bike pump", ["bike pump"], ["lane rack"])

    assert matches.chunks.tolist() == pytest.approx([1, 0])
    assert matches.passages.tolist() == pytest.approx([1, 0])


def test_repeating_a_word_in_the_question_changes_nothing() -> None:
    chunks = [["bike pump"], ["lane"]]

    once, twice = ask("bike lane", *chunks), ask("bike bike bikes lane", *chunks)

    assert np.array_equal(once.chunks, twice.chunks)


def test_a_long_draft_is_searched_by_its_telling_words() -> None:
    filler = " ".join(f"word{number}" for number in range(5 * MAX_QUERY_LEXEMES))
    chunks = [["valve core torque"], [filler], [filler]]

    matches = ask(f"{filler} torque torque", *chunks)

    assert matches.passages[0] > 0


@pytest.mark.parametrize("question", ["", "the of", "espresso"])
def test_a_question_without_known_words_matches_nothing(question: str) -> None:
    matches = ask(question, ["bike"], ["", "pump"])

    assert not matches.chunks.any()
    assert not matches.passages.any()


def test_an_empty_pool_has_no_matches() -> None:
    matches = ask("bike")

    assert (len(matches.chunks), len(matches.passages)) == (0, 0)


pools = st.lists(
    st.lists(st.lists(st.sampled_from("abcdefg"), max_size=8), min_size=1, max_size=3),
    min_size=1,
    max_size=5,
)


@given(pools, st.lists(st.sampled_from("bcdefgh"), min_size=1, max_size=6))
def test_scores_are_those_of_bm25_by_its_definition(
    chunks: list[list[list[str]]], question: list[str]
) -> None:
    texts = [[" ".join(f"{word}{word}" for word in text) for text in chunk] for chunk in chunks]
    asked = " ".join(f"{word}{word}" for word in question)

    matches = ask(asked, *texts)

    whole = [[word for text in chunk for word in text] for chunk in chunks]
    weights = {word: idf(sum(word in text for text in whole), len(whole)) for word in set(question)}
    passages = [text for chunk in chunks for text in chunk]
    assert matches.chunks.tolist() == pytest.approx(by_definition(whole, weights))
    assert matches.passages.tolist() == pytest.approx(by_definition(passages, weights))


def idf(holders: int, chunks: int) -> float:
    return log(1 + (chunks - holders + 0.5) / (holders + 0.5))


def by_definition(texts: list[list[str]], weights: dict[str, float]) -> list[float]:
    average = sum(map(len, texts)) / len(texts) or 1
    return [
        sum(
            weight * count * (K1 + 1) / (count + K1 * (1 - B + B * len(text) / average))
            for word, weight in weights.items()
            if (count := Counter(text)[word])
        )
        / sum(weights.values())
        for text in texts
    ]
