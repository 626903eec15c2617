"""Staged chunks: cut and not embedded, beside what is served and never read by anyone else."""

from __future__ import annotations

from collections.abc import Sequence

from kshift_knowledge.indexing.records import Prepared
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.records import Chunk, Generation

_COPY = """
COPY staged_chunks (generation_id, knowledge_database_item_id, account_id, revision, source_hash,
                    chunk_index, content, content_hash, heading_path, char_start, char_end,
                    token_count)
FROM STDIN (FORMAT BINARY)
"""
_TYPES = [
    "int4",
    "int8",
    "int8",
    "int8",
    "text",
    "int4",
    "text",
    "text",
    "text[]",
    "int4",
    "int4",
    "int4",
]


def stage(conn: Conn, generation: Generation, prepared: Sequence[Prepared]) -> None:
    """Replace what is staged of these items."""
    conn.execute(
        "DELETE FROM staged_chunks"
        " WHERE generation_id = %s AND knowledge_database_item_id = ANY(%s)",
        (generation.generation_id, [one.item.item_id for one in prepared]),
    )
    with conn.cursor().copy(_COPY) as copy:
        copy.set_types(_TYPES)
        for one in prepared:
            for chunk in one.chunks:
                copy.write_row(
                    (
                        generation.generation_id,
                        one.item.item_id,
                        one.item.account_id,
                        one.item.revision,
                        one.source.raw_hash,
                        chunk.index,
                        chunk.content,
                        chunk.content_hash,
                        list(chunk.heading_path),
                        chunk.char_start,
                        chunk.char_end,
                        chunk.token_count,
                    )
                )


def staged(
    conn: Conn, generation: Generation, item_id: int, source_hash: str
) -> tuple[Chunk, ...] | None:
    """Return what is staged of an item, None when it was cut from other bytes or not at all."""
    rows = conn.execute(
        "SELECT source_hash, chunk_index, content, content_hash, char_start, char_end,"
        " heading_path, token_count FROM staged_chunks"
        " WHERE generation_id = %s AND knowledge_database_item_id = %s ORDER BY chunk_index",
        (generation.generation_id, item_id),
    ).fetchall()
    if not rows or any(row[0] != source_hash for row in rows):
        return None
    return tuple(Chunk(*(*row[1:6], tuple(row[6]), row[7])) for row in rows)
