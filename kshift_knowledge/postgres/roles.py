"""Who connects as whom: the roles of a server, their passwords, and Dagster's own database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import Connection, sql

from kshift_knowledge.errors import NotReady, Refused, StoreUnavailable
from kshift_knowledge.postgres import role_statements
from kshift_knowledge.postgres.credentials import Credentials
from kshift_knowledge.postgres.dagster_database import (
    create_database,
    make_dagster_database,
    owner_of,
)
from kshift_knowledge.postgres.role_passwords import (
    CONNECT_TIMEOUT_S,
    RACE_ATTEMPTS,
    RACES,
    connects,
    set_passwords,
)
from kshift_knowledge.postgres.role_statements import (
    DAGSTER,
    OWNER,
    READER,
    WRITER,
    LoginNames,
    needs_administrator,
)
from kshift_knowledge.postgres.urls import (
    dagster_database_of,
    database_of,
    parse_url,
    server_of,
    user_of,
    with_login,
)


@dataclass(frozen=True, slots=True)
class Logins:
    """KSHIFT_WRITER_URL, KSHIFT_READER_URL and KSHIFT_DAGSTER_URL; None: a generated login."""

    writer_url: str | None = field(default=None, repr=False)
    reader_url: str | None = field(default=None, repr=False)
    dagster_url: str | None = field(default=None, repr=False)

    @property
    def names(self) -> LoginNames:
        return LoginNames(
            writer=user_of(self.writer_url) or WRITER if self.writer_url else WRITER,
            reader=user_of(self.reader_url) or READER if self.reader_url else READER,
            dagster=None if self.dagster_url else DAGSTER,
        )

    @property
    def generated(self) -> tuple[str, ...]:
        """The roles whose passwords this home makes and keeps."""
        urls = ((WRITER, self.writer_url), (READER, self.reader_url), (DAGSTER, self.dagster_url))
        return tuple(role for role, url in urls if url is None)

    @property
    def explicit(self) -> dict[str, str]:
        """The operator's own logins to our database, and their URLs."""
        urls = ((self.names.writer, self.writer_url), (self.names.reader, self.reader_url))
        return {login: url for login, url in urls if url is not None}


@dataclass(frozen=True, slots=True)
class Connections:
    """The URLs of one home; they hold passwords. admin_url is for migrations only."""

    writer_url: str = field(repr=False)
    reader_url: str = field(repr=False)
    dagster_url: str = field(repr=False)
    admin_url: str | None = field(default=None, repr=False)


def connections(
    admin_url: str | None,
    credentials: Credentials,
    logins: Logins = Logins(),
    *,
    server: str | None = None,
) -> Connections:
    """
    Return the URLs of all roles; no server is asked.

    admin_url says where the server is; None is enough when *logins* names all three.
    server: the server's key among the passwords; by default derived from *admin_url*.
    Raises NotReady when a password was never made: the database is not migrated from this home.
    """

    def url_of(role: str, explicit: str | None, database: str | None = None) -> str:
        if explicit is not None:
            return explicit
        password = credentials.password(server or server_of(admin_url), role) if admin_url else None
        if admin_url is None or password is None:
            raise NotReady(
                f"This home has no password for {role}.",
                hint=f"Run `kshift migrate` with an administrator's KSHIFT_DATABASE_URL, or set "
                f"{_VARIABLES[role]}.",
            )
        return with_login(admin_url, role, password, database=database)

    dagster_database = dagster_database_of(database_of(admin_url)) if admin_url else None
    return Connections(
        writer_url=url_of(WRITER, logins.writer_url),
        reader_url=url_of(READER, logins.reader_url),
        dagster_url=url_of(DAGSTER, logins.dagster_url, dagster_database),
        admin_url=admin_url,
    )


def prepare_roles(
    admin_url: str,
    credentials: Credentials,
    logins: Logins = Logins(),
    *,
    server: str | None = None,
) -> list[str]:
    """
    Make what is missing of roles, rights, the extension, passwords and Dagster's database.

    The administrator is a superuser, or owns the database and has CREATEROLE and CREATEDB, and
    then somebody else has installed the extension. Returns sentences about passwords that were
    replaced. Raises NotReady; its hint holds the statements that an administrator must run.
    """
    server = server or server_of(admin_url)
    with connect(admin_url) as conn:
        existing = _existing_roles(conn, logins.names)
        _run_missing(conn, logins.names)
        passwords = {
            login: parse_url(url).get("password", "")
            for login, url in logins.explicit.items()
            if login not in existing
        }
        notes = []
        for role in logins.generated:
            database = (
                dagster_database_of(conn.info.dbname) if role == DAGSTER else conn.info.dbname
            )
            if role == DAGSTER:
                make_dagster_database(conn, database)
            password, is_new = credentials.obtain(server, role)
            url = with_login(admin_url, role, password, database=database)
            if role in existing and not is_new and connects(url):
                continue
            passwords[role] = password
            if role in existing:
                why = "this home did not know it" if is_new else "the old one did not connect"
                notes.append(f"The password of {role} is set anew: {why}.")
        set_passwords(conn, passwords)
        return notes


