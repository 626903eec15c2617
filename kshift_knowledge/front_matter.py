"""Front matter: what a YAML mapping at the very start of a text says about its item."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import yaml

from kshift_knowledge.records import ItemMeta
from kshift_knowledge.tree import extension_of, kind_of

MAX_FRONT_MATTER_CHARS = 65_536
MAX_NAME_CHARS = 300
MAX_KIND_CHARS = 32
MAX_URL_CHARS = 2_048
MAX_LABELS = 100  # as many as a request may ask for
MAX_LABEL_CHARS = 200
ORIGINS = ("uploaded", "scraped")

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OPENING = re.compile(r"---[ \t]*\n")
_CLOSING = re.compile(r"^(?:---|\.\.\.)[ \t]*$\n?", re.MULTILINE)
_BLANKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_EXPECTED = {
    "name": "a line of text",
    "origin": " or ".join(ORIGINS),
    "source_url": f"a line of at most {MAX_URL_CHARS:,} characters",
    "labels": f"a list of at most {MAX_LABELS} strings of {MAX_LABEL_CHARS} characters",
    "kind": f"a word of at most {MAX_KIND_CHARS} characters",
}


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """
    The fields kshift knows, cleaned; None or empty where the text says nothing usable.

    Scalars are what stands in the file, not what YAML 1.1 makes of it: `1.10`, `NO` and a date
    are those strings.

    warnings: what was ignored and why, without quoting values.
    end: where the front matter ends in the text, 0 when there is none.
    """

    name: str | None = None
    origin: str | None = None
    source_url: str | None = None
    labels: tuple[str, ...] = ()
    kind: str | None = None
    warnings: tuple[str, ...] = ()
    end: int = 0


def item_meta(path: str, front_matter: FrontMatter) -> ItemMeta:
    """Return what is known about the item at *path*; the path decides what front matter omits."""
    return ItemMeta(
        name=front_matter.name or name_of(path),
        title=front_matter.name,
        kind=front_matter.kind or kind_of(path),
        origin=front_matter.origin or ORIGINS[0],
        source_url=front_matter.source_url,
        labels=front_matter.labels,
    )


def name_of(path: str) -> str:
    """
    Return the title-cased stem: `app-profile.md` -> `App Profile`.

    Words that hold a capital stay as they are (`README`, `iOS`); letters are composed (NFC), so
    that a pin matches whichever way the file system spells them.
    """
    file = unicodedata.normalize("NFC", PurePosixPath(path).name)
    extension = extension_of(file)
    stem = file[: -len(extension) - 1] if extension else file
    words = _BLANKS.sub(" ", re.sub(r"[-_]+", " ", stem)).split()
    return (" ".join(map(_titled, words)) or _one_line(file) or file)[:MAX_NAME_CHARS]


def parse_front_matter(text: str) -> FrontMatter:
    """
    Read the YAML mapping between a first line `---` and the next line `---` or `...`.

    Anything else is text: no closing line, broken YAML, YAML that is no mapping, more than
    65,536 characters. Only events are read, no value is built, so aliases cost nothing and tags
    run nothing; where a known key has one, or a value of the wrong shape, it is ignored.
    """
    opening = _OPENING.match(text)
    if opening is None:
        return FrontMatter()
    closing = _CLOSING.search(text, opening.end(), opening.end() + MAX_FRONT_MATTER_CHARS)
    if closing is None:
        return FrontMatter(warnings=("It starts with --- but no front matter ends soon: text.",))
    try:
        pairs = list(_read_mapping(text[opening.end() : closing.start()]))
    except (yaml.YAMLError, _NotAMapping):
        return FrontMatter(warnings=("Front matter is not a YAML mapping: read as text.",))
    values = dict(pairs)
    warnings = [
        f"Front matter: {key} is given more than once; the last one counts."
        for key in _EXPECTED
        if [name for name, _ in pairs].count(key) > 1
    ]
    return FrontMatter(
        name=_field(values, "name", _name, warnings),
        origin=_field(values, "origin", _origin, warnings),
        source_url=_field(values, "source_url", _source_url, warnings),
        labels=_labels(values.get("labels"), warnings),
        kind=_field(values, "kind", _kind, warnings),
        warnings=tuple(warnings),
        end=closing.end(),
    )


def _titled(word: str) -> str:
    if word != word.lower():
        return word
    return re.sub(r"^\W*\w", lambda start: start[0][:-1] + start[0][-1].title(), word)


class _NotAMapping(Exception):
    """Good YAML of another shape, such as prose between two rules."""


class _Odd:
    """A value no field of ours has: a mapping, a list in a list, an alias, a tagged scalar."""


_ODD = _Odd()
_Scalar = str | None | _Odd
_Value = _Scalar | list[_Scalar]


def _read_mapping(source: str) -> Iterator[tuple[str, _Value]]:
    """Yield the keys and values of the outermost mapping."""
    events = iter(yaml.parse(source, Loader=_LOADER))
    next(events)  # the stream's start
    if isinstance(next(events), yaml.StreamEndEvent):
        return
    if not isinstance(next(events), yaml.MappingStartEvent):
        raise _NotAMapping
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key = _read_value(event, events)
        value = _read_value(next(events), events)
        if isinstance(key, str):
            yield key, value
    if any(isinstance(event, yaml.DocumentStartEvent) for event in events):
        raise _NotAMapping


def _read_value(event: yaml.Event, events: Iterator[yaml.Event]) -> _Value:
    if not isinstance(event, yaml.SequenceStartEvent):
        return _read_scalar(event, events)
    items: list[_Scalar] = []
    while not isinstance(event := next(events), yaml.SequenceEndEvent):
        items.append(_read_scalar(event, events))
    return items


def _read_scalar(event: yaml.Event, events: Iterator[yaml.Event]) -> _Scalar:
    """Return a scalar as written; step over anything else, however deep, without recursion."""
    if isinstance(event, yaml.ScalarEvent):
        if event.tag not in {None, "!", "tag:yaml.org,2002:str"}:
            return _ODD
        is_plain = event.implicit[0]
        return None if is_plain and event.value in _NULLS else str(event.value)
    depth = int(isinstance(event, yaml.CollectionStartEvent))
    while depth:
        following = next(events)
        depth += isinstance(following, yaml.CollectionStartEvent)
        depth -= isinstance(following, yaml.CollectionEndEvent)
    return _ODD


def _field(
    values: dict[str, _Value],
    key: str,
    accept: Callable[[str], str | None],
    warnings: list[str],
) -> str | None:
    value = values.get(key)
    if value is None:
        return None
    accepted = accept(_one_line(value)) if isinstance(value, str) else None
    if accepted is None:
        warnings.append(f"Front matter: {key} is not {_EXPECTED[key]} and is ignored.")
    return accepted


def _name(value: str) -> str | None:
    return value[:MAX_NAME_CHARS].rstrip() or None


def _origin(value: str) -> str | None:
    return value.lower() if value.lower() in ORIGINS else None


def _source_url(value: str) -> str | None:
    return value if 0 < len(value) <= MAX_URL_CHARS else None


def _kind(value: str) -> str | None:
    return value.lower() if 0 < len(value) <= MAX_KIND_CHARS else None


def _labels(value: _Value, warnings: list[str]) -> tuple[str, ...]:
    """Clean a list of labels; a single string is one label, also when it holds commas."""
    given = value if isinstance(value, list) else [value]
    labels: dict[str, None] = {}
    is_odd = False
    for item in given:
        label = _one_line(item) if isinstance(item, str) else ""
        is_odd |= isinstance(item, _Odd) or len(label) > MAX_LABEL_CHARS
        if 0 < len(label) <= MAX_LABEL_CHARS:
            labels[label] = None
    if is_odd or len(labels) > MAX_LABELS:
        warnings.append(f"Front matter: some labels are ignored; {_EXPECTED['labels']} is read.")
    return tuple(labels)[:MAX_LABELS]


def _one_line(value: str) -> str:
    """Collapse blanks, line ends, control characters and lone surrogates into single blanks."""
    line = _BLANKS.sub(" ", value).strip()
    return line if any(map(str.isprintable, line.replace(" ", ""))) else ""
