"""Items: who they are, what state they are in, and which run may write them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

from kshift_knowledge.indexing.records import FailedItem, KnownItem, Rename
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.postgres.generations import vector_table
from kshift_knowledge.postgres.vector_store import delete_served
from kshift_knowledge.records import Failure, Scope
from kshift_knowledge.tree import TreeEntry, kind_of
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

_REGISTER_FOLDERS = """
WITH wanted AS (
    SELECT * FROM unnest(%(accounts)s::text[], %(projects)s::text[], %(databases)s::text[])
        AS w(account, project, database)
), new_accounts AS (
    INSERT INTO accounts (slug) SELECT DISTINCT account FROM wanted
    ON CONFLICT (slug) DO NOTHING RETURNING account_id, slug
), all_accounts AS (
    SELECT account_id, slug FROM new_accounts UNION SELECT account_id, slug FROM accounts
), new_projects AS (
    INSERT INTO projects (account_id, slug, served_generation_id)
    SELECT DISTINCT a.account_id, w.project, %(generation)s::int
      FROM wanted w JOIN all_accounts a ON a.slug = w.account
    ON CONFLICT (account_id, slug) DO NOTHING RETURNING project_id, account_id, slug
), all_projects AS (
    SELECT project_id, account_id, slug FROM new_projects
    UNION SELECT project_id, account_id, slug FROM projects
)
INSERT INTO knowledge_databases (account_id, project_id, slug)
SELECT DISTINCT p.account_id, p.project_id, w.database
  FROM wanted w
  JOIN all_accounts a ON a.slug = w.account
  JOIN all_projects p ON p.account_id = a.account_id AND p.slug = w.project
ON CONFLICT (project_id, slug) DO NOTHING
"""

_WANTED_ITEMS = """
WITH wanted AS (
    SELECT d.account_id, d.project_id, d.knowledge_database_id, w.path, w.partition_key, w.kind,
           d.slug || '/' || w.path AS file_path
      FROM unnest(%(accounts)s::text[], %(projects)s::text[], %(databases)s::text[],
                  %(paths)s::text[], %(keys)s::text[], %(kinds)s::text[])
           AS w(account, project, database, path, partition_key, kind)
      JOIN accounts a ON a.slug = w.account
      JOIN projects p ON p.account_id = a.account_id AND p.slug = w.project
      JOIN knowledge_databases d ON d.project_id = p.project_id AND d.slug = w.database
)
"""

# Two statements, so that items find their files by the index: joined in one, the planner takes
# each list for one row and compares every item with every file.
_REGISTER_FILES = f"""
{_WANTED_ITEMS}
INSERT INTO project_files (account_id, project_id, path)
SELECT account_id, project_id, file_path FROM wanted
ON CONFLICT (project_id, path) DO NOTHING
"""  # noqa: S608 (constants only)

_REGISTER_ITEMS = f"""
{_WANTED_ITEMS}
INSERT INTO knowledge_database_items
    (account_id, project_id, knowledge_database_id, project_file_id, path, partition_key,
     name, kind)
SELECT w.account_id, w.project_id, w.knowledge_database_id, f.project_file_id, w.path,
       w.partition_key, w.path, w.kind
  FROM wanted w JOIN project_files f ON f.project_id = w.project_id AND f.path = w.file_path
ON CONFLICT (knowledge_database_id, path) DO NOTHING
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

_RENAME = (
    # A new place may be that of an item that went before; its ids end here.
    """
    DELETE FROM project_files WHERE project_file_id IN
        (SELECT i.project_file_id FROM knowledge_database_items i
           JOIN unnest(%(databases)s::bigint[], %(paths)s::text[]) AS w(database, path)
             ON i.knowledge_database_id = w.database AND i.path = w.path
          WHERE i.state = 'gone')
    """,
    """
    UPDATE knowledge_database_items i SET path = w.path, partition_key = w.partition_key
      FROM unnest(%(items)s::bigint[], %(paths)s::text[], %(keys)s::text[])
           AS w(item, path, partition_key)
     WHERE i.knowledge_database_item_id = w.item
    """,
    """
    UPDATE project_files f SET path = w.path
      FROM unnest(%(items)s::bigint[], %(files)s::text[]) AS w(item, path)
      JOIN knowledge_database_items i ON i.knowledge_database_item_id = w.item
     WHERE f.project_file_id = i.project_file_id
    """,
)

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


def known_items(conn: Conn) -> list[KnownItem]:
    """Every item that was ever seen, with whether its served rows are all there."""
    rows = conn.execute(_KNOWN).fetchall()
    # row[15] and row[16]: the served generation and the chunks noted for it
    served = _served_counts(conn, {row[15] for row in rows})
    return [
        KnownItem(*(*row[:15], row[16] is not None and row[16] == served.get((row[15], row[0]), 0)))
        for row in rows
    ]


def register(conn: Conn, entries: Sequence[TreeEntry], generation_id: int) -> None:
    """Create the accounts, projects, databases, files and items that are new."""
    register_databases(
        conn, {(entry.account, entry.project, entry.database) for entry in entries}, generation_id
    )
    values = {
        "accounts": [entry.account for entry in entries],
        "projects": [entry.project for entry in entries],
        "databases": [entry.database for entry in entries],
        "paths": [entry.path for entry in entries],
        "keys": [entry.partition_key for entry in entries],
        "kinds": [kind_of(entry.path) for entry in entries],
    }
    conn.execute(_REGISTER_FILES, values)
    conn.execute(_REGISTER_ITEMS, values)


def register_databases(
    conn: Conn, places: Iterable[tuple[str, str, str]], generation_id: int
) -> None:
    """Create accounts, projects and knowledge databases; empty folders count too."""
    ordered = sorted(places)
    conn.execute(
        _REGISTER_FOLDERS,
        {
            "accounts": [place[0] for place in ordered],
            "projects": [place[1] for place in ordered],
            "databases": [place[2] for place in ordered],
            "generation": generation_id,
        },
    )


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


def rename(conn: Conn, renames: Sequence[Rename]) -> None:
    """Move items to their new paths; ids, revisions and served rows stay."""
    values = {
        "items": [rename.item.item_id for rename in renames],
        "databases": [rename.item.knowledge_database_id for rename in renames],
        "paths": [rename.entry.path for rename in renames],
        "keys": [rename.entry.partition_key for rename in renames],
        "files": [f"{rename.entry.database}/{rename.entry.path}" for rename in renames],
    }
    for statement in _RENAME:
        conn.execute(statement, values)


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
