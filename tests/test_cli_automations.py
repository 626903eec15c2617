"""Automations through the real command: loaded by index, mistakes shown, asked by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from command_line import CommandLine, command_line

SITE = "acme/site"
CANVAS = f"{SITE}/automations.yaml"


@pytest.fixture(scope="module")
def line() -> Iterator[CommandLine]:
    with command_line() as line:
        line.write(f"{SITE}/notes/fear.md", "Riders fear that the bike is stolen.")
        line.write(f"{SITE}/notes/rain.md", "Half of them stay at home when it rains.")
        line.write(f"{SITE}/plans/secret.md", "The secret launch is in May.")
        yield line


def test_index_loads_the_canvas_and_shows_its_mistakes_beside_the_items(line: CommandLine) -> None:
    line.write(
        CANVAS,
        "automations:\n"
        "- {slug: tip, prompt: Write a tip., knowledge: [notes, nowhere], pins: [Fear]}\n"
        "- {slug: bad, prompt: ''}\n",
    )
    first = line.json("index", exit_code=1)
    status = line.json("status")
    shown = line.run("index", exit_code=1)

    assert (first["items_indexed"], first["items_failed"]) == (3, 0)
    assert [
        (one["project"], one["automation"], one["code"]) for one in first["automation_problems"]
    ] == [
        (SITE, "bad", "automation_invalid"),
        (SITE, "tip", "automation_unknown_database"),
    ]
    assert status["automation_problems"] == first["automation_problems"]
    assert "'nowhere', which is no knowledge database of acme/site" in shown.stderr


def test_a_canvas_that_is_right_again_has_no_problem_and_is_loaded_once(line: CommandLine) -> None:
    line.write(CANVAS, "automations: [{slug: tip, prompt: Write a tip., knowledge: [notes]}]")

    assert line.json("index")["automation_problems"] == []
    assert line.json("index")["runs"] == 0
    assert line.json("status")["automation_problems"] == []


def test_broken_yaml_stops_no_item(line: CommandLine) -> None:
    line.write(CANVAS, "automations: [")
    line.write(f"{SITE}/notes/new.md", "A new note.")

    done = line.json("index", exit_code=1)

    assert done["items_indexed"] == 1
    assert [one["code"] for one in done["automation_problems"]] == ["automations_not_yaml"]
