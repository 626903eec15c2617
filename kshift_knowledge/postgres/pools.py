"""Reads pools of chunks and passages as columns, each in one row; knows no ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pgvector import HalfVector

from kshift_knowledge.pools import ChunkPool, Floats, Ints, PassageCosines, PassagePool
from kshift_knowledge.postgres import chunk_rows
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.postgres.generations import passage_table, vector_table
from kshift_knowledge.postgres.vector_rows import PLACE, PLACE_NUMBERS
from kshift_knowledge.records import Generation, StoredChunk, Vector

# One row of packed columns: a row each took ten times as long to read as to find.
_POOL = """
SELECT string_agg(int8send(v.chunk_id), ''::bytea),
       string_agg(int8send(v.knowledge_database_item_id), ''::bytea),
       string_agg(float8send(v.embedding <=> %(vector)s), ''::bytea)
  FROM {vectors} v
 WHERE v.account_id = %(account)s AND v.project_id = %(project)s
   AND v.knowledge_database_id = ANY(%(databases)s) {narrowed}
"""

_IN_SCOPE = """
       v.chunk_id = ANY(%(chunks)s) AND v.account_id = %(account)s AND v.project_id = %(project)s
   AND v.knowledge_database_id = ANY(%(databases)s)
"""

_PASSAGES = f"""
SELECT string_agg(int8send(v.chunk_id), ''::bytea ORDER BY v.chunk_id),
       string_agg(int8send(coalesce(length(v.places), 0)), ''::bytea ORDER BY v.chunk_id),
       string_agg(v.places, ''::bytea ORDER BY v.chunk_id),
       string_agg(v.lexemes, ''::bytea ORDER BY v.chunk_id)
  FROM {{vectors}} v
 WHERE {_IN_SCOPE}
"""  # noqa: S608 (constants)

_SPANS = "SELECT chunk_id, char_start, char_end FROM chunks WHERE chunk_id = ANY(%s)"

_PASSAGE_COSINES = f"""
SELECT string_agg(int8send(v.chunk_id), ''::bytea),
       string_agg(int8send(v.passage_index), ''::bytea),
       string_agg(float8send(v.embedding <=> %(vector)s), ''::bytea)
  FROM {{passages}} v
 WHERE {_IN_SCOPE}
"""  # noqa: S608 (constants)

_CHUNKS = f"""
SELECT {chunk_rows.COLUMNS}, 1 - (v.embedding <=> %(vector)s)
  FROM {{vectors}} v
  JOIN chunks c ON c.chunk_id = v.chunk_id
  JOIN knowledge_database_items i
    ON i.knowledge_database_item_id = c.knowledge_database_item_id
 WHERE {_IN_SCOPE}
"""  # noqa: S608 (constants)


def chunk_pool(
    conn: Conn,
    generation: Generation,
    vector: Vector,
    values: Mapping[str, Any],
    *,
    narrowed: str,
) -> ChunkPool:
    """values: of the scope, and of *narrowed*, a condition on the items."""
    statement = _POOL.format(vectors=vector_table(generation.generation_id), narrowed=narrowed)
    ids, items, distances = _row(
        conn, statement, {**values, "vector": chunk_rows.as_column(vector, generation)}
    )
    chunk_ids = _ints(ids)
    by_id = np.argsort(chunk_ids)
    return ChunkPool(chunk_ids[by_id], _ints(items)[by_id], 1 - _floats(distances)[by_id])


def passage_pool(
    conn: Conn, generation: Generation, chunk_ids: Sequence[int], values: Mapping[str, Any]
) -> PassagePool:
    """values: of the scope."""
    statement = _PASSAGES.format(vectors=vector_table(generation.generation_id))
    ids, lengths, places, lexemes = _row(conn, statement, {**values, "chunks": list(chunk_ids)})
    found = _ints(ids)
    counts = _ints(lengths) // (PLACE_NUMBERS * PLACE.itemsize)
    table = np.frombuffer(places or b"", PLACE).reshape(-1, PLACE_NUMBERS).astype(np.int64)
    unknown = np.flatnonzero(counts == 0)
    if len(unknown):
        spans = conn.execute(_SPANS, (found[unknown].tolist(),), binary=True).fetchall()
        by_id = {chunk_id: (start, end) for chunk_id, start, end in spans}
        rows = [(*by_id[chunk_id], 0, 0, 0, 0) for chunk_id in found[unknown].tolist()]
        table = np.insert(table, np.cumsum(counts)[unknown], rows, axis=0)
        counts[unknown] = 1
    return PassagePool(
        chunk_ids=found,
        counts=counts,
        spans=table[:, 0:2],
        heads=table[:, 2:4],
        sizes=table[:, 4],
        own_from=table[:, 5],
        lexemes=np.frombuffer(lexemes or b"", "<u4").astype(np.uint32),
    )


def passage_cosines(
    conn: Conn,
    generation: Generation,
    vector: Vector,
    chunk_ids: Sequence[int],
    values: Mapping[str, Any],
) -> PassageCosines:
    """values: of the scope."""
    statement = _PASSAGE_COSINES.format(passages=passage_table(generation.generation_id))
    half = HalfVector(np.asarray(vector, dtype=np.float32))
    ids, indexes, distances = _row(
        conn, statement, {**values, "vector": half, "chunks": list(chunk_ids)}
    )
    return PassageCosines(_ints(ids), _ints(indexes), 1 - _floats(distances))


def chunks(
    conn: Conn,
    generation: Generation,
    vector: Vector,
    chunk_ids: Sequence[int],
    values: Mapping[str, Any],
) -> list[StoredChunk]:
    """values: of the scope."""
    rows = conn.execute(
        _CHUNKS.format(vectors=vector_table(generation.generation_id)),
        {
            **values,
            "vector": chunk_rows.as_column(vector, generation),
            "chunks": list(chunk_ids),
        },
        binary=True,
    )
    return [chunk_rows.stored_chunk(row) for row in rows]


def _row(conn: Conn, statement: str, values: Mapping[str, Any]) -> tuple[bytes | None, ...]:
    row = conn.execute(statement, values, prepare=True, binary=True).fetchone()
    assert row is not None, "an aggregate without groups has one row"
    return row


def _ints(sent: bytes | None) -> Ints:
    return np.frombuffer(sent or b"", ">i8").astype(np.int64)


def _floats(sent: bytes | None) -> Floats:
    return np.frombuffer(sent or b"", ">f8").astype(np.float64)
