"""Setting and trying the passwords of roles, while other databases' migrations do the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import Connection, sql

from kshift_knowledge.postgres.role_statements import Statement, needs_administrator

CONNECT_TIMEOUT_S = 10
RACE_ATTEMPTS = 20
# Roles belong to the server: migrations of its other databases change them at the same time.
RACES = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateObject,
    psycopg.errors.InternalError_,  # "tuple concurrently updated"
)


def set_passwords(conn: Connection[Any], passwords: Mapping[str, str]) -> None:
    """
    Set the password of each role, as a SCRAM verifier, so that no log of the server can hold it.

    Raises NotReady when this login may not; the hint holds the grants that it lacks.
    """
    refusal: psycopg.Error | None = None
    lacking = []
    for role, password in passwords.items():
        verifier = conn.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256")
        name = sql.Identifier(role)
        statement = sql.SQL("ALTER ROLE {} PASSWORD {}").format(name, verifier.decode())
        try:
            _run_through_races(conn, statement)
        except psycopg.errors.InsufficientPrivilege as exc:
            refusal = exc
            lacking.append(
                sql.SQL("GRANT {} TO {} WITH ADMIN OPTION").format(
                    name, sql.Identifier(conn.info.user)
                )
            )
    if lacking:
        raise needs_administrator(conn, lacking, refusal) from refusal


def _run_through_races(conn: Connection[Any], statement: Statement) -> None:
    for attempt in range(1, RACE_ATTEMPTS + 1):
        try:
            conn.execute(statement)
            return
        except RACES:
            if attempt == RACE_ATTEMPTS:
                raise


def connects(url: str) -> bool:
    """Whether a login works right now."""
    try:
        psycopg.connect(url, connect_timeout=CONNECT_TIMEOUT_S).close()
    except psycopg.OperationalError:
        return False
    return True
