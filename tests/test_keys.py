"""Keys: shown once, kept as a hash, narrow, and dead when they should be."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import psycopg
import pytest
from seeding import add_databases

from kshift_knowledge.errors import NotFound
from kshift_knowledge.postgres import keys
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.records import ApiKey, Scope


@pytest.fixture
def scope(writer: Database) -> Scope:
    return add_databases(writer, "acme", "site", "notes", "blog")


def _create(database: Database, account_id: int, **narrowing: object) -> tuple[ApiKey, str]:
    with database.transaction() as conn:
        return keys.create_key(conn, account_id, **narrowing)  # type: ignore[arg-type]


def _find(database: Database, secret: str) -> ApiKey | None:
    key_hash = keys.hash_of(secret)
    assert key_hash is not None
    with database.transaction() as conn:
        return keys.authenticate(conn, key_hash)


def _run(database: Database, statement: str, *values: object) -> None:
    with database.transaction() as conn:
        assert conn.execute(statement, values).rowcount == 1


def test_a_new_key_opens_its_account_and_only_its_hash_is_kept(
    writer: Database, reader: Database, scope: Scope
) -> None:
    key, secret = _create(writer, scope.account_id)

    assert re.fullmatch(rf"ks_{key.key_id}_[0-9a-f]{{64}}", secret)
    assert _find(reader, secret) == ApiKey(key.key_id, scope.account_id, None, None, None, None)
    with writer.transaction() as conn:
        rows = conn.execute("SELECT key_hash, api_keys::text FROM api_keys").fetchall()
    assert [row[0] for row in rows] == [sha256(secret.encode()).digest()]
    assert secret.split("_")[2] not in rows[0][1]


def test_a_narrow_key_carries_its_project_and_databases(
    writer: Database, reader: Database, scope: Scope
) -> None:
    databases = scope.knowledge_database_ids[:1]

    _, secret = _create(
        writer,
        scope.account_id,
        project_id=scope.project_id,
        knowledge_database_ids=databases,
        expires_in=timedelta(minutes=5),
    )

    found = _find(reader, secret)
    assert found is not None
    assert (found.project_id, found.knowledge_database_ids) == (scope.project_id, databases)
    assert found.expires_at is not None
    left = found.expires_at - datetime.now(UTC)
    assert timedelta(minutes=4) < left <= timedelta(minutes=5)


def test_an_empty_list_of_databases_stays_empty(
    writer: Database, reader: Database, scope: Scope
) -> None:
    _, secret = _create(
        writer, scope.account_id, project_id=scope.project_id, knowledge_database_ids=[]
    )

    found = _find(reader, secret)
    assert found is not None
    assert found.knowledge_database_ids == ()


def test_a_key_cannot_name_what_is_not_inside_its_account(writer: Database, scope: Scope) -> None:
    foreign = add_databases(writer, "globex", "shop", "catalogue")
    narrowings: list[dict[str, object]] = [
        {"project_id": foreign.project_id},
        {"project_id": 10**9},
        {
            "project_id": scope.project_id,
            "knowledge_database_ids": [
                *scope.knowledge_database_ids,
                *foreign.knowledge_database_ids,
            ],
        },
        {"project_id": scope.project_id, "automation_id": 1},
    ]

    for narrowing in narrowings:
        with pytest.raises(NotFound):
            _create(writer, scope.account_id, **narrowing)
    with pytest.raises(NotFound):
        _create(writer, 10**9)
    with writer.transaction() as conn:
        assert keys.list_keys(conn) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ks_",
        "ks_0123456789ab_",
        "ks_0123456789ab_" + "f" * 63,
        "ks_0123456789ab_" + "F" * 64,
        "sk_0123456789ab_" + "f" * 64,
        "ks_0123456789ab_" + "f" * 64 + "\n",
        "ks_0123456789ab_" + "é" * 64,
        "ks_" + "0" * 100_000,
    ],
)
def test_what_cannot_be_a_key_is_not_even_looked_up(text: str) -> None:
    assert keys.hash_of(text) is None


def test_the_right_id_with_another_secret_opens_nothing(
    writer: Database, reader: Database, scope: Scope
) -> None:
    _, secret = _create(writer, scope.account_id)
    last = "0" if secret[-1] != "0" else "1"

    assert _find(reader, secret[:-1] + last) is None


def test_expired_and_revoked_keys_and_keys_of_disabled_accounts_are_dead(
    writer: Database, reader: Database, scope: Scope
) -> None:
    expired, expired_secret = _create(writer, scope.account_id, expires_in=timedelta(hours=1))
    _run(
        writer,
        "UPDATE api_keys SET expires_at = now() - interval '1 second' WHERE key_id = %s",
        expired.key_id,
    )
    revoked, revoked_secret = _create(writer, scope.account_id)
    with writer.transaction() as conn:
        first = keys.revoke_key(conn, revoked.key_id)
        second = keys.revoke_key(conn, revoked_secret)  # the whole key will do, too
    foreign = add_databases(writer, "globex", "shop", "catalogue")
    _, disabled_secret = _create(writer, foreign.account_id)
    _run(
        writer,
        "UPDATE accounts SET disabled_at = now() WHERE account_id = %s",
        foreign.account_id,
    )

    assert first.revoked_at is not None
    assert first.revoked_at == second.revoked_at
    for secret in (expired_secret, revoked_secret, disabled_secret):
        assert _find(reader, secret) is None


def test_a_child_dies_with_its_parent(writer: Database, reader: Database, scope: Scope) -> None:
    parent, _ = _create(writer, scope.account_id)
    child, child_secret = _create(writer, scope.account_id)
    _run(
        writer,
        "UPDATE api_keys SET parent_key_id = %s WHERE key_id = %s",
        parent.key_id,
        child.key_id,
    )
    assert _find(reader, child_secret) is not None

    with writer.transaction() as conn:
        keys.revoke_key(conn, parent.key_id)

    assert _find(reader, child_secret) is None


def test_use_is_noted(writer: Database, reader: Database, scope: Scope) -> None:
    _, secret = _create(writer, scope.account_id)
    with writer.transaction() as conn:
        assert [key.last_used_at for key in keys.list_keys(conn)] == [None]

    _find(reader, secret)

    with writer.transaction() as conn:
        (key,) = keys.list_keys(conn, scope.account_id)
    assert key.last_used_at is not None
    assert datetime.now(UTC) - key.last_used_at < timedelta(minutes=1)


def test_keys_are_listed_by_account_oldest_first_dead_ones_too(
    writer: Database, scope: Scope
) -> None:
    foreign = add_databases(writer, "globex", "shop", "catalogue")
    made = [_create(writer, account)[0] for account in (scope.account_id, foreign.account_id)]
    made.append(_create(writer, scope.account_id)[0])
    with writer.transaction() as conn:
        made[0] = keys.revoke_key(conn, made[0].key_id)
        listed = keys.list_keys(conn)
        of_one = keys.list_keys(conn, scope.account_id)

    assert listed == made
    assert of_one == [made[0], made[2]]


def test_revoking_an_unknown_key_says_so(writer: Database) -> None:
    with writer.transaction() as conn, pytest.raises(NotFound):
        keys.revoke_key(conn, "0123456789ab")


def test_the_reader_cannot_read_or_make_keys(
    writer: Database, reader: Database, scope: Scope
) -> None:
    _create(writer, scope.account_id)

    for statement in ("SELECT * FROM api_keys", "DELETE FROM api_keys"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), reader.transaction() as conn:
            conn.execute(statement)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        _create(reader, scope.account_id)


@pytest.mark.parametrize(
    ("text", "lifetime"),
    [
        ("15m", timedelta(minutes=15)),
        ("12h", timedelta(hours=12)),
        ("30d", timedelta(days=30)),
        ("999999d", timedelta(days=999_999)),
    ],
)
def test_lifetimes_are_read(text: str, lifetime: timedelta) -> None:
    assert keys.parse_lifetime(text) == lifetime


@pytest.mark.parametrize(
    "text", ["", "0d", "-1d", "1", "d", "1w", "1.5h", "1d ", "１d", "1000000d"]
)
def test_other_lifetimes_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(keys.WrongLifetime, match="Write 15m, 12h or 30d"):
        keys.parse_lifetime(text)
