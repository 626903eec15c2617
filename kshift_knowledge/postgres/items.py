"""Items: who they are, what state they are in, and which run may write them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

from kshift_knowledge.indexing.records import FailedItem, FailedPlace, KnownItem
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.postgres.generations import vector_table
from kshift_knowledge.postgres.vector_store import delete_served
from kshift_knowledge.records import Failure, Scope
from kshift_knowledge.tree import TreeEntry
from kshift_knowledge.tree_problems import TreeProblem

# After 1 minute, doubling up to about an hour; at once when the clock was set back meanwhile.
_DUE = """(i.failure_is_retryable AND (i.failed_at > now() OR i.failed_at < now()
           - interval '30 seconds' * power(2, least(i.failure_attempts, 7))))"""

_KNOWN = f"""
SELECT i.knowledge_database_item_id, i.account_id, i.project_id, i.knowledge_database_id,
       a.slug, p.slug, d.slug, i.path, i.partition_key, i.state, i.seen_signature, i.batch_id,
       i.failure_code, i.failure_is_retryable,
       {_DUE},
       p.served_generation_id, x.chunk_count
  FROM knowledge_database_items i
  JOIN accounts a USING (account_id)
  JOIN projects p ON p.project_id = i.project_id
  JOIN knowledge_databases d ON d.knowledge_database_id = i.knowledge_database_id
  LEFT JOIN indexed_items x
    ON x.knowledge_database_item_id = i.knowledge_database_item_id
   AND x.generation_id = p.served_generation_id
"""  # noqa: S608 (constants only)

_ASSIGN_TO_BATCH = """
UPDATE knowledge_database_items i
   SET state = 'waiting', waiting_since = coalesce(i.waiting_since, now()), gone_at = NULL,
       batch_id = %s, settled_signature = w.signature, failure_code = NULL,
       failure_message = NULL, failure_hint = NULL, failed_at = NULL
  FROM unnest(%s::text[], %s::text[]) AS w(partition_key, signature)
 WHERE i.partition_key = w.partition_key
"""

_FAIL = """
UPDATE knowledge_database_items i
   SET state = 'failed', waiting_since = NULL, batch_id = NULL, gone_at = NULL,
       failure_code = w.code, failure_message = w.message, failure_hint = w.hint,
       failure_is_retryable = w.is_retryable, failure_attempts = i.failure_attempts + 1,
       failed_at = now(), seen_signature = w.signature
  FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::bool[],
              %s::text[])
       AS w(item_id, revision, code, message, hint, is_retryable, signature)
 WHERE i.knowledge_database_item_id = w.item_id AND i.revision <= w.revision
   AND i.state <> 'gone'
"""

_RETRY_IS_DUE = f"""
SELECT EXISTS (SELECT FROM knowledge_database_items i
                WHERE i.state = 'failed' AND i.failure_is_retryable
                  AND CASE WHEN i.failure_code = 'budget_exhausted'
                           THEN NOT i.account_id = ANY(%s) ELSE {_DUE} END)
"""  # noqa: S608 (constants only)

_MARK_GONE = """
UPDATE knowledge_database_items
   SET state = 'gone', gone_at = now(), waiting_since = NULL, batch_id = NULL,
       revision = nextval('item_revisions'), seen_signature = NULL, settled_signature = NULL,
       failure_code = NULL, failure_message = NULL, failure_hint = NULL, failure_attempts = 0,
       failed_at = NULL
 WHERE knowledge_database_item_id = ANY(%s)
"""

_FAILURES = """
SELECT partition_key, failure_code, failure_message, failure_hint, failure_attempts
  FROM knowledge_database_items WHERE state = 'failed' ORDER BY partition_key
"""

_FAILED_PLACES = """
SELECT a.slug, p.slug, d.slug, i.path, i.partition_key
  FROM knowledge_database_items i
  JOIN accounts a USING (account_id)
  JOIN projects p ON p.project_id = i.project_id
  JOIN knowledge_databases d ON d.knowledge_database_id = i.knowledge_database_id
 WHERE i.state = 'failed' AND (%s::text[] IS NULL OR i.partition_key = ANY(%s))
 ORDER BY i.account_id, i.project_id, i.knowledge_database_item_id
"""


def known_items(conn: Conn) -> list[KnownItem]:
    """Every item that was ever seen, with whether its served rows are all there."""
    rows = conn.execute(_KNOWN).fetchall()
    # row[15] and row[16]: the served generation and the chunks noted for it
    served = _served_counts(conn, {row[15] for row in rows})
    return [
        KnownItem(*(*row[:15], row[16] is not None and row[16] == served.get((row[15], row[0]), 0)))
        for row in rows
    ]


def existing_keys(conn: Conn, keys: Sequence[str]) -> set[str]:
    """Those of *keys* that are an item's, gone or not."""
    rows = conn.execute(
        "SELECT partition_key FROM knowledge_database_items WHERE partition_key = ANY(%s)",
        (list(keys),),
    )
    return {row[0] for row in rows}


