"""What a database needs besides its schema, as the statements that are still missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import Connection, sql

from kshift_knowledge.errors import NotReady

OWNER, WRITER = "kshift_owner", "kshift_writer"
READER, DAGSTER = "kshift_reader", "kshift_dagster"
PIPELINE_AND_API = (WRITER, READER)

MIN_SERVER = 15  # views with security_invoker
MIN_VECTOR = (0, 8)  # iterative index scans; halfvec came with 0.7

READER_CONNECTIONS = 64  # of 100: a flood of questions leaves room for the pipeline and Dagster
READER_SETTINGS = {"statement_timeout": "10s", "idle_in_transaction_session_timeout": "30s"}
WRITER_SETTINGS = {"idle_in_transaction_session_timeout": "10min"}

_POWERS = {
    "rolsuper": "SUPERUSER",
    "rolbypassrls": "BYPASSRLS",
    "rolcreatedb": "CREATEDB",
    "rolcreaterole": "CREATEROLE",
    "rolreplication": "REPLICATION",
    "rolinherit": "INHERIT",
}

_DATABASE_RIGHTS: LiteralString = """
    SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(grantee) END, privilege_type
      FROM pg_database, aclexplode(coalesce(datacl, acldefault('d', datdba)))
     WHERE datname = current_database()
"""
_SCHEMA_RIGHTS: LiteralString = """
    SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(grantee) END, privilege_type
      FROM pg_namespace, aclexplode(coalesce(nspacl, acldefault('n', nspowner)))
     WHERE nspname = 'public'
"""

Statement = sql.Composed


@dataclass(frozen=True, slots=True)
class LoginNames:
    """Who connects: our own roles, or an operator's logins that become their members."""

    writer: str = WRITER
    reader: str = READER
    dagster: str | None = DAGSTER  # None: Dagster has a database that is not ours to make


@dataclass(frozen=True, slots=True)
class _Catalog:
    """What the server says about itself, its roles and this database."""

    database: str
    login: str
    is_administrator: bool
    is_superuser: bool
    roles: dict[str, dict[str, Any]]
    memberships: frozenset[tuple[str, str]]  # (member, role), with the role's rights in use
    mine: frozenset[str]  # roles that this connection may become
    database_rights: frozenset[tuple[str, str]]  # (grantee or "PUBLIC", right)
    schema_rights: frozenset[tuple[str, str]]
    vector_version: str | None
    vector_schema: str | None
    available_vector: str | None


def missing_statements(conn: Connection[Any], logins: LoginNames) -> list[Statement]:
    """
    Return what an administrator must still run in this database, in order; nothing when done.

    Any login may ask. Passwords are not part of it. Raises NotReady when no statement helps: the
    server is too old, not UTF-8, or has no pgvector.
    """
    _check_server(conn)
    catalog = _read(conn, logins)
    return [
        *_role_statements(catalog, logins),
        *_membership_statements(catalog, logins),
        *_setting_statements(catalog, logins),
        *_database_statements(catalog),
        *_extension_statements(catalog),
    ]


def needs_administrator(
    conn: Connection[Any], missing: Sequence[Statement], exc: psycopg.Error | None
) -> NotReady:
    """The error of a login that may not run *missing*; its hint holds the statements."""
    reason = f" ({exc.diag.message_primary})" if exc is not None else ""
    lines = "\n".join(f"  {statement.as_string(conn)};" for statement in missing)
    return NotReady(
        f"The login {conn.info.user} may not prepare the database {conn.info.dbname}{reason}.",
        hint=f"Let an administrator run this in it, then try again:\n{lines}",
    )


def _check_server(conn: Connection[Any]) -> None:
    if conn.info.server_version < MIN_SERVER * 10_000:
        raise NotReady(
            f"The server is PostgreSQL {conn.info.server_version // 10_000}; kshift needs "
            f"{MIN_SERVER} or newer.",
            hint="Use a newer server.",
        )
    encoding = conn.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise NotReady(
            f"The database {conn.info.dbname} has the encoding {encoding}; kshift needs UTF8.",
            hint="Make one with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0.",
        )


def _read(conn: Connection[Any], logins: LoginNames) -> _Catalog:
    names = [OWNER, WRITER, READER, logins.writer, logins.reader]
    if logins.dagster is not None:
        names.append(logins.dagster)
    cursor = conn.execute(
        "SELECT rolname, rolcanlogin, rolconnlimit, rolsuper, rolbypassrls, rolcreatedb,"
        " rolcreaterole, rolreplication, rolinherit, rolconfig"
        " FROM pg_roles WHERE rolname = ANY(%s)",
        (names,),
    )
    columns = [column.name for column in cursor.description or ()]
    roles = {row[0]: dict(zip(columns, row, strict=True)) for row in cursor}
    me = conn.execute(
        "SELECT rolsuper, rolsuper OR rolcreaterole, rolname FROM pg_roles"
        " WHERE rolname = current_user"
    ).fetchone()
    assert me is not None
    memberships = conn.execute(
        "SELECT m.rolname, r.rolname FROM pg_roles m, pg_roles r WHERE m.rolname = ANY(%(n)s)"
        " AND r.rolname = ANY(%(n)s) AND pg_has_role(m.oid, r.oid, 'USAGE')",
        {"n": names},
    ).fetchall()
    # From version 16 on, being a member is not enough to SET ROLE.
    right: LiteralString = "SET" if conn.info.server_version >= 160_000 else "MEMBER"
    mine = conn.execute(
        "SELECT rolname FROM pg_roles WHERE rolname = ANY(%s) AND pg_has_role(oid, %s)",
        (names, right),
    ).fetchall()
    vector = conn.execute(
        "SELECT e.extversion, n.nspname, a.default_version"
        " FROM pg_available_extensions a"
        " LEFT JOIN pg_extension e ON e.extname = a.name"
        " LEFT JOIN pg_namespace n ON n.oid = e.extnamespace WHERE a.name = 'vector'"
    ).fetchone()
    return _Catalog(
        database=conn.info.dbname,
        login=me[2],
        is_superuser=me[0],
        is_administrator=me[1],
        roles=roles,
        memberships=frozenset((member, role) for member, role in memberships),
        mine=frozenset(row[0] for row in mine),
        database_rights=_rights(conn, _DATABASE_RIGHTS),
        schema_rights=_rights(conn, _SCHEMA_RIGHTS),
        vector_version=vector[0] if vector else None,
        vector_schema=vector[1] if vector else None,
        available_vector=vector[2] if vector else None,
    )


