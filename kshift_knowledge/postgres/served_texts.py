"""What is served of items, and which texts have a vector already; writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.postgres.generations import passage_table, vector_table
from kshift_knowledge.records import Generation

_SERVED = """
SELECT i.knowledge_database_item_id, i.name, x.source_hash
  FROM knowledge_database_items i
  JOIN indexed_items x
    ON x.knowledge_database_item_id = i.knowledge_database_item_id AND x.generation_id = %s
 WHERE i.knowledge_database_item_id = ANY(%s)
"""

_HASHES = """
SELECT knowledge_database_item_id, embed_hash FROM {vectors}
 WHERE knowledge_database_item_id = ANY(%s)
"""

_KNOWN = """
SELECT embed_hash FROM {vectors} WHERE account_id = %(account)s AND embed_hash = ANY(%(hashes)s)
UNION
SELECT embed_hash FROM {passages} WHERE account_id = %(account)s AND embed_hash = ANY(%(hashes)s)
UNION
SELECT embed_hash FROM reusable_vectors
 WHERE account_id = %(account)s AND embedder = %(embedder)s AND model = %(model)s
   AND dimensions = %(dimensions)s AND embed_hash = ANY(%(hashes)s)
"""


@dataclass(frozen=True, slots=True)
class ServedItem:
    """What one generation serves of an item; hashes: of its embedded texts, one for each chunk."""

    name: str
    source_hash: str
    hashes: Counter[bytes]


def served_items(
    conn: Conn, generation: Generation, item_ids: Sequence[int]
) -> dict[int, ServedItem]:
    """By item id; an item of which nothing is noted is left out."""
    ids = list(item_ids)
    hashes: dict[int, Counter[bytes]] = {}
    statement = _HASHES.format(vectors=vector_table(generation.generation_id))
    for item_id, embed_hash in conn.execute(statement, (ids,), binary=True):
        hashes.setdefault(item_id, Counter())[embed_hash] += 1
    return {
        item_id: ServedItem(name, source_hash, hashes.get(item_id, Counter()))
        for item_id, name, source_hash in conn.execute(_SERVED, (generation.generation_id, ids))
    }


def chunk_counts(conn: Conn, generation: Generation) -> dict[int, int]:
    """The chunks that each item serves, by item id."""
    rows = conn.execute(
        "SELECT knowledge_database_item_id, chunk_count FROM indexed_items"
        " WHERE generation_id = %s",
        (generation.generation_id,),
    )
    return {item_id: count for item_id, count in rows}  # noqa: C416


def known_hashes(
    conn: Conn, account_id: int, generation: Generation, hashes: Sequence[bytes]
) -> set[bytes]:
    """Those of *hashes* that the account has a vector for, served or kept."""
    rows = conn.execute(
        _KNOWN.format(
            vectors=vector_table(generation.generation_id),
            passages=passage_table(generation.generation_id),
        ),
        {
            "account": account_id,
            "embedder": generation.embedder,
            "model": generation.model,
            "dimensions": generation.dimensions,
            "hashes": list(hashes),
        },
        binary=True,
    )
    return {row[0] for row in rows}
