"""Retrieve: embed the question, rank inside the scope, pack into the budget."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from kshift_knowledge.citations import format_for_prompt
from kshift_knowledge.concat import CONCAT, concatenate
from kshift_knowledge.errors import KshiftError
from kshift_knowledge.excerpts import Choice, pack
from kshift_knowledge.passage_cache import PassageCache
from kshift_knowledge.records import (
    Dropped,
    Filters,
    Generation,
    Retrieval,
    Scope,
    StoredChunk,
    Vector,
)
from kshift_knowledge.search import Asked, Search
from kshift_knowledge.store import VectorStore

TOP_K = 6  # product default, docs/decisions.md#top-k
MAX_CHARS = 1500  # product default, docs/decisions.md#top-k
HYBRID, VECTOR = "hybrid", "vector"
MODES = (HYBRID, VECTOR, CONCAT)  # the first is the default
NO_FILTERS = Filters()


class ModelMismatch(KshiftError):
    """The question would be embedded by another model than the stored text."""

    code = "model_mismatch"


class QueryEmbedder(Protocol):
    """Turns a question into a vector of the model that it names."""

    @property
    def model(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    def embed_query(self, text: str, account_id: int) -> EmbeddedQuery: ...


class EmbeddedQuery(Protocol):
    """A question's vector, what it cost (0 from the cache), and whether it was cut to fit."""

    @property
    def vector(self) -> Vector: ...

    @property
    def tokens(self) -> int: ...

    @property
    def was_cut(self) -> bool: ...


class Retrieve:
    """Answers questions from one store with one embedder; safe for several threads."""

    def __init__(
        self, store: VectorStore, embedder: QueryEmbedder, cache: PassageCache | None = None
    ) -> None:
        """cache: one for every Retrieve over this store, by default one of its own."""
        self._store = store
        self._embedder = embedder
        self._search = Search(store, cache or PassageCache())

    def __call__(
        self,
        query: str,
        scope: Scope,
        *,
        filters: Filters = NO_FILTERS,
        pins: Sequence[str] = (),
        top_k: int = TOP_K,
        max_chars: int = MAX_CHARS,
        mode: str = HYBRID,
    ) -> Retrieval:
        """
        Return the passages of *scope* that answer *query*, packed into *max_chars* characters.

        An empty scope returns no hits and embeds nothing. pins: exact item names, always
        included first; one that matches no item is reported in dropped. mode: hybrid ranks by
        vectors and words, vector by vectors alone, concat not at all.

        Raises ModelMismatch, EmbeddingError, StoreUnavailable, NotFound (unknown project).
        """
        started = time.perf_counter()
        generation = self._store.served_generation(scope)
        self._check_model(generation)
        if not scope.knowledge_database_ids:
            return _nothing(mode, generation, pins)
        if mode == CONCAT:
            return concatenate(
                self._store, scope, generation, filters=filters, pins=pins, max_chars=max_chars
            )
        question = self._embedder.embed_query(query, scope.account_id)
        embedded = time.perf_counter()
        pinned = self._pinned(scope, generation, pins, filters, question.vector)
        asked = Asked(scope, generation, question.vector, query if mode == HYBRID else None)
        ranked = self._search.ranked(asked, filters, top_k=top_k, without=pinned)
        pins_chosen = self._search.within(asked, pinned) if pinned else Choice()
        searched = time.perf_counter()
        packed = pack(ranked, max_chars, pinned=pins_chosen)
        return Retrieval(
            mode=mode,
            embedding_model=generation.model,
            generation_id=generation.generation_id,
            hits=packed.hits,
            context=format_for_prompt(packed.hits),
            dropped=packed.dropped + _not_found(pins, pinned),
            embedding_tokens=question.tokens,
            query_was_cut=question.was_cut,
            query_vector=question.vector,
            timings_ms={
                "embed": (embedded - started) * 1000,
                "search": (searched - embedded) * 1000,
                "pack": (time.perf_counter() - searched) * 1000,
            },
        )

    def _check_model(self, generation: Generation) -> None:
        if (self._embedder.model, self._embedder.dimensions) != (
            generation.model,
            generation.dimensions,
        ):
            raise ModelMismatch(
                f"The index holds vectors of {generation.model} ({generation.dimensions}) but the "
                f"question would be embedded by {self._embedder.model} "
                f"({self._embedder.dimensions}).",
                hint="Set KSHIFT_EMBEDDER and KSHIFT_EMBEDDING_MODEL back to what the index uses.",
            )

    def _pinned(
        self,
        scope: Scope,
        generation: Generation,
        pins: Sequence[str],
        filters: Filters,
        vector: Vector,
    ) -> list[StoredChunk]:
        if not pins:
            return []
        return self._store.named(scope, generation, pins, kind=filters.kind, vector=vector)


def _not_found(pins: Sequence[str], pinned: Sequence[StoredChunk]) -> tuple[Dropped, ...]:
    found = {chunk.item_name for chunk in pinned}
    return tuple(
        Dropped(pin, None, "pin_not_found") for pin in dict.fromkeys(pins) if pin not in found
    )


def _nothing(mode: str, generation: Generation, pins: Sequence[str]) -> Retrieval:
    return Retrieval(
        mode=mode,
        embedding_model=generation.model,
        generation_id=generation.generation_id,
        hits=(),
        context="",
        dropped=_not_found(pins, ()),
        embedding_tokens=0,
    )
