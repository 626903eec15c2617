"""Dagster's own database beside ours: its migrations use table names that must not meet ours."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
from psycopg import Connection, sql

from kshift_knowledge.errors import Refused
from kshift_knowledge.postgres.role_statements import DAGSTER, Statement, needs_administrator


def make_dagster_database(conn: Connection[Any], database: str) -> None:
    """
    Make *database* for kshift_dagster and close it to everybody else; it may exist already.

    Raises NotReady when the administrator may not, Refused when it belongs to somebody else.
    """
    owner = owner_of(conn, database)
    if owner is None:
        try:
            with contextlib.suppress(  # another process was faster
                psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation
            ):
                conn.execute(create_database(database))
        except psycopg.errors.InsufficientPrivilege as exc:
            raise needs_administrator(conn, [create_database(database)], exc) from exc
    elif owner != DAGSTER:
        raise Refused(
            f"The database {database} exists and belongs to {owner}, not to {DAGSTER}.",
            hint="Rename it, or set KSHIFT_DAGSTER_URL to a database for Dagster.",
        )
    is_open = conn.execute(
        "SELECT has_database_privilege('public', %s, 'CONNECT')", (database,)
    ).fetchone()
    if is_open == (True,):
        conn.execute(
            sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(database))
        )


def owner_of(conn: Connection[Any], database: str) -> str | None:
    """The owner's name, None when there is no such database."""
    row = conn.execute(
        "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = %s", (database,)
    ).fetchone()
    return None if row is None else str(row[0])


def create_database(database: str) -> Statement:
    """The statement that makes it; it cannot run inside a transaction."""
    return sql.SQL("CREATE DATABASE {} OWNER {} ENCODING 'UTF8' TEMPLATE template0").format(
        sql.Identifier(database), sql.Identifier(DAGSTER)
    )
