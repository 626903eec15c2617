"""Cuts a list of texts into requests that a provider accepts; knows only their token counts."""

from __future__ import annotations

from collections.abc import Sequence

from kshift_knowledge.errors import InputTooLong

# https://platform.openai.com/docs/api-reference/embeddings/create, "input"
MAX_INPUTS = 2048
MAX_REQUEST_TOKENS = 300_000
MAX_INPUT_TOKENS = 8192


def plan_batches(
    token_counts: Sequence[int],
    *,
    max_inputs: int = MAX_INPUTS,
    max_tokens: int = MAX_REQUEST_TOKENS,
    max_input_tokens: int = MAX_INPUT_TOKENS,
) -> list[range]:
    """
    Return the requests as ranges of positions, in order, each as full as the limits allow.

    token_counts: one count above zero per text, all texts of one account (requests never mix
    accounts, so plan each account by itself).

    Raises InputTooLong when one text alone is above *max_input_tokens* or *max_tokens*, and
    ValueError for a blank text (count 0).
    """
    longest = min(max_input_tokens, max_tokens)
    batches: list[range] = []
    start, tokens = 0, 0
    for place, count in enumerate(token_counts):
        if count <= 0:
            raise ValueError(f"Text {place} has no tokens; blank texts are never sent.")
        if count > longest:
            raise InputTooLong(
                f"Text {place + 1} of {len(token_counts)} has {count} tokens, but the model reads "
                f"at most {longest}.",
                hint="Lower KSHIFT_CHUNK_TOKENS.",
            )
        if place - start == max_inputs or tokens + count > max_tokens:
            batches.append(range(start, place))
            start, tokens = place, 0
        tokens += count
    if token_counts:
        batches.append(range(start, len(token_counts)))
    return batches
