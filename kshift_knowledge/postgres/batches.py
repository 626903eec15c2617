"""Batches: sets of items that one run indexes, and the lock that says the run is alive."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString
from uuid import UUID

from psycopg.types.json import Jsonb

from kshift_knowledge.indexing.records import ClaimedItem
from kshift_knowledge.postgres import run_lock
from kshift_knowledge.postgres.database import Conn, Database

_CLAIM = """
WITH claimed AS (
    UPDATE knowledge_database_items
       SET revision = nextval('item_revisions')
     WHERE knowledge_database_item_id = ANY(%s) AND state <> 'gone'
    RETURNING *
)
SELECT c.knowledge_database_item_id, c.account_id, c.project_id, c.knowledge_database_id,
       c.project_file_id, a.slug, p.slug, d.slug, c.path, c.partition_key, c.name, c.revision,
       coalesce(c.settled_signature, ''), x.source_hash, p.served_generation_id,
       c.failure_attempts
  FROM claimed c
  JOIN accounts a ON a.account_id = c.account_id
  JOIN projects p ON p.project_id = c.project_id
  JOIN knowledge_databases d ON d.knowledge_database_id = c.knowledge_database_id
  LEFT JOIN indexed_items x
    ON x.knowledge_database_item_id = c.knowledge_database_item_id
   AND x.generation_id = p.served_generation_id
 ORDER BY c.account_id, c.project_id, c.knowledge_database_item_id
"""

_SETTLED = """
SELECT i.partition_key, i.state, i.revision, coalesce(x.chunk_count, 0),
       coalesce(x.token_count, 0), coalesce(x.source_hash, '')
  FROM index_batches b
  JOIN knowledge_database_items i ON i.state IN ('indexed', 'failed')
  JOIN projects p ON p.project_id = i.project_id
  LEFT JOIN indexed_items x
    ON x.knowledge_database_item_id = i.knowledge_database_item_id
   AND x.generation_id = p.served_generation_id
 WHERE b.batch_id = %s
   AND b.created_at <= CASE i.state WHEN 'failed' THEN i.failed_at ELSE x.indexed_at END
 ORDER BY i.partition_key
"""


def open_batch(conn: Conn) -> UUID:
    row = conn.execute("INSERT INTO index_batches DEFAULT VALUES RETURNING batch_id").fetchone()
    assert row is not None
    batch_id: UUID = row[0]
    return batch_id


def unfinished(conn: Conn) -> dict[UUID, bool]:
    """Batches that still have waiting items, and whether a living run holds each."""
    rows = conn.execute(
        "SELECT batch_id FROM index_batches WHERE finished_at IS NULL AND batch_id IN"
        " (SELECT batch_id FROM knowledge_database_items WHERE state = 'waiting')"
    ).fetchall()
    found = [row[0] for row in rows]
    held = run_lock.held_among(conn, found)
    return {batch_id: batch_id in held for batch_id in found}


def waits_unattended(conn: Conn, living: Collection[UUID]) -> bool:
    """Say whether an item waits for a batch that is dead, or for none."""
    rows = conn.execute(
        "SELECT DISTINCT batch_id FROM knowledge_database_items WHERE state = 'waiting'"
    ).fetchall()
    return any(batch_id not in living for (batch_id,) in rows)


@contextmanager
def running(database: Database, batch_id: UUID) -> Iterator[bool]:
    """Hold the batch's lock; yields False when another run has it. It falls with the process."""
    with run_lock.held(database, batch_id) as has_it:
        yield has_it


@contextmanager
def scan_lock(database: Database) -> Iterator[bool]:
    """One scan at a time makes batches; yields False when another one is at it."""
    with _session_lock(database, "hashtext(%s)", "kshift.scan") as has_it:
        yield has_it


