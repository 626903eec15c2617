"""Presets and preference lines: what they say by default, and a query without them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# What a preset asks for when its automation says nothing; any other word is a preset without.
PRESETS: Mapping[str, str] = {
    "tip": "Prefer brand voice and audience objections",
    "ads": "Prefer brand voice and audience objections",
    "app_review": "Prefer documented behaviour over marketing copy",
}


def without_preferences(query: str, known: Iterable[str] = ()) -> tuple[str, tuple[str, ...]]:
    """
    Return what of *query* is searched, and the preference lines that were left out of it.

    known: the preference lines of the project's automations; those of the presets are known
    anyway. A line counts when it says that and nothing else, blanks around it aside: such a line
    is the same for every text and draws every search to the same chunks (hit@6 0.73 with it, 0.85
    without: docs/decisions.md#preference-lines). Where nothing else stands, all of it is searched.
    """
    lines_known = {*PRESETS.values(), *known}
    lines = query.split("\n")
    kept = [line for line in lines if line.strip() not in lines_known]
    if len(kept) == len(lines) or not any(line.strip() for line in kept):
        return query, ()
    left_out = tuple(line.strip() for line in lines if line.strip() in lines_known)
    return "\n".join(kept), left_out
