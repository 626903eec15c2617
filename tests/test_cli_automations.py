"""Automations through the real command: loaded by index, mistakes shown, asked by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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


def test_asking_for_an_automation_searches_what_it_is_linked_to(line: CommandLine) -> None:
    line.write(
        CANVAS,
        "automations:\n"
        "- {slug: tip, prompt: p, knowledge: [notes], pins: [Rain], retrieval: vector}\n"
        "- {slug: old, prompt: p, knowledge: [notes], retrieval: concat}\n"
        "- {slug: free, prompt: p}\n",
    )
    line.json("index")
    where = ("--account", "acme", "--project", "site")

    def ask(*options: str, exit_code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = line.json("ask", "launch?", *where, *options, exit_code=exit_code)
        return found

    tip = ask("--automation", "tip")
    assert {hit["file"] for hit in tip["hits"]} == {"fear.md", "new.md", "rain.md"}
    assert (tip["hits"][0]["file"], tip["hits"][0]["pinned"], tip["mode"]) == (
        "rain.md",
        True,
        "vector",
    )
    assert ask("--automation", "old")["mode"] == "concat"
    assert ask("--automation", "old", "--mode", "vector")["mode"] == "vector"
    free = ask("--automation", "free")
    assert (free["hits"], free["mode"]) == ([], "hybrid")
    assert ask("--automation", "tip", "--database", "notes")["hits"] == tip["hits"]
    unlinked = ask("--automation", "tip", "--database", "plans", exit_code=2)["error"]
    assert unlinked["hint"] == "It is linked to notes."
    assert ask("--automation", "nobody", exit_code=2)["error"]["code"] == "not_found"
    assert "[Fear]" in line.run("ask", "x", *where, "--automation", "old").stdout


def test_impact_says_what_became_of_the_text_that_receipts_cite(line: CommandLine) -> None:
    where = ("--account", "acme", "--project", "site", "--database", "plans")
    receipt_id = line.json("ask", "launch?", *where)["receipt_id"]
    key = f"{SITE}/plans/secret.md"
    before = line.json("impact", key)
    line.write(key, "The secret launch is in June.")
    line.json("index")
    changed = line.json("impact", str(before["knowledge_database_item_id"]))
    (line.tree / key).unlink()
    line.json("index")

    assert before["counts"] == {"gone": 0, "changed since": 0, "unchanged": 1}
    (citation,) = before["citations"]
    assert (citation["receipt_id"], citation["chunk_index"], citation["state"]) == (
        receipt_id,
        0,
        "unchanged",
    )
    assert changed["counts"]["changed since"] == 1
    assert line.json("impact", key)["counts"]["gone"] == 1
    shown = line.run("impact", key).stdout
    assert f"{key} (gone): cited 1 times, 1 gone, 0 changed since, 0 unchanged." in shown
    assert receipt_id in shown
    assert line.json("impact", "acme/site/no/such.md", exit_code=2)["error"]["code"] == "not_found"


def test_a_key_for_an_automation_is_made_by_its_slug_and_not_once_it_is_gone(
    line: CommandLine,
) -> None:
    create = ("keys", "create", "--account", "acme", "--project", "site", "--automation", "tip")
    made = line.json(*create)
    line.write(CANVAS, "automations: []")
    line.json("index")

    assert made["key"].startswith("ks_")
    assert line.json(*create, exit_code=2)["error"]["code"] == "not_found"
