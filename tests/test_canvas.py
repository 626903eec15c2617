"""A canvas as text: what is read, what is wrong with it, and what a mistake stops."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kshift_knowledge.canvas import (
    MAX_PROMPT_CHARS,
    Automation,
    CanvasRefused,
    parse_canvas,
)

EXAMPLES = Path(__file__).parents[1] / "examples" / "knowledge"

FULL = """
automations:
  - slug: weekly-tip
    name: Tip of the week
    preset: tip
    prompt: |-
      Write one tip.
      Two lines.
    preference: Prefer short words
    knowledge: [app-profile, audience]
    pins: [Brand Styles]
    retrieval: concat
"""


def _only(text: str) -> Automation:
    (automation,) = parse_canvas(text).automations
    return automation


def _codes(text: str) -> list[tuple[str | None, str]]:
    return [(problem.automation, problem.code) for problem in parse_canvas(text).problems]


def test_every_field_is_read_as_written() -> None:
    canvas = parse_canvas(FULL)

    assert canvas.automations == (
        Automation(
            slug="weekly-tip",
            name="Tip of the week",
            preset="tip",
            prompt="Write one tip.\nTwo lines.",
            preference="Prefer short words",
            knowledge=("app-profile", "audience"),
            pins=("Brand Styles",),
            retrieval="concat",
        ),
    )
    assert (canvas.problems, canvas.is_complete) == ((), True)


def test_what_is_left_out_has_a_default() -> None:
    short = _only("automations: [{slug: weekly-tip, prompt: Write., preset: tip}]")

    assert short == Automation(
        slug="weekly-tip",
        name="Weekly Tip",
        preset="tip",
        prompt="Write.",
        preference="Prefer brand voice and audience objections",
        knowledge=(),
        pins=(),
        retrieval="hybrid",
    )


@pytest.mark.parametrize(
    ("fields", "preference"),
    [
        ("preset: tip", "Prefer brand voice and audience objections"),
        ("preset: ads", "Prefer brand voice and audience objections"),
        ("preset: app_review", "Prefer documented behaviour over marketing copy"),
        ("preset: poem", None),
        ("name: no preset", None),
        ("preset: tip, preference: ''", None),
        ("preset: tip, preference: null", "Prefer brand voice and audience objections"),
        ("preset: tip, preference: ' Mine '", "Mine"),
    ],
)
def test_a_preset_brings_its_preference_unless_the_canvas_says_another(
    fields: str, preference: str | None
) -> None:
    assert _only(f"automations: [{{slug: a, prompt: Write., {fields}}}]").preference == preference


def test_plain_scalars_stay_as_written() -> None:
    automation = _only(
        "automations: [{slug: 2024, name: NO, prompt: 1.10, pins: [yes, 2020-01-01, 0x1F]}]"
    )

    assert (automation.slug, automation.name, automation.prompt) == ("2024", "NO", "1.10")
    assert automation.pins == ("yes", "2020-01-01", "0x1F")


def test_one_name_is_a_list_of_one_and_doubles_count_once() -> None:
    automation = _only("automations: [{slug: a, prompt: p, knowledge: notes, pins: [A, A, B]}]")

    assert (automation.knowledge, automation.pins) == (("notes",), ("A", "B"))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{slug: bad, prompt: ''}", "prompt: "),
        ("{slug: bad}", "prompt: Field required"),
        ("{slug: bad, prompt: p, retrieval: magic}", "retrieval: "),
        ("{slug: bad, prompt: p, knowledge: [not a slug]}", "knowledge.0: must be letters"),
        ("{slug: bad, prompt: p, knowledge: {a: b}}", "knowledge: "),
        ("{slug: bad, prompt: p, pins: [[a]]}", "pins.0: "),
        ("{slug: bad, prompt: p, pins: ['']}", "pins.0: "),
        ("{slug: bad, prompt: [p]}", "prompt: "),
        ('{slug: bad, prompt: p, preference: "a\\nb"}', "preference: must be one line"),
        ('{slug: bad, prompt: "a\\0b"}', "prompt: must hold no NUL"),
        ("{slug: bad, prompt: p, preset: not a slug}", "preset: "),
        ("{slug: bad, prompt: !!int 1}", "prompt: "),
    ],
)
def test_a_wrong_entry_is_named_and_stops_no_other(entry: str, said: str) -> None:
    canvas = parse_canvas(f"automations: [{entry}, {{slug: good, prompt: p}}]")

    assert [automation.slug for automation in canvas.automations] == ["good"]
    (problem,) = canvas.problems
    assert (problem.automation, problem.code) == ("bad", "automation_invalid")
    assert problem.message.startswith("The automation bad is not loaded: ")
    assert said in problem.message
    assert (canvas.kept, canvas.is_complete) == (frozenset({"bad"}), True)


@pytest.mark.parametrize("entry", ["{prompt: p}", "{slug: a b, prompt: p}", "text", "[]", "null"])
def test_an_entry_without_a_slug_lets_nothing_be_removed(entry: str) -> None:
    canvas = parse_canvas(f"automations: [{{slug: good, prompt: p}}, {entry}]")

    assert [automation.slug for automation in canvas.automations] == ["good"]
    (problem,) = canvas.problems
    assert problem.message.startswith("The automation number 2 is not loaded: ")
    assert not canvas.is_complete


def test_two_entries_with_one_slug_are_both_refused() -> None:
    text = "automations: [{slug: a, prompt: 1}, {slug: b, prompt: 2}, {slug: a, prompt: 3}]"
    canvas = parse_canvas(text)

    assert [automation.slug for automation in canvas.automations] == ["b"]
    assert _codes(text) == [("a", "automation_doubled")]
    assert canvas.kept == {"a"}


def test_a_field_that_means_nothing_is_named_and_stops_nothing() -> None:
    text = "automations: [{slug: a, prompt: p, knowlege: [notes]}]"

    assert _only(text).knowledge == ()
    assert _codes(text) == [("a", "automation_unknown_field")]


@pytest.mark.parametrize("text", ["", "# nothing", "automations:", "automations: []"])
def test_an_empty_canvas_has_no_automations(text: str) -> None:
    canvas = parse_canvas(text)

    assert (canvas.automations, canvas.problems, canvas.is_complete) == ((), (), True)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("automations: [", "automations_not_yaml"),
        ("a: b\n c: d", "automations_not_yaml"),
        ("automations: !!python/object:os.system {}", "automations_not_yaml"),
        ("\x01", "automations_not_yaml"),
        ("[" * 5000, "automations_not_yaml"),
        ("automations: {}", "automations_wrong_shape"),
        ("just text", "automations_wrong_shape"),
        ("- slug: a", "automations_wrong_shape"),
        ("other: 1", "automations_wrong_shape"),
        ("automations: [" + "1," * 1001 + "]", "automations_wrong_shape"),
        ("--- 1\n--- 2", "automations_not_yaml"),
    ],
)
def test_a_file_of_another_kind_is_refused_whole(text: str, code: str) -> None:
    with pytest.raises(CanvasRefused) as refusal:
        parse_canvas(text)

    assert refusal.value.code == code
    assert refusal.value.hint


def test_broken_yaml_is_named_with_its_line() -> None:
    with pytest.raises(CanvasRefused, match="not YAML at line 3"):
        parse_canvas("automations:\n  - slug: a\n bad")


def test_aliases_that_multiply_cost_nothing() -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
    )
    canvas = parse_canvas(f"{bomb}automations: [{{slug: a, prompt: p, pins: *j}}]")

    assert [problem.code for problem in canvas.problems] == ["automation_invalid"]


def test_a_prompt_may_be_long_and_not_endless() -> None:
    assert _only(f"automations: [{{slug: a, prompt: {'x' * MAX_PROMPT_CHARS}}}]")
    assert _codes(f"automations: [{{slug: a, prompt: {'x' * (MAX_PROMPT_CHARS + 1)}}}]") == [
        ("a", "automation_invalid")
    ]


@pytest.mark.parametrize(
    "file", sorted(EXAMPLES.rglob("automations.yaml")), ids=lambda file: file.parent.name
)
def test_our_own_canvases_are_without_a_mistake(file: Path) -> None:
    canvas = parse_canvas(file.read_text("utf-8"))
    folder = file.parent

    assert canvas.automations
    assert (canvas.problems, canvas.is_complete) == ((), True)
    for automation in canvas.automations:
        assert all((folder / database).is_dir() for database in automation.knowledge)


_PLAIN = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")).map(
    "x".__add__
)


@given(prompt=_PLAIN, pins=st.lists(_PLAIN, max_size=5, unique=True))
def test_any_text_survives_the_way_through_yaml(prompt: str, pins: list[str]) -> None:
    document = {"automations": [{"slug": "a", "prompt": prompt, "pins": pins}]}

    automation = _only(yaml.safe_dump(document))

    assert (automation.prompt, list(automation.pins)) == (prompt, pins)


@given(st.text(max_size=200))
def test_any_text_is_a_canvas_or_refused(text: str) -> None:
    try:
        parse_canvas(text)
    except CanvasRefused as exc:
        assert exc.message
