"""Puts tenants, items and served versions into a database or a memory store, for tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from embedding_server import vector_of

from kshift_knowledge.chunker import PIPELINE_VERSION
from kshift_knowledge.postgres import generations
from kshift_knowledge.postgres.database import Conn, Database
from kshift_knowledge.records import (
    Chunk,
    EmbeddedChunk,
    Generation,
    ItemMeta,
    ItemVersion,
    Scope,
    Vector,
)

DIMENSIONS = 16
GENERATION = Generation(
    generation_id=0,
    embedder="openai",
    model="text-embedding-3-small",
    dimensions=DIMENSIONS,
    chunk_tokens=512,
    overlap_tokens=64,
    passage_tokens=0,
    token_counter="cl100k_base",
    text_format=1,
    pipeline_version=PIPELINE_VERSION,
)
_REVISIONS = itertools.count(1_000_000)  # above what a fresh database gives its items


@dataclass(frozen=True)
class Place:
    """Where an item of a test lives."""

    scope: Scope  # of its database alone
    item_id: int
    file_id: int
    path: str


def served_generation(database: Database) -> Generation:
    """The default generation, made if there is none."""
    with database.transaction() as conn:
        return generations.ensure_default_generation(conn, GENERATION)


def add_databases(database: Database, account: str, project: str, *slugs: str) -> Scope:
    """Create what is missing of an account, a project and knowledge databases in it."""
    generation = served_generation(database)
    with database.transaction() as conn:
        account_id = _id(
            conn,
            "INSERT INTO accounts (slug) VALUES (%s)"
            " ON CONFLICT (slug) DO UPDATE SET slug = excluded.slug RETURNING account_id",
            (account,),
        )
        project_id = _id(
            conn,
            "INSERT INTO projects (account_id, slug, served_generation_id) VALUES (%s, %s, %s)"
            " ON CONFLICT (account_id, slug) DO UPDATE SET slug = excluded.slug"
            " RETURNING project_id",
            (account_id, project, generation.generation_id),
        )
        database_ids = [
            _id(
                conn,
                "INSERT INTO knowledge_databases (account_id, project_id, slug)"
                " VALUES (%s, %s, %s) RETURNING knowledge_database_id",
                (account_id, project_id, slug),
            )
            for slug in slugs
        ]
    return Scope(account_id, project_id, tuple(database_ids))


def add_item(database: Database, scope: Scope, path: str, *, kind: str = "text") -> Place:
    """Register an item in the one database of *scope*; nothing of it is served yet."""
    (database_id,) = scope.knowledge_database_ids
    tenant = (scope.account_id, scope.project_id)
    with database.transaction() as conn:
        file_id = _id(
            conn,
            "INSERT INTO project_files (account_id, project_id, path)"
            " VALUES (%s, %s, %s) RETURNING project_file_id",
            (*tenant, f"{database_id}/{path}"),
        )
        item_id = _id(
            conn,
            "INSERT INTO knowledge_database_items (account_id, project_id, knowledge_database_id,"
            " project_file_id, path, partition_key, name, kind)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s) RETURNING knowledge_database_item_id",
            (*tenant, database_id, file_id, path, f"{database_id}/{path}", path, kind),
        )
    return Place(scope, item_id, file_id, path)


def version_of(
    place: Place,
    texts: Sequence[str],
    *,
    name: str = "Note",
    kind: str = "text",
    origin: str = "uploaded",
    source_url: str | None = None,
    labels: Sequence[str] = (),
    vectors: Sequence[Vector] = (),
    revision: int | None = None,
) -> ItemVersion:
    """
    A version whose chunks are *texts*, joined by blank lines into the item's text.

    vectors: by default those of the embedding server, so that a chunk's own text finds it.
    """
    chunks, start = [], 0
    for index, text in enumerate(texts):
        vector = vectors[index] if vectors else vector_of(text, DIMENSIONS)
        digest = sha256(text.encode())
        chunk = Chunk(
            index=index,
            content=text,
            content_hash=digest.hexdigest(),
            char_start=start,
            char_end=start + len(text),
            heading_path=(),
            token_count=len(text) // 4 + 1,
        )
        chunks.append(EmbeddedChunk(chunk, digest.digest(), vector))
        start += len(text) + len("\n\n")
    return ItemVersion(
        account_id=place.scope.account_id,
        project_id=place.scope.project_id,
        knowledge_database_id=place.scope.knowledge_database_ids[0],
        knowledge_database_item_id=place.item_id,
        project_file_id=place.file_id,
        path=place.path,
        revision=next(_REVISIONS) if revision is None else revision,
        meta=ItemMeta(name, None, kind, origin, source_url, tuple(labels)),
        text="\n\n".join(texts),
        source_signature="1:2:3:4",
        source_hash=sha256("\n\n".join(texts).encode()).hexdigest(),
        chunks=tuple(chunks),
    )


def only(scope: Scope, database_id: int) -> Scope:
    """The scope of one of its databases."""
    return replace(scope, knowledge_database_ids=(database_id,))


def _id(conn: Conn, statement: str, values: Sequence[object]) -> int:
    row = conn.execute(statement, values).fetchone()
    assert row is not None
    return int(row[0])
