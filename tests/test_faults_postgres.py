"""PostgreSQL dies in the middle of indexing: the run waits, goes on, and nothing is torn."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from crashes import crash_postgres
from embedding_server import Fault, Request
from oracles import Reader, assert_paid_once, assert_true, kept_hashes
from postgres_server import PostgresServer, running_server
from waiting import wait_until
from workshop import DATABASE, Workshop, open_workshop, sections

from kshift_knowledge.errors import DiskFull, StoreUnavailable
from kshift_knowledge.failpoints import armed
from kshift_knowledge.indexing.embedding_work import MAX_INPUTS
from kshift_knowledge.postgres import batches
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.patience import insist
from kshift_knowledge.postgres.urls import database_of, with_database

FILES = 12


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that these tests may crash."""
    with running_server() as running:
        yield running


@dataclass(frozen=True)
class Watched:
    """A workshop on a server that may crash, and a reader that never stops looking."""

    workshop: Workshop
    server: PostgresServer
    reader: Reader
    admin_url: str

    def write_all(self, word: str) -> None:
        for number in range(FILES):
            text = sections(*(f"{word}{number}x{part}" for part in range(3)))
            self.workshop.write(f"{number}.md", text)
            self.reader.wrote(f"{DATABASE}/{number}.md", text)

    def crash(self, how: signal.Signals = signal.SIGQUIT) -> None:
        crash_postgres(self.server.home, how)
        self.server.embedded.ensure_running()


@pytest.fixture
def watched(tmp_path: Path, server: PostgresServer) -> Iterator[Watched]:
    with (
        server.fresh_database() as urls,
        Database(urls.writer_url, max_connections=20) as writer,
        Database(urls.reader_url, timeout_s=1) as reader,
        open_workshop(tmp_path / "tree", writer) as workshop,
    ):
        admin_url = with_database(server.address.admin_url, database_of(urls.writer_url))
        yield Watched(workshop, server, Reader(reader, workshop.generation), admin_url)


@pytest.mark.parametrize(
    ("moment", "how"),
    [
        ("claimed", signal.SIGQUIT),
        ("batch_paid", signal.SIGKILL),
        ("batch_kept", signal.SIGQUIT),
        ("swap_deleted", signal.SIGKILL),
        ("swap_copied", signal.SIGQUIT),
        ("swap_committed", signal.SIGKILL),
    ],
)
def test_a_run_outlives_a_crash_of_the_server(
    watched: Watched, moment: str, how: signal.Signals
) -> None:
    workshop = watched.workshop
    watched.write_all("old")
    workshop.index()
    watched.write_all("new")

    with watched.reader.reading(), armed(moment, lambda: watched.crash(how)):
        done = workshop.index()

    assert set(done.statuses.values()) == {"indexed"}
    assert len(workshop.server.texts) == len(set(workshop.server.texts)), "nothing is paid twice"
    watched.reader.assert_saw_only_whole_versions()
    assert_true(workshop)


def test_a_run_outlives_that_all_its_connections_are_cut(watched: Watched) -> None:
    workshop = watched.workshop
    watched.write_all("old")
    workshop.index()
    watched.write_all("new")

    def cut() -> None:
        url = watched.admin_url
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE usename = 'kshift_writer' AND datname = current_database()"
            )

    with watched.reader.reading(), armed("swap_deleted", cut):
        done = workshop.index()

    assert set(done.statuses.values()) == {"indexed"}
    watched.reader.assert_saw_only_whole_versions()
    assert_true(workshop)


def test_a_full_disk_breaks_the_run_off_and_it_goes_on_when_there_is_room(
    watched: Watched,
) -> None:
    workshop = watched.workshop
    watched.write_all("old")
    workshop.index()
    watched.write_all("new")
    with psycopg.connect(watched.admin_url, autocommit=True) as admin:
        # The server's own error, raised in the middle of the rows of the second slice.
        admin.execute(
            "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.content LIKE '%new7x1%' THEN RAISE EXCEPTION USING ERRCODE = '53100';"
            " END IF; RETURN NEW; END $$"
        )
        admin.execute(
            "CREATE TRIGGER no_room BEFORE INSERT ON chunks FOR EACH ROW EXECUTE FUNCTION no_room()"
        )
        with watched.reader.reading():
            with pytest.raises(DiskFull):
                workshop.index()
            admin.execute("DROP TRIGGER no_room ON chunks")
            workshop.index()

    watched.reader.assert_saw_only_whole_versions()
    assert_true(workshop)


def test_the_run_is_known_to_be_alive_again_after_a_crash(watched: Watched) -> None:
    workshop = watched.workshop
    watched.write_all("old")
    report = workshop.look()

    def crash_and_look(_: Request) -> Fault:
        if workshop.server.counts["requests"] == 1:
            watched.crash()
            wait_until(lambda: _is_alive(workshop, report.batch_id))
        return Fault()

    workshop.server.always(crash_and_look)
    _, outcomes = workshop.run(report.batch_id)

    assert {outcome.status for outcome in outcomes} == {"indexed"}
    assert not _is_alive(workshop, report.batch_id)


def test_a_server_that_stays_away_breaks_the_run_off_and_the_next_one_pays_nothing_again(
    watched: Watched,
) -> None:
    workshop = watched.workshop
    workshop.write("big.md", sections(*(f"s{number}" for number in range(150))))  # three requests
    workshop.store.patience_s = 0.0

    with armed("swap_deleted", watched.crash), pytest.raises(StoreUnavailable):
        workshop.index()
    paid, before = kept_hashes(workshop.database), len(workshop.server.texts)
    workshop.index()

    assert len(paid) >= 2 * MAX_INPUTS
    assert_paid_once(workshop.server, paid, before)
    assert_true(workshop)


def test_insisting_ends_when_its_patience_does() -> None:
    now, waits = [0.0], []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    def never() -> None:
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        insist(never, patience_s=5.0, clock=lambda: now[0], sleep=sleep)

    assert sum(waits) <= 5.0 < sum(waits) + 2.0
    assert waits == sorted(waits)


def _is_alive(workshop: Workshop, batch_id: UUID | None) -> bool:
    try:
        with workshop.database.transaction() as conn:
            return batches.unfinished(conn).get(batch_id, False) if batch_id else False
    except StoreUnavailable:
        return False
