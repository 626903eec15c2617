"""Upkeep: what is left of items that are gone, what outlived its use, what to read again."""

from __future__ import annotations

from collections.abc import Sequence

from kshift_knowledge.indexing.records import IndexedSource
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.postgres.vector_store import delete_served
from kshift_knowledge.records import Scope

_GHOSTS = """
SELECT i.account_id, i.project_id, i.knowledge_database_id, i.knowledge_database_item_id
  FROM knowledge_database_items i
 WHERE i.state = 'gone' AND (
       EXISTS (SELECT FROM chunks r
                WHERE r.knowledge_database_item_id = i.knowledge_database_item_id)
    OR EXISTS (SELECT FROM indexed_items r
                WHERE r.knowledge_database_item_id = i.knowledge_database_item_id)
    OR EXISTS (SELECT FROM item_texts r
                WHERE r.knowledge_database_item_id = i.knowledge_database_item_id)
    OR EXISTS (SELECT FROM staged_chunks r
                WHERE r.knowledge_database_item_id = i.knowledge_database_item_id))
"""

_INDEXED_SOURCES = """
SELECT i.knowledge_database_item_id, a.slug, p.slug, d.slug, i.path, i.seen_signature, x.source_hash
  FROM knowledge_database_items i
  JOIN accounts a USING (account_id)
  JOIN projects p ON p.project_id = i.project_id
  JOIN knowledge_databases d ON d.knowledge_database_id = i.knowledge_database_id
  JOIN indexed_items x ON x.knowledge_database_item_id = i.knowledge_database_item_id
   AND x.generation_id = p.served_generation_id
 WHERE i.state = 'indexed'
 ORDER BY i.knowledge_database_item_id
"""

_DISTRUST = """
UPDATE knowledge_database_items SET seen_signature = NULL
 WHERE knowledge_database_item_id = ANY(%s) AND state = 'indexed'
"""

# A batch that never ran is one as well; nothing points to it.
_PRUNE_BATCHES = """
DELETE FROM index_batches b
 WHERE coalesce(b.finished_at, b.created_at) < now() - make_interval(days => %s)
   AND b.announced_at IS NOT NULL
   AND NOT EXISTS (SELECT FROM knowledge_database_items i
                    WHERE i.batch_id = b.batch_id AND i.state = 'waiting')
"""


def delete_ghosts(conn: Conn) -> int:
    """Delete what gone items still have; returns of how many."""
    by_project: dict[tuple[int, int], dict[int, int]] = {}
    for account_id, project_id, database_id, item_id in conn.execute(_GHOSTS).fetchall():
        by_project.setdefault((account_id, project_id), {})[item_id] = database_id
    for (account_id, project_id), items in by_project.items():
        delete_served(conn, Scope(account_id, project_id, tuple(set(items.values()))), list(items))
    return sum(map(len, by_project.values()))


def prune_batches(conn: Conn, days: int) -> int:
    """Drop batches that ended *days* days ago; returns how many."""
    return conn.execute(_PRUNE_BATCHES, (days,)).rowcount


def indexed_sources(conn: Conn) -> list[IndexedSource]:
    """Every indexed item with the bytes it was made of."""
    return [IndexedSource(*row) for row in conn.execute(_INDEXED_SOURCES)]


def distrust(conn: Conn, item_ids: Sequence[int]) -> int:
    """Make the next look take items for changed; returns how many."""
    return conn.execute(_DISTRUST, (list(item_ids),)).rowcount


def living_keys(conn: Conn) -> list[str]:
    """The partitions that should exist: one for each item that is not gone."""
    rows = conn.execute("SELECT partition_key FROM knowledge_database_items WHERE state <> 'gone'")
    return [row[0] for row in rows]
