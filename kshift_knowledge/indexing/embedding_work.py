"""Embedding on several threads: each text is asked for once, and paid vectors are kept at once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from kshift_knowledge.embedders.batches import plan_batches
from kshift_knowledge.embedders.protocol import Embedder
from kshift_knowledge.errors import EmbeddingError, KshiftError, WrongDimension
from kshift_knowledge.failpoints import failpoint
from kshift_knowledge.indexing.records import EmbedText
from kshift_knowledge.records import Generation, Scope
from kshift_knowledge.store import VectorRow, VectorStore

# Small enough that one lost request costs little, large enough to fill the wire: 64 x 512 tokens.
MAX_INPUTS = 64
MAX_IN_FLIGHT = 16

# No other request of the run can escape these, and the item is not to blame: once the setting or
# the account is put right, the same item succeeds.
PROVIDER_WIDE = frozenset(
    {
        "embedding_bad_key",
        "embedding_model_refused",
        "embedding_quota_exhausted",
        "wrong_dimension",
    }
)

_Batch = Mapping[bytes, VectorRow]


class EmbeddingWork:
    """
    The embedding requests of one run.

    Requests never mix accounts. A text that is asked for twice while its request is under way is
    sent once. An error that no other request can escape (bad key, empty quota) stops the rest.
    """

    def __init__(
        self,
        embedder: Embedder,
        store: VectorStore,
        generation: Generation,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        self._embedder = embedder
        self._store = store
        self._generation = generation
        self._pool = ThreadPoolExecutor(max_in_flight, thread_name_prefix="kshift-embed")
        self._futures: dict[tuple[int, bytes], Future[_Batch]] = {}
        self._lock = threading.Lock()
        self._stopped_by: KshiftError | None = None
        self.requests = 0
        self.tokens = 0

    def __enter__(self) -> EmbeddingWork:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, scope: Scope, texts: Sequence[EmbedText]) -> dict[bytes, Future[_Batch]]:
        """Ask for vectors; returns for each hash the request that will bring it."""
        wanted = {text.embed_hash: text for text in texts}
        futures = {}
        for embed_hash in list(wanted):
            under_way = self._futures.get((scope.account_id, embed_hash))
            if under_way is not None:
                futures[embed_hash] = under_way
                del wanted[embed_hash]
        fresh = list(wanted.values())
        for batch in plan_batches([text.tokens for text in fresh], max_inputs=MAX_INPUTS):
            part = [fresh[place] for place in batch]
            future = self._pool.submit(self._request, scope, part)
            for text in part:
                futures[text.embed_hash] = future
                self._futures[scope.account_id, text.embed_hash] = future
        return futures

    def forget(self, scope: Scope, embed_hashes: Sequence[bytes]) -> None:
        """Let go of vectors that are served now."""
        for embed_hash in embed_hashes:
            self._futures.pop((scope.account_id, embed_hash), None)

    def _request(self, scope: Scope, texts: Sequence[EmbedText]) -> _Batch:
        if self._stopped_by is not None:
            raise self._stopped_by
        try:
            answer = self._embedder.embed([text.text for text in texts])
        except (EmbeddingError, WrongDimension) as exc:
            with self._lock:
                self.requests += 1
                if exc.code in PROVIDER_WIDE:
                    self._stopped_by = exc
            raise
        with self._lock:
            self.requests += 1
            self.tokens += answer.tokens
        failpoint("batch_paid")
        vectors = {
            text.embed_hash: vector for text, vector in zip(texts, answer.vectors, strict=True)
        }
        self._store.keep_vectors(scope, self._generation, vectors)
        failpoint("batch_kept")
        return vectors
