"""Vectors that are paid for and not served: kept by hash of the embedded text, per account."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256

import numpy as np

from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.postgres.generations import passage_table, vector_table
from kshift_knowledge.records import Generation
from kshift_knowledge.store import VectorRow

_CHECKSUM_BYTES = 8

# Of chunks and of passages, whose hashes never meet (embedded_text.passage_hash).
_KEEP_SERVED = """
INSERT INTO reusable_vectors
       (account_id, embedder, model, dimensions, embed_hash, embedding, checksum)
SELECT DISTINCT ON (v.embed_hash) v.account_id, %(embedder)s, %(model)s, %(dimensions)s,
       v.embed_hash, sent.bytes, substr(sha256(sent.bytes), 1, 8)
  FROM {vectors} v, vector_send(v.embedding::vector) AS sent(bytes)
 WHERE v.account_id = %(account)s AND v.knowledge_database_item_id = ANY(%(items)s)
   AND NOT v.embed_hash = ANY(%(used)b)
ON CONFLICT (account_id, embedder, model, dimensions, embed_hash) DO UPDATE
   SET embedding = excluded.embedding, checksum = excluded.checksum, kept_at = now()
"""

_FIND_SERVED = """
SELECT DISTINCT ON (embed_hash) embed_hash, vector_send(embedding::vector)
  FROM {vectors} WHERE account_id = %s AND embed_hash = ANY(%b)
"""

_FIND_KEPT = """
SELECT embed_hash, embedding, checksum FROM reusable_vectors
 WHERE account_id = %s AND embedder = %s AND model = %s AND dimensions = %s AND embed_hash = ANY(%b)
"""

_FORGET = """
DELETE FROM reusable_vectors
 WHERE account_id = %s AND embedder = %s AND model = %s AND dimensions = %s AND embed_hash = ANY(%b)
"""

_KEEP = """
INSERT INTO reusable_vectors
       (account_id, embedder, model, dimensions, embed_hash, embedding, checksum)
SELECT %s, %s, %s, %s, k.* FROM unnest(%b::bytea[], %b::bytea[], %b::bytea[]) AS k
ON CONFLICT (account_id, embedder, model, dimensions, embed_hash) DO UPDATE
   SET embedding = excluded.embedding, checksum = excluded.checksum, kept_at = now()
"""


def find(
    conn: Conn, account_id: int, generation: Generation, embed_hashes: Sequence[bytes]
) -> dict[bytes, VectorRow]:
    """The account's vectors for these hashes, served ones first; damaged ones are left out."""
    wanted = list(embed_hashes)
    found: dict[bytes, VectorRow] = {}
    if not wanted:
        return found
    tables = [
        table(generation_id)
        for generation_id in _same_model(conn, generation)
        for table in (vector_table, passage_table)
    ]
    for table in tables:
        statement = _FIND_SERVED.format(vectors=table)
        for embed_hash, sent in conn.execute(statement, (account_id, wanted), binary=True):
            found[embed_hash] = from_sent(sent)
    missing = [embed_hash for embed_hash in wanted if embed_hash not in found]
    if missing:
        values = (*_key(account_id, generation), missing)
        for embed_hash, sent, checksum in conn.execute(_FIND_KEPT, values, binary=True):
            if _checksum(sent) == checksum and len(sent) == 4 + 4 * generation.dimensions:
                found[embed_hash] = from_sent(sent)
    return found


def keep(
    conn: Conn, account_id: int, generation: Generation, vectors: Mapping[bytes, VectorRow]
) -> None:
    """Keep freshly paid vectors; a copy that is there was damaged, or nobody had paid again."""
    if not vectors:
        return
    sent = [_to_sent(vector) for vector in vectors.values()]
    checksums = [_checksum(one) for one in sent]
    conn.execute(_KEEP, (*_key(account_id, generation), list(vectors), sent, checksums))


def keep_served(
    conn: Conn,
    account_id: int,
    item_ids: Sequence[int],
    still_used: Mapping[int, Collection[bytes]],
) -> None:
    """
    Keep the vectors that items are about to lose.

    still_used: by generation, the hashes that the items go on to use; empty means every
    generation loses all of them.
    """
    rows = conn.execute(
        "SELECT generation_id, embedder, model, dimensions FROM generations"
        " WHERE dropped_at IS NULL"
    ).fetchall()
    for generation_id, embedder, model, dimensions in rows:
        if still_used and generation_id not in still_used:
            continue
        values = {
            "embedder": embedder,
            "model": model,
            "dimensions": dimensions,
            "account": account_id,
            "items": list(item_ids),
            "used": list(still_used.get(generation_id, ())),
        }
        for table in (vector_table(generation_id), passage_table(generation_id)):
            conn.execute(_KEEP_SERVED.format(vectors=table), values)


def forget(
    conn: Conn, account_id: int, generation: Generation, embed_hashes: Collection[bytes]
) -> None:
    """Drop kept copies of vectors that are served now."""
    if embed_hashes:
        conn.execute(_FORGET, (*_key(account_id, generation), list(embed_hashes)))


def purge(conn: Conn, days: int) -> int:
    """Drop what nobody needed for *days* days; returns how many."""
    return conn.execute(
        "DELETE FROM reusable_vectors WHERE kept_at < now() - make_interval(days => %s)", (days,)
    ).rowcount


def _same_model(conn: Conn, generation: Generation) -> list[int]:
    rows = conn.execute(
        "SELECT generation_id FROM generations WHERE dropped_at IS NULL"
        " AND embedder = %s AND model = %s AND dimensions = %s",
        (generation.embedder, generation.model, generation.dimensions),
    ).fetchall()
    return [row[0] for row in rows]


def _key(account_id: int, generation: Generation) -> tuple[int, str, str, int]:
    return (account_id, generation.embedder, generation.model, generation.dimensions)


def _to_sent(vector: VectorRow) -> bytes:
    """The bytes of vector_send(): width, a zero, then big-endian floats."""
    return len(vector).to_bytes(2, "big") + b"\0\0" + np.asarray(vector, ">f4").tobytes()


def from_sent(sent: bytes) -> VectorRow:
    """Return the numbers of vector_send()'s bytes."""
    return np.frombuffer(sent, ">f4", offset=4).astype(np.float32)


def _checksum(sent: bytes) -> bytes:
    return sha256(sent).digest()[:_CHECKSUM_BYTES]
