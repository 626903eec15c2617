"""How far indexing is: counted in the tables at the moment of asking, so true after any crash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from kshift_knowledge.postgres import run_lock
from kshift_knowledge.postgres.catalog import SEEN_BY_KEY, key_values
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.prices import cost_usd
from kshift_knowledge.records import ApiKey

# The speed is that of the last minutes: long enough to be steady, short enough to follow.
SPEED_WINDOW = timedelta(minutes=2)

_WAITED_FOR = """
SELECT DISTINCT batch_id FROM knowledge_database_items
 WHERE state = 'waiting' AND batch_id IS NOT NULL
"""

_SINCE = """
SELECT greatest(min(created_at), now() - %s), now()
  FROM index_batches WHERE batch_id = ANY(%s)
"""

_PROGRESS = """
SELECT d.account_id, a.slug, d.project_id, p.slug, d.knowledge_database_id, d.slug, g.model,
       coalesce(i.done, 0), coalesce(i.running, 0), coalesce(i.failed, 0), coalesce(i.waiting, 0),
       coalesce(x.recent, 0), i.oldest_waiting_at, coalesce(l.spent, 0), coalesce(l.saved, 0)
  FROM knowledge_databases d
  JOIN accounts a ON a.account_id = d.account_id
  JOIN projects p ON p.project_id = d.project_id
  JOIN generations g ON g.generation_id = p.served_generation_id
  LEFT JOIN LATERAL (
       SELECT count(*) FILTER (WHERE state = 'indexed') AS done,
              count(*) FILTER (WHERE state = 'waiting' AND batch_id = ANY(%(held)s)) AS running,
              count(*) FILTER (WHERE state = 'failed') AS failed,
              count(*) FILTER (WHERE state = 'waiting'
                                 AND (batch_id = ANY(%(held)s)) IS NOT TRUE) AS waiting,
              min(waiting_since) AS oldest_waiting_at
         FROM knowledge_database_items i
        WHERE i.account_id = d.account_id AND i.project_id = d.project_id
          AND i.knowledge_database_id = d.knowledge_database_id) i ON true
  LEFT JOIN LATERAL (
       SELECT count(*) AS recent FROM indexed_items x
        WHERE %(since)s::timestamptz IS NOT NULL
          AND x.knowledge_database_id = d.knowledge_database_id
          AND x.generation_id = p.served_generation_id AND x.indexed_at >= %(since)s) x ON true
  LEFT JOIN (SELECT knowledge_database_id, sum(tokens_spent)::bigint AS spent,
                    sum(tokens_saved)::bigint AS saved
               FROM token_ledger GROUP BY 1) l
    ON l.knowledge_database_id = d.knowledge_database_id
 WHERE {seen}
 ORDER BY a.slug, p.slug, d.slug
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """
    Items by what becomes of them, and what it cost since the first day.

    running: of a run that is alive; waiting: for one. eta_s: until nothing runs or waits, at the
    speed of the last minutes; 0 when all is done, None when no run is alive or it has no speed
    yet. cost_usd: None when a model's price is not known.
    """

    done: int
    running: int
    failed: int
    waiting: int
    eta_s: float | None
    oldest_waiting_at: datetime | None
    tokens_spent: int
    tokens_saved: int
    cost_usd: float | None

    def as_dict(self) -> dict[str, Any]:
        oldest = self.oldest_waiting_at
        return {
            "items": {
                "done": self.done,
                "running": self.running,
                "failed": self.failed,
                "waiting": self.waiting,
            },
            "eta_s": self.eta_s,
            "oldest_waiting_at": oldest.isoformat() if oldest else None,
            "tokens_spent": self.tokens_spent,
            "tokens_saved": self.tokens_saved,
            "cost_usd": self.cost_usd,
        }


@dataclass(frozen=True, slots=True)
class DatabaseProgress:
    """The progress of one knowledge database."""

    account_id: int
    account: str
    project_id: int
    project: str
    knowledge_database_id: int
    knowledge_database: str
    progress: Progress

    def as_dict(self) -> dict[str, Any]:
        return {
            "account_id": self.account_id,
            "account": self.account,
            "project_id": self.project_id,
            "project": self.project,
            "knowledge_database_id": self.knowledge_database_id,
            "knowledge_database": self.knowledge_database,
            **self.progress.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """All that was asked for together, and each knowledge database by slug."""

    total: Progress
    databases: tuple[DatabaseProgress, ...]


def read_progress(
    conn: Conn, prices: Mapping[str, float], *, key: ApiKey | None = None
) -> ProgressReport:
    """
    Count what *key* may see, or everything without one.

    prices: dollars per million tokens, by model.
    """
    held = _held_batches(conn)
    since, elapsed_s = _speed_window(conn, held)
    statement = _PROGRESS.format(seen=SEEN_BY_KEY if key else "true")
    values = {"held": held, "since": since, **(key_values(key) if key else {})}
    rows = [_Row(*row) for row in conn.execute(statement, values)]
    return ProgressReport(
        _progress(rows, prices, elapsed_s),
        tuple(
            DatabaseProgress(
                row.account_id,
                row.account,
                row.project_id,
                row.project,
                row.database_id,
                row.database,
                _progress([row], prices, elapsed_s),
            )
            for row in rows
        ),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of _PROGRESS."""

    account_id: int
    account: str
    project_id: int
    project: str
    database_id: int
    database: str
    model: str
    done: int
    running: int
    failed: int
    waiting: int
    recent: int
    oldest_waiting_at: datetime | None
    spent: int
    saved: int


def _held_batches(conn: Conn) -> list[UUID]:
    waited_for = [row[0] for row in conn.execute(_WAITED_FOR)]
    return list(run_lock.held_among(conn, waited_for)) if waited_for else []


def _speed_window(conn: Conn, held: Sequence[UUID]) -> tuple[datetime | None, float]:
    """Since when speed is measured, and how long that is; None when no run is alive."""
    if not held:
        return None, 0.0
    row = conn.execute(_SINCE, (SPEED_WINDOW, list(held))).fetchone()
    assert row is not None
    since, now = row
    return since, (now - since).total_seconds()


def _progress(rows: Sequence[_Row], prices: Mapping[str, float], elapsed_s: float) -> Progress:
    running = sum(row.running for row in rows)
    waiting = sum(row.waiting for row in rows)
    recent = sum(row.recent for row in rows)
    return Progress(
        done=sum(row.done for row in rows),
        running=running,
        failed=sum(row.failed for row in rows),
        waiting=waiting,
        eta_s=_eta_s(running + waiting, recent, elapsed_s),
        oldest_waiting_at=min(
            (row.oldest_waiting_at for row in rows if row.oldest_waiting_at), default=None
        ),
        tokens_spent=sum(row.spent for row in rows),
        tokens_saved=sum(row.saved for row in rows),
        cost_usd=_sum(cost_usd(prices, row.model, row.spent) for row in rows),
    )


def _eta_s(left: int, recent: int, elapsed_s: float) -> float | None:
    if not left:
        return 0.0
    return max(round(left * elapsed_s / recent, 1), 0.1) if recent else None


def _sum(costs: Iterable[float | None]) -> float | None:
    known = list(costs)
    return None if None in known else round(sum(cost for cost in known if cost is not None), 6)
