"""What the tables say about themselves: contradictions among rows, and whole items to rebuild."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kshift_knowledge.postgres.database import Conn, Database
from kshift_knowledge.postgres.generations import passage_table, vector_table
from kshift_knowledge.postgres.kept_vectors import from_sent
from kshift_knowledge.records import ItemMeta
from kshift_knowledge.store import VectorRow

# Oracle, what is wrong, and a statement whose rows name the items that are.
_ANYWHERE = (
    (
        "I4",
        "it is gone, but something of it is left",
        "SELECT partition_key FROM knowledge_database_items i WHERE state = 'gone' AND ("
        " EXISTS (SELECT FROM chunks c WHERE {item_of_c})"
        " OR EXISTS (SELECT FROM indexed_items c WHERE {item_of_c})"
        " OR EXISTS (SELECT FROM item_texts c WHERE {item_of_c})"
        " OR EXISTS (SELECT FROM staged_chunks c WHERE {item_of_c}))",
    ),
    (
        "I9",
        "it failed, but its code, message, remedy, attempts or time are missing",
        "SELECT partition_key FROM knowledge_database_items WHERE state = 'failed' AND NOT ("
        " coalesce(failure_code, '') <> '' AND coalesce(failure_message, '') <> ''"
        " AND coalesce(failure_hint, '') <> '' AND failure_attempts > 0"
        " AND failed_at IS NOT NULL)",
    ),
    (
        "I1",
        "it is indexed, but the served generation has no note of it",
        "SELECT partition_key FROM knowledge_database_items i JOIN projects p USING (project_id)"
        " WHERE state = 'indexed' AND NOT EXISTS (SELECT FROM indexed_items c"
        " WHERE {item_of_c} AND c.generation_id = p.served_generation_id)",
    ),
    (
        "I1",
        "what is noted as indexed has no text that its citations point into",
        "SELECT partition_key FROM knowledge_database_items i WHERE"
        " EXISTS (SELECT FROM indexed_items c WHERE {item_of_c})"
        " AND NOT EXISTS (SELECT FROM item_texts c WHERE {item_of_c})",
    ),
    (
        "I1",
        "its file, its folder and its own path disagree",
        "SELECT partition_key FROM knowledge_database_items i"
        " JOIN knowledge_databases d USING (knowledge_database_id)"
        " JOIN project_files f USING (project_file_id)"
        " WHERE f.path <> d.slug || '/' || i.path OR (f.account_id, f.project_id)"
        " <> (i.account_id, i.project_id)",
    ),
    (
        "I1",
        "a chunk's content is not what its hash says",
        "SELECT DISTINCT partition_key FROM chunks c JOIN knowledge_database_items i ON {item_of_c}"
        " WHERE content_hash <> encode(sha256(convert_to(content, 'UTF8')), 'hex')",
    ),
    (
        "I1",
        "a chunk cites another file than the item's",
        "SELECT DISTINCT partition_key FROM chunks c JOIN knowledge_database_items i ON {item_of_c}"
        " WHERE c.project_file_id <> i.project_file_id",
    ),
    (
        "I5",
        "rows of a generation that was dropped are left",
        "SELECT DISTINCT partition_key FROM chunks c JOIN knowledge_database_items i ON {item_of_c}"
        " JOIN generations g USING (generation_id) WHERE g.dropped_at IS NOT NULL",
    ),
)
_OF_A_GENERATION = (
    (
        "I3",
        "its chunks do not count from 0 without a gap",
        "SELECT partition_key FROM chunks c JOIN knowledge_database_items i ON {item_of_c}"
        " WHERE generation_id = {generation} GROUP BY i.knowledge_database_item_id"
        " HAVING min(chunk_index) <> 0 OR max(chunk_index) <> count(*) - 1",
    ),
    (
        "I1",
        "the chunks, tokens or revision noted for it are not those of its rows",
        "SELECT partition_key FROM knowledge_database_items i"
        " FULL JOIN (SELECT * FROM indexed_items WHERE generation_id = {generation}) x"
        " USING (knowledge_database_item_id)"
        " FULL JOIN (SELECT knowledge_database_item_id, count(*) AS chunks,"
        "  sum(token_count) AS tokens, min(revision) AS oldest, max(revision) AS newest"
        "  FROM chunks WHERE generation_id = {generation} GROUP BY 1) c"
        " USING (knowledge_database_item_id)"
        " WHERE coalesce(x.chunk_count, 0) <> coalesce(c.chunks, 0)"
        " OR coalesce(x.token_count, 0) <> coalesce(c.tokens, 0)"
        " OR coalesce(c.oldest, x.revision) IS DISTINCT FROM x.revision"
        " OR coalesce(c.newest, x.revision) IS DISTINCT FROM x.revision",
    ),
    (
        "I5",
        "a chunk has no vector, or one of another generation, tenant or item",
        "SELECT DISTINCT partition_key FROM knowledge_database_items i"
        " JOIN chunks c ON {item_of_c} FULL JOIN {vectors} v USING (chunk_id)"
        " WHERE (c.generation_id = {generation} AND v.chunk_id IS NULL)"
        " OR (v.chunk_id IS NOT NULL AND (c.generation_id, c.account_id, c.project_id,"
        "  c.knowledge_database_id, c.knowledge_database_item_id) IS DISTINCT FROM"
        "  ({generation}, v.account_id, v.project_id, v.knowledge_database_id,"
        "  v.knowledge_database_item_id))",
    ),
    (
        "I5",
        "a passage has a vector of another chunk, tenant or item",
        "SELECT DISTINCT partition_key FROM {passages} c JOIN {vectors} v USING (chunk_id)"
        " LEFT JOIN knowledge_database_items i ON {item_of_c}"
        " WHERE (c.account_id, c.project_id, c.knowledge_database_id,"
        "  c.knowledge_database_item_id) IS DISTINCT FROM (v.account_id, v.project_id,"
        "  v.knowledge_database_id, v.knowledge_database_item_id)",
    ),
    (
        "I5",
        "a passage's vector is zero or not finite",
        "SELECT DISTINCT partition_key FROM {passages} c"
        " JOIN knowledge_database_items i ON {item_of_c}"
        " WHERE NOT (vector_norm(embedding::vector) > 0"
        "  AND vector_norm(embedding::vector) < 'infinity')",
    ),
    (
        "I5",
        "a vector is zero or not finite",
        "SELECT DISTINCT partition_key FROM {vectors} c"
        " JOIN knowledge_database_items i ON {item_of_c}"
        " WHERE NOT (vector_norm(embedding::vector) > 0"
        "  AND vector_norm(embedding::vector) < 'infinity')",
    ),
)
_ITEM_OF_C = "c.knowledge_database_item_id = i.knowledge_database_item_id"

_LISTED = """
SELECT i.knowledge_database_item_id, a.slug, p.slug, d.slug, i.path, i.partition_key, i.state,
       i.seen_signature, p.served_generation_id
  FROM knowledge_database_items i
  JOIN accounts a USING (account_id)
  JOIN projects p ON p.project_id = i.project_id
  JOIN knowledge_databases d ON d.knowledge_database_id = i.knowledge_database_id
