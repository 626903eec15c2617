"""Chunks rank by their best passages, from vectors and words, without crowding by copies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshift_knowledge.lexical import LexicalPool, Matches, lexemes
from kshift_knowledge.ranking import (
    CHUNK_COSINE,
    COPY_PENALTY,
    PASSAGE_COSINE,
    Pool,
    RankedPassage,
    order,
    score,
    shortlist,
)


def pool_of(
    cosines: list[float], passages: list[tuple[int, int, int]], items: list[int] | None = None
) -> Pool:
    """passages: owner, start and end of each. Every chunk is of an item of its own by default."""
    return Pool(
        items=np.array(items or range(len(cosines))),
        cosines=np.array(cosines, dtype=np.float64),
        owners=np.array([owner for owner, _, _ in passages], dtype=np.int64),
        spans=np.array([span for _, *span in passages], dtype=np.int64).reshape(-1, 2),
    )


def words_of(pool: Pool, texts: list[str], before: str = "") -> LexicalPool:
    """before: the name and headings that stand in front of every passage."""
    found = [lexemes(f"{before} {text}") for text in texts]
    ends = np.cumsum([len(text) for text in found])
    own_sizes = np.array([len(lexemes(text)) for text in texts])
    return LexicalPool(np.concatenate(found), ends - own_sizes, ends, pool.owners, len(pool.items))


def floats(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(values, dtype=np.float64)


def everything(pool: Pool) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.arange(len(pool.owners))


THREE = pool_of([0.5, 0.5, 0.5], [(0, 0, 9), (0, 10, 19), (1, 0, 9), (2, 0, 9)])


def chunks_in_order(ranked: list[RankedPassage]) -> list[int]:
    return list(dict.fromkeys(passage.chunk for passage in ranked))


# Scores


def test_a_chunk_ranks_where_its_best_passage_does() -> None:
    scores = score(THREE, everything(THREE), floats(0.1, 0.9, 0.5, 0.6), None)

    assert order(THREE, everything(THREE), scores) == [
        RankedPassage(0, 10, 19),
        RankedPassage(2, 0, 9),
        RankedPassage(1, 0, 9),
        RankedPassage(0, 0, 9),
    ]


def test_the_chunk_around_a_passage_counts_too() -> None:
    pool = pool_of([0.1, 0.9], [(0, 0, 9), (1, 0, 9)])

    scores = score(pool, everything(pool), floats(0.5, 0.5), None)

    assert chunks_in_order(order(pool, everything(pool), scores)) == [1, 0]


def test_a_passage_without_a_vector_is_as_near_as_its_chunk() -> None:
    pool = pool_of([0.5], [(0, 0, 9)])

    scores = score(pool, everything(pool), floats(np.nan), None)

    assert scores.tolist() == pytest.approx([(PASSAGE_COSINE + CHUNK_COSINE) * 0.5])


def test_words_of_the_passage_and_of_its_chunk_raise_a_score() -> None:
    matches = Matches(chunks=floats(0, 0, 1), passages=floats(0, 1, 0, 1))

    scores = score(THREE, everything(THREE), floats(0.5, 0.5, 0.5, 0.5), matches)

    assert scores[3] > scores[1] > scores[0] == scores[2]


# The shortlist


def test_the_shortlist_holds_the_nearest_chunks_and_those_with_the_words() -> None:
    pool = pool_of([0.9, 0.1, 0.2, 0.3], [(owner, 0, 9) for owner in range(4)])
    matches = Matches(chunks=floats(0, 1, 0, 0), passages=floats(0, 1, 0, 0))

    assert shortlist(pool, None, 2).tolist() == [0, 3]
    assert shortlist(pool, matches, 2).tolist() == [0, 1]
    assert shortlist(pool, matches, 9).tolist() == [0, 1, 2, 3]


def test_the_passages_of_some_chunks_come_in_the_order_of_the_pool() -> None:
    assert THREE.passages_of(np.array([2, 0])).tolist() == [0, 1, 3]


def test_an_empty_pool_ranks_nothing() -> None:
    pool = pool_of([], [])
    nothing = everything(pool)

    assert shortlist(pool, Matches(floats(), floats())).tolist() == []
    assert order(pool, nothing, score(pool, nothing, floats(), None)) == []


# Order


def test_ties_go_to_the_earlier_chunk_and_the_earlier_text() -> None:
    ranked = order(THREE, everything(THREE), floats(1, 1, 1, 1))

    assert [(passage.chunk, passage.char_start) for passage in ranked] == [
        (0, 0),
        (0, 10),
        (1, 0),
        (2, 0),
    ]


def test_text_that_two_chunks_of_an_item_share_is_offered_once() -> None:
    shared = [(0, 0, 9), (0, 10, 19), (1, 10, 19), (1, 20, 29)]
    one_item, two_items = pool_of([0.5, 0.5], shared, [7, 7]), pool_of([0.5, 0.5], shared, [7, 8])
    scores = floats(0.1, 0.8, 0.9, 0.2)

    assert order(one_item, everything(one_item), scores) == [
        RankedPassage(1, 10, 19),
        RankedPassage(1, 20, 29),
        RankedPassage(0, 0, 9),
    ]
    assert len(order(two_items, everything(two_items), scores)) == 4


def test_copies_do_not_crowd_out_what_is_nearly_as_good() -> None:
    copies = 6
    pool = pool_of([0.5] * (copies + 1), [(owner, 0, 9) for owner in range(copies + 1)])
    text = "Unused visits do not carry over into the next year, the parts allowance neither."
    words = words_of(pool, [text] * copies + ["A visit may be moved once."])
    scores = floats(*[0.9] * copies, 0.9 - 1.5 * COPY_PENALTY)

    plain, compared = (
        order(pool, everything(pool), scores),
        order(pool, everything(pool), scores, words),
    )

    assert chunks_in_order(plain)[-1] == copies
    assert chunks_in_order(compared)[:3] == [0, 1, copies]
    assert len(compared) == len(plain)


def test_passages_that_share_only_some_words_are_no_copies() -> None:
    pool = pool_of([0.5] * 3, [(owner, 0, 9) for owner in range(3)])
    texts = ["The minimum term is three months.", "The term was six months.", "Nothing else."]
    words = words_of(pool, texts, before="Plans and Prices of the Rider App in Detail")

    ranked = order(pool, everything(pool), floats(0.5, 0.49, 0.48), words)

    assert chunks_in_order(ranked) == [0, 1, 2]


def test_passages_without_a_word_are_no_copies_of_each_other() -> None:
    pool = pool_of([0.5] * 3, [(owner, 0, 9) for owner in range(3)])
    words = words_of(pool, ["---", "***", ""])

    ranked = order(pool, everything(pool), floats(0.3, 0.29, 0.28), words)

    assert chunks_in_order(ranked) == [0, 1, 2]


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
    st.lists(st.floats(0, 1), min_size=18, max_size=18),
    st.lists(st.sampled_from(["bike pump", "bike lane", ""]), min_size=18, max_size=18),
)
def test_every_passage_is_ranked_once_whatever_the_scores(
    sizes: list[int], values: list[float], texts: list[str]
) -> None:
    places = [(owner, 10 * n, 10 * n + 9) for owner, size in enumerate(sizes) for n in range(size)]
    pool = pool_of([0.5] * len(sizes), places)
    scores = floats(*values[: len(places)])

    for words in (None, words_of(pool, texts[: len(places)])):
        ranked = order(pool, everything(pool), scores, words)

        assert sorted((p.chunk, p.char_start, p.char_end) for p in ranked) == places
