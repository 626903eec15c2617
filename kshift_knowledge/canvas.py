"""A project's canvas, `automations.yaml`: read into automations, its mistakes named; no I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from kshift_knowledge.errors import KshiftError
from kshift_knowledge.front_matter import name_of
from kshift_knowledge.item_keys import MAX_SLUG_LENGTH, is_slug
from kshift_knowledge.preferences import PRESETS

MAX_AUTOMATIONS = 1000
MAX_PROMPT_CHARS = 100_000
MAX_LINE_CHARS = 1000
MAX_KNOWLEDGE = 100  # as many databases as a request may name
MAX_PINS = 50  # as many pins as a request may name
NO_PRESET = "custom"

_EXAMPLE = "docs/automations.md has an example."
_NULL = "tag:yaml.org,2002:null"


class CanvasRefused(KshiftError):
    """Nothing of the file can be used; the automations stay as they were loaded before."""

    code = "automations_unreadable"


@dataclass(frozen=True, slots=True)
class Automation:
    """
    One automation as the canvas says it.

    knowledge: slugs of knowledge databases as written; each that exists is an edge.
    preference: the line that says what to prefer; None when there is none.
    """

    slug: str
    name: str
    preset: str
    prompt: str
    preference: str | None
    knowledge: tuple[str, ...]
    pins: tuple[str, ...]
    retrieval: str


@dataclass(frozen=True, slots=True)
class CanvasProblem:
    """Something wrong in a canvas. automation: its slug, None when the whole file is meant."""

    automation: str | None
    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Canvas:
    """
    What a file says.

    kept: slugs of entries that cannot be used; what they were before stays.
    is_complete: False when an entry does not even say its slug, so that an automation that seems
    to be missing may be that one, and none is removed.
    """

    automations: tuple[Automation, ...] = ()
    problems: tuple[CanvasProblem, ...] = ()
    kept: frozenset[str] = frozenset()
    is_complete: bool = True


def parse_canvas(text: str) -> Canvas:
    """
    Read `automations: [{slug, name, preset, prompt, preference, knowledge, pins, retrieval}]`.

    Each entry stands for itself: one that is wrong is a problem and stops no other. An empty file
    is a canvas without automations. Raises CanvasRefused.
    """
    entries = _entries(text)
    slugs = [_slug_of(entry) for entry in entries]
    doubled = {slug for slug, count in Counter(slugs).items() if slug and count > 1}
    automations: list[Automation] = []
    problems: list[CanvasProblem] = []
    for number, (slug, entry) in enumerate(zip(slugs, entries, strict=True), start=1):
        if slug in doubled:
            continue
        found, wrong = _read_entry(entry, slug or f"number {number}")
        if found is not None:
            automations.append(found)
        problems += [CanvasProblem(slug, *rest) for rest in wrong]
    problems += [
        CanvasProblem(
            slug,
            "automation_doubled",
            f"Two automations have the slug {slug!r}; neither is loaded.",
            "Give each its own slug.",
        )
        for slug in sorted(doubled)
    ]
    used = {automation.slug for automation in automations}
    return Canvas(
        tuple(automations),
        tuple(problems),
        frozenset(slug for slug in slugs if slug and slug not in used),
        is_complete=None not in slugs,
    )


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML in which a plain scalar is text or null: `NO`, 1.10 and dates stay as written."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag == _NULL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _entries(text: str) -> list[Any]:
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except yaml.MarkedYAMLError as exc:
        where = f" at line {exc.problem_mark.line + 1}" if exc.problem_mark else ""
        raise CanvasRefused(
            f"automations.yaml is not YAML{where}: {exc.problem or 'it breaks off'}.",
            hint="Correct it there; until then the automations stay as they were.",
            code="automations_not_yaml",
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise CanvasRefused(
            "automations.yaml is not YAML.",
            hint="Correct it; until then the automations stay as they were.",
            code="automations_not_yaml",
        ) from None
    if document is None:
        return []
    entries = document.get("automations") if isinstance(document, Mapping) else None
    if entries is None and isinstance(document, Mapping) and "automations" in document:
        return []
    if not isinstance(entries, list) or len(entries) > MAX_AUTOMATIONS:
        raise CanvasRefused(
            "automations.yaml does not hold a list `automations:` of at most "
            f"{MAX_AUTOMATIONS:,} entries.",
            hint=_EXAMPLE,
            code="automations_wrong_shape",
        )
    return entries


def _slug_of(entry: Any) -> str | None:
    slug = entry.get("slug") if isinstance(entry, Mapping) else None
    return slug if isinstance(slug, str) and is_slug(slug) else None


def _clean(text: str) -> str:
    if re.search(r"[\0\ud800-\udfff]", text):
        raise ValueError("must hold no NUL and no lone surrogate")
    return text


def _not_blank(text: str) -> str:
    if not any(char.isprintable() and not char.isspace() for char in text):
        raise ValueError("must hold a visible character")
    return text


def _slug(text: str) -> str:
    if not is_slug(text):
        raise ValueError("must be letters and digits joined by dots, hyphens or underscores")
    return text


def _one_line(text: str) -> str:
    if "\n" in text.strip():
        raise ValueError("must be one line")
    return text.strip()


def _as_list(value: Any) -> Any:
    """Nothing is an empty list, one text a list of one."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


