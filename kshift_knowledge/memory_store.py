"""The VectorStore in a dictionary: for tests, side indexes and callers without a database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from kshift_knowledge.errors import NotFound, WrongDimension
from kshift_knowledge.pools import ChunkPool, PassageCosines, PassagePool
from kshift_knowledge.records import (
    EmbeddedChunk,
    EmbeddedPassage,
    Filters,
    Generation,
    ItemVersion,
    Scope,
    SearchedPassage,
    StoredChunk,
    Vector,
)
from kshift_knowledge.store import VectorRow

_KeptKey = tuple[int, str, str, int, bytes]


class MemoryStore:
    """A VectorStore without a server; not for several threads that write at once."""

    def __init__(self, generation: Generation) -> None:
        self._served = generation
        self._versions: dict[tuple[int, int], ItemVersion] = {}
        self._last_revision: dict[int, int] = {}
        self._kept: dict[_KeptKey, VectorRow] = {}
        self._first_ids: dict[tuple[int, int], int] = {}  # of the chunks of each version
        self._next_id = 1

    def served_generation(self, scope: Scope) -> Generation:
        return self._served

    def replace_items(
        self, scope: Scope, generation: Generation, versions: Sequence[ItemVersion]
    ) -> set[int]:
        for version in versions:
            check_version(scope, generation, version)
        superseded = set()
        for version in versions:
            item_id = version.knowledge_database_item_id
            if version.revision < self._last_revision.get(item_id, 0):
                superseded.add(item_id)
                continue
            self._keep_served(item_id)
            self._last_revision[item_id] = version.revision
            self._versions[generation.generation_id, item_id] = version
            self._first_ids[generation.generation_id, item_id] = self._next_id
            self._next_id += len(version.chunks)
            for embed_hash, vector in _vectors(version):
                key = _kept_key(version.account_id, generation, embed_hash)
                self._kept[key] = np.asarray(vector, dtype=np.float32)
        return superseded

    def delete_items(self, scope: Scope, item_ids: Sequence[int]) -> int:
        wanted = set(item_ids)
        doomed = [
            (key, version)
            for key, version in self._versions.items()
            if key[1] in wanted and _in_scope(version, scope)
        ]
        for key, version in doomed:
            del self._versions[key]
            self._last_revision[key[1]] = version.revision + 1
        return sum(len(version.chunks) for _, version in doomed)

    def nearest(
        self,
        scope: Scope,
        generation: Generation,
        vector: Vector,
        k: int,
        filters: Filters = Filters(),  # noqa: B008 (frozen)
    ) -> list[StoredChunk]:
        check_width(vector, generation)
        ranked = [
            replace(stored, score=_cosine(vector, chunk.embedding))
            for stored, chunk in self._pool(scope, generation, filters)
        ]
        ranked.sort(key=lambda stored: (-(stored.score or 0.0), stored.chunk_id))
        return ranked[:k]

    def named(
        self,
        scope: Scope,
        generation: Generation,
        names: Sequence[str],
        *,
        kind: str | None = None,
        vector: Vector | None = None,
    ) -> list[StoredChunk]:
        if vector is not None:
            check_width(vector, generation)
        filters = Filters(kind=kind, item_names=tuple(names))
        if not names:
            return []
        return [
            stored if vector is None else replace(stored, score=_cosine(vector, chunk.embedding))
            for stored, chunk in sorted(
                self._pool(scope, generation, filters),
                key=lambda pair: (
                    pair[0].file,
                    pair[0].knowledge_database_item_id,
                    pair[1].chunk.index,
                ),
            )
        ]

    def pool(
        self,
        scope: Scope,
        generation: Generation,
        vector: Vector,
        filters: Filters = Filters(),  # noqa: B008 (frozen)
    ) -> ChunkPool:
        check_width(vector, generation)
        found = [
            (stored.chunk_id, stored.knowledge_database_item_id, _cosine(vector, chunk.embedding))
            for stored, chunk in self._pool(scope, generation, filters)
        ]
        found.sort()
        return ChunkPool(
            np.array([row[0] for row in found], dtype=np.int64),
            np.array([row[1] for row in found], dtype=np.int64),
            np.array([row[2] for row in found], dtype=np.float64),
        )

    def passages(
        self, scope: Scope, generation: Generation, chunk_ids: Sequence[int]
    ) -> PassagePool:
        found = self._of(scope, generation, chunk_ids)
        found.sort(key=lambda pair: pair[0].chunk_id)
        rows = [one.passage for _, chunk in found for one in _passages(chunk)]
        return PassagePool(
            chunk_ids=np.array([stored.chunk_id for stored, _ in found], dtype=np.int64),
            counts=np.array([len(_passages(chunk)) for _, chunk in found], dtype=np.int64),
            spans=_pairs([(row.char_start, row.char_end) for row in rows]),
            heads=_pairs([row.table_head or (0, 0) for row in rows]),
            sizes=np.array([len(row.lexemes) // 4 for row in rows], dtype=np.int64),
            own_from=np.array([row.own_from for row in rows], dtype=np.int64),
            lexemes=np.frombuffer(b"".join(row.lexemes for row in rows), "<u4").astype(np.uint32),
        )

    def passage_cosines(
        self, scope: Scope, generation: Generation, vector: Vector, chunk_ids: Sequence[int]
    ) -> PassageCosines:
        check_width(vector, generation)
        found = [
            (stored.chunk_id, index, _cosine(vector, one.embedding))
            for stored, chunk in self._of(scope, generation, chunk_ids)
            for index, one in enumerate(chunk.passages)
            if one.embedding is not None
        ]
        return PassageCosines(
            np.array([row[0] for row in found], dtype=np.int64),
            np.array([row[1] for row in found], dtype=np.int64),
            np.array([row[2] for row in found], dtype=np.float64),
        )

    def chunks(
        self, scope: Scope, generation: Generation, vector: Vector, chunk_ids: Sequence[int]
    ) -> list[StoredChunk]:
        check_width(vector, generation)
        return [
            replace(stored, score=_cosine(vector, chunk.embedding))
            for stored, chunk in self._of(scope, generation, chunk_ids)
        ]

    def _of(
        self, scope: Scope, generation: Generation, chunk_ids: Sequence[int]
    ) -> list[tuple[StoredChunk, EmbeddedChunk]]:
        wanted = set(chunk_ids)
        pool = self._pool(scope, generation, Filters())
        return [pair for pair in pool if pair[0].chunk_id in wanted]

    def whole_items(
        self,
        scope: Scope,
        generation: Generation,
        filters: Filters = Filters(),  # noqa: B008 (frozen)
        *,
        after: StoredChunk | None = None,
        limit: int,
        max_chars: int,
    ) -> list[StoredChunk]:
        first: dict[int, StoredChunk] = {}
        for stored, _ in self._pool(scope, generation, filters):
            first.setdefault(stored.knowledge_database_item_id, stored)
        items = sorted(first.values(), key=_place)
        behind = [item for item in items if after is None or _place(item) > _place(after)]
        return [self._whole(generation, item, max_chars) for item in behind[:limit]]

    def _whole(self, generation: Generation, first: StoredChunk, max_chars: int) -> StoredChunk:
        version = self._versions[generation.generation_id, first.knowledge_database_item_id]
        return replace(
            first,
            chunk_id=0,
            chunk_index=None,
            content=version.text[:max_chars],
            content_hash=sha256(version.text.encode()).hexdigest(),
            char_start=0,
            char_end=len(version.text),
            heading_path=(),
            token_count=sum(one.chunk.token_count for one in version.chunks),
        )

    def vectors_for(
        self, scope: Scope, generation: Generation, embed_hashes: Sequence[bytes]
    ) -> Mapping[bytes, VectorRow]:
        found = {}
        for embed_hash in embed_hashes:
            vector = self._kept.get(_kept_key(scope.account_id, generation, embed_hash))
            if vector is not None:
                found[embed_hash] = vector
        return found

    def keep_vectors(
        self, scope: Scope, generation: Generation, vectors: Mapping[bytes, VectorRow]
    ) -> None:
        for embed_hash, vector in vectors.items():
            check_width(vector, generation)
            self._kept[_kept_key(scope.account_id, generation, embed_hash)] = vector

    def _keep_served(self, item_id: int) -> None:
        for key in [key for key in self._versions if key[1] == item_id]:
            del self._versions[key]

    def _pool(
        self, scope: Scope, generation: Generation, filters: Filters
    ) -> Iterator[tuple[StoredChunk, EmbeddedChunk]]:
        for (generation_id, item_id), version in self._versions.items():
            if generation_id != generation.generation_id or not _in_scope(version, scope):
                continue
            meta = version.meta
            if filters.kind is not None and meta.kind != filters.kind:
                continue
            if filters.origin is not None and meta.origin != filters.origin:
                continue
            if not set(filters.labels) <= set(meta.labels):
                continue
            if filters.item_names and meta.name not in filters.item_names:
                continue
            for embedded in version.chunks:
                chunk = embedded.chunk
                yield (
                    StoredChunk(
                        chunk_id=self._first_ids[generation_id, item_id] + chunk.index,
                        account_id=version.account_id,
                        project_id=version.project_id,
                        knowledge_database_id=version.knowledge_database_id,
                        knowledge_database_item_id=item_id,
                        project_file_id=version.project_file_id,
                        item_name=meta.name,
                        file=version.path,
                        chunk_index=chunk.index,
                        content=chunk.content,
                        content_hash=chunk.content_hash,
                        char_start=chunk.char_start,
                        char_end=chunk.char_end,
                        heading_path=chunk.heading_path,
                        token_count=chunk.token_count,
                        kind=meta.kind,
                        origin=meta.origin,
                        source_url=meta.source_url,
                        labels=meta.labels,
                        revision=version.revision,
                    ),
                    embedded,
                )


def check_version(scope: Scope, generation: Generation, version: ItemVersion) -> None:
    """Raises NotFound for a version outside *scope* and WrongDimension for a vector's width."""
    if not _in_scope(version, scope):
        raise NotFound(
            f"Item {version.knowledge_database_item_id} is not in the scope that writes it."
        )
    for _, vector in _vectors(version):
        check_width(vector, generation)


