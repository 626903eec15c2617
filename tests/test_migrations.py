"""Migrations: numbered files, applied once, whole or not at all, by one process at a time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from postgres_server import PostgresServer, running_server

from kshift_knowledge.errors import NotReady, Refused, StoreUnavailable
from kshift_knowledge.postgres.migrations import (
    MIGRATIONS,
    Migrated,
    check_schema,
    load_migrations,
    migrate,
    pending,
)
from kshift_knowledge.postgres.urls import with_database


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


@pytest.fixture
def admin_url(server: PostgresServer) -> Iterator[str]:
    with server.empty_database() as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "0001_first.sql").write_text("CREATE TABLE first (id int);\n")
    (tmp_path / "0002_second.sql").write_text(
        "CREATE TABLE second (id int);\nINSERT INTO second VALUES (1), (2);\n"
    )
    return tmp_path


@pytest.fixture
def run(server: PostgresServer, admin_url: str, folder: Path) -> Callable[[], Migrated]:
    return lambda: migrate(
        admin_url, server.credentials, server=server.address.server, folder=folder
    )


def rows(url: str, sql: LiteralString) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as conn:
        return conn.execute(sql).fetchall()


def names(migrations: list[Any]) -> list[str]:
    return [str(migration) for migration in migrations]


def test_files_are_applied_in_order_and_recorded(
    run: Callable[[], Migrated], admin_url: str, folder: Path
) -> None:
    assert run().applied == ("0001_first", "0002_second")
    assert rows(admin_url, "SELECT version, name, sha256 FROM schema_migrations") == [
        (migration.version, migration.name, migration.sha256)
        for migration in load_migrations(folder)
    ]
    assert rows(admin_url, "SELECT id FROM second") == [(1,), (2,)]


def test_a_second_run_applies_nothing(run: Callable[[], Migrated], folder: Path) -> None:
    run()

    assert run().applied == ()
    (folder / "0003_third.sql").write_text("CREATE TABLE third (id int)")
    assert run().applied == ("0003_third",)


def test_what_a_migration_makes_belongs_to_the_role_that_cannot_log_in(
    run: Callable[[], Migrated], admin_url: str
) -> None:
    run()

    assert set(rows(admin_url, "SELECT tableowner FROM pg_tables WHERE schemaname = 'public'")) == {
        ("kshift_owner",)
    }


def test_a_failing_file_changes_nothing_and_names_itself(
    run: Callable[[], Migrated], admin_url: str, folder: Path
) -> None:
    (folder / "0002_second.sql").write_text("CREATE TABLE half (id int); SELECT 1 / 0;")

    with pytest.raises(NotReady, match="0002_second failed and changed nothing: division by zero"):
        run()
    assert rows(admin_url, "SELECT to_regclass('first') IS NULL, to_regclass('half') IS NULL") == [
        (False, True)
    ]
    assert rows(admin_url, "SELECT version FROM schema_migrations") == [(1,)]


def test_processes_that_migrate_at_once_apply_each_file_once(
    run: Callable[[], Migrated], admin_url: str
) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = [future.result() for future in [pool.submit(run) for _ in range(4)]]

    assert sorted(result.applied for result in results) == [
        (),
        (),
        (),
        ("0001_first", "0002_second"),
    ]
    assert rows(admin_url, "SELECT id FROM second") == [(1,), (2,)]


def test_a_killed_migration_leaves_nothing_and_the_next_one_goes_on(
    run: Callable[[], Migrated], server: PostgresServer, admin_url: str, folder: Path
) -> None:
    second = (folder / "0002_second.sql").read_text()
    (folder / "0002_second.sql").write_text(second + "SELECT pg_sleep(600);")
    program = (
        "import sys; from pathlib import Path\n"
        "from kshift_knowledge.postgres.credentials import Credentials\n"
        "from kshift_knowledge.postgres.migrations import migrate\n"
        "migrate(sys.argv[1], Credentials(Path(sys.argv[2])), server=sys.argv[3],"
        " folder=Path(sys.argv[4]))"
    )
    arguments = [admin_url, str(server.home), server.address.server, str(folder)]
    with subprocess.Popen([sys.executable, "-c", program, *arguments]) as process:
        sleeping = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event = 'PgSleep'"
        )
        deadline = time.monotonic() + 20
        while rows(admin_url, sleeping) != [(1,)]:
            assert time.monotonic() < deadline, "the migration did not get there in time"
            time.sleep(0.02)
        process.kill()
    (folder / "0002_second.sql").write_text(second)

    assert rows(admin_url, "SELECT version FROM schema_migrations") == [(1,)]
    assert run().applied == ("0002_second",)


def test_an_edited_file_is_refused(run: Callable[[], Migrated], folder: Path) -> None:
    run()
    (folder / "0001_first.sql").write_text("CREATE TABLE other (id int)")

    with pytest.raises(Refused, match="0001_first was edited") as caught:
        run()
    assert caught.value.code == "schema_edited"


def test_code_that_is_older_than_the_database_is_refused(
    run: Callable[[], Migrated], folder: Path
) -> None:
    connections = run().connections
    (folder / "0002_second.sql").unlink()

    for attempt in (run, lambda: check_schema(connections.reader_url, folder)):
        with pytest.raises(Refused, match=r"0002_second.*older than the database") as caught:
            attempt()
        assert caught.value.code == "schema_newer"


def test_a_service_can_tell_whether_its_database_is_migrated(
    run: Callable[[], Migrated], folder: Path
) -> None:
    connections = run().connections
    check_schema(connections.reader_url, folder)
    check_schema(connections.writer_url, folder)
    (folder / "0003_third.sql").write_text("CREATE TABLE third (id int)")

    assert names(pending(connections.reader_url, folder)) == ["0003_third"]
    with pytest.raises(NotReady, match=r"lacks 1 .*0003_third. Run `kshift migrate`") as caught:
        check_schema(connections.writer_url, folder)
    assert caught.value.code == "schema_behind"


def test_in_a_new_database_everything_is_pending(admin_url: str, folder: Path) -> None:
    assert names(pending(admin_url, folder)) == ["0001_first", "0002_second"]


def test_every_applied_file_is_told_as_it_happens(
    server: PostgresServer, admin_url: str, folder: Path
) -> None:
    told: list[str] = []
    migrate(
        admin_url,
        server.credentials,
        server=server.address.server,
        folder=folder,
        talk=told.append,
    )

    assert told == ["Applied 0001_first.", "Applied 0002_second."]


@pytest.mark.parametrize(
    ("file_names", "reason"),
    [
        (["0001_a.sql", "2_b.sql"], "2_b.sql is not named NNNN_name.sql"),
        (["0001_a.sql", "0001_b.sql"], "without gaps or twins"),
        (["0001_a.sql", "0003_b.sql"], "without gaps or twins"),
        (["0002_a.sql"], "count from 0001"),
    ],
)
def test_wrongly_numbered_files_are_found_before_anything_runs(
    tmp_path: Path, file_names: list[str], reason: str
) -> None:
    for name in file_names:
        (tmp_path / name).write_text("SELECT 1")

    with pytest.raises(ValueError, match=reason):
        load_migrations(tmp_path)


def test_the_packaged_files_are_well_numbered() -> None:
    assert load_migrations(MIGRATIONS)[0].version == 1


def test_a_database_that_cannot_be_reached_is_named_without_the_password(
    server: PostgresServer,
) -> None:
    nowhere = with_database(server.address.admin_url, "nowhere")
    with pytest.raises(StoreUnavailable, match='database "nowhere" does not exist') as caught:
        migrate(nowhere, server.credentials)

    password = server.credentials.password(server.address.server, "kshift_admin")
    assert password is not None
    assert password not in str(caught.value)


def test_each_fresh_database_is_migrated_and_empty(server: PostgresServer) -> None:
    with server.fresh_database() as one, server.fresh_database(with_dagster=True) as other:
        check_schema(one.reader_url)
        check_schema(other.writer_url)
        assert rows(one.writer_url, "SELECT count(*) FROM accounts") == [(0,)]
        assert rows(other.dagster_url, "SELECT current_user") == [("kshift_dagster",)]
        assert one.reader_url != other.reader_url
    with pytest.raises(StoreUnavailable):
        check_schema(one.reader_url)