_Text = Annotated[str, AfterValidator(_clean)]
_Line = Annotated[_Text, AfterValidator(_one_line), Field(max_length=MAX_LINE_CHARS)]
_Slug = Annotated[str, AfterValidator(_slug), Field(max_length=MAX_SLUG_LENGTH)]
_Name = Annotated[_Text, AfterValidator(_not_blank), Field(max_length=MAX_LINE_CHARS)]


class _Entry(BaseModel):
    """An entry's fields and bounds; a null counts as left out."""

    model_config = ConfigDict(strict=True, extra="ignore")

    slug: _Slug
    name: _Line | None = None
    preset: _Slug | None = None
    prompt: Annotated[_Text, AfterValidator(_not_blank), Field(max_length=MAX_PROMPT_CHARS)]
    preference: _Line | None = None
    knowledge: Annotated[
        list[_Slug], BeforeValidator(_as_list), Field(max_length=MAX_KNOWLEDGE)
    ] = []
    pins: Annotated[list[_Name], BeforeValidator(_as_list), Field(max_length=MAX_PINS)] = []
    retrieval: Literal["hybrid", "vector", "concat"] | None = None


def _read_entry(entry: Any, called: str) -> tuple[Automation | None, list[tuple[str, str, str]]]:
    """The automation, None when it cannot be used, and what is wrong as (code, message, hint)."""
    try:
        read = _Entry.model_validate(entry)
    except ValidationError as exc:
        found = exc.errors(include_url=False, include_context=False, include_input=False)
        wrong = "; ".join(_in_words(error) for error in found[:5])
        message = f"The automation {called} is not loaded: {wrong}."
        return None, [("automation_invalid", message, _EXAMPLE)]
    unknown = sorted(str(key) for key in entry if key not in _Entry.model_fields)
    notes = []
    if unknown:
        listed = ", ".join(repr(key[:50]) for key in unknown[:5])
        message = f"The automation {called} has fields that mean nothing here: {listed}."
        notes.append(("automation_unknown_field", message, _EXAMPLE))
    preset = read.preset or NO_PRESET
    preference = PRESETS.get(preset) if read.preference is None else read.preference
    return (
        Automation(
            slug=read.slug,
            name=read.name or name_of(read.slug),
            preset=preset,
            prompt=read.prompt,
            preference=preference or None,
            knowledge=tuple(dict.fromkeys(read.knowledge)),
            pins=tuple(dict.fromkeys(read.pins)),
            retrieval=read.retrieval or "hybrid",
        ),
        notes,
    )


def _in_words(error: Any) -> str:
    if not error["loc"]:
        return "it is not a mapping of fields"
    place = ".".join(str(part) for part in error["loc"])
    return f"{place}: {error['msg'].removeprefix('Value error, ')}"
