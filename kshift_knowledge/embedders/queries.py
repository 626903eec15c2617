"""Embeds questions: cut to the model's limit, remembered per account; knows no store."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kshift_knowledge.embedders.protocol import Embedder, check_texts
from kshift_knowledge.embedders.query_text import fit_to_model
from kshift_knowledge.tokens import TokenCounter

CACHED_QUERIES = 2048  # At 1,536 numbers 12 MB.

_Key = tuple[int, str, str, int, bytes]


@dataclass(frozen=True, slots=True)
class EmbeddedQuery:
    """A question's vector (read-only), what it cost, and whether its end was left out."""

    vector: NDArray[np.float32]
    tokens: int
    was_cut: bool


class QueryCache:
    """
    The vectors of the latest questions, least recently used out first; safe for several threads.

    The key holds account, embedder, model, dimensions and the text's SHA-256: what one account
    asked never speeds up another, a changed model never finds old vectors, and no text is kept.
    """

    def __init__(self, capacity: int = CACHED_QUERIES) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._vectors: OrderedDict[_Key, NDArray[np.float32]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._vectors)

    def get(self, account_id: int, embedder: Embedder, text: str) -> NDArray[np.float32] | None:
        key = _key(account_id, embedder, text)
        with self._lock:
            vector = self._vectors.get(key)
            if vector is not None:
                self._vectors.move_to_end(key)
        return vector

    def put(
        self, account_id: int, embedder: Embedder, text: str, vector: NDArray[np.float32]
    ) -> None:
        with self._lock:
            self._vectors[_key(account_id, embedder, text)] = vector
            while len(self._vectors) > self._capacity:
                self._vectors.popitem(last=False)


class QueryEmbedder:
    """Embeds one question at a time with a cache in front."""

    def __init__(
        self,
        embedder: Embedder,
        counter: TokenCounter,
        cache: QueryCache | None = None,
    ) -> None:
        self.model = embedder.model
        self.dimensions = embedder.dimensions
        self._embedder = embedder
        self._counter = counter
        self._cache = QueryCache() if cache is None else cache  # An empty one is false.

    def embed_query(self, text: str, account_id: int) -> EmbeddedQuery:
        """
        Embed *text* for *account_id*; a repeated question costs no tokens and no request.

        Raises EmbeddingError, also for a blank text, and WrongDimension.
        """
        check_texts([text])
        fitting, was_cut = fit_to_model(text, self._counter, self._embedder.max_input_tokens)
        vector = self._cache.get(account_id, self._embedder, fitting)
        if vector is not None:
            return EmbeddedQuery(vector, tokens=0, was_cut=was_cut)
        batch = self._embedder.embed([fitting])
        vector = batch.vectors[0]
        vector.flags.writeable = False
        self._cache.put(account_id, self._embedder, fitting, vector)
        return EmbeddedQuery(vector, batch.tokens, was_cut)


def _key(account_id: int, embedder: Embedder, text: str) -> _Key:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return account_id, embedder.name, embedder.model, embedder.dimensions, digest
