"""`kshift` with a PostgreSQL that is not its own: migrated by its administrator, then used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from command_line import CommandLine, command_line

from kshift_knowledge.postgres.credentials import Credentials
from kshift_knowledge.postgres.embedded import EmbeddedServer
from kshift_knowledge.postgres.migrations import MIGRATIONS, load_migrations
from kshift_knowledge.postgres.roles import connections
from kshift_knowledge.postgres.urls import parse_url


@dataclass(frozen=True)
class Outside:
    """A home on a foreign server, and what its first commands said, in order."""

    line: CommandLine
    admin_url: str
    unmigrated: dict[str, Any]
    migrated: dict[str, Any]
    indexed: dict[str, Any]


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    with command_line() as line:
        server = EmbeddedServer(line.folder / "server", is_durable=False)
        try:
            admin_url = server.ensure_running().admin_url
            line.settings["KSHIFT_DATABASE_URL"] = admin_url
            line.write("acme/shop/profile/app-profile.md", "# App\n\nWe repair bicycles.\n")
            unmigrated = line.json("index", exit_code=3)
            migrated = line.json("migrate")
            yield Outside(line, admin_url, unmigrated, migrated, line.json("index"))
        finally:
            server.stop()


def test_an_unmigrated_server_is_left_alone_and_the_hint_says_migrate(outside: Outside) -> None:
    error = outside.unmigrated["error"]

    assert error["code"] == "not_ready"
    assert "kshift migrate" in error["hint"]


def test_migrate_applies_everything_once(outside: Outside) -> None:
    assert outside.migrated == {
        "applied": [str(migration) for migration in load_migrations(MIGRATIONS)]
    }
    assert outside.line.json("migrate") == {"applied": []}
    assert "up to date" in outside.line.run("migrate").stdout


def test_what_was_indexed_on_the_outside_server_is_answered_from_it(outside: Outside) -> None:
    answer = outside.line.json(
        *("ask", "What do we repair?"),
        *("--account", "acme", "--project", "shop", "--database", "profile"),
    )

    assert outside.indexed["items_indexed"] == 1
    assert [hit["item_name"] for hit in answer["hits"]] == ["App Profile"]
    with psycopg.connect(outside.admin_url) as conn:
        assert conn.execute("SELECT count(*) FROM knowledge_chunks").fetchone() == (1,)


def test_no_embedded_server_is_started_beside_an_outside_one(outside: Outside) -> None:
    assert {entry.name for entry in outside.line.home.iterdir()} >= {"credentials", "dagster"}
    assert not (outside.line.home / "postgres").exists()
    assert [command for command in outside.line.processes().values() if "postgres" in command] == []


def test_generated_passwords_are_kept_for_their_owner_alone(outside: Outside) -> None:
    for name in ("credentials", "dagster/pgpass"):
        assert (outside.line.home / name).stat().st_mode & 0o077 == 0, name


def test_commands_work_with_given_logins_and_without_the_administrator(outside: Outside) -> None:
    found = connections(outside.admin_url, Credentials(outside.line.home))

    status = outside.line.json(
        "status",
        KSHIFT_DATABASE_URL=None,
        KSHIFT_WRITER_URL=found.writer_url,
        KSHIFT_READER_URL=found.reader_url,
        KSHIFT_DAGSTER_URL=found.dagster_url,
    )

    assert status["databases"][0]["items"]["indexed"] == 1


def test_doctor_says_what_an_administrator_must_still_run(outside: Outside) -> None:
    report = outside.line.json(
        "doctor",
        exit_code=3,
        KSHIFT_WRITER_URL=outside.admin_url.replace("kshift_admin", "their_writer"),
    )

    database = next(check for check in report["checks"] if check["name"] == "database")
    assert not database["ok"]
    assert 'CREATE ROLE "their_writer" LOGIN;' in database["hint"]


def test_a_server_that_is_away_is_not_reachable(outside: Outside) -> None:
    where = parse_url(outside.admin_url)
    away = outside.admin_url.replace(where["host"], os.fspath(outside.line.folder))

    error = outside.line.json("status", exit_code=3, KSHIFT_DATABASE_URL=away)["error"]

    assert where["password"] not in error["message"] + error["hint"]
