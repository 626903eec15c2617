"""The vectors of a run: each text is paid for once, and nothing that was paid for is lost."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from kshift_knowledge.embedders.batches import plan_batches
from kshift_knowledge.embedders.protocol import Embedder
from kshift_knowledge.errors import EmbeddingError, KshiftError, WrongDimension
from kshift_knowledge.failpoints import failpoint
from kshift_knowledge.indexing.records import EmbedText
from kshift_knowledge.indexing.spending import Spending
from kshift_knowledge.records import Generation, Scope
from kshift_knowledge.store import VectorRow, VectorStore

# Small enough that one lost request costs little, large enough to fill the wire.
MAX_INPUTS = 64
MAX_INPUTS_WITH_PASSAGES = 256  # as many tokens in more and smaller texts
MAX_REQUEST_TOKENS = 32_768  # 64 chunks of 512
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

_Claim = Future[VectorRow]


@dataclass(frozen=True, slots=True)
class Vectors:
    """What became of some texts, by hash. paid: those that this very call paid for."""

    found: Mapping[bytes, VectorRow]
    errors: Mapping[bytes, KshiftError]
    paid: frozenset[bytes]


def max_inputs(generation: Generation) -> int:
    """The most texts that one request holds."""
    return MAX_INPUTS_WITH_PASSAGES if generation.passage_tokens else MAX_INPUTS


def requests(generation: Generation, token_counts: Sequence[int]) -> list[range]:
    """The requests in which texts of one account are bought, as ranges of positions."""
    return plan_batches(
        token_counts, max_inputs=max_inputs(generation), max_tokens=MAX_REQUEST_TOKENS
    )


class EmbeddingWork:
    """
    Finds or buys the vectors of a run; called from several threads at once.

    Requests never mix accounts. A text that two slices need while neither is served is bought by
    the first, and the other waits. An error that no other request can escape stops the rest.
    """

    def __init__(
        self,
        embedder: Embedder,
        store: VectorStore,
        generation: Generation,
        *,
        spending: Spending,
    ) -> None:
        self._embedder = embedder
        self._store = store
        self._generation = generation
        self._spending = spending
        self._claims: dict[tuple[int, bytes], _Claim] = {}
        self._lock = threading.Lock()
        self._stopped_by: KshiftError | None = None
        self.requests = 0
        self.tokens = 0

    def vectors(self, scope: Scope, texts: Sequence[EmbedText]) -> Vectors:
        """
        Return the vectors of texts of one account; call `done` once they are served.

        Raises StoreUnavailable.
        """
        mine, others = self._claim(scope, list({text.embed_hash: text for text in texts}.values()))
        found: dict[bytes, VectorRow] = {}
        errors: dict[bytes, KshiftError] = {}
        missing: list[EmbedText] = []
        try:
            # After claiming: whatever another slice let go of before is in the store by now.
            hashes = [text.embed_hash for text in mine]
            found.update(self._store.vectors_for(scope, self._generation, hashes))
            missing = [text for text in mine if text.embed_hash not in found]
            self._buy(scope, missing, found, errors)
        finally:
            self._settle(scope, mine, found, errors)
        paid = frozenset(text.embed_hash for text in missing if text.embed_hash in found)
        self.done(scope, [text.embed_hash for text in mine if text.embed_hash not in paid])
        for embed_hash, claim in others.items():
            try:
                found[embed_hash] = claim.result()
            except (EmbeddingError, WrongDimension) as exc:
                errors[embed_hash] = exc
        return Vectors(found, errors, paid)

    def done(self, scope: Scope, embed_hashes: Sequence[bytes]) -> None:
        """Let go of vectors: from now on the store has them."""
        with self._lock:
            for embed_hash in embed_hashes:
                self._claims.pop((scope.account_id, embed_hash), None)

    def _claim(
        self, scope: Scope, texts: Sequence[EmbedText]
    ) -> tuple[list[EmbedText], dict[bytes, _Claim]]:
        """Part the texts into those that are ours to buy and those that are under way."""
        mine: list[EmbedText] = []
        others: dict[bytes, _Claim] = {}
        with self._lock:
            for text in texts:
                key = (scope.account_id, text.embed_hash)
                under_way = self._claims.get(key)
                if under_way is None:
                    self._claims[key] = Future()
                    mine.append(text)
                else:
                    others[text.embed_hash] = under_way
        return mine, others

    def _settle(
        self,
        scope: Scope,
        mine: Sequence[EmbedText],
        found: Mapping[bytes, VectorRow],
        errors: Mapping[bytes, KshiftError],
    ) -> None:
        """Tell those who wait; what failed may be claimed again."""
        with self._lock:
            for text in mine:
                key = (scope.account_id, text.embed_hash)
                if text.embed_hash in found:
                    self._claims[key].set_result(found[text.embed_hash])
                else:
                    broken_off = EmbeddingError("The request for this text broke off.")
                    error = errors.get(text.embed_hash, broken_off)
                    self._claims.pop(key).set_exception(error)

    def _buy(
        self,
        scope: Scope,
        texts: Sequence[EmbedText],
        found: dict[bytes, VectorRow],
        errors: dict[bytes, KshiftError],
    ) -> None:
        affordable = self._spending.take(scope.account_id, [text.tokens for text in texts])
        for text in texts[affordable:]:
            errors[text.embed_hash] = self._spending.refusal(scope.account_id)
        texts = texts[:affordable]
        batches = requests(self._generation, [text.tokens for text in texts])
        for number, batch in enumerate(batches, start=1):
            part = [texts[place] for place in batch]
            try:
                vectors = self._request(scope, part)
            except (EmbeddingError, WrongDimension) as exc:
                errors.update((text.embed_hash, exc) for text in part)
                continue
            found.update(vectors)
            if number < len(batches):
                # What comes with the last request is served next; all others must outlive a crash.
                self._store.keep_vectors(scope, self._generation, vectors)
                failpoint("batch_kept")

    def _request(self, scope: Scope, texts: Sequence[EmbedText]) -> dict[bytes, VectorRow]:
        try:
            if self._stopped_by is not None:
                raise self._stopped_by
            answer = self._embedder.embed([text.text for text in texts])
        except (EmbeddingError, WrongDimension) as exc:
            self._spending.give_back(scope.account_id, sum(text.tokens for text in texts))
            with self._lock:
                self.requests += exc is not self._stopped_by
                if exc.code in PROVIDER_WIDE:
                    self._stopped_by = exc
            raise
        with self._lock:
            self.requests += 1
            self.tokens += answer.tokens
        failpoint("batch_paid")
        return {text.embed_hash: vector for text, vector in zip(texts, answer.vectors, strict=True)}
