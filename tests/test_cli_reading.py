"""`kshift status`, `ask`, `keys` and `doctor` as real processes over one indexed home."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from command_line import DIMENSIONS, KSHIFT, TIMEOUT_S, CommandLine, command_line, plain_environment

from kshift_knowledge.postgres.keys import hash_of

PROFILE = "---\nlabels: [core]\n---\n# App\n\nWe repair bicycles.\n"
SCOPE = ("--account", "acme", "--project", "shop")


@pytest.fixture(scope="module")
def line() -> Iterator[CommandLine]:
    with command_line() as line:
        line.write("acme/shop/profile/app-profile.md", PROFILE)
        line.write("acme/shop/audience/audience.md", "# Audience\n\nRiders \x1b[31mof all ages.\n")
        line.write("acme/shop/audience/broken.md", b"caf\xe9!")
        line.write("other/site/notes/pricing.md", "# Pricing\n\nFour euros.\n")
        line.run("index", exit_code=1)
        yield line


def test_status_counts_every_database_and_names_failures(line: CommandLine) -> None:
    status = line.json("status")

    assert set(status) == {"progress", "databases", "failures", "automation_problems"}
    assert status["progress"]["items"] == {"done": 3, "running": 0, "failed": 1, "waiting": 0}
    by_place = {
        f"{one['account']}/{one['project']}/{one['knowledge_database']}": one
        for one in status["databases"]
    }
    assert list(by_place) == ["acme/shop/audience", "acme/shop/profile", "other/site/notes"]
    audience = by_place["acme/shop/audience"]
    assert set(audience) == {
        "account",
        "account_id",
        "project",
        "project_id",
        "knowledge_database",
        "knowledge_database_id",
        "items",
        "chunks",
        "last_indexed_at",
        "oldest_waiting_at",
        "tokens_spent",
        "tokens_saved",
    }
    assert audience["items"] == {"waiting": 0, "indexed": 1, "failed": 1, "gone": 0}
    assert (audience["chunks"], audience["oldest_waiting_at"]) == (1, None)
    assert audience["tokens_spent"] > 0
    assert datetime.fromisoformat(audience["last_indexed_at"]) < datetime.now(UTC)
    assert [failure["code"] for failure in status["failures"]] == ["not_utf8"]


def test_status_for_people_is_whole_in_a_pipe(line: CommandLine) -> None:
    done = line.run("status")

    rows = [row.split() for row in done.stdout.splitlines()]
    assert ["acme/shop/audience", "0", "1", "1", "0", "1"] in [row[:6] for row in rows]
    assert "failed: acme/shop/audience/broken.md [not_utf8, attempt 1]" in done.stderr


def test_a_watched_status_shows_itself_until_ctrl_c(line: CommandLine) -> None:
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [KSHIFT, "status", "--watch"],
        env=line.environment(),
        cwd=line.folder,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(theirs)
        shown = b""
        while b"acme/shop/audience" not in shown:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)

        assert process.wait(TIMEOUT_S) == 0
    os.close(ours)


def test_ask_answers_from_the_databases_that_are_named_and_no_other(line: CommandLine) -> None:
    answer = line.json("ask", "What do we repair?", *SCOPE, "--database", "profile")

    assert answer["context"] == f"[App Profile#0]\n{PROFILE.rstrip()}"
    assert [hit["file"] for hit in answer["hits"]] == ["app-profile.md"]
    assert (answer["mode"], answer["embedding_model"]) == ("hybrid", "text-embedding-3-small")


def test_ask_takes_ids_for_slugs_and_several_databases(line: CommandLine) -> None:
    databases = [one for one in line.json("status")["databases"] if one["account"] == "acme"]
    options = [
        option for one in databases for option in ("--database", str(one["knowledge_database_id"]))
    ]

    answer = line.json(
        *("ask", "Who rides?", "--account", str(databases[0]["account_id"])),
        *("--project", str(databases[0]["project_id"])),
        *(*options, "--top-k", "1", "--max-chars", "40"),
    )

    assert len(answer["hits"]) + len(answer["dropped"]) == 1
    assert len(answer["context"]) <= 40


def test_ask_without_a_database_finds_nothing_and_embeds_nothing(line: CommandLine) -> None:
    requests = line.embedding_server.counts["requests"]

    answer = line.json("ask", "What do we repair?", *SCOPE)

    assert (answer["hits"], answer["context"]) == ([], "")
    assert line.embedding_server.counts["requests"] == requests


def test_ask_for_people_cites_and_hides_control_codes(line: CommandLine) -> None:
    shown = line.run("ask", "Who rides?", *SCOPE, "--database", "audience").stdout

    assert "[Audience#0]  audience.md  score " in shown
    assert "Riders \N{REPLACEMENT CHARACTER}[31mof all ages." in shown


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("ask", " ", *SCOPE), "settings_invalid"),
        (("ask", "What?", "--account", "nobody", "--project", "shop"), "not_found"),
        (("ask", "What?", *SCOPE, "--database", "notes"), "not_found"),  # another account's
        (("keys", "revoke", "0123456789ab"), "not_found"),
        (("keys", "create", "--account", "acme", "--expires", "soon"), "wrong_lifetime"),
    ],
)
def test_what_does_not_exist_is_wrong_usage(
    line: CommandLine, arguments: tuple[str, ...], code: str
) -> None:
    assert line.json(*arguments, exit_code=2)["error"]["code"] == code


def test_an_embedder_that_does_not_answer_is_not_reachable(line: CommandLine) -> None:
    refusal = line.json(
        *("ask", "What?", *SCOPE, "--database", "profile"),
        exit_code=3,
        OPENAI_BASE_URL="http://127.0.0.1:9/v1",
    )

    assert refusal["error"]["code"] == "embedding_unreachable"


def test_a_key_is_shown_once_kept_as_a_hash_and_listed_when_it_is_dead(line: CommandLine) -> None:
    before = datetime.now(UTC)
    made = line.json("keys", "create", "--account", "acme", "--expires", "30d")
    revoked = line.json("keys", "revoke", made["id"])
    listed = line.run("keys", "list", "--json")

    assert re.fullmatch(r"ks_[0-9a-f]{12}_[0-9a-f]{64}", made["key"])
    assert made["key"].split("_")[1] == made["id"]
    lifetime = datetime.fromisoformat(made["expires_at"]) - before
    assert timedelta(days=30) <= lifetime < timedelta(days=30, minutes=5)
    assert revoked["revoked_at"] is not None
    assert made["id"] in listed.stdout
    assert made["key"] not in listed.stdout + listed.stderr
    assert _rows(line, "SELECT key_hash FROM api_keys WHERE key_id = %s", made["id"]) == [
        (hash_of(made["key"]),)
    ]


def test_a_key_narrows_to_databases_of_a_project(line: CommandLine) -> None:
    made = line.json("keys", "create", *SCOPE, "--database", "profile")

    (kept,) = [key for key in line.json("keys", "list")["keys"] if key["id"] == made["id"]]
    profile = next(
        one for one in line.json("status")["databases"] if one["knowledge_database"] == "profile"
    )
    assert (kept["project_id"], kept["knowledge_database_ids"]) == (
        profile["project_id"],
        [profile["knowledge_database_id"]],
    )
    assert (made["expires_at"], kept["expires_at"]) == (None, None)


def test_doctor_prints_addresses_that_work_after_it_left(line: CommandLine) -> None:
    report = line.json("doctor")

    assert set(report) == {"database_url", "dagster_home", "api_url", "checks"}
    assert report["api_url"] == "http://127.0.0.1:8080"
    assert {check["name"]: check["ok"] for check in report["checks"]} == dict.fromkeys(
        ("python", "tokens", "settings", "knowledge_dir", "index", "database"), True
    )
    with psycopg.connect(report["database_url"]) as conn:
        assert conn.execute("SELECT count(*) FROM knowledge_chunks").fetchone() == (3,)
    assert _partitions(report["dagster_home"]) == {
        "acme/shop/audience/audience.md",
        "acme/shop/audience/broken.md",
        "acme/shop/profile/app-profile.md",
        "other/site/notes/pricing.md",
    }


def test_a_deep_doctor_asks_the_embedder(line: CommandLine) -> None:
    report = line.json("doctor", "--deep")
    broken = line.json(
        "doctor", "--deep", exit_code=3, KSHIFT_EMBEDDER="local", KSHIFT_EMBEDDING_DIMENSIONS=None
    )

    embedder = next(check for check in report["checks"] if check["name"] == "embedder")
    assert embedder["detail"] == f"text-embedding-3-small answers with {DIMENSIONS} numbers"
    refused = next(check for check in broken["checks"] if not check["ok"])
    assert refused["name"] == "embedder"
    assert "KSHIFT_EMBEDDER is local but it is openai" in refused["detail"]


def test_doctor_names_every_wrong_setting_and_still_reports(line: CommandLine) -> None:
    report = line.json("doctor", exit_code=3, KSHIFT_TOP_K="0", KSHIFT_API_PORT="70000")

    settings = next(check for check in report["checks"] if check["name"] == "settings")
    assert not settings["ok"]
    assert re.findall(r"KSHIFT_\w+", settings["detail"]) == ["KSHIFT_TOP_K", "KSHIFT_API_PORT"]
    assert report["database_url"] is None


def _rows(line: CommandLine, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(line.json("doctor")["database_url"]) as conn:
        return conn.execute(sql.encode(), values).fetchall()


def _partitions(dagster_home: str) -> set[str]:
    """The partitions that Dagster itself finds in this home, in a process of its own."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, dagster as dg\n"
            "with dg.DagsterInstance.from_config(sys.argv[1]) as instance:\n"
            "    print(*instance.get_dynamic_partitions('knowledge_items'), sep='\\n')",
            dagster_home,
        ],
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())