"""

_ITEMS = """
SELECT i.knowledge_database_item_id, i.name, i.kind, i.origin, i.source_url, i.labels,
       t.text, x.source_hash
  FROM knowledge_database_items i
  LEFT JOIN item_texts t USING (knowledge_database_item_id)
  LEFT JOIN indexed_items x ON x.knowledge_database_item_id = i.knowledge_database_item_id
   AND x.generation_id = %s
 WHERE i.knowledge_database_item_id = ANY(%s)
"""

_ROWS = """
SELECT c.knowledge_database_item_id, c.chunk_index, c.content, c.char_start, c.char_end,
       c.heading_path, c.token_count, v.embed_hash, v.places, v.lexemes, ARRAY(
           SELECT p.embed_hash FROM {passages} p WHERE p.chunk_id = c.chunk_id
            ORDER BY p.passage_index), {vector}, {passage_vectors}
  FROM chunks c JOIN {vectors} v USING (chunk_id)
 WHERE c.generation_id = %s AND c.knowledge_database_item_id = ANY(%s)
 ORDER BY c.knowledge_database_item_id, c.chunk_index
"""

_PASSAGE_VECTORS = """ARRAY(
    SELECT vector_send(p.embedding::vector) FROM {passages} p WHERE p.chunk_id = c.chunk_id
     ORDER BY p.passage_index)"""


@dataclass(frozen=True, slots=True)
class ListedItem:
    """An item and where its file should be."""

    item_id: int
    account: str
    project: str
    database: str
    path: str
    partition_key: str
    state: str
    seen_signature: str | None
    generation_id: int


@dataclass(frozen=True, slots=True)
class StoredRow:
    """
    A served chunk without what can be derived from it.

    places and lexemes: as stored, None for a chunk that was written before there were passages.
    passage_hashes: of the passages that have a vector, in order. vector and passage_vectors: None
    and empty unless asked for.
    """

    index: int
    content: str
    char_start: int
    char_end: int
    heading_path: tuple[str, ...]
    token_count: int
    embed_hash: bytes
    places: bytes | None
    lexemes: bytes | None
    passage_hashes: tuple[bytes, ...]
    vector: VectorRow | None
    passage_vectors: tuple[VectorRow, ...]


@dataclass(frozen=True, slots=True)
class StoredItem:
    """All that is stored of an item. text and source_hash: None when nothing is served of it."""

    meta: ItemMeta  # its title is not stored and None
    text: str | None
    source_hash: str | None
    rows: tuple[StoredRow, ...]


@contextmanager
def snapshot(database: Database) -> Iterator[Conn]:
    """A transaction that sees one moment, whatever is written meanwhile, and writes nothing."""
    with database.transaction() as conn:
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield conn


def contradictions(conn: Conn, generation_ids: Sequence[int]) -> Iterator[tuple[str, str, str]]:
    """Yield (oracle, item, what is wrong) for everything that the rows alone show."""
    for oracle, what, statement in _ANYWHERE:
        for (item,) in conn.execute(statement.format(item_of_c=_ITEM_OF_C)):
            yield oracle, item, what
    for generation_id in generation_ids:
        parts = {
            "item_of_c": _ITEM_OF_C,
            "generation": int(generation_id),
            "vectors": vector_table(generation_id),
            "passages": passage_table(generation_id),
        }
        for oracle, what, statement in _OF_A_GENERATION:
            for (item,) in conn.execute(statement.format(**parts)):
                yield oracle, item or "a row without an item", what


def listed(conn: Conn) -> list[ListedItem]:
    """Every item that was ever seen."""
    return [ListedItem(*row) for row in conn.execute(_LISTED)]


def stored(
    conn: Conn, generation_id: int, item_ids: Sequence[int], *, with_vectors: bool
) -> dict[int, StoredItem]:
    """Everything that a generation holds of these items."""
    ids = list(item_ids)
    rows: dict[int, list[StoredRow]] = {item_id: [] for item_id in ids}
    statement = _ROWS.format(
        vectors=vector_table(generation_id),
        passages=passage_table(generation_id),
        vector="vector_send(v.embedding::vector)" if with_vectors else "NULL",
        passage_vectors=_PASSAGE_VECTORS.format(passages=passage_table(generation_id))
        if with_vectors
        else "ARRAY[]::bytea[]",
    )
    for row in conn.execute(statement, (generation_id, ids), binary=True):
        item_id, index, content, start, end, path, tokens, hashed, places, lexemes = row[:10]
        hashes, sent, passages_sent = row[10:]
        rows[item_id].append(
            StoredRow(
                index=index,
                content=content,
                char_start=start,
                char_end=end,
                heading_path=tuple(path),
                token_count=tokens,
                embed_hash=hashed,
                places=places,
                lexemes=lexemes,
                passage_hashes=tuple(hashes),
                vector=None if sent is None else from_sent(sent),
                passage_vectors=tuple(map(from_sent, passages_sent)),
            )
        )
    return {
        item_id: StoredItem(
            ItemMeta(name, None, kind, origin, source_url, tuple(labels)),
            text,
            source_hash,
            tuple(rows[item_id]),
        )
        for item_id, name, kind, origin, source_url, labels, text, source_hash in conn.execute(
            _ITEMS, (generation_id, ids)
        )
    }
