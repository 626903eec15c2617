"""Patience with a server that restarts: what a run writes is done again until it is back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from kshift_knowledge.errors import StoreUnavailable
from kshift_knowledge.postgres.database import Conn, Database
from kshift_knowledge.postgres.vector_store import PgVectorStore
from kshift_knowledge.records import Generation, ItemVersion, Scope
from kshift_knowledge.store import VectorRow

PATIENCE_S = 30.0  # a crashed PostgreSQL replays its log and listens again well within that
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0

T = TypeVar("T")


def insist(
    work: Callable[[], T],
    *,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """
    Return what *work* returns, calling it again while the server is away.

    work: one whole transaction that may be done twice: when the server is lost while it commits,
    nobody knows whether it did. No wait begins that would end after *patience_s*.

    Raises StoreUnavailable when it stays away.
    """
    give_up_at = clock() + patience_s
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return work()
        except StoreUnavailable:
            if clock() + wait_s > give_up_at:
                raise
        sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def transact(database: Database, work: Callable[[Conn], T]) -> T:
    """Insist on a transaction of a run's own, outside the store."""

    def once() -> T:
        with database.transaction() as conn:
            return work(conn)

    return insist(once)


class PatientStore(PgVectorStore):
    """
    The store of a run, which may wait where a reader may not.

    What a run asks of it may be repeated: a version that is swapped in again is the same version,
    and a vector that is kept again is the same vector.
    """

    def __init__(self, database: Database, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__(database)
        self.patience_s = patience_s

    def replace_items(
        self, scope: Scope, generation: Generation, versions: Sequence[ItemVersion]
    ) -> set[int]:
        replace_once = super().replace_items
        return insist(lambda: replace_once(scope, generation, versions), patience_s=self.patience_s)

    def vectors_for(
        self, scope: Scope, generation: Generation, embed_hashes: Sequence[bytes]
    ) -> Mapping[bytes, VectorRow]:
        find_once = super().vectors_for
        return insist(
            lambda: find_once(scope, generation, embed_hashes), patience_s=self.patience_s
        )

    def keep_vectors(
        self, scope: Scope, generation: Generation, vectors: Mapping[bytes, VectorRow]
    ) -> None:
        keep_once = super().keep_vectors
        insist(lambda: keep_once(scope, generation, vectors), patience_s=self.patience_s)