def _rights(conn: Connection[Any], query: LiteralString) -> frozenset[tuple[str, str]]:
    return frozenset((grantee, right) for grantee, right in conn.execute(query))


def _role_statements(catalog: _Catalog, logins: LoginNames) -> Iterator[Statement]:
    ours = [OWNER, *PIPELINE_AND_API, *([DAGSTER] if logins.dagster == DAGSTER else [])]
    for name in ours:
        wanted = dict.fromkeys(_POWERS, False) | {"rolcanlogin": name != OWNER}
        words = {**_POWERS, "rolcanlogin": "LOGIN"}
        found = catalog.roles.get(name)
        differing = [
            words[attribute] if value else f"NO{words[attribute]}"
            for attribute, value in wanted.items()
            if found is None or found[attribute] != value
        ]
        if differing:
            verb = "CREATE" if found is None else "ALTER"
            yield sql.SQL("{} ROLE {} {}").format(
                sql.SQL(verb), sql.Identifier(name), sql.SQL(" ".join(differing))
            )
    if READER not in catalog.roles or catalog.roles[READER]["rolconnlimit"] == -1:
        yield sql.SQL("ALTER ROLE {} CONNECTION LIMIT {}").format(
            sql.Identifier(READER), sql.Literal(READER_CONNECTIONS)
        )


def _membership_statements(catalog: _Catalog, logins: LoginNames) -> Iterator[Statement]:
    for login, role in ((logins.writer, WRITER), (logins.reader, READER)):
        if login not in catalog.roles and login != role:
            yield sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(login))
        if login != role and (login, role) not in catalog.memberships:
            yield sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), sql.Identifier(login))
    if catalog.is_administrator and not catalog.is_superuser:
        # It must be able to act as the schema's owner and to give a database to Dagster.
        for role in (OWNER, *([DAGSTER] if logins.dagster == DAGSTER else [])):
            if role not in catalog.mine:
                yield sql.SQL("GRANT {} TO {}").format(
                    sql.Identifier(role), sql.Identifier(catalog.login)
                )


def _setting_statements(catalog: _Catalog, logins: LoginNames) -> Iterator[Statement]:
    for login, settings in (
        (logins.reader, READER_SETTINGS),
        (logins.writer, WRITER_SETTINGS),
    ):
        found = catalog.roles.get(login)
        present = {line.partition("=")[0] for line in (found or {}).get("rolconfig") or ()}
        for setting, value in settings.items():
            if setting not in present:  # a value that an operator chose stays
                yield sql.SQL("ALTER ROLE {} SET {} = {}").format(
                    sql.Identifier(login), sql.Identifier(setting), sql.Literal(value)
                )


def _database_statements(catalog: _Catalog) -> Iterator[Statement]:
    database = sql.Identifier(catalog.database)
    if {("PUBLIC", "CONNECT"), ("PUBLIC", "TEMPORARY")} & catalog.database_rights:
        yield sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(database)
    for role in PIPELINE_AND_API:
        if (role, "CONNECT") not in catalog.database_rights:
            yield sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(
                database, sql.Identifier(role)
            )
    if {("PUBLIC", "USAGE"), ("PUBLIC", "CREATE")} & catalog.schema_rights:
        yield sql.SQL("REVOKE ALL ON SCHEMA public FROM PUBLIC").format()
    if not {(OWNER, "USAGE"), (OWNER, "CREATE")} <= catalog.schema_rights:
        yield sql.SQL("GRANT USAGE, CREATE ON SCHEMA public TO {}").format(sql.Identifier(OWNER))
    for role in PIPELINE_AND_API:
        if (role, "USAGE") not in catalog.schema_rights:
            yield sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(sql.Identifier(role))


def _extension_statements(catalog: _Catalog) -> Iterator[Statement]:
    usable = catalog.available_vector
    if usable is None or _numbers(usable) < MIN_VECTOR:
        found = "no pgvector" if usable is None else f"pgvector {usable}"
        raise NotReady(
            f"The server has {found}; kshift needs {'.'.join(map(str, MIN_VECTOR))} or newer.",
            hint="Install it on the database server (Debian: postgresql-<major>-pgvector), or "
            "unset KSHIFT_DATABASE_URL for the embedded server.",
        )
    if catalog.vector_version is None:
        yield sql.SQL("CREATE EXTENSION vector WITH SCHEMA public").format()
        return
    if _numbers(catalog.vector_version) < MIN_VECTOR:
        yield sql.SQL("ALTER EXTENSION vector UPDATE").format()
    if catalog.vector_schema != "public":
        yield sql.SQL("ALTER EXTENSION vector SET SCHEMA public").format()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
