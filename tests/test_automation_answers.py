"""What is searched for an automation, and how two lists of hits are compared."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshift_knowledge.automation_answers import (
    MAX_PROMPT_CHARS,
    MAX_SEARCHED_CHARS,
    overlap,
    search_text,
)


@pytest.mark.parametrize("subject", [None, "", " \n\t"])
def test_without_a_subject_the_prompt_is_searched(subject: str | None) -> None:
    assert search_text("Write a tip.", subject) == "Write a tip."


def test_prompt_and_subject_are_searched_together() -> None:
    assert search_text("Write a tip.", "A draft.") == "Write a tip.\n\nA draft."


def test_a_long_subject_keeps_its_beginning_and_whole_words() -> None:
    text = search_text("Write.", "wörter " * 60_000)

    assert len(text) <= MAX_SEARCHED_CHARS
    assert text.startswith("Write.\n\nwörter wörter ")
    assert set(text.split("\n\n")[1].split(" ")) == {"wörter"}


def test_a_long_prompt_leaves_room_for_the_subject() -> None:
    text = search_text("rule " * 20_000, "The subject.")

    prompt, _, subject = text.partition("\n\n")
    assert len(prompt) <= MAX_PROMPT_CHARS
    assert subject == "The subject."


def test_a_text_without_blanks_is_cut_where_it_must_be() -> None:
    assert len(search_text("x" * 300_000, None)) == MAX_SEARCHED_CHARS


def _hits(*spans: tuple[int, int, int]) -> list[dict[str, Any]]:
    return [
        {"knowledge_database_item_id": item, "excerpts": [[start, end]]}
        for item, start, end in spans
    ]


def test_the_overlap_counts_shared_characters_once() -> None:
    ranked = _hits((1, 0, 100), (1, 80, 120), (2, 0, 80))
    concat = _hits((1, 60, 260), (3, 0, 50))

    assert overlap(ranked, concat) == {
        "items": 1,
        "chars": 60,
        "share_of_ranked": 0.3,
        "share_of_concat": 0.24,
    }


def test_nothing_overlaps_nothing() -> None:
    zero = {"items": 0, "chars": 0, "share_of_ranked": 0.0, "share_of_concat": 0.0}

    assert overlap([], []) == overlap(_hits((1, 0, 9)), []) == zero


_SPANS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 50), st.integers(0, 50)).map(
        lambda span: (span[0], min(span[1:]), max(span[1:]))
    ),
    max_size=6,
)


@given(_SPANS, _SPANS)
def test_the_overlap_is_what_counting_characters_one_by_one_gives(
    first: list[tuple[int, int, int]], second: list[tuple[int, int, int]]
) -> None:
    def characters(spans: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
        return {(item, place) for item, start, end in spans for place in range(start, end)}

    found = overlap(_hits(*first), _hits(*second))

    assert found["chars"] == len(characters(first) & characters(second))
    assert overlap(_hits(*second), _hits(*first))["chars"] == found["chars"]
    assert found["items"] == len({item for item, *_ in first} & {item for item, *_ in second})
