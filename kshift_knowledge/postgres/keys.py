"""Keys: made once, kept as a hash, looked up by it; knows no HTTP and never stores a secret."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

from kshift_knowledge.errors import KshiftError, NotFound
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.records import ApiKey

_ID_BYTES, _SECRET_BYTES = 6, 32  # 256 random bits need no slow hash
_FORM = re.compile(r"ks_[0-9a-f]{12}_[0-9a-f]{64}")
_LIFETIME = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}

_COLUMNS = (
    "key_id, account_id, project_id, knowledge_database_ids, automation_id,"
    " expires_at, revoked_at, last_used_at, created_at"
)

# Every id that the key names must lie inside what the key names above it.
_CREATE = f"""
INSERT INTO api_keys (key_id, key_hash, account_id, project_id, knowledge_database_ids,
                      automation_id, expires_at)
SELECT %(key_id)s, %(key_hash)s, a.account_id, %(project)s, %(databases)s, %(automation)s,
       now() + %(expires_in)s::interval
  FROM accounts a
 WHERE a.account_id = %(account)s
   AND (%(project)s::bigint IS NULL OR EXISTS (
        SELECT FROM projects p WHERE p.account_id = %(account)s AND p.project_id = %(project)s))
   AND (%(automation)s::bigint IS NULL OR EXISTS (
        SELECT FROM automations u
         WHERE u.project_id = %(project)s AND u.automation_id = %(automation)s
           AND u.gone_at IS NULL))
   AND (%(databases)s::bigint[] IS NULL OR %(databases)s::bigint[] <@ ARRAY(
        SELECT d.knowledge_database_id FROM knowledge_databases d
         WHERE d.project_id = %(project)s))
RETURNING {_COLUMNS}
"""  # noqa: S608 (constants only)

_AUTHENTICATE = """
SELECT key_hash, key_id, account_id, project_id, knowledge_database_ids, automation_id, expires_at
  FROM authenticate(%s)
"""


class WrongLifetime(KshiftError):
    """A lifetime is not a whole number followed by m, h or d."""

    code = "wrong_lifetime"
    exit_code = 2


def create_key(
    conn: Conn,
    account_id: int,
    *,
    project_id: int | None = None,
    knowledge_database_ids: Sequence[int] | None = None,
    automation_id: int | None = None,
    expires_in: timedelta | None = None,
) -> tuple[ApiKey, str]:
    """
    Create a key and return it with its secret, `ks_<id>_<secret>`, which is never shown again.

    None does not narrow; an empty list of databases is a key that sees nothing. Databases and an
    automation need their project. The writer's connection is needed.

    Raises NotFound when one of the ids is not inside the one above it.
    """
    key_id = secrets.token_hex(_ID_BYTES)
    secret = f"ks_{key_id}_{secrets.token_hex(_SECRET_BYTES)}"
    row = conn.execute(
        _CREATE,
        {
            "key_id": key_id,
            "key_hash": sha256(secret.encode()).digest(),
            "account": account_id,
            "project": project_id,
            "databases": None if knowledge_database_ids is None else list(knowledge_database_ids),
            "automation": automation_id,
            "expires_in": expires_in,
        },
    ).fetchone()
    if row is None:
        raise NotFound(
            "The account, or a project, database or automation in it, does not exist.",
            hint="`kshift status` lists them.",
        )
    return _api_key(row), secret


def list_keys(conn: Conn, account_id: int | None = None) -> list[ApiKey]:
    """Every key of one account, or of all, oldest first; dead ones too. Writer only."""
    rows = conn.execute(
        f"SELECT {_COLUMNS} FROM api_keys"  # noqa: S608 (constants only)
        " WHERE %(account)s::bigint IS NULL OR account_id = %(account)s"
        " ORDER BY created_at, key_id",
        {"account": account_id},
    )
    return [_api_key(row) for row in rows]


def revoke_key(conn: Conn, key_id: str) -> ApiKey:
    """
    Revoke a key; a second time changes nothing. Writer only.

    key_id: the id, or the whole key. Raises NotFound.
    """
    row = conn.execute(
        f"UPDATE api_keys SET revoked_at = coalesce(revoked_at, now())"  # noqa: S608
        f" WHERE key_id = %s RETURNING {_COLUMNS}",
        (key_id.split("_")[1] if _FORM.fullmatch(key_id) else key_id,),
    ).fetchone()
    if row is None:
        raise NotFound("There is no key with this id.", hint="`kshift keys list` shows all.")
    return _api_key(row)


def hash_of(key: str) -> bytes | None:
    """The SHA-256 by which a key is looked up; None when the text cannot be a key."""
    return sha256(key.encode()).digest() if _FORM.fullmatch(key) else None


def authenticate(conn: Conn, key_hash: bytes) -> ApiKey | None:
    """
    Return the living key behind *key_hash* and note its use; None for any other.

    The reader may call this and can read nothing else of the keys.
    """
    row = conn.execute(_AUTHENTICATE, (key_hash,)).fetchone()
    if row is None or not hmac.compare_digest(row[0], key_hash):
        return None
    key_id, account_id, project_id, databases, automation_id, expires_at = row[1:]
    return ApiKey(
        key_id,
        account_id,
        project_id,
        None if databases is None else tuple(databases),
        automation_id,
        expires_at,
    )


def parse_lifetime(text: str) -> timedelta:
    """Read `15m`, `12h` or `30d`; at most 999999 of them. Raises WrongLifetime."""
    match = _LIFETIME.fullmatch(text)
    if match is None:
        raise WrongLifetime(
            f"{text!r} is not a lifetime.", hint="Write 15m, 12h or 30d: minutes, hours or days."
        )
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _api_key(row: Sequence[Any]) -> ApiKey:
    databases = None if row[3] is None else tuple(row[3])
    return ApiKey(row[0], row[1], row[2], databases, *row[4:])
