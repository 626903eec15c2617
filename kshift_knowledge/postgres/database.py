"""Pooled connections of one role, and the transactions everything else runs in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from pgvector.psycopg import register_vector
from psycopg import Connection
from psycopg.rows import TupleRow
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from kshift_knowledge.errors import DiskFull, StoreUnavailable
from kshift_knowledge.records import Scope

Conn = Connection[TupleRow]

STATEMENT_TIMEOUT_HINT = "Try again; if it stays, look at the database's load."

# By default the pool waits longer after each failure: 8 s of answers were lost when a server was
# back from 20 s away. Giving up early costs nothing, since the next caller starts a new attempt.
_RECONNECT_S = 2.0


class Database:
    """
    One role's pool. Open it in the process that uses it: a pool never survives a fork.

    Every use is a transaction. Raises StoreUnavailable when the server does not answer.
    """

    def __init__(self, url: str, *, max_connections: int = 8, timeout_s: float = 5.0) -> None:
        self._pool: ConnectionPool[Conn] = ConnectionPool(
            url,
            min_size=1,
            max_size=max_connections,
            timeout=timeout_s,
            open=False,
            # An idle connection that the server or a proxy cut is replaced before it is handed out.
            check=ConnectionPool.check_connection,
            reconnect_timeout=_RECONNECT_S,
            configure=_configure,
            kwargs={"connect_timeout": 5, "application_name": "kshift"},
        )

    def open(self) -> Database:
        self._pool.open()
        return self

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> Database:
        return self.open()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[Conn]:
        """A transaction without a tenant: for the pipeline and for looking up a scope."""
        try:
            with self._pool.connection() as conn:
                yield conn
        except (PoolTimeout, PoolClosed) as exc:
            raise StoreUnavailable(
                "No database connection became free in time.", hint=STATEMENT_TIMEOUT_HINT
            ) from exc
        except psycopg.errors.QueryCanceled as exc:
            raise StoreUnavailable(
                "The database cancelled a statement that took too long.",
                hint=STATEMENT_TIMEOUT_HINT,
            ) from exc
        except psycopg.errors.DiskFull as exc:
            raise DiskFull(
                "The database's disk is full; nothing of this step was written.",
                hint="Make room, then run `kshift index` again: it goes on from there.",
            ) from exc
        except (psycopg.OperationalError, psycopg.InterfaceError) as exc:
            raise StoreUnavailable(
                f"The database does not answer ({type(exc).__name__}).",
                hint="Is it running? `kshift doctor` says more.",
            ) from exc

    @contextmanager
    def scoped(self, scope: Scope) -> Iterator[Conn]:
        """
        A transaction that knows its tenant: row policies read these three variables.

        They are local to the transaction, so that a pooled connection carries nothing over.
        """
        with self.transaction() as conn:
            conn.execute(
                "SELECT set_config('app.account_id', %s, true),"
                " set_config('app.project_id', %s, true), set_config('app.db_ids', %s, true)",
                (
                    str(scope.account_id),
                    str(scope.project_id),
                    ",".join(map(str, scope.knowledge_database_ids)),
                ),
            )
            yield conn


def _configure(conn: Connection[Any]) -> None:
    with conn.transaction():
        register_vector(conn)