@contextmanager
def _session_lock(database: Database, number: LiteralString, name: str) -> Iterator[bool]:
    """Outside any transaction, since what it guards may take as long as a slow disk does."""
    with database.transaction() as conn:
        row = conn.execute(f"SELECT pg_try_advisory_lock({number})", (name,)).fetchone()
        conn.commit()
        has_it = bool(row and row[0])
        try:
            yield has_it
        finally:
            if has_it and not conn.closed:
                conn.execute(f"SELECT pg_advisory_unlock({number})", (name,))


def item_ids(conn: Conn, batch_id: UUID) -> list[int]:
    """The items of the batch that still wait."""
    rows = conn.execute(
        "SELECT knowledge_database_item_id FROM knowledge_database_items"
        " WHERE batch_id = %s AND state = 'waiting'"
        " ORDER BY account_id, project_id, knowledge_database_item_id",
        (batch_id,),
    )
    return [row[0] for row in rows]


def item_ids_of_keys(conn: Conn, keys: Sequence[str]) -> list[int]:
    rows = conn.execute(
        "SELECT knowledge_database_item_id FROM knowledge_database_items"
        " WHERE partition_key = ANY(%s) ORDER BY account_id, project_id, 1",
        (list(keys),),
    )
    return [row[0] for row in rows]


def claim(conn: Conn, ids: Sequence[int]) -> list[ClaimedItem]:
    """Take the next revision for each item that is not gone, in tenant order."""
    return [ClaimedItem(*row) for row in conn.execute(_CLAIM, (list(ids),))]


def release(conn: Conn, ids: Sequence[int]) -> None:
    """Give items back unindexed; the next scan finds them waiting."""
    conn.execute(
        "UPDATE knowledge_database_items SET batch_id = NULL, settled_signature = NULL"
        " WHERE knowledge_database_item_id = ANY(%s) AND state = 'waiting'",
        (list(ids),),
    )


def finish(conn: Conn, batch_id: UUID, figures: Mapping[str, Any]) -> None:
    conn.execute(
        "UPDATE index_batches SET finished_at = now(), figures = %s WHERE batch_id = %s",
        (Jsonb(dict(figures)), batch_id),
    )


def figures(conn: Conn, batch_id: UUID) -> dict[str, Any]:
    row = conn.execute(
        "SELECT figures FROM index_batches WHERE batch_id = %s", (batch_id,)
    ).fetchone()
    return dict(row[0]) if row else {}


def set_announced(conn: Conn, batch_id: UUID) -> None:
    """Note that Dagster was told what became of the batch's items."""
    conn.execute("UPDATE index_batches SET announced_at = now() WHERE batch_id = %s", (batch_id,))


def unannounced(conn: Conn) -> dict[UUID, bool]:
    """Batches of which Dagster was not told, and whether each is older than an hour."""
    rows = conn.execute(
        "SELECT batch_id, created_at < now() - interval '1 hour' FROM index_batches"
        " WHERE announced_at IS NULL ORDER BY created_at"
    )
    return {row[0]: row[1] for row in rows}


def settled_since(conn: Conn, batch_id: UUID) -> list[tuple[str, str, int, int, int, str]]:
    """
    Items that came to an end since the batch was made.

    As (partition key, "indexed" or "failed", revision, chunks, tokens, source hash).
    """
    return conn.execute(_SETTLED, (batch_id,)).fetchall()


def set_unchanged(conn: Conn, ids: Sequence[int], signatures: Sequence[str]) -> None:
    """Note that the bytes are those that are served already."""
    conn.execute(
        "UPDATE knowledge_database_items i SET state = 'indexed', waiting_since = NULL,"
        "   batch_id = NULL, seen_signature = w.signature, failure_code = NULL,"
        "   failure_message = NULL, failure_hint = NULL, failure_attempts = 0, failed_at = NULL"
        "  FROM unnest(%s::bigint[], %s::text[]) AS w(item_id, signature)"
        " WHERE i.knowledge_database_item_id = w.item_id AND i.state <> 'gone'",
        (list(ids), list(signatures)),
    )
