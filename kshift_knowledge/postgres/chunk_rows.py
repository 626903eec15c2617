"""Chunk and vector rows: how they are copied in and how they come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pgvector import HalfVector
from pgvector import Vector as PgVector

from kshift_knowledge.postgres import vector_rows
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.postgres.generations import passage_table, vector_table
from kshift_knowledge.records import Generation, ItemVersion, StoredChunk, Vector

COLUMNS = (
    "c.chunk_id, c.account_id, c.project_id, c.knowledge_database_id,"
    " c.knowledge_database_item_id, c.project_file_id,"
    " i.name, i.path, c.chunk_index, c.content, c.content_hash, c.char_start, c.char_end,"
    " c.heading_path, c.token_count, i.kind, i.origin, i.source_url, i.labels, c.revision"
)

_COPY_CHUNKS = """
COPY chunks (chunk_id, generation_id, account_id, project_id, knowledge_database_id,
             knowledge_database_item_id, project_file_id, revision, chunk_index, content,
             content_hash, heading_path, char_start, char_end, token_count)
FROM STDIN (FORMAT BINARY)
"""
_CHUNK_TYPES = [
    *("int8", "int4", "int8", "int8", "int8", "int8", "int8", "int8", "int4", "text"),
    *("text", "text[]", "int4", "int4", "int4"),
]


def stored_chunk(row: Sequence[Any]) -> StoredChunk:
    """A row of COLUMNS and a score."""
    return StoredChunk(*(*row[:13], tuple(row[13]), *row[14:18], tuple(row[18]), *row[19:]))


def as_column(vector: Vector, generation: Generation) -> PgVector | HalfVector:
    """The driver's value for this generation's column type."""
    values = np.asarray(vector, dtype=np.float32)
    return (
        PgVector(values)
        if generation.dimensions <= vector_rows.MAX_FULL_DIMENSIONS
        else HalfVector(values)
    )


def copy_chunks(conn: Conn, generation: Generation, versions: Sequence[ItemVersion]) -> None:
    """Write the chunks of whole versions, their vectors and passages by binary COPY."""
    count = sum(len(version.chunks) for version in versions)
    if not count:
        return
    chunk_ids = _take_ids(conn, count)
    remaining = iter(chunk_ids)
    with conn.cursor().copy(_COPY_CHUNKS) as copy:
        copy.set_types(_CHUNK_TYPES)
        for version in versions:
            for chunk in (embedded.chunk for embedded in version.chunks):
                copy.write_row(
                    (
                        next(remaining),
                        generation.generation_id,
                        version.account_id,
                        version.project_id,
                        version.knowledge_database_id,
                        version.knowledge_database_item_id,
                        version.project_file_id,
                        version.revision,
                        chunk.index,
                        chunk.content,
                        chunk.content_hash,
                        list(chunk.heading_path),
                        chunk.char_start,
                        chunk.char_end,
                        chunk.token_count,
                    )
                )
    _copy(
        conn,
        f"{vector_table(generation.generation_id)} ({vector_rows.CHUNK_COLUMNS})",
        vector_rows.chunk_copy(generation, versions, chunk_ids),
    )
    passages = vector_rows.passage_copy(versions, chunk_ids)
    if passages is not None:
        table = passage_table(generation.generation_id)
        _copy(conn, f"{table} ({vector_rows.PASSAGE_COLUMNS})", passages)


def _copy(conn: Conn, target: str, rows: bytes) -> None:
    with conn.cursor().copy(f"COPY {target} FROM STDIN (FORMAT BINARY)") as copy:
        copy.write(rows)


def _take_ids(conn: Conn, count: int) -> list[int]:
    """Reserve *count* chunk ids; other writers may take some in between."""
    rows = conn.execute(
        "SELECT nextval(pg_get_serial_sequence('chunks', 'chunk_id')) FROM generate_series(1, %s)",
        (count,),
    )
    return [row[0] for row in rows]
