"""`kshift index` as a real process: what it reports, what it costs, and when it refuses."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from command_line import CommandLine, command_line, wait_for
from embedding_server import GOOD, Fault

KEYS = {
    "items_seen",
    "items_indexed",
    "items_unchanged",
    "items_deleted",
    "items_failed",
    "chunks_total",
    "chunks_embedded",
    "chunks_reused",
    "passages_embedded",
    "embedding_requests",
    "embedding_tokens",
    "runs",
    "seconds",
    "failures",
}


@dataclass(frozen=True)
class Indexed:
    """A home after two calls of `index`, and what they reported."""

    line: CommandLine
    first: dict[str, Any]
    again: dict[str, Any]
    requests: int  # that reached the embedding server


@pytest.fixture(scope="module")
def indexed() -> Iterator[Indexed]:
    with command_line() as line:
        line.write("acme/shop/profile/app-profile.md", "# App\n\nWe repair bicycles.\n")
        line.write("acme/shop/profile/logo.png", b"\x89PNG")
        line.write("other/site/notes/pricing.md", "# Pricing\n\nFour euros.\n")
        first, again = line.json("index"), line.json("index")
        yield Indexed(line, first, again, line.embedding_server.counts["requests"])


@pytest.fixture
def line(indexed: Indexed) -> CommandLine:
    return indexed.line


def test_the_first_index_reports_the_contracts_figures(indexed: Indexed) -> None:
    first = {key: indexed.first[key] for key in KEYS}

    assert first.pop("seconds") > 0
    assert first.pop("embedding_tokens") > 0
    assert first == {
        "items_seen": 3,
        "items_indexed": 3,
        "items_unchanged": 0,
        "items_deleted": 0,
        "items_failed": 0,
        "chunks_total": 2,
        "chunks_embedded": 2,
        "chunks_reused": 0,
        "passages_embedded": 0,
        "embedding_requests": 2,  # never two accounts in one
        "runs": 1,
        "failures": [],
    }


def test_an_unchanged_tree_starts_no_run_and_asks_for_no_embedding(indexed: Indexed) -> None:
    assert {key: indexed.again[key] for key in KEYS} == dict.fromkeys(KEYS, 0) | {
        "items_seen": 3,
        "items_unchanged": 3,
        "chunks_total": 2,
        "failures": [],
    }
    assert indexed.requests == 2


def test_a_full_index_reads_every_file_and_embeds_nothing_again(line: CommandLine) -> None:
    full = line.json("index", "--full")

    assert (full["items_indexed"], full["items_unchanged"]) == (0, full["items_seen"])
    assert (full["runs"], full["embedding_requests"]) == (1, 0)


def test_a_bad_item_is_named_with_its_remedy_and_stops_no_other(line: CommandLine) -> None:
    bad = line.write("acme/shop/uploads/broken.md", b"caf\xe9!")
    line.write("acme/shop/uploads/good.md", "# Good\n")

    done = line.run("index", "--json", exit_code=1)

    report = json.loads(done.stdout)
    assert (report["items_indexed"], report["items_failed"]) == (1, 1)
    assert report["failures"] == [
        {
            "item": "acme/shop/uploads/broken.md",
            "code": "not_utf8",
            "message": "acme/shop/uploads/broken.md is not UTF-8 at byte 3.",
            "hint": "Save the file as UTF-8.",
            "attempts": 1,
        }
    ]
    assert "failed: acme/shop/uploads/broken.md [not_utf8, attempt 1]" in done.stderr

    bad.write_text("café!", "utf-8")
    repaired = line.json("index")
    assert (repaired["items_indexed"], repaired["failures"]) == (1, [])


def test_a_mass_deletion_changes_nothing_until_it_is_accepted(line: CommandLine) -> None:
    many = [line.write(f"acme/shop/many/{number}.md", f"# {number}\n") for number in range(21)]
    indexed = line.json("index")
    for file in many:
        file.unlink()

    refusal = line.json("index", exit_code=4)
    accepted = line.json("index", "--accept-deletes")

    assert indexed["items_indexed"] == accepted["items_deleted"] == 21
    assert refusal["error"]["code"] == "mass_delete"
    assert "--accept-deletes" in refusal["error"]["hint"]
    assert accepted["chunks_total"] == indexed["chunks_total"] - 21


def test_a_tree_that_went_away_is_refused(line: CommandLine) -> None:
    away = line.tree.rename(line.folder / "unmounted")
    try:
        missing = line.json("index", exit_code=4)
        line.tree.write_text("a file")
        unreadable = line.json("index", exit_code=4)
        line.tree.unlink()
    finally:
        away.rename(line.tree)

    assert missing["error"]["code"] == "knowledge_dir_missing"
    assert unreadable["error"]["code"] == "knowledge_dir_unreadable"


def test_another_tree_than_the_homes_is_refused(line: CommandLine) -> None:
    refusal = line.json("index", exit_code=4, KSHIFT_KNOWLEDGE_DIR=str(line.folder))

    assert refusal["error"]["code"] == "refused"
    assert str(line.tree) in refusal["error"]["message"]


def test_settings_that_differ_from_the_index_are_refused(line: CommandLine) -> None:
    refusal = line.json("index", exit_code=4, KSHIFT_CHUNK_TOKENS="384")

    assert refusal["error"]["code"] == "generation_differs"
    assert "KSHIFT_CHUNK_TOKENS is 384 but it is 512" in refusal["error"]["message"]


def test_without_a_daemon_nothing_is_handed_over(line: CommandLine) -> None:
    refusal = line.json("index", "--no-wait", exit_code=3)

    assert refusal["error"]["code"] == "not_ready"
    assert "kshift up" in refusal["error"]["hint"]


def test_an_index_that_is_stopped_keeps_what_it_paid_for(line: CommandLine) -> None:
    server = line.embedding_server
    before = server.counts["requests"]
    line.write("acme/shop/stopped/slow.md", "# Slow\n")
    server.always(Fault(delay_s=1))

    with line.started("index", "--json") as process:
        wait_for(lambda: server.counts["requests"] > before, within_s=60)
        process.send_signal(signal.SIGTERM)
        stdout, _ = process.communicate(timeout=60)
    server.always(GOOD)

    assert (process.returncode, json.loads(stdout)["error"]["code"]) == (1, "run_broke_off")
    resumed = line.json("index")
    assert resumed["items_indexed"] + resumed["items_unchanged"] == resumed["items_seen"]
    assert server.counts["requests"] == before + 1
