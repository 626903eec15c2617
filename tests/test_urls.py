"""Database URLs: what goes in comes out, for libpq and for SQLAlchemy alike."""

from __future__ import annotations

import pytest
import sqlalchemy
from hypothesis import example, given
from hypothesis import strategies as st

from kshift_knowledge.errors import SettingsError
from kshift_knowledge.postgres.urls import (
    build_url,
    dagster_database_of,
    database_of,
    for_sqlalchemy,
    parse_url,
    server_of,
    user_of,
    with_database,
    with_login,
)

# PostgreSQL accepts any text without NUL; no surrogates, because URLs are UTF-8.
names = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20
)
hosts = st.sampled_from(
    ["localhost", "db.example.com", "10.0.0.1", "::1", "/tmp/kshift", "/tmp/a b/ü", "one,two"]
)


@given(user=names, password=names, dbname=names, host=hosts)
@example(user="a@b", password="p:/?#[]@%&=+ 'ü", dbname="a/b?c", host="::1")
@example(user="u", password="%41", dbname="%41", host="localhost")
def test_a_built_url_reads_back_as_its_parts(
    user: str, password: str, dbname: str, host: str
) -> None:
    params = {"user": user, "password": password, "host": host, "port": "6543", "dbname": dbname}
    if host == "one,two":
        params["port"] = "1,2"

    assert parse_url(build_url(params)) == params


@given(user=names, password=names, dbname=names, host=hosts.filter(lambda host: "," not in host))
@example(user="a@b", password="p:/?#[]@%&=+ 'ü", dbname="a/b?c", host="::1")
def test_sqlalchemy_hands_its_driver_the_same_parts(
    user: str, password: str, dbname: str, host: str
) -> None:
    params = {"user": user, "password": password, "host": host, "port": "6543", "dbname": dbname}
    url = sqlalchemy.make_url(for_sqlalchemy(build_url(params)))
    arguments = url.get_dialect()().create_connect_args(url)[1]

    read = {name: str(value) for name, value in arguments.items()}
    assert read == params


def test_another_login_keeps_how_the_server_is_reached() -> None:
    url = (
        "postgresql://admin:old@db.example.com:5433/kshift?sslmode=verify-full&sslrootcert=/ca.pem"
    )

    assert with_login(url, "reader", "p@ss") == (
        "postgresql://reader:p%40ss@db.example.com:5433/kshift"
        "?sslmode=verify-full&sslrootcert=/ca.pem"
    )


def test_another_database_keeps_the_login() -> None:
    url = with_database("postgresql://u:p@/kshift?host=/run/pg&port=5432", "other")

    assert parse_url(url) == parse_url("host=/run/pg port=5432 user=u password=p dbname=other")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@h:5433/d",
        "postgres://u:p@h:5433/d",
        "postgresql+psycopg2://u:p@h:5433/d",
        " host=h port=5433 user=u password=p dbname=d ",
    ],
)
def test_every_way_to_write_a_url_is_understood(url: str) -> None:
    assert (user_of(url), database_of(url), server_of(url)) == ("u", "d", "h:5433")


def test_without_a_database_the_users_own_is_meant() -> None:
    assert database_of("postgresql://someone@h") == "someone"


def test_dagsters_database_stands_beside_ours() -> None:
    assert dagster_database_of("kshift") == "kshift_dagster"


def test_a_name_that_postgresql_would_cut_is_refused() -> None:
    with pytest.raises(SettingsError, match="too long"):
        dagster_database_of("x" * 56)


def test_an_unreadable_url_is_refused_without_repeating_its_password() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_url("postgresql://u:secret@h:port:port/%zz")
    assert "secret" not in str(caught.value)
