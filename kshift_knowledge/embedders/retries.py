"""The one layer that repeats embedding requests; knows which errors pass and no provider."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from kshift_knowledge.embedders.limiter import Limiter
from kshift_knowledge.embedders.protocol import EmbeddedBatch, Embedder
from kshift_knowledge.errors import EmbeddingError, MalformedAnswer, RateLimited


@dataclass(frozen=True, slots=True)
class Patience:
    """
    How long to insist.

    attempts: requests for one batch, the first included. malformed_attempts: the same for
    answers that were paid for and are no good. total_s: no wait begins that would end later.
    first_wait_s doubles with each attempt up to longest_wait_s, which also caps Retry-After.
    """

    attempts: int = 8
    malformed_attempts: int = 3
    total_s: float = 600.0
    first_wait_s: float = 0.5
    longest_wait_s: float = 60.0


INDEXING = Patience()
ANSWERING = Patience(attempts=2, malformed_attempts=2, total_s=8.0, longest_wait_s=2.0)


class PatientEmbedder(Embedder):
    """
    Repeats what another embedder could not do and may do later, with growing, random waits.

    All threads that share a limiter slow down together when one of them is told to.
    """

    def __init__(
        self,
        inner: Embedder,
        *,
        patience: Patience = INDEXING,
        limiter: Limiter | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """chance: a number from 0 to below 1, which spreads the waits."""
        self.name = inner.name
        self.model = inner.model
        self.dimensions = inner.dimensions
        self.max_input_tokens = inner.max_input_tokens
        self._inner = inner
        self._patience = patience
        self._limiter = limiter or Limiter(clock=clock, sleep=sleep)
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    def embed(self, texts: Sequence[str]) -> EmbeddedBatch:
        give_up_at = self._clock() + self._patience.total_s
        for attempt in count(1):
            with self._limiter.turn(give_up_at) as began_at:
                try:
                    batch = self._inner.embed(texts)
                except EmbeddingError as exc:
                    error = exc
                else:
                    self._limiter.speed_up()
                    return batch
            wait_s = self._wait_s(error, attempt)
            if isinstance(error, RateLimited):
                self._limiter.slow_down(wait_s, began_at)
            if (
                not error.is_retryable
                or attempt >= self._attempts(error)
                or self._clock() + wait_s > give_up_at
            ):
                raise error
            if not isinstance(error, RateLimited):  # The limiter holds those back by itself.
                self._sleep(wait_s)
        raise AssertionError("unreachable")

    def prepare(self) -> None:
        self._inner.prepare()

    def close(self) -> None:
        self._inner.close()

    def _attempts(self, error: EmbeddingError) -> int:
        if isinstance(error, MalformedAnswer):
            return self._patience.malformed_attempts
        return self._patience.attempts

    def _wait_s(self, error: EmbeddingError, attempt: int) -> float:
        """Wait what the provider asks for and a little more, else exponentially ("full jitter")."""
        longest_s = self._patience.longest_wait_s
        backoff_s = min(longest_s, self._patience.first_wait_s * 2.0 ** (attempt - 1))
        if error.retry_after_s is not None:
            return (
                min(longest_s, error.retry_after_s) + self._chance() * self._patience.first_wait_s
            )
        return backoff_s * (0.5 + self._chance() / 2)
