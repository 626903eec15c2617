"""Whole items in path order, for mode concat: each as one chunk without an index."""

from __future__ import annotations

from kshift_knowledge.postgres.chunk_rows import stored_chunk
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.records import Filters, Generation, Scope, StoredChunk

# Only the few items of one page are read; the text's length and hash need all of it.
_IN_PATH_ORDER = """
WITH page AS MATERIALIZED (
    SELECT i.*, f.path AS place, x.token_count
      FROM knowledge_database_items i
      JOIN project_files f ON f.project_file_id = i.project_file_id
      JOIN indexed_items x ON x.knowledge_database_item_id = i.knowledge_database_item_id
       AND x.generation_id = %(generation)s AND x.chunk_count > 0
     WHERE i.account_id = %(account)s AND i.project_id = %(project)s
       AND i.knowledge_database_id = ANY(%(databases)s)
       AND (%(kind)s::text IS NULL OR i.kind = %(kind)s)
       AND (%(origin)s::text IS NULL OR i.origin = %(origin)s)
       AND i.labels @> to_jsonb(%(labels)s::text[])
       AND (%(names)s::text[] IS NULL OR i.name = ANY(%(names)s))
       AND (%(after)s::bigint IS NULL OR f.path > (
            SELECT path FROM project_files WHERE project_file_id = %(after)s))
     ORDER BY f.path
     LIMIT %(limit)s
)
SELECT 0::bigint, p.account_id, p.project_id, p.knowledge_database_id,
       p.knowledge_database_item_id, p.project_file_id, p.name, p.path, NULL::int,
       left(t.text, %(max_chars)s), encode(sha256(convert_to(t.text, 'UTF8')), 'hex'), 0,
       char_length(t.text), '{}'::text[], p.token_count, p.kind, p.origin, p.source_url,
       p.labels, t.revision, NULL::float8
  FROM page p JOIN item_texts t USING (knowledge_database_item_id)
 ORDER BY p.place
"""


def in_path_order(
    conn: Conn,
    scope: Scope,
    generation: Generation,
    filters: Filters,
    *,
    after: StoredChunk | None,
    limit: int,
    max_chars: int,
) -> list[StoredChunk]:
    """See VectorStore.whole_items."""
    rows = conn.execute(
        _IN_PATH_ORDER,
        {
            "account": scope.account_id,
            "project": scope.project_id,
            "databases": list(scope.knowledge_database_ids),
            "generation": generation.generation_id,
            "kind": filters.kind,
            "origin": filters.origin,
            "labels": list(filters.labels),
            "names": list(filters.item_names) or None,
            "after": None if after is None else after.project_file_id,
            "limit": limit,
            "max_chars": max_chars,
        },
    ).fetchall()
    return [stored_chunk(row) for row in rows]
