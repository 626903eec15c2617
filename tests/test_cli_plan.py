"""`kshift plan` and `kshift retry` as real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine, command_line
from embedding_server import GOOD, refused

ADDED = {
    "added": 0,
    "changed": 0,
    "renamed": 0,
    "gone": 0,
    "failed": 0,
    "unchanged": 0,
    "unsettled": 0,
}


@pytest.fixture
def line() -> Iterator[CommandLine]:
    with command_line() as line:
        line.write("acme/shop/profile/app.md", "# App\n\nWe repair bicycles.\n")
        line.write("other/site/notes/pricing.md", "# Pricing\n\nFour euros.\n")
        yield line


def files_of(home: Path) -> dict[str, int]:
    """What lies in a home and when it was written; the server keeps its own house."""
    return {
        str(path.relative_to(home)): path.stat().st_mtime_ns
        for path in home.rglob("*")
        if path.is_file() and "postgres" not in path.parts and "logs" not in path.parts
    }


def test_a_plan_of_a_new_home_makes_nothing_and_the_index_costs_what_it_says(
    line: CommandLine,
) -> None:
    plan = line.json("plan", KSHIFT_PRICES="text-embedding-3-small=1000000")

    assert not line.home.exists()
    assert line.embedding_server.counts["requests"] == 0
    assert (plan["items"], plan["requests"]) == ({**ADDED, "added": 2}, 2)
    assert plan["cost_usd"] == plan["tokens"] > 0
    assert plan["minutes"] == round(plan["tokens"] / 1_000_000, 2)
    assert [account["account"] for account in plan["accounts"]] == ["acme", "other"]
    assert (plan["model"], plan["failures"], plan["refusal"]) == (
        "text-embedding-3-small",
        [],
        None,
    )

    indexed = line.json("index")
    assert plan["chunks"] == {"kept": 0, "new": indexed["chunks_embedded"], "gone": 0}
    assert plan["requests"] == indexed["embedding_requests"]
    (acme, other) = line.json("status")["databases"]
    assert plan["tokens"] == acme["tokens_spent"] + other["tokens_spent"]


def test_a_plan_of_a_filled_home_writes_no_file_and_registers_nothing(line: CommandLine) -> None:
    line.json("index")
    line.write("acme/shop/new-database/new.md", "# New\n")
    before = files_of(line.home)

    plan = line.json("plan")
    shown = line.run("plan").stdout

    after = files_of(line.home)
    assert after.keys() - before.keys() <= {".keeper.due"} or after.keys() == before.keys()
    assert plan["items"] == {**ADDED, "added": 1, "unchanged": 2}
    assert "acme/shop/new-database" in shown
    places = [one["knowledge_database"] for one in line.json("status")["databases"]]
    assert places == ["profile", "notes"]


def test_an_unknown_price_is_null_and_the_rate_can_be_set(line: CommandLine) -> None:
    plan = line.json("plan", KSHIFT_EMBEDDING_MODEL="some-model", KSHIFT_TOKENS_PER_MINUTE="1")

    assert plan["cost_usd"] is None
    assert plan["minutes"] == plan["tokens"]


def test_what_would_fail_or_be_refused_is_named(line: CommandLine) -> None:
    line.write("acme/shop/profile/bad.md", b"\xff\xfe\x00")

    shown = line.run("plan")

    assert "would fail: acme/shop/profile/bad.md [not_utf8]" in shown.stderr
    (failure,) = line.json("plan")["failures"]
    assert set(failure) == {"item", "code", "message", "hint"}


def test_a_failed_item_is_retried_by_name_or_all_together(line: CommandLine) -> None:
    odd = "acme/shop/profile/odd name, [v2].md"
    line.write(odd, "# Odd\n")
    line.embedding_server.always(refused(403, "model_not_found"))
    assert line.json("index", exit_code=1)["items_failed"] == 3
    line.embedding_server.always(GOOD)

    one = line.json("retry", odd)
    rest = line.json("retry", "--failed")
    nothing = line.run("retry", "--failed")

    assert (one["items_retried"], one["items_indexed"], one["failures"]) == (1, 1, [])
    assert (rest["items_retried"], rest["items_indexed"]) == (2, 2)
    assert nothing.stdout == "No item has failed.\n"
    assert line.json("status")["failures"] == []


def test_a_permanent_failure_is_tried_again_and_may_fail_again(line: CommandLine) -> None:
    bad = line.write("acme/shop/profile/bad.md", b"caf\xe9")
    line.json("index", exit_code=1)
    first = line.json("retry", "acme/shop/profile/bad.md", exit_code=1)
    modified = bad.stat()
    bad.write_bytes(b"cafe")
    os.utime(bad, ns=(modified.st_atime_ns, modified.st_mtime_ns))

    second = line.json("retry", "acme/shop/profile/bad.md")

    (failure,) = first["failures"]
    assert (failure["code"], failure["attempts"]) == ("not_utf8", 2)
    assert (second["items_indexed"], second["failures"]) == (1, [])


def test_retry_says_what_is_wrong_with_what_was_asked(line: CommandLine) -> None:
    line.json("index")

    unknown = line.json("retry", "acme/shop/profile/nobody.md", exit_code=2)
    line.run("retry", exit_code=2)
    line.run("retry", "--failed", "acme/shop/profile/app.md", exit_code=2)
    good = line.run("retry", "acme/shop/profile/app.md")

    assert unknown["error"]["code"] == "not_found"
    assert good.stdout == "None of these items has failed.\n"


def test_a_file_that_cannot_be_looked_at_stays_failed(line: CommandLine) -> None:
    bad = line.write("acme/shop/profile/bad.md", b"\xff\xfe\x00")
    line.json("index", exit_code=1)
    bad.unlink()

    report = line.json("retry", "--failed", exit_code=1)

    assert (report["items_retried"], report["items_failed"]) == (0, 1)
