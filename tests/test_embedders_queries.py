"""Questions are cut with care and remembered within an account, a model and a width."""

from __future__ import annotations

import unicodedata
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from embedding_server import vector_of
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scripted_embedder import WIDTH, ScriptedEmbedder

from kshift_knowledge.embedders.queries import QueryCache, QueryEmbedder
from kshift_knowledge.embedders.query_text import fit_to_model
from kshift_knowledge.errors import EmbeddingError
from kshift_knowledge.tokens import TokenCounter, token_counter


class CharCounter:
    """Counts every code point as one token."""

    name = "characters"

    def count(self, text: str) -> int:
        return len(text)

    def token_ends(self, text: str) -> NDArray[np.int64]:
        return np.arange(1, len(text) + 1)


CHARS = CharCounter()
CL100K = token_counter()


NASTY = st.text(
    st.sampled_from("ab \n\u3000\u4e2d\u0301\u200d\U0001f469\U0001f3fd\U0001f1e9\U0001f1ea"),
    max_size=300,
)


@pytest.mark.parametrize("counter", [CHARS, CL100K], ids=["characters", "cl100k"])
@given(text=NASTY | st.text(max_size=300), max_tokens=st.integers(4, 60))
@example(text="\U0001f469\u200d\U0001f469\u200d\U0001f467" * 9, max_tokens=20)
def test_a_cut_question_is_a_start_of_the_text_within_the_limit(
    counter: TokenCounter, text: str, max_tokens: int
) -> None:
    kept, was_cut = fit_to_model(text, counter, max_tokens)

    assert counter.count(kept) <= max_tokens
    assert kept in (text, text.strip()) or (was_cut and text.strip().startswith(kept))
    assert was_cut == (kept.strip() != text.strip())


def test_a_question_that_fits_is_untouched() -> None:
    assert fit_to_model("  two words \n", CHARS, 100) == ("  two words \n", False)


def test_a_cut_falls_between_words() -> None:
    text = "alpha beta gamma delta"

    assert fit_to_model(text, CHARS, 13) == ("alpha beta", True)


def test_a_cut_before_a_blank_keeps_the_whole_word() -> None:
    assert fit_to_model("alpha beta gamma", CHARS, 10) == ("alpha beta", True)


def test_leading_blanks_do_not_use_up_the_limit() -> None:
    assert fit_to_model(" " * 500 + "alpha", CHARS, 10) == ("alpha", False)


@pytest.mark.parametrize(
    "character",
    [
        "\u4e2d",
        "e\u0301",
        "\U0001f469\u200d\U0001f467",
        "\U0001f44d\U0001f3fd",
        "\U0001f1e9\U0001f1ea",
    ],
    ids=["han", "accent", "family", "skin tone", "flag"],
)
@pytest.mark.parametrize("limit", range(10, 16))
def test_text_without_blanks_is_cut_between_characters(character: str, limit: int) -> None:
    text = character * 500

    kept, was_cut = fit_to_model(text, CHARS, limit)

    assert was_cut
    assert kept == character * (limit // len(character))


def test_a_storm_of_accents_is_cut_all_the_same() -> None:
    kept, was_cut = fit_to_model("a" + "\u0301" * 5000, CHARS, 1000)

    assert was_cut
    assert 0 < len(kept) <= 1000
    assert unicodedata.name(kept[0]) == "LATIN SMALL LETTER A"


def test_200_000_characters_are_cut_to_8192_tokens_and_use_nearly_all() -> None:
    text = "The audience of our product reads on its way to work. " * 3_704

    kept, was_cut = fit_to_model(text, CL100K, 8192)

    assert was_cut
    assert text.startswith(kept)
    assert 8180 <= CL100K.count(kept) <= 8192
    assert not text[len(kept)].isalpha()


@pytest.fixture
def inner() -> ScriptedEmbedder:
    return ScriptedEmbedder()


def test_a_repeated_question_costs_nothing(inner: ScriptedEmbedder) -> None:
    queries = QueryEmbedder(inner, CHARS)

    first = queries.embed_query("who?", account_id=1)
    second = queries.embed_query("who?", account_id=1)

    assert np.array_equal(first.vector, vector_of("who?", WIDTH))
    assert np.array_equal(second.vector, first.vector)
    assert (first.tokens, second.tokens, inner.calls) == (1, 0, 1)


def test_another_account_pays_for_itself(inner: ScriptedEmbedder) -> None:
    queries = QueryEmbedder(inner, CHARS)
    queries.embed_query("who?", account_id=1)

    answer = queries.embed_query("who?", account_id=2)

    assert (answer.tokens, inner.calls) == (1, 2)


@pytest.mark.parametrize(("field", "value"), [("model", "m2"), ("dimensions", 9), ("name", "x")])
def test_another_model_width_or_embedder_never_sees_the_old_vector(
    inner: ScriptedEmbedder, field: str, value: object
) -> None:
    cache = QueryCache()
    QueryEmbedder(inner, CHARS, cache).embed_query("who?", account_id=1)
    other = ScriptedEmbedder()
    setattr(other, field, value)

    assert cache.get(1, other, "who?") is None
    assert cache.get(1, inner, "who?") is not None


def test_the_cache_forgets_what_was_used_longest_ago(inner: ScriptedEmbedder) -> None:
    cache = QueryCache(capacity=2)
    queries = QueryEmbedder(inner, CHARS, cache)
    for text in ("a", "b", "a", "c"):
        queries.embed_query(text, account_id=1)

    assert len(cache) == 2
    assert [cache.get(1, inner, text) is not None for text in "abc"] == [True, False, True]


def test_a_failed_question_is_not_remembered() -> None:
    inner = ScriptedEmbedder(ValueError("down"))
    queries = QueryEmbedder(inner, CHARS)
    with pytest.raises(ValueError, match="down"):
        queries.embed_query("who?", account_id=1)

    assert queries.embed_query("who?", account_id=1).tokens == 1


def test_a_remembered_vector_cannot_be_changed(inner: ScriptedEmbedder) -> None:
    answer = QueryEmbedder(inner, CHARS).embed_query("who?", account_id=1)

    with pytest.raises(ValueError, match="read-only"):
        answer.vector[0] = 1.0


def test_a_question_longer_than_the_model_is_cut_and_says_so(inner: ScriptedEmbedder) -> None:
    answer = QueryEmbedder(inner, CHARS).embed_query("word " * 2000, account_id=1)

    assert answer.was_cut
    assert np.array_equal(answer.vector, vector_of(("word " * 1638).strip(), WIDTH))


@pytest.mark.parametrize("text", ["", "  \n", "a\ud800"])
def test_a_question_of_no_text_is_refused_before_it_is_embedded(
    inner: ScriptedEmbedder, text: str
) -> None:
    with pytest.raises(EmbeddingError):
        QueryEmbedder(inner, CHARS).embed_query(text, account_id=1)

    assert inner.calls == 0


def test_many_threads_get_their_own_vectors(inner: ScriptedEmbedder) -> None:
    queries = QueryEmbedder(inner, CHARS, QueryCache(capacity=5))

    def matches(place: int) -> bool:
        text = f"question {place % 10}"
        answer = queries.embed_query(text, account_id=place % 3)
        return np.array_equal(answer.vector, vector_of(text, WIDTH))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(matches, range(500)))
