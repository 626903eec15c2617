"""A real PostgreSQL for tests: one server for the session, one migrated database per test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

from kshift_knowledge.postgres.credentials import Credentials
from kshift_knowledge.postgres.embedded import EmbeddedServer
from kshift_knowledge.postgres.migrations import migrate
from kshift_knowledge.postgres.role_statements import DAGSTER, READER, WRITER
from kshift_knowledge.postgres.roles import Connections, connections
from kshift_knowledge.postgres.urls import dagster_database_of, with_database


class PostgresServer:
    """
    An embedded server that forgets everything at a power cut, with copies of a migrated database.

    A copy takes some 40 ms where migrating takes 300.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.credentials = Credentials(home)
        self.embedded = EmbeddedServer(home, is_durable=False)
        self.address = self.embedded.ensure_running()
        self._numbers = count(1)
        migrate(self.address.admin_url, self.credentials, server=self.address.server)

    @contextmanager
    def fresh_database(self, *, with_dagster: bool = False) -> Iterator[Connections]:
        """
        A migrated database of its own, without rows, as all roles see it; dropped at the end.

        with_dagster: also make the empty database that dagster_url names.
        """
        name = f"test_{next(self._numbers)}"
        copy = "CREATE DATABASE {} TEMPLATE kshift STRATEGY FILE_COPY"
        # The rights on a database are not in the copy.
        close = "REVOKE ALL ON DATABASE {} FROM PUBLIC"
        with self._made(name, copy, close, f"GRANT CONNECT ON DATABASE {{}} TO {WRITER}, {READER}"):
            urls = connections(
                with_database(self.address.admin_url, name),
                self.credentials,
                server=self.address.server,
            )
            if not with_dagster:
                yield urls
                return
            empty = f"CREATE DATABASE {{}} OWNER {DAGSTER} STRATEGY FILE_COPY"
            with self._made(dagster_database_of(name), empty, close):
                yield urls

    @contextmanager
    def empty_database(self) -> Iterator[str]:
        """A database as CREATE DATABASE makes it; yields the administrator's URL of it."""
        name = f"test_{next(self._numbers)}"
        with self._made(name, "CREATE DATABASE {} STRATEGY FILE_COPY"):
            try:
                yield with_database(self.address.admin_url, name)
            finally:
                self._run("DROP DATABASE IF EXISTS {} WITH (FORCE)", dagster_database_of(name))

    @contextmanager
    def _made(self, name: str, *statements: str) -> Iterator[None]:
        for statement in statements:
            self._run(statement, name)
        try:
            yield
        finally:
            self._run("DROP DATABASE {} WITH (FORCE)", name)

    def _run(self, statement: str, database: str) -> None:
        url = with_database(self.address.admin_url, "postgres")
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(sql.SQL(statement).format(sql.Identifier(database)))


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """Start the session's server in a folder that its user can reach; remove both at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ks-"))
    folder.chmod(0o711)  # pytest's own temporary folders are deep and closed to other users
    server: PostgresServer | None = None
    try:
        server = PostgresServer(folder / "home")
        yield server
    finally:
        if server is not None:
            server.embedded.stop()
        shutil.rmtree(folder)
