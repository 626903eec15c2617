"""Preference lines: known ones are not searched, and nothing else is left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshift_knowledge.preferences import PRESETS, without_preferences

BRAND = "Prefer brand voice and audience objections"


@pytest.mark.parametrize(
    ("query", "searched"),
    [
        (f"Write a tip.\n{BRAND}", "Write a tip."),
        (f"{BRAND}\nWrite a tip.", "Write a tip."),
        (f"One.\n  {BRAND}\t\r\nTwo.", "One.\nTwo."),
        ("Prefer documented behaviour over marketing copy\nWhich?", "Which?"),
        ("Mine alone\nWhich?", "Which?"),
    ],
)
def test_a_line_that_is_a_known_preference_is_not_searched(query: str, searched: str) -> None:
    assert without_preferences(query, ["Mine alone"])[0] == searched


@pytest.mark.parametrize(
    "query",
    [
        f"Write a tip. {BRAND}",
        f"{BRAND}!",
        BRAND.lower(),
        "Prefer short words\nWrite a tip.",
        "",
        f"{BRAND}\n\n{BRAND}",
        BRAND,
    ],
)
def test_anything_else_is_searched_whole(query: str) -> None:
    assert without_preferences(query) == (query, ())


def test_what_was_left_out_is_told() -> None:
    assert without_preferences(f" {BRAND}\nA\nMine", ["Mine"]) == ("A", (BRAND, "Mine"))


@given(st.lists(st.sampled_from(["a", " b ", "", *PRESETS.values()])))
def test_what_is_left_is_the_other_lines_in_their_order(lines: list[str]) -> None:
    query = "\n".join(lines)
    searched, left_out = without_preferences(query)

    if left_out:
        assert searched.split("\n") == [line for line in lines if line not in PRESETS.values()]
        assert len(left_out) + len(searched.split("\n")) == len(lines)
    else:
        assert searched == query
