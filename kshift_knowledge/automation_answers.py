"""What an automation is told: its prompt with knowledge, two ways compared, and a tool's answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kshift_knowledge.answers import Asker, Question, answer
from kshift_knowledge.automations import StoredAutomation
from kshift_knowledge.concat import CONCAT
from kshift_knowledge.fences import fenced, with_knowledge
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.records import Retrieval
from kshift_knowledge.retrieval import MODES, Retrieve

NOTHING_FOUND = "The linked knowledge holds nothing that answers this."
MAX_SEARCHED_CHARS = 200_000  # as long as a query may be; the model's limit cuts again
# A prompt says how to write and is short as a rule; one that is not leaves room for the subject.
MAX_PROMPT_CHARS = 8_000

_Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Desk:
    """
    Where an automation's questions are answered. database: the reader's.

    limits: a question whose top_k and max_chars are used. preferences: the preference lines of
    the automation's project.
    """

    database: Database
    retrieve: Retrieve
    limits: Question
    asker: Asker


def automation_context(
    desk: Desk, automation: StoredAutomation, subject_text: str | None, mode: str | None
) -> dict[str, Any]:
    """
    Return the response of `POST /v1/automations/{id}/context`.

    subject_text: the draft or page that is written about, of any length. mode: None takes the
    automation's own. Without edges nothing is embedded and the prompt comes back as it is.
    """
    return _answer(
        desk,
        automation,
        search_text(automation.prompt, subject_text),
        mode or automation.retrieval,
        pins=automation.pins,
        prompt_of=lambda found: with_knowledge(
            automation.prompt, found.context, found.hits, preference=automation.preference
        ),
    )


def compare(desk: Desk, automation: StoredAutomation, subject_text: str | None) -> dict[str, Any]:
    """Return the ranked context and the legacy concatenation, and how much they share."""
    ranked = automation_context(desk, automation, subject_text, _ranking(automation))
    concat = automation_context(desk, automation, subject_text, CONCAT)
    return {"ranked": ranked, "concat": concat, "overlap": overlap(ranked["hits"], concat["hits"])}


def tool_answer(desk: Desk, automation: StoredAutomation, query: str) -> dict[str, Any]:
    """
    Return the response of the tool `retrieve_knowledge`.

    Pins are for the prompt: a tool that is called again and again would spend half of each
    budget on them. A concatenation answers no question, so such an automation's tool ranks.
    """
    response = _answer(
        desk,
        automation,
        query,
        _ranking(automation),
        pins=(),
        prompt_of=lambda found: fenced(found.context, found.hits) if found.hits else NOTHING_FOUND,
    )
    return {
        "receipt_id": response["receipt_id"],
        "text": response["prompt"],
        "citations": response["citations"],
        "usage": response["usage"],
    }


def search_text(prompt: str, subject_text: str | None) -> str:
    """
    Return what is searched for an automation: its prompt, then what is written about.

    The embedder cuts the end to its model's limit, so a long prompt is shortened first and the
    beginning of the subject is always in. Cuts fall between words.
    """
    if subject_text is None or not subject_text.strip():
        return _beginning(prompt, MAX_SEARCHED_CHARS)
    short = _beginning(prompt, MAX_PROMPT_CHARS)
    room = MAX_SEARCHED_CHARS - len(short) - len("\n\n")
    return f"{short}\n\n{_beginning(subject_text, room)}"


def overlap(
    ranked: Sequence[dict[str, Any]], concat: Sequence[dict[str, Any]]
) -> dict[str, int | float]:
    """
    Say what two lists of hits share: items, characters of those items, and the share of each.

    Characters are counted once, however many hits hold them; shares are 0 where there is nothing.
    """
    first, second = _packed_ranges(ranked), _packed_ranges(concat)
    shared = sum(_shared_chars(first[item], second[item]) for item in first.keys() & second.keys())
    sizes = [
        sum(end - start for spans in one.values() for start, end in spans)
        for one in (first, second)
    ]
    return {
        "items": len(first.keys() & second.keys()),
        "chars": shared,
        "share_of_ranked": round(shared / sizes[0], 4) if sizes[0] else 0.0,
        "share_of_concat": round(shared / sizes[1], 4) if sizes[1] else 0.0,
    }


def _ranking(automation: StoredAutomation) -> str:
    """The mode that ranks for it: its own, the default where its own does not rank."""
    return MODES[0] if automation.retrieval == CONCAT else automation.retrieval


def _answer(
    desk: Desk,
    automation: StoredAutomation,
    query: str,
    mode: str,
    *,
    pins: tuple[str, ...],
    prompt_of: Callable[[Retrieval], str],
) -> dict[str, Any]:
    return answer(
        desk.database,
        desk.retrieve,
        replace(desk.limits, query=query, mode=mode, pins=pins),
        automation.scope,
        replace(desk.asker, automation_id=automation.automation_id),
        prompt_of=prompt_of,
    )


def _beginning(text: str, max_chars: int) -> str:
    """The text, or as many whole words of its beginning as fit; a lone endless word is cut."""
    if len(text) <= max_chars:
        return text
    cut = text[: max_chars + 1]
    end = max(cut.rfind(" "), cut.rfind("\n"), cut.rfind("\t"))
    return cut[: end if end > 0 else max_chars].rstrip()


def _packed_ranges(hits: Iterable[dict[str, Any]]) -> dict[int, list[_Range]]:
    """By item: the ranges that were packed, in order and without overlap."""
    found: dict[int, list[_Range]] = {}
    for hit in hits:
        spans = found.setdefault(hit["knowledge_database_item_id"], [])
        spans += [(start, end) for start, end in hit["excerpts"]]
    return {item: _merged(spans) for item, spans in found.items()}


def _merged(spans: Iterable[_Range]) -> list[_Range]:
    merged: list[_Range] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _shared_chars(first: Sequence[_Range], second: Sequence[_Range]) -> int:
    return sum(
        max(0, min(end, other_end) - max(start, other_start))
        for start, end in first
        for other_start, other_end in second
    )
