"""From a generation to the Retrieve that speaks its model; knows no provider and no HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kshift_knowledge.embedders.protocol import Embedder
from kshift_knowledge.embedders.queries import QueryCache, QueryEmbedder
from kshift_knowledge.errors import NotReady, SettingsError
from kshift_knowledge.passage_cache import PassageCache
from kshift_knowledge.records import Generation
from kshift_knowledge.retrieval import Retrieve
from kshift_knowledge.store import VectorStore
from kshift_knowledge.tokens import token_counter

_Model = tuple[str, str, int]


class RetrieveByModel:
    """
    Makes one embedder for each model and keeps it; all share one cache of questions
    and one of passages.

    Safe for several threads. Nothing is loaded before the first question or `prepare`.
    """

    def __init__(self, store: VectorStore, embedder_of: Callable[[Generation], Embedder]) -> None:
        self._store = store
        self._embedder_of = embedder_of
        self._cache = QueryCache()
        self._passages = PassageCache()
        self._lock = threading.Lock()
        self._embedders: dict[_Model, Embedder] = {}

    def __call__(self, generation: Generation) -> Retrieve:
        """Raises NotReady when the settings do not allow the generation's embedder."""
        embedder = QueryEmbedder(self._embedder(generation), token_counter(), self._cache)
        return Retrieve(self._store, embedder, self._passages)

    def prepare(self, generation: Generation) -> None:
        """Load the generation's model now. Raises NotReady."""
        self._embedder(generation).prepare()

    def close(self) -> None:
        """Give back connections and memory; it may be used again."""
        for embedder in self._embedders.values():
            embedder.close()

    def _embedder(self, generation: Generation) -> Embedder:
        model = (generation.embedder, generation.model, generation.dimensions)
        with self._lock:
            if model not in self._embedders:
                try:
                    self._embedders[model] = self._embedder_of(generation)
                except SettingsError as exc:
                    raise NotReady(exc.message, hint=exc.hint, code=exc.code) from exc
            return self._embedders[model]