def check_width(vector: Vector | VectorRow, generation: Generation) -> None:
    """Raises WrongDimension."""
    if len(vector) != generation.dimensions:
        raise WrongDimension(
            f"The vector has {len(vector)} numbers but generation {generation.generation_id} "
            f"stores {generation.dimensions}.",
            hint="Set KSHIFT_EMBEDDING_MODEL and KSHIFT_EMBEDDING_DIMENSIONS back.",
        )


def _vectors(version: ItemVersion) -> Iterator[tuple[bytes, Vector]]:
    """Every vector of a version, by its hash."""
    for chunk in version.chunks:
        yield chunk.embed_hash, chunk.embedding
        for one in chunk.passages:
            if one.embed_hash is not None and one.embedding is not None:
                yield one.embed_hash, one.embedding


def _passages(chunk: EmbeddedChunk) -> Sequence[EmbeddedPassage]:
    """A chunk whose passages are not known counts as one without words."""
    whole = SearchedPassage(chunk.chunk.char_start, chunk.chunk.char_end, None, b"", 0)
    return chunk.passages or (EmbeddedPassage(whole),)


def _place(item: StoredChunk) -> tuple[int, str]:
    """Path order; here databases have ids and no names."""
    return item.knowledge_database_id, item.file


def _pairs(pairs: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _in_scope(version: ItemVersion, scope: Scope) -> bool:
    return (
        version.account_id == scope.account_id
        and version.project_id == scope.project_id
        and version.knowledge_database_id in scope.knowledge_database_ids
    )


def _kept_key(account_id: int, generation: Generation, embed_hash: bytes) -> _KeptKey:
    return (
        account_id,
        generation.embedder,
        generation.model,
        generation.dimensions,
        embed_hash,
    )


def _cosine(a: Vector, b: Vector) -> float:
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    return float(left @ right / (np.linalg.norm(left) * np.linalg.norm(right)))
