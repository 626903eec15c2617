"""What a run does with its items, whoever chose them: a batch or a person."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from kshift_knowledge.budgets import Budget
from kshift_knowledge.embedders.protocol import Embedder
from kshift_knowledge.failpoints import failpoint
from kshift_knowledge.indexing.cutting import Cutters
from kshift_knowledge.indexing.embedding_work import MAX_IN_FLIGHT
from kshift_knowledge.indexing.figures import Figures
from kshift_knowledge.indexing.pipeline import Pipeline
from kshift_knowledge.indexing.records import ClaimedItem, ItemOutcome
from kshift_knowledge.indexing.spending import Spending
from kshift_knowledge.item_source import SETTLE_S, signature_now
from kshift_knowledge.postgres import batches
from kshift_knowledge.postgres.database import Conn, Database
from kshift_knowledge.postgres.patience import transact
from kshift_knowledge.prices import DEFAULT_PRICES
from kshift_knowledge.records import Generation
from kshift_knowledge.store import VectorStore

Report = Callable[[ItemOutcome], None]


def _ignore(_: ItemOutcome) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class IndexServices:
    """
    What indexing works with, for one generation.

    budgets: tokens that accounts may have embedded. prices: dollars per million tokens, by model.
    watch: is told of each item as it is done. wait: lets a second pass in which files settle.
    """

    database: Database
    store: VectorStore
    embedder: Embedder
    generation: Generation
    knowledge_dir: Path
    max_in_flight: int = MAX_IN_FLIGHT
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=lambda: DEFAULT_PRICES)
    cutters: Cutters = field(default_factory=Cutters)
    watch: Report = _ignore
    wait: Callable[[float], None] = time.sleep

    def watched_by(self, watch: Report) -> IndexServices:
        return replace(self, watch=watch)

    def reporting(self, on_outcome: Report) -> Report:
        """Tell *on_outcome* and whoever watches."""

        def report(outcome: ItemOutcome) -> None:
            on_outcome(outcome)
            self.watch(outcome)

        return report

    def pipeline(self) -> Pipeline:
        return Pipeline(
            self.database,
            self.store,
            self.embedder,
            self.generation,
            self.knowledge_dir,
            cutters=self.cutters,
            spending=Spending(self.database, self.budgets),
            max_in_flight=self.max_in_flight,
        )


def index_batch(
    services: IndexServices, batch_id: UUID, *, on_outcome: Report, is_held: bool = False
) -> Figures:
    """
    Index what still waits of a batch; a batch that another run has is left to it.

    is_held: this process holds the batch's lock already.
    """
    if is_held:
        return _index_held_batch(services, batch_id, on_outcome)
    with batches.running(services.database, batch_id) as is_ours:
        return _index_held_batch(services, batch_id, on_outcome) if is_ours else Figures()


def set_announced(services: IndexServices, batch_id: UUID) -> None:
    """Note that the world outside our tables knows what became of the batch's items."""
    transact(services.database, lambda conn: batches.set_announced(conn, batch_id))


def index_keys(
    services: IndexServices, keys: Sequence[str], *, on_outcome: Report, from_staged: bool = False
) -> Figures:
    """
    Index the items of these partitions again, changed or not; no vector is paid for twice.

    from_staged: use the chunks that stage_keys left, where they are of the file as it is.
    """
    claimed = _claim(services, lambda conn: batches.item_ids_of_keys(conn, keys))
    return services.pipeline().index(
        _seen_at_rest(services, claimed),
        on_outcome=services.reporting(on_outcome),
        is_forced=True,
        from_staged=from_staged,
    )


def stage_keys(services: IndexServices, keys: Sequence[str], *, on_outcome: Report) -> None:
    """Cut the items of these partitions without serving the result."""
    claimed = _claim(services, lambda conn: batches.item_ids_of_keys(conn, keys))
    services.pipeline().stage(
        _seen_at_rest(services, claimed), on_outcome=services.reporting(on_outcome)
    )


def _seen_at_rest(services: IndexServices, claimed: Sequence[ClaimedItem]) -> list[ClaimedItem]:
    """Watch files that no batch has watched, all together: the second is waited once."""
    root = services.knowledge_dir
    before = [signature_now(root, item) for item in claimed]
    services.wait(SETTLE_S)
    return [
        replace(item, settled_signature=signature)
        for item, signature in zip(claimed, before, strict=True)
    ]


def _index_held_batch(services: IndexServices, batch_id: UUID, on_outcome: Report) -> Figures:
    claimed = _claim(services, lambda conn: batches.item_ids(conn, batch_id))
    failpoint("claimed")
    figures = services.pipeline().index(claimed, on_outcome=services.reporting(on_outcome))
    transact(services.database, lambda conn: batches.finish(conn, batch_id, figures.as_dict()))
    return figures


def _claim(services: IndexServices, choose: Callable[[Conn], list[int]]) -> list[ClaimedItem]:
    return transact(services.database, lambda conn: batches.claim(conn, choose(conn)))
