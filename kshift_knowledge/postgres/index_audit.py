"""Whether what is served is whole: of a run just now, and of projects as such."""

from __future__ import annotations

from collections.abc import Sequence

from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.postgres.generations import vector_table
from kshift_knowledge.records import Generation

# An item that a newer run or a deletion has taken meanwhile is judged by what is there now.
_BROKEN = """
SELECT i.partition_key, CASE
         WHEN x.knowledge_database_item_id IS NULL THEN 'it is not noted as indexed'
         WHEN coalesce(c.chunks, 0) <> x.chunk_count THEN 'its rows are not all there'
         WHEN c.vectors <> c.chunks THEN 'a chunk has no vector of its generation'
         WHEN c.first <> 0 OR c.last <> c.chunks - 1 THEN 'its chunks do not count from 0'
         ELSE 'a vector is zero or not finite' END
  FROM knowledge_database_items i
  LEFT JOIN indexed_items x
    ON x.knowledge_database_item_id = i.knowledge_database_item_id
   AND x.generation_id = %(generation)s
  LEFT JOIN (
       SELECT c.knowledge_database_item_id, count(*) AS chunks, count(v.chunk_id) AS vectors,
              min(c.chunk_index) AS first, max(c.chunk_index) AS last,
              bool_and(vector_norm(v.embedding::vector) > 0
                       AND vector_norm(v.embedding::vector) < 'infinity') AS is_sound
         FROM chunks c LEFT JOIN {vectors} v USING (chunk_id)
        WHERE c.generation_id = %(generation)s AND c.knowledge_database_item_id = ANY(%(items)s)
        GROUP BY 1) c
    ON c.knowledge_database_item_id = i.knowledge_database_item_id
 WHERE i.knowledge_database_item_id = ANY(%(items)s) AND i.state = 'indexed'
   AND (x.knowledge_database_item_id IS NULL OR coalesce(c.chunks, 0) <> x.chunk_count
        OR c.vectors <> c.chunks OR c.first <> 0 OR c.last <> c.chunks - 1 OR NOT c.is_sound)
 ORDER BY 1
"""

_MIXED = """
SELECT a.slug || '/' || p.slug, 'a chunk has another model or width than its generation'
  FROM knowledge_chunks k
  JOIN projects p ON p.project_id = k.project_id
  JOIN accounts a ON a.account_id = p.account_id
  JOIN generations g ON g.generation_id = p.served_generation_id
 GROUP BY 1
HAVING bool_or(k.generation_id <> g.generation_id OR k.embedding_model <> g.model
               OR vector_dims(k.embedding) <> g.dimensions)
 ORDER BY 1
"""


def broken_items(
    conn: Conn, generation: Generation, item_ids: Sequence[int]
) -> list[tuple[str, str]]:
    """Partition key and what is wrong, for each of these items that is not served whole."""
    statement = _BROKEN.format(vectors=vector_table(generation.generation_id))
    values = {"generation": generation.generation_id, "items": list(item_ids)}
    return [(key, what) for key, what in conn.execute(statement, values)]


def mixed_projects(conn: Conn) -> list[tuple[str, str]]:
    """Account and project, and what is wrong, where vectors of several generations meet."""
    return [(place, what) for place, what in conn.execute(_MIXED)]
