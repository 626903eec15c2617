"""The lock that says a run is alive: it falls with the process, and comes back with the server."""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from uuid import UUID

from kshift_knowledge.errors import StoreUnavailable
from kshift_knowledge.postgres.database import Conn, Database

# A server that comes back is asked for its lock before any look can take the run for dead.
_RETRY_S = 0.2

# How hashtextextended() of an id shows in pg_locks: two halves of one bigint.
_HELD = """
SELECT w.id FROM unnest(%s::text[]) AS w(id) WHERE EXISTS (
    SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended(w.id, 0))
"""


@contextmanager
def held(database: Database, run_id: UUID) -> Iterator[bool]:
    """
    Hold the lock of this id for the block; yields False when another process has it.

    When the server restarts meanwhile the lock is taken again as soon as it is back. Whoever took
    it before that keeps it: two runs of one batch are safe, only not useful.

    Raises StoreUnavailable when it cannot be asked for at all.
    """
    keeper = _Keeper(database, run_id)
    try:
        yield keeper.start()
    finally:
        keeper.stop()


def held_among(conn: Conn, run_ids: Collection[UUID]) -> set[UUID]:
    """Return those of the ids whose lock some living process holds."""
    if not run_ids:
        return set()
    rows = conn.execute(_HELD, ([str(run_id) for run_id in run_ids],))
    return {UUID(row[0]) for row in rows}


class _Keeper:
    """A thread with a connection of its own; it sleeps until told to stop or the server is lost."""

    def __init__(self, database: Database, run_id: UUID) -> None:
        self._database = database
        self._run_id = run_id
        self._first_answer: Future[bool] = Future()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="kshift-run-lock", daemon=True)

    def start(self) -> bool:
        self._thread.start()
        return self._first_answer.result()

    def stop(self) -> None:
        self._stopping.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def _keep(self) -> None:
        try:
            self._hold_until_told_to_stop()
        except BaseException as exc:
            if self._first_answer.done():
                raise
            self._first_answer.set_exception(exc)

    def _hold_until_told_to_stop(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._database.transaction() as conn:
                    if not self._lock(conn):
                        return
                    self._wait(conn)
                    self._unlock(conn)
            except StoreUnavailable:
                if not self._first_answer.done():
                    raise
                self._stopping.wait(_RETRY_S)

    def _lock(self, conn: Conn) -> bool:
        row = conn.execute(
            "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", (str(self._run_id),)
        ).fetchone()
        conn.commit()
        has_it = bool(row and row[0])
        if not self._first_answer.done():
            self._first_answer.set_result(has_it)
        return has_it

    def _wait(self, conn: Conn) -> None:
        """Return when told to stop. Raises StoreUnavailable, by its caller, when *conn* is lost."""
        with selectors.DefaultSelector() as selector:
            selector.register(conn.fileno(), selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while not self._stopping.is_set():
                selector.select()
                conn.execute("SELECT 1")  # raises when what came was the end of the connection
                conn.commit()

    def _unlock(self, conn: Conn) -> None:
        conn.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", (str(self._run_id),))
