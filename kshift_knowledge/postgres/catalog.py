"""Catalog: which accounts, projects and knowledge databases exist, and which a key may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from kshift_knowledge.errors import NotFound
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.records import ApiKey, Scope

# What a key may see, for statements over knowledge_databases d, with the values of key_values().
# An automation's key sees the databases that its edges link, nothing without an edge.
SEEN_BY_KEY = """
       d.account_id = %(account)s
   AND (%(project)s::bigint IS NULL OR d.project_id = %(project)s)
   AND (%(databases)s::bigint[] IS NULL OR d.knowledge_database_id = ANY(%(databases)s))
   AND (%(automation)s::bigint IS NULL OR EXISTS (
        SELECT FROM knowledge_edges e
         WHERE e.automation_id = %(automation)s
           AND e.knowledge_database_id = d.knowledge_database_id))
"""

_VISIBLE = f"""
SELECT d.account_id, a.slug, d.project_id, p.slug, d.knowledge_database_id, d.slug,
       count(i.knowledge_database_item_id) FILTER (WHERE i.state <> 'gone'),
       coalesce(sum(x.chunk_count), 0)::bigint, max(x.indexed_at)
  FROM knowledge_databases d
  JOIN accounts a ON a.account_id = d.account_id
  JOIN projects p ON p.project_id = d.project_id
  LEFT JOIN knowledge_database_items i ON i.knowledge_database_id = d.knowledge_database_id
  LEFT JOIN indexed_items x
    ON x.knowledge_database_item_id = i.knowledge_database_item_id
   AND x.generation_id = p.served_generation_id
 WHERE {SEEN_BY_KEY}
 GROUP BY d.knowledge_database_id, a.account_id, p.project_id
 ORDER BY p.slug, d.slug
"""  # noqa: S608 (constants only)

_NARROW = f"""
SELECT ARRAY(SELECT d.knowledge_database_id FROM knowledge_databases d
              WHERE {SEEN_BY_KEY}
                AND d.project_id = p.project_id AND d.knowledge_database_id = ANY(%(wanted)s))
  FROM projects p
 WHERE p.account_id = %(account)s AND p.project_id = %(wanted_project)s
   AND (%(project)s::bigint IS NULL OR p.project_id = %(project)s)
"""  # noqa: S608 (constants only)


@dataclass(frozen=True, slots=True)
class KnowledgeDatabase:
    """A knowledge database as `GET /v1/knowledge-databases` lists it; gone items do not count."""

    account_id: int
    account: str
    project_id: int
    project: str
    knowledge_database_id: int
    knowledge_database: str
    items: int
    chunks: int
    last_indexed_at: datetime | None


def key_values(key: ApiKey) -> dict[str, object]:
    """The values that SEEN_BY_KEY names."""
    databases = key.knowledge_database_ids
    return {
        "account": key.account_id,
        "project": key.project_id,
        "databases": None if databases is None else list(databases),
        "automation": key.automation_id,
    }


def visible_databases(conn: Conn, key: ApiKey) -> list[KnowledgeDatabase]:
    """What *key* may see, by project and slug."""
    return [KnowledgeDatabase(*row) for row in conn.execute(_VISIBLE, key_values(key))]


def narrow(conn: Conn, key: ApiKey, project_id: int, database_ids: Sequence[int]) -> Scope:
    """
    Return the scope a request asks for, which may only be narrower than *key*.

    An empty list is a scope that sees nothing. Raises NotFound, one and the same for what does
    not exist and for what the key may not see; the whole request fails then.
    """
    wanted = tuple(dict.fromkeys(database_ids))
    row = conn.execute(
        _NARROW, {**key_values(key), "wanted_project": project_id, "wanted": list(wanted)}
    ).fetchone()
    if row is None or set(row[0]) != set(wanted):
        raise NotFound("This key sees no such project or knowledge database.")
    return Scope(key.account_id, project_id, wanted)


def account_slug(conn: Conn, account_id: int) -> str:
    """Raises NotFound."""
    row = conn.execute("SELECT slug FROM accounts WHERE account_id = %s", (account_id,)).fetchone()
    if row is None:
        raise NotFound(f"There is no account {account_id}.")
    return str(row[0])


def find_account(conn: Conn, account: str) -> int:
    """Return the id of an account given its slug or id. Raises NotFound."""
    return _find(
        conn,
        "SELECT account_id, slug FROM accounts WHERE slug = %s OR account_id = %s",
        (),
        account,
        "account",
    )


def find_project(conn: Conn, account_id: int, project: str) -> int:
    """Return the id of a project given its slug or id. Raises NotFound."""
    return _find(
        conn,
        "SELECT project_id, slug FROM projects"
        " WHERE account_id = %s AND (slug = %s OR project_id = %s)",
        (account_id,),
        project,
        "project",
    )


def find_database(conn: Conn, project_id: int, database: str) -> int:
    """Return the id of a knowledge database given its slug or id. Raises NotFound."""
    return _find(
        conn,
        "SELECT knowledge_database_id, slug FROM knowledge_databases"
        " WHERE project_id = %s AND (slug = %s OR knowledge_database_id = %s)",
        (project_id,),
        database,
        "knowledge database",
    )


def find_automation(conn: Conn, project_id: int, automation: str) -> int:
    """Return the id of an automation given its slug or id. Raises NotFound."""
    return _find(
        conn,
        "SELECT automation_id, slug FROM automations"
        " WHERE project_id = %s AND gone_at IS NULL AND (slug = %s OR automation_id = %s)",
        (project_id,),
        automation,
        "automation",
    )


def resolve(conn: Conn, account: str, project: str, databases: Sequence[str]) -> Scope:
    """
    Return the scope that slugs or ids name, as a person types them.

    Raises NotFound, naming the first one that does not exist.
    """
    account_id = find_account(conn, account)
    project_id = find_project(conn, account_id, project)
    ids = (find_database(conn, project_id, database) for database in databases)
    return Scope(account_id, project_id, tuple(dict.fromkeys(ids)))


def _find(conn: Conn, statement: str, above: tuple[int, ...], wanted: str, noun: str) -> int:
    """A slug wins over an id, since a slug may be all digits."""
    is_id = wanted.isascii() and wanted.isdigit() and len(wanted) <= 18
    rows = conn.execute(statement, (*above, wanted, int(wanted) if is_id else None)).fetchall()
    found: dict[str, int] = {slug: found_id for found_id, slug in rows}
    if not found:
        raise NotFound(
            f"There is no {noun} {wanted!r} here.", hint="`kshift status` lists what there is."
        )
    return found.get(wanted, next(iter(found.values())))
