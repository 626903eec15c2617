"""Requests are cut by count and by tokens, as the provider's limits ask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshift_knowledge.embedders.batches import plan_batches
from kshift_knowledge.errors import InputTooLong


@given(
    st.lists(st.integers(1, 50), max_size=200),
    st.integers(1, 20),
    st.integers(50, 300),
)
def test_every_text_is_sent_once_in_order_and_no_request_passes_a_limit(
    counts: list[int], max_inputs: int, max_tokens: int
) -> None:
    batches = plan_batches(counts, max_inputs=max_inputs, max_tokens=max_tokens)

    assert [place for batch in batches for place in batch] == list(range(len(counts)))
    assert all(0 < len(batch) <= max_inputs for batch in batches)
    assert all(sum(counts[place] for place in batch) <= max_tokens for batch in batches)


@given(st.lists(st.integers(1, 50), max_size=200), st.integers(1, 20), st.integers(50, 300))
def test_no_request_could_have_taken_the_next_text(
    counts: list[int], max_inputs: int, max_tokens: int
) -> None:
    batches = plan_batches(counts, max_inputs=max_inputs, max_tokens=max_tokens)

    for batch in batches[:-1]:
        tokens = sum(counts[place] for place in batch)
        assert len(batch) == max_inputs or tokens + counts[batch.stop] > max_tokens


def test_64_chunks_of_512_tokens_are_one_request() -> None:
    assert plan_batches([512] * 64) == [range(64)]


def test_2048_chunks_of_512_tokens_are_split_by_tokens() -> None:
    batches = plan_batches([512] * 2048)

    assert [len(batch) for batch in batches] == [585, 585, 585, 293]


def test_a_text_above_the_model_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(InputTooLong, match="Text 2 of 2 has 8193 tokens"):
        plan_batches([1, 8193])


def test_a_blank_text_is_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="Text 1 has no tokens"):
        plan_batches([1, 0])
