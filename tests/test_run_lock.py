"""The lock that says a run is alive: one holder, gone with its process, back with the server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from crashes import crash_postgres
from postgres_server import PostgresServer, running_server
from waiting import wait_until

from kshift_knowledge.errors import StoreUnavailable
from kshift_knowledge.postgres import run_lock
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.roles import Connections

PROGRAM = """
import sys
from uuid import UUID
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.run_lock import held
with Database(sys.argv[1]) as database, held(database, UUID(sys.argv[2])) as has_it:
    print(has_it, flush=True)
    sys.stdin.read()
"""


def is_held(database: Database, run_id: UUID) -> bool:
    with database.transaction() as conn:
        return run_lock.held_among(conn, [run_id, uuid4()]) == {run_id}


def test_a_lock_has_one_holder_and_ends_with_its_block(writer: Database) -> None:
    run_id = uuid4()
    with run_lock.held(writer, run_id) as first, run_lock.held(writer, run_id) as second:
        during = is_held(writer, run_id)

    assert (first, second, during) == (True, False, True)
    assert not is_held(writer, run_id)
    with run_lock.held(writer, run_id) as again:
        assert again


def test_a_lock_falls_with_its_process(writer: Database, database_urls: Connections) -> None:
    run_id = uuid4()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, database_urls.writer_url, str(run_id)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert is_held(writer, run_id)
        process.kill()

    wait_until(lambda: not is_held(writer, run_id))


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    with running_server() as server:
        yield server


def test_a_lock_comes_back_with_the_server_and_can_still_be_given_up(
    own_server: PostgresServer,
) -> None:
    run_id = uuid4()
    with own_server.fresh_database() as urls, Database(urls.writer_url) as database:
        with run_lock.held(database, run_id):
            crash_postgres(own_server.home)
            own_server.embedded.ensure_running()
            wait_until(lambda: is_held(database, run_id))
        assert not is_held(database, run_id)


def test_without_a_server_nobody_is_told_that_they_hold_it(own_server: PostgresServer) -> None:
    with own_server.fresh_database() as urls, Database(urls.writer_url, timeout_s=0.3) as database:
        own_server.embedded.stop()
        with pytest.raises(StoreUnavailable), run_lock.held(database, uuid4()):
            pytest.fail("nothing may run without its lock")
        own_server.embedded.ensure_running()