def failed_items(conn: Conn, keys: Sequence[str] | None) -> list[FailedPlace]:
    """Where the items lie that stand failed; *keys* narrows to some of them."""
    wanted = None if keys is None else list(keys)
    return [FailedPlace(*row) for row in conn.execute(_FAILED_PLACES, (wanted, wanted))]


def assign_to_batch(conn: Conn, batch_id: UUID, entries: Sequence[TreeEntry]) -> None:
    """Let the items wait for this batch; what they serve now stays served."""
    conn.execute(
        _ASSIGN_TO_BATCH,
        (
            batch_id,
            [entry.partition_key for entry in entries],
            [entry.signature for entry in entries],
        ),
    )


def forget_indexed(conn: Conn, item_ids: Sequence[int]) -> None:
    """Drop the note of what is indexed, where rows are missing, so that no hash stops a rebuild."""
    rows = conn.execute(
        "SELECT DISTINCT generation_id FROM indexed_items"
        " WHERE knowledge_database_item_id = ANY(%s)",
        (list(item_ids),),
    ).fetchall()
    for (generation_id,) in rows:
        # Counted again here: a run may have made an item whole since it was looked at.
        conn.execute(
            "DELETE FROM indexed_items x WHERE generation_id = %s"  # noqa: S608 (an int's table)
            " AND knowledge_database_item_id = ANY(%s) AND chunk_count <> (SELECT count(*) FROM"
            f" {vector_table(generation_id)} v"
            " WHERE v.knowledge_database_item_id = x.knowledge_database_item_id)",
            (generation_id, list(item_ids)),
        )


def retry_is_due(conn: Conn, closed_accounts: Collection[int]) -> bool:
    """Say whether an item that failed may be tried again now, without loading any."""
    row = conn.execute(_RETRY_IS_DUE, (list(closed_accounts),)).fetchone()
    assert row is not None
    return bool(row[0])


def mark_gone(conn: Conn, items: Sequence[KnownItem]) -> int:
    """Delete what items serve and keep their ids; returns how many chunks went."""
    chunks = 0
    by_project: dict[tuple[int, int], list[KnownItem]] = {}
    for item in items:
        by_project.setdefault((item.account_id, item.project_id), []).append(item)
    for (account_id, project_id), group in by_project.items():
        scope = Scope(account_id, project_id, tuple({item.knowledge_database_id for item in group}))
        chunks += delete_served(conn, scope, [item.item_id for item in group])
    conn.execute(_MARK_GONE, ([item.item_id for item in items],))
    return chunks


def fail(conn: Conn, failures: Sequence[FailedItem]) -> None:
    """Record failures; a newer claim or a deletion wins. What is served stays served."""
    conn.execute(
        _FAIL,
        (
            [failure.item_id for failure in failures],
            [failure.revision for failure in failures],
            [failure.code for failure in failures],
            [failure.message for failure in failures],
            [failure.hint for failure in failures],
            [failure.is_retryable for failure in failures],
            [failure.signature for failure in failures],
        ),
    )


def fail_unread(conn: Conn, broken: Sequence[tuple[TreeEntry, TreeProblem]]) -> None:
    """Record items that cannot even be read: bad names, no rights."""
    rows = conn.execute(
        "SELECT partition_key, knowledge_database_item_id FROM knowledge_database_items"
        " WHERE partition_key = ANY(%s)",
        ([entry.partition_key for entry, _ in broken],),
    ).fetchall()
    item_ids: dict[str, int] = {key: item_id for key, item_id in rows}  # noqa: C416
    conn.execute(
        "UPDATE knowledge_database_items SET revision = nextval('item_revisions'),"
        " state = 'waiting', waiting_since = now(), gone_at = NULL, failure_code = NULL,"
        " failed_at = NULL WHERE knowledge_database_item_id = ANY(%s)",
        (list(item_ids.values()),),
    )
    newest = 2**62  # No run holds these items, so that any revision is old enough.
    fail(
        conn,
        [
            FailedItem(
                item_ids[entry.partition_key],
                newest,
                problem.code,
                problem.message,
                problem.hint,
                is_retryable=False,
                signature=entry.signature,
            )
            for entry, problem in broken
        ],
    )


def failures(conn: Conn) -> list[Failure]:
    """Every item that stands failed now."""
    return [Failure(*row) for row in conn.execute(_FAILURES)]


def _served_counts(conn: Conn, generation_ids: Iterable[int]) -> dict[tuple[int, int], int]:
    counts: dict[tuple[int, int], int] = {}
    for generation_id in generation_ids:
        rows = conn.execute(
            f"SELECT knowledge_database_item_id, count(*) FROM {vector_table(generation_id)}"  # noqa: S608
            " GROUP BY 1"
        )
        counts.update({(generation_id, item_id): count for item_id, count in rows})
    return counts
