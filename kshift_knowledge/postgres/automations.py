"""Automations and their knowledge edges: what a canvas writes, and what a key may see of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kshift_knowledge.automations import StoredAutomation
from kshift_knowledge.errors import NotFound
from kshift_knowledge.postgres.catalog import key_values
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.records import ApiKey

# A key that is bound to an automation sees that one, with the edges its databases allow. Any
# other key sees an automation only when it sees all that it is linked to: what is called by its id
# names its databases, and a request that names one outside the key fails whole.
_SEEN = """
       u.account_id = %(account)s
   AND (%(project)s::bigint IS NULL OR u.project_id = %(project)s)
   AND (u.automation_id = %(automation)s
        OR %(automation)s::bigint IS NULL
           AND (%(databases)s::bigint[] IS NULL OR NOT EXISTS (
                SELECT FROM knowledge_edges e WHERE e.automation_id = u.automation_id
                   AND e.knowledge_database_id <> ALL(%(databases)s))))
"""

_SELECT = """
SELECT u.automation_id, u.account_id, a.slug, u.project_id, p.slug, u.slug, u.name, u.preset,
       u.prompt, u.preference, u.pins, u.retrieval,
       coalesce(array_agg(d.slug ORDER BY d.slug) FILTER (WHERE d.slug IS NOT NULL), '{}'),
       coalesce(array_agg(d.knowledge_database_id ORDER BY d.slug)
                FILTER (WHERE d.slug IS NOT NULL), '{}')
  FROM automations u
  JOIN accounts a ON a.account_id = u.account_id
  JOIN projects p ON p.project_id = u.project_id
  LEFT JOIN knowledge_edges e ON e.automation_id = u.automation_id
   AND (%(databases)s::bigint[] IS NULL OR e.knowledge_database_id = ANY(%(databases)s))
  LEFT JOIN knowledge_databases d ON d.knowledge_database_id = e.knowledge_database_id
"""
_GROUPED = " GROUP BY u.automation_id, a.slug, p.slug ORDER BY p.slug, u.slug"

_PREFERENCES = """
SELECT DISTINCT preference FROM automations
 WHERE account_id = %s AND project_id = %s AND gone_at IS NULL AND preference IS NOT NULL
"""


def visible_automations(conn: Conn, key: ApiKey) -> list[StoredAutomation]:
    """What *key* may see, by project and slug."""
    rows = conn.execute(
        f"{_SELECT} WHERE {_SEEN} AND u.gone_at IS NULL {_GROUPED}", key_values(key)
    )
    return [_stored(row) for row in rows]


def find_visible(
    conn: Conn, key: ApiKey, automation_id: int, *, may_be_gone: bool = False
) -> StoredAutomation:
    """
    Return one automation; one that is gone has its id and its slug and nothing else.

    Raises NotFound, the same for what does not exist and for what *key* may not see.
    """
    row = conn.execute(
        f"{_SELECT} WHERE {_SEEN} AND u.automation_id = %(wanted)s"
        f" AND (%(may_be_gone)s OR u.gone_at IS NULL) {_GROUPED}",
        {**key_values(key), "wanted": automation_id, "may_be_gone": may_be_gone},
    ).fetchone()
    if row is None:
        raise NotFound("This key sees no such automation.")
    return _stored(row)


def find_named(conn: Conn, account_id: int, project_id: int, wanted: str) -> StoredAutomation:
    """
    Return an automation given its slug or id, as a person types it; a slug wins.

    Raises NotFound.
    """
    is_id = wanted.isascii() and wanted.isdigit() and len(wanted) <= 18
    rows = conn.execute(
        f"{_SELECT} WHERE u.account_id = %(account)s AND u.project_id = %(project)s"
        " AND u.gone_at IS NULL AND (u.slug = %(slug)s OR u.automation_id = %(id)s)"
        f" {_GROUPED}",
        {
            "account": account_id,
            "project": project_id,
            "slug": wanted,
            "id": int(wanted) if is_id else None,
            "databases": None,
        },
    ).fetchall()
    found = sorted(map(_stored, rows), key=lambda automation: automation.slug != wanted)
    if not found:
        raise NotFound(
            f"There is no automation {wanted!r} here.",
            hint="It stands in the project's automations.yaml; `kshift status` names its mistakes.",
        )
    return found[0]


def preferences(conn: Conn, account_id: int, project_id: int) -> tuple[str, ...]:
    """The preference lines of a project's automations."""
    return tuple(row[0] for row in conn.execute(_PREFERENCES, (account_id, project_id)))


def _stored(row: Sequence[Any]) -> StoredAutomation:
    return StoredAutomation(*(*row[:10], tuple(row[10]), row[11], *map(tuple, row[12:])))
