"""Searches one scope: what of it may be packed for a question, best first; knows no budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from kshift_knowledge import ranking
from kshift_knowledge.errors import StoreUnavailable
from kshift_knowledge.excerpts import Choice, Excerpt
from kshift_knowledge.lexical import LexicalPool, lexemes, match
from kshift_knowledge.passage_cache import PassageCache
from kshift_knowledge.pools import ChunkPool, Floats, Ints, PassageCosines, PassagePool
from kshift_knowledge.records import Filters, Generation, Scope, StoredChunk, Vector
from kshift_knowledge.store import VectorStore

_ATTEMPTS = 5  # a swap between two of our reads takes chunks away; the next attempt sees the new


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A question and where it is asked. text: None when words do not count."""

    scope: Scope
    generation: Generation
    vector: Vector
    text: str | None


class Search:
    """Searches one store; safe for several threads."""

    def __init__(self, store: VectorStore, cache: PassageCache) -> None:
        self._store = store
        self._cache = cache

    def ranked(
        self, asked: Asked, filters: Filters, *, top_k: int, without: Sequence[StoredChunk] = ()
    ) -> Choice:
        """
        Return the best *top_k* chunks and their passages, best first; less when there is less.

        without: chunks that are packed anyway. The choice for a smaller top_k is a prefix.

        Raises StoreUnavailable, also when chunks are replaced faster than they can be read.
        """
        for _ in range(_ATTEMPTS):
            pool = self._store.pool(asked.scope, asked.generation, asked.vector, filters)
            if not len(pool.chunk_ids):
                return Choice()
            passages = self._cache.get(
                asked.scope,
                asked.generation,
                filters,
                pool.chunk_ids,
                partial(self._passages, asked, pool.chunk_ids),
            )
            if not np.array_equal(passages.chunk_ids, pool.chunk_ids):
                continue
            pinned = np.isin(pool.chunk_ids, [chunk.chunk_id for chunk in without])
            excerpts = self._excerpts(asked, pool, passages, ~pinned)
            chosen = list(dict.fromkeys(excerpt.chunk_id for excerpt in excerpts))[:top_k]
            chunks = self._store.chunks(asked.scope, asked.generation, asked.vector, chosen)
            if len(chunks) == len(chosen):
                return Choice.ranked(chunks, excerpts)
        raise StoreUnavailable(
            "The chunks that answer were replaced while they were read.", hint="Ask again."
        )

    def within(self, asked: Asked, chunks: Sequence[StoredChunk]) -> Choice:
        """Return *chunks* in their order, with their passages, best first."""
        by_id = sorted(chunks, key=lambda chunk: chunk.chunk_id)
        ids = np.array([chunk.chunk_id for chunk in by_id], dtype=np.int64)
        passages = self._passages(asked, ids)
        served = np.isin(ids, passages.chunk_ids)
        kept = [chunk for chunk, is_served in zip(by_id, served, strict=True) if is_served]
        pool = ChunkPool(
            passages.chunk_ids,
            np.array([chunk.knowledge_database_item_id for chunk in kept], dtype=np.int64),
            np.array([chunk.score for chunk in kept], dtype=np.float64),
        )
        everything = np.ones(len(kept), dtype=np.bool_)
        found = self._excerpts(asked, pool, passages, everything) if kept else []
        replaced = [
            Excerpt(chunk.chunk_id, chunk.char_start, chunk.char_end)
            for chunk, is_served in zip(by_id, served, strict=True)
            if not is_served
        ]
        return Choice(chunks, [*found, *replaced])

    def _passages(self, asked: Asked, chunk_ids: Ints) -> PassagePool:
        return self._store.passages(asked.scope, asked.generation, chunk_ids.tolist())

    def _excerpts(
        self, asked: Asked, chunks: ChunkPool, passages: PassagePool, is_wanted: np.ndarray
    ) -> list[Excerpt]:
        """Return the passages of the best of the wanted chunks, best first."""
        owners = np.repeat(np.arange(len(chunks.chunk_ids)), passages.counts)
        words = _words(passages, owners)
        matches = None if asked.text is None else match(words, lexemes(asked.text))
        pool = ranking.Pool(chunks.item_ids, chunks.cosines, owners, passages.spans)
        size = ranking.SHORTLIST + int((~is_wanted).sum())
        candidates = ranking.shortlist(pool, matches, size)
        candidates = candidates[is_wanted[candidates]]
        places = pool.passages_of(candidates)
        own = self._store.passage_cosines(
            asked.scope, asked.generation, asked.vector, chunks.chunk_ids[candidates].tolist()
        )
        scores = ranking.score(pool, places, _cosines(own, chunks, passages)[places], matches)
        return _as_excerpts(
            ranking.order(pool, places, scores, words), chunks, passages, owners, places
        )


def _words(passages: PassagePool, owners: Ints) -> LexicalPool:
    ends = np.cumsum(passages.sizes)
    return LexicalPool(
        lexemes=passages.lexemes,
        own_starts=ends - passages.sizes + passages.own_from,
        ends=ends,
        owners=owners,
        chunk_count=len(passages.chunk_ids),
    )


def _cosines(own: PassageCosines, chunks: ChunkPool, passages: PassagePool) -> Floats:
    """Return the cosine of each passage of the pool, NaN where none is known."""
    cosines = np.full(len(passages.sizes), np.nan)
    firsts = np.cumsum(passages.counts) - passages.counts
    cosines[firsts[np.searchsorted(chunks.chunk_ids, own.chunk_ids)] + own.indexes] = own.cosines
    return cosines


def _as_excerpts(
    ranked: Sequence[ranking.RankedPassage],
    chunks: ChunkPool,
    passages: PassagePool,
    owners: Ints,
    places: Ints,
) -> list[Excerpt]:
    heads = {
        (owner, start): (head_start, head_end)
        for owner, start, head_start, head_end in zip(
            owners[places].tolist(),
            passages.spans[places, 0].tolist(),
            *passages.heads[places].T.tolist(),
            strict=True,
        )
        if head_end
    }
    ids = chunks.chunk_ids.tolist()
    return [
        Excerpt(
            ids[one.chunk], one.char_start, one.char_end, heads.get((one.chunk, one.char_start))
        )
        for one in ranked
    ]
