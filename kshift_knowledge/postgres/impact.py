"""Reverse impact: which receipts cite a text that changed, is gone, or still stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from kshift_knowledge.errors import NotFound
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.postgres.receipt_views import CHANGED, CITATION_STATE, GONE, UNCHANGED

STATES = (GONE, CHANGED, UNCHANGED)  # the worst first

_FIND = """
SELECT i.knowledge_database_item_id, i.partition_key, i.state
  FROM knowledge_database_items i
 WHERE i.partition_key = %(item)s OR i.knowledge_database_item_id = %(id)s
 ORDER BY i.partition_key = %(item)s DESC LIMIT 1
"""

_CITED = f"""
SELECT r.receipt_id, r.created_at, u.slug, (hit ->> 'chunk_index')::int, {CITATION_STATE}
  FROM receipts r, jsonb_array_elements(r.hits) AS hit
  LEFT JOIN knowledge_database_items i
    ON i.knowledge_database_item_id = (hit ->> 'knowledge_database_item_id')::bigint
  LEFT JOIN item_texts t ON t.knowledge_database_item_id = i.knowledge_database_item_id
  LEFT JOIN LATERAL (SELECT slug FROM automations a WHERE a.automation_id = r.automation_id) u
    ON true
 WHERE r.cited_item_ids @> ARRAY[%(item)s::bigint]
   AND (hit ->> 'knowledge_database_item_id')::bigint = %(item)s
 ORDER BY r.created_at DESC, r.receipt_id, (hit ->> 'rank')::int
"""  # noqa: S608 (constants only)

# A text that many receipts cite is looked for once. A receipt is as its worst citation.
_SUMMARY = f"""
WITH cited AS MATERIALIZED (
    SELECT r.receipt_id, r.project_id, hit FROM receipts r, jsonb_array_elements(r.hits) AS hit
), texts AS MATERIALIZED (
    SELECT DISTINCT (hit ->> 'knowledge_database_item_id')::bigint AS item_id,
           hit ->> 'content_hash' AS content_hash, hit ->> 'content' AS content
      FROM cited
), judged AS MATERIALIZED (
    SELECT texts.*, {CITATION_STATE} AS state
      FROM texts
     CROSS JOIN LATERAL (SELECT jsonb_build_object(
               'content_hash', texts.content_hash, 'content', texts.content) AS hit) h
      LEFT JOIN knowledge_database_items i ON i.knowledge_database_item_id = texts.item_id
      LEFT JOIN item_texts t ON t.knowledge_database_item_id = texts.item_id
), receipts_judged AS (
    SELECT c.receipt_id, c.project_id,
           min(array_position(%(states)s::text[], j.state)) AS worst
      FROM cited c
      JOIN judged j ON j.item_id = (c.hit ->> 'knowledge_database_item_id')::bigint
       AND j.content_hash = c.hit ->> 'content_hash' AND j.content = c.hit ->> 'content'
     GROUP BY c.receipt_id, c.project_id
)
SELECT a.slug || '/' || p.slug, (%(states)s::text[])[worst], count(*)
  FROM receipts_judged r
  JOIN projects p USING (project_id) JOIN accounts a USING (account_id)
 GROUP BY 1, 2 ORDER BY 1, 2
"""  # noqa: S608 (constants only)


@dataclass(frozen=True, slots=True)
class Cited:
    """One hit of a receipt that cites the item. automation: None for a plain retrieve."""

    receipt_id: UUID
    created_at: datetime
    automation: str | None
    chunk_index: int | None
    state: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "receipt_id": str(self.receipt_id),
            "created_at": self.created_at.isoformat(),
            "automation": self.automation,
            "chunk_index": self.chunk_index,
            "state": self.state,
        }


@dataclass(frozen=True, slots=True)
class Impact:
    """An item and every citation of it, newest first."""

    item_id: int
    item: str
    item_state: str
    citations: tuple[Cited, ...]

    def count(self, state: str) -> int:
        return sum(cited.state == state for cited in self.citations)


def impact_of(conn: Conn, item: str) -> Impact:
    """
    Return which receipts of any tenant cite an item, by its partition key or id. Writer only.

    Raises NotFound.
    """
    is_id = item.isascii() and item.isdigit() and len(item) <= 18
    row = conn.execute(_FIND, {"item": item, "id": int(item) if is_id else None}).fetchone()
    if row is None:
        raise NotFound(
            f"There is no item {item!r}.",
            hint="Write it as `kshift status` does: <account>/<project>/<database>/<path>.",
        )
    citations = tuple(Cited(*cited) for cited in conn.execute(_CITED, {"item": row[0]}))
    return Impact(row[0], row[1], row[2], citations)


def summary(conn: Conn) -> dict[str, Mapping[str, int]]:
    """By `<account>/<project>`: how many receipts are in which state. Writer only."""
    counts: dict[str, dict[str, int]] = {}
    for project, state, count in conn.execute(_SUMMARY, {"states": list(STATES)}):
        counts.setdefault(project, dict.fromkeys(STATES, 0))[state] = count
    return dict(counts)
