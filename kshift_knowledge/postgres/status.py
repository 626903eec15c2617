"""The state of every knowledge database, as `kshift status` and the pages show it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kshift_knowledge.postgres.database import Conn

_STATUS = """
SELECT a.slug, d.account_id, p.slug, d.project_id, d.slug, d.knowledge_database_id,
       coalesce(i.waiting, 0), coalesce(i.indexed, 0), coalesce(i.failed, 0), coalesce(i.gone, 0),
       coalesce(x.chunks, 0), x.last_indexed_at, i.oldest_waiting_at,
       coalesce(l.spent, 0), coalesce(l.saved, 0)
  FROM knowledge_databases d
  JOIN projects p ON p.project_id = d.project_id
  JOIN accounts a ON a.account_id = d.account_id
  LEFT JOIN (SELECT knowledge_database_id,
                    count(*) FILTER (WHERE state = 'waiting') AS waiting,
                    count(*) FILTER (WHERE state = 'indexed') AS indexed,
                    count(*) FILTER (WHERE state = 'failed') AS failed,
                    count(*) FILTER (WHERE state = 'gone') AS gone,
                    min(waiting_since) AS oldest_waiting_at
               FROM knowledge_database_items GROUP BY 1) i USING (knowledge_database_id)
  LEFT JOIN (SELECT x.knowledge_database_id, sum(x.chunk_count)::bigint AS chunks,
                    max(x.indexed_at) AS last_indexed_at
               FROM indexed_items x
               JOIN projects p ON p.project_id = x.project_id
                AND p.served_generation_id = x.generation_id
              GROUP BY 1) x USING (knowledge_database_id)
  LEFT JOIN (SELECT knowledge_database_id, sum(tokens_spent)::bigint AS spent,
                    sum(tokens_saved)::bigint AS saved
               FROM token_ledger GROUP BY 1) l USING (knowledge_database_id)
 ORDER BY a.slug, p.slug, d.slug
"""


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """One knowledge database; tokens are summed since its first day."""

    account: str
    account_id: int
    project: str
    project_id: int
    knowledge_database: str
    knowledge_database_id: int
    waiting: int
    indexed: int
    failed: int
    gone: int
    chunks: int
    last_indexed_at: datetime | None
    oldest_waiting_at: datetime | None
    tokens_spent: int
    tokens_saved: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "account": self.account,
            "account_id": self.account_id,
            "project": self.project,
            "project_id": self.project_id,
            "knowledge_database": self.knowledge_database,
            "knowledge_database_id": self.knowledge_database_id,
            "items": {
                "waiting": self.waiting,
                "indexed": self.indexed,
                "failed": self.failed,
                "gone": self.gone,
            },
            "chunks": self.chunks,
            "last_indexed_at": _iso(self.last_indexed_at),
            "oldest_waiting_at": _iso(self.oldest_waiting_at),
            "tokens_spent": self.tokens_spent,
            "tokens_saved": self.tokens_saved,
        }


def database_statuses(conn: Conn) -> list[DatabaseStatus]:
    """Every knowledge database, also those without items, in slug order."""
    return [DatabaseStatus(*row) for row in conn.execute(_STATUS)]


def chunks_total(conn: Conn) -> int:
    """Served chunks of all tenants."""
    row = conn.execute(
        "SELECT coalesce(sum(x.chunk_count), 0)::bigint FROM indexed_items x"
        "  JOIN projects p ON p.project_id = x.project_id"
        "   AND p.served_generation_id = x.generation_id"
    ).fetchone()
    assert row is not None
    return int(row[0])


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None
