"""The schema's versions: found as numbered SQL files, applied once and in order, never edited."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import Connection

from kshift_knowledge.errors import NotReady, Refused
from kshift_knowledge.postgres.credentials import Credentials
from kshift_knowledge.postgres.roles import (
    Connections,
    Logins,
    connect,
    connections,
    prepare_roles,
)

MIGRATIONS = Path(__file__).with_name("migrations")
LOCK = 0x6B73686966740001  # "kshift" and a number; advisory locks belong to a database
LOCK_TIMEOUT = "30s"  # a migration that waits longer for a table would hold up every reader

_FILE_NAME = re.compile(r"(?P<version>\d{4})_(?P<name>[a-z0-9_]+)\.sql")
_JOURNAL = """
CREATE TABLE IF NOT EXISTS public.schema_migrations (
    version    int PRIMARY KEY,
    name       text NOT NULL,
    sha256     text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT ON public.schema_migrations TO kshift_writer, kshift_reader;
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file `NNNN_name.sql`."""

    version: int
    name: str
    sha256: str
    path: Path

    def __str__(self) -> str:
        return self.path.stem


@dataclass(frozen=True, slots=True)
class Migrated:
    """What `migrate` did: the names of the applied files, and what a person should know."""

    connections: Connections
    applied: tuple[str, ...]
    notes: tuple[str, ...]


def migrate(
    admin_url: str,
    credentials: Credentials,
    logins: Logins = Logins(),  # noqa: B008 - frozen
    *,
    server: str | None = None,
    folder: Path = MIGRATIONS,
    talk: Callable[[str], None] = lambda line: None,
) -> Migrated:
    """
    Bring a database up to this code: roles, extension, Dagster's database, then the schema.

    Safe to repeat and to run from several processes at once: one works, the others wait.
    server: the server's key among the passwords, see connections().
    talk: is told about each applied file and each replaced password as it happens.
    Raises StoreUnavailable, NotReady (its hint names the statements an administrator must run),
    Refused (see applied_migrations).
    """
    with _alone(admin_url):
        notes = prepare_roles(admin_url, credentials, logins, server=server)
        for note in notes:
            talk(note)
        applied = []
        for name in apply_migrations(admin_url, folder):
            talk(f"Applied {name}.")
            applied.append(name)
    return Migrated(
        connections(admin_url, credentials, logins, server=server), tuple(applied), tuple(notes)
    )


def apply_migrations(admin_url: str, folder: Path = MIGRATIONS) -> Iterator[str]:
    """Apply what is pending, each file in a transaction of its own, and yield its name."""
    with connect(admin_url) as conn:
        with _as_owner(conn):
            conn.execute(_JOURNAL)
        for migration in _pending(conn, folder):
            _apply(conn, migration)
            yield str(migration)


def pending(url: str, folder: Path = MIGRATIONS) -> list[Migration]:
    """
    Return the migrations that are not applied yet; any of our roles may ask.

    Raises Refused when an applied file was edited or is unknown to this code: it is older than
    the database.
    """
    with connect(url) as conn:
        return _pending(conn, folder)


def check_schema(url: str, folder: Path = MIGRATIONS) -> None:
    """Raise NotReady unless the database is exactly at this code's version, or Refused."""
    if missing := pending(url, folder):
        raise NotReady(
            f"The database lacks {len(missing)} of this version's migrations, first {missing[0]}.",
            hint="Run `kshift migrate`.",
            code="schema_behind",
        )


def load_migrations(folder: Path) -> list[Migration]:
    """Return the files of *folder* in order. Numbers start at 1 and leave no gap."""
    migrations = []
    for path in sorted(folder.glob("*.sql")):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            raise ValueError(f"{path.name} is not named NNNN_name.sql")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        migrations.append(Migration(int(match["version"]), match["name"], digest, path))
    versions = [migration.version for migration in migrations]
    if versions != list(range(1, len(versions) + 1)):
        raise ValueError(f"migrations must count from 0001 without gaps or twins: {versions}")
    return migrations


def _pending(conn: Connection[Any], folder: Path) -> list[Migration]:
    known = {migration.version: migration for migration in load_migrations(folder)}
    done = _journal(conn)
    for version, name, sha256 in done:
        migration = known.get(version)
        if migration is None:
            raise Refused(
                f"The database has the migration {version:04}_{name}, which this kshift does not "
                "know: it is older than the database.",
                hint="Use the kshift that migrated it, or a newer one.",
                code="schema_newer",
            )
        if migration.sha256 != sha256:
            raise Refused(
                f"The migration {migration} was edited after the database applied it.",
                hint="Restore the file and put the change into a new migration.",
                code="schema_edited",
            )
    applied = {version for version, _, _ in done}
    return [migration for version, migration in known.items() if version not in applied]


def _journal(conn: Connection[Any]) -> list[tuple[int, str, str]]:
    try:
        return conn.execute(
            "SELECT version, name, sha256 FROM public.schema_migrations ORDER BY version"
        ).fetchall()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return []
    except psycopg.errors.InsufficientPrivilege as exc:
        raise NotReady(
            f"The login {conn.info.user} may not read which migrations are applied.",
            hint="Run `kshift migrate`; `kshift doctor` prints the statements that are missing.",
        ) from exc


def _apply(conn: Connection[Any], migration: Migration) -> None:
    try:
        with _as_owner(conn):
            conn.execute(migration.path.read_bytes())
            conn.execute(
                "INSERT INTO public.schema_migrations (version, name, sha256) VALUES (%s, %s, %s)",
                (migration.version, migration.name, migration.sha256),
            )
    except psycopg.errors.LockNotAvailable as exc:
        raise NotReady(
            f"The migration {migration} waited {LOCK_TIMEOUT} for a table that others use.",
            hint="Stop `kshift up` and running indexing, then run `kshift migrate` again.",
        ) from exc
    except psycopg.Error as exc:
        raise NotReady(
            f"The migration {migration} failed and changed nothing: {exc.diag.message_primary}.",
            hint="Everything before it is applied and stays.",
            code="migration_failed",
        ) from exc


@contextmanager
def _as_owner(conn: Connection[Any]) -> Iterator[None]:
    """A transaction in which all that is made belongs to kshift_owner, who cannot log in."""
    with conn.transaction():
        conn.execute("SET LOCAL ROLE kshift_owner")
        conn.execute("SET LOCAL search_path = public")
        conn.execute("SET LOCAL statement_timeout = 0")
        conn.execute("SET LOCAL client_min_messages = warning")
        # A killed migration's statement would otherwise run on and keep its locks.
        conn.execute("SET LOCAL client_connection_check_interval = '500ms'")
        conn.execute("SELECT set_config('lock_timeout', %s, true)", (LOCK_TIMEOUT,))
        yield


@contextmanager
def _alone(admin_url: str) -> Iterator[None]:
    """
    One migration of this database at a time.

    The lock lives in a transaction of its own connection: it ends with the process, and a pooler
    between us and the server cannot part it from its connection.
    """
    with connect(admin_url) as conn, conn.transaction():
        conn.execute("SET LOCAL statement_timeout = 0")
        conn.execute("SET LOCAL lock_timeout = 0")
        conn.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        conn.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        yield