def missing_statements(url: str, logins: Logins = Logins()) -> list[str]:
    """
    Return the SQL that an administrator must still run, in order, as `kshift doctor` prints it.

    Any login of the database may ask. `kshift migrate` makes the passwords of the generated
    logins; for the operator's own there is a line to fill in.
    """
    with connect(url) as conn:
        existing = _existing_roles(conn, logins.names)
        missing = role_statements.missing_statements(conn, logins.names)
        missing += [
            sql.SQL("ALTER ROLE {} PASSWORD 'the one in its URL'").format(sql.Identifier(login))
            for login in logins.explicit
            if login not in existing
        ]
        if logins.dagster_url is None:
            database = dagster_database_of(conn.info.dbname)
            if owner_of(conn, database) is None:
                missing.append(create_database(database))
        return [f"{statement.as_string(conn)};" for statement in missing]


def check_login(url: str) -> None:
    """
    Refuse a login that row security or missing rights could not hold back.

    Raises StoreUnavailable when it does not connect, Refused when it is superuser, bypasses row
    security, or is or may become the schema's owner.
    """
    with connect(url) as conn:
        row = conn.execute(
            "SELECT rolname, rolsuper, rolbypassrls, coalesce((SELECT pg_has_role(oid, 'MEMBER')"
            " FROM pg_roles WHERE rolname = %s), false)"
            " FROM pg_roles WHERE rolname = current_user",
            (OWNER,),
        ).fetchone()
    assert row is not None
    name, *powers = row
    words = ("is superuser", "bypasses row security", f"may become {OWNER}")
    too_much = [word for word, has in zip(words, powers, strict=True) if has]
    if too_much:
        raise Refused(
            f"kshift does not work with the login {name}: it {' and '.join(too_much)}.",
            hint=f"Use a member of {WRITER} or {READER}; `kshift doctor` prints the statements.",
        )


@contextmanager
def connect(url: str) -> Iterator[Connection[Any]]:
    """A connection for administration, autocommit. Raises StoreUnavailable without the URL."""
    try:
        conn = psycopg.connect(
            url,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name="kshift migrate",
        )
    except psycopg.OperationalError as exc:
        raise StoreUnavailable(
            f"The database cannot be reached: {str(exc).strip().splitlines()[-1].strip()}",
            hint="Check the URL, the password and that the server runs.",
        ) from None
    with conn:
        yield conn


_VARIABLES = {
    WRITER: "KSHIFT_WRITER_URL",
    READER: "KSHIFT_READER_URL",
    DAGSTER: "KSHIFT_DAGSTER_URL",
}


def _existing_roles(conn: Connection[Any], names: LoginNames) -> set[str]:
    wanted = [names.writer, names.reader, DAGSTER]
    rows = conn.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)", (wanted,))
    return {name for (name,) in rows}


def _run_missing(conn: Connection[Any], names: LoginNames) -> None:
    """Run what is missing, as far as this login may; again when another migration interferes."""
    for _ in range(RACE_ATTEMPTS):
        missing = role_statements.missing_statements(conn, names)
        if not missing:
            return
        try:
            with conn.transaction():
                refusal = _run_what_is_allowed(conn, missing)
        except RACES:
            continue
        # A GRANT or REVOKE without the right to it only warns: look at what became of all.
        if left := role_statements.missing_statements(conn, names):
            raise needs_administrator(conn, left, refusal) from refusal
        return
    raise StoreUnavailable(
        "Other processes kept changing the same roles.", hint="Run `kshift migrate` again."
    )


def _run_what_is_allowed(
    conn: Connection[Any], statements: Sequence[role_statements.Statement]
) -> psycopg.Error | None:
    """Return the first refusal, None when nothing was refused."""
    refusals: list[psycopg.Error] = []
    for statement in statements:
        try:
            with conn.transaction():
                conn.execute(statement)
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedObject) as exc:
            refusals.append(exc)  # undefined: a role that this login could not create
    return refusals[0] if refusals else None
