"""Database URLs taken apart and put together; it opens no connection and keeps no secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from kshift_knowledge.errors import SettingsError

MAX_NAME_BYTES = 63  # PostgreSQL cuts longer identifiers in silence (NAMEDATALEN)
_OF_THE_LOGIN = ("user", "password", "passfile", "dbname")


def parse_url(url: str) -> dict[str, str]:
    """
    Return the libpq parameters of a URL or of a `key=value` string.

    SQLAlchemy's `postgresql+driver://` is understood too. Raises SettingsError; its message
    does not repeat the URL, which holds a password.
    """
    plain = re.sub(r"^postgres(?:ql)?\+\w+://", "postgresql://", url.strip())
    try:
        params = conninfo_to_dict(plain)
    except psycopg.ProgrammingError:
        raise SettingsError(
            "A database URL cannot be read.",
            hint="Write postgresql://user:password@host:5432/database and percent-encode special "
            "characters.",
        ) from None
    return {name: str(value) for name, value in params.items() if value is not None}


def build_url(params: Mapping[str, str]) -> str:
    """
    Return the URL that libpq and SQLAlchemy both read as *params*.

    What the two read differently in the authority or the path (socket folders, several hosts,
    odd database names) goes into the query, where they agree.
    """
    rest = dict(params)
    user, password = rest.pop("user", ""), rest.pop("password", "")
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    host, port, dbname = rest.get("host", ""), rest.get("port", ""), rest.get("dbname", "")
    authority = path = ""
    if re.fullmatch(r"[\w.-]+|[0-9a-fA-F:]+", host) and re.fullmatch(r"\d*", port):
        authority = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
        rest.pop("host")
        rest.pop("port", None)
    if re.fullmatch(r"\w+", dbname, re.ASCII):
        path = rest.pop("dbname")
    query = "&".join(f"{name}={quote(value, safe='/')}" for name, value in rest.items())
    at = f"{login}@" if login else ""
    return f"postgresql://{at}{authority}/{path}" + (f"?{query}" if query else "")


def with_login(url: str, user: str, password: str, *, database: str | None = None) -> str:
    """Return *url* with another login and, if given, another database; TLS and the rest stay."""
    params = parse_url(url)
    kept = {name: value for name, value in params.items() if name not in _OF_THE_LOGIN}
    return build_url(
        {"user": user, "password": password, **kept, "dbname": database or database_of(url)}
    )


def with_database(url: str, database: str) -> str:
    """Return *url* for another database of the same server."""
    return build_url({**parse_url(url), "dbname": database})


def database_of(url: str) -> str:
    """The database that *url* names; libpq's default is the user's own name."""
    params = parse_url(url)
    return params.get("dbname") or params.get("user", "")


def user_of(url: str) -> str:
    """The login that *url* names, empty when it leaves that to libpq."""
    return parse_url(url).get("user", "")


def server_of(url: str) -> str:
    """A name for the server behind *url*, the key of its passwords; no login, no secret."""
    params = parse_url(url)
    return f"{params.get('host', params.get('service', 'localhost'))}:{params.get('port', '5432')}"


def dagster_database_of(database: str) -> str:
    """The name of Dagster's own database beside *database*."""
    name = f"{database}_dagster"
    if len(name.encode()) > MAX_NAME_BYTES:
        raise SettingsError(
            f"The database name {database!r} is too long to put _dagster behind it.",
            hint=f"Use a name of at most {MAX_NAME_BYTES - len('_dagster')} bytes.",
        )
    return name


def for_sqlalchemy(url: str) -> str:
    """
    Return *url* with the driver named, as Dagster's storage needs it.

    A bare `postgresql://` means another driver in SQLAlchemy 2.1: docs/decisions.md#pins.
    """
    return "postgresql+psycopg2://" + build_url(parse_url(url)).removeprefix("postgresql://")
