"""The pipeline: claimed items in, whole versions swapped in, one outcome for each item."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from kshift_knowledge.embedders.protocol import Embedder
from kshift_knowledge.indexing.cutting import Cut, Cutters
from kshift_knowledge.indexing.embedding_work import (
    MAX_REQUEST_TOKENS,
    EmbeddingWork,
    Vectors,
    max_inputs,
)
from kshift_knowledge.indexing.figures import Figures
from kshift_knowledge.indexing.reading import Reader, Report, fail
from kshift_knowledge.indexing.records import (
    ClaimedItem,
    CutPassage,
    ItemOutcome,
    Prepared,
)
from kshift_knowledge.indexing.spending import Spending
from kshift_knowledge.postgres import ledger, staging
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.patience import insist
from kshift_knowledge.records import (
    EmbeddedChunk,
    EmbeddedPassage,
    Generation,
    ItemVersion,
    Scope,
)
from kshift_knowledge.store import VectorRow, VectorStore

SLICE_CHUNKS = 64
SLICE_ITEMS = 128


class SliceSize:
    """How full a slice is: whole items that one request embeds and one transaction writes."""

    def __init__(self, generation: Generation) -> None:
        self._max_inputs = max_inputs(generation)
        self._items = self._chunks = self._texts = self._tokens = 0

    def add(self, item: Prepared | Cut) -> bool:
        """Take in an item, if it fits; the first always does."""
        texts = item.embedded
        chunks, inputs = self._chunks + len(item.chunks), self._texts + len(texts)
        tokens = self._tokens + sum(text.tokens for text in texts)
        is_full = (
            self._items == SLICE_ITEMS
            or chunks > SLICE_CHUNKS
            or inputs > self._max_inputs
            or tokens > MAX_REQUEST_TOKENS
        )
        if self._items and is_full:
            return False
        self._items += 1
        self._chunks, self._texts, self._tokens = chunks, inputs, tokens
        return True


@dataclass(frozen=True, slots=True)
class _Slice:
    """Whole items of one project, so of one account."""

    scope: Scope
    prepared: list[Prepared]


class Pipeline:
    """
    Indexes items for one generation.

    One thread reads, child processes cut, and several threads embed and write a slice each, so
    that a vector is served as soon as it is paid for. Projects take turns, slice by slice: a
    large one does not starve a small one.
    """

    def __init__(
        self,
        database: Database,
        store: VectorStore,
        embedder: Embedder,
        generation: Generation,
        knowledge_dir: Path,
        *,
        cutters: Cutters,
        spending: Spending,
        max_in_flight: int,
    ) -> None:
        self._database = database
        self._store = store
        self._embedder = embedder
        self._generation = generation
        self._root = knowledge_dir
        self._cutters = cutters
        self._spending = spending
        self._max_in_flight = max_in_flight

    def index(
        self,
        claimed: Sequence[ClaimedItem],
        *,
        on_outcome: Callable[[ItemOutcome], None],
        is_forced: bool = False,
        from_staged: bool = False,
    ) -> Figures:
        """
        Index items, calling *on_outcome* once for each as its slice is done, one call at a time.

        is_forced: rewrite items whose bytes are served already too. No vector is paid for twice
        in any case. from_staged: take the staged chunks where they were cut from the file as it
        is now. An item that fails keeps what it served; the others go on.

        Raises StoreUnavailable when the database is lost; what was swapped in stays.
        """
        started = time.perf_counter()
        figures = Figures()
        lock = threading.Lock()

        def report(outcome: ItemOutcome) -> None:
            with lock:
                figures.count(outcome)
                on_outcome(outcome)

        work = EmbeddingWork(self._embedder, self._store, self._generation, spending=self._spending)
        reader = self._reader(is_forced=is_forced, from_staged=from_staged)
        with ThreadPoolExecutor(self._max_in_flight, thread_name_prefix="kshift-slice") as pool:
            running: deque[Future[None]] = deque()
            try:
                for part in _in_turns(claimed, reader, report):
                    running.append(pool.submit(self._finish, work, part, report))
                    # Twice as many as can run: the next are read, and memory stays bounded.
                    while running[0].done() or len(running) > 2 * self._max_in_flight:
                        running.popleft().result()
                        if not running:
                            break
                while running:
                    running.popleft().result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        figures.embedding_requests, figures.embedding_tokens = work.requests, work.tokens
        figures.seconds = time.perf_counter() - started
        return figures

    def stage(self, claimed: Sequence[ClaimedItem], *, on_outcome: Report) -> None:
        """Cut items and keep the rows beside what is served; nothing is embedded or swapped."""
        reader = self._reader(is_forced=True, from_staged=False)
        for part in _in_turns(claimed, reader, on_outcome):
            with self._database.scoped(part.scope) as conn:
                staging.stage(conn, self._generation, part.prepared)
            for one in part.prepared:
                on_outcome(
                    ItemOutcome(
                        one.item,
                        "indexed",
                        chunks=len(one.chunks),
                        tokens=sum(text.tokens for text in one.embedded),
                        source_hash=one.source.raw_hash,
                    )
                )

    def _reader(self, *, is_forced: bool, from_staged: bool) -> Reader:
        return Reader(
            self._database,
            self._generation,
            self._root,
            self._cutters,
            is_forced=is_forced,
            from_staged=from_staged,
        )

    def _finish(self, work: EmbeddingWork, part: _Slice, report: Report) -> None:
        """Embed and swap in one slice."""
        vectors = work.vectors(part.scope, [text for one in part.prepared for text in one.embedded])
        good: list[Prepared] = []
        for one in part.prepared:
            error = next(
                (
                    vectors.errors[text.embed_hash]
                    for text in one.embedded
                    if text.embed_hash in vectors.errors
                ),
                None,
            )
            if error is None:
                good.append(one)
            else:
                fail(self._database, one.item, error, one.source.signature)
                report(ItemOutcome(one.item, "failed", error=error))
        self._keep_unserved(part, good, vectors)
        superseded = self._store.replace_items(
            part.scope, self._generation, [_version(one, vectors.found) for one in good]
        )
        if superseded:
            served = [one for one in good if one.item.item_id not in superseded]
            self._keep_unserved(part, served, vectors)
        work.done(part.scope, list(vectors.paid))
        outcomes = _outcomes(good, superseded, vectors.paid)
        insist(lambda: self._note_cost(part.scope, outcomes))
        for outcome in outcomes:
            report(outcome)

    def _note_cost(self, scope: Scope, outcomes: Sequence[ItemOutcome]) -> None:
        with self._database.scoped(scope) as conn:
            ledger.record(conn, scope, outcomes)

    def _keep_unserved(self, part: _Slice, good: Sequence[Prepared], vectors: Vectors) -> None:
        """Keep what was paid for items that fail over another text of theirs or come too late."""
        served = {text.embed_hash for one in good for text in one.embedded}
        unserved = {
            embed_hash: vectors.found[embed_hash]
            for embed_hash in vectors.paid
            if embed_hash not in served
        }
        if unserved:
            self._store.keep_vectors(part.scope, self._generation, unserved)


def _in_turns(claimed: Sequence[ClaimedItem], reader: Reader, report: Report) -> Iterator[_Slice]:
    """Yield slices, one of each project in turn."""
    by_project = groupby(claimed, key=lambda item: (item.account_id, item.project_id))
    waiting = deque(_slices(list(items), reader, report) for _, items in by_project)
    while waiting:
        slices = waiting.popleft()
        part = next(slices, None)
        if part is not None:
            yield part
            waiting.append(slices)


def _slices(items: Sequence[ClaimedItem], reader: Reader, report: Report) -> Iterator[_Slice]:
    """Yield slices of one project's items; an item is never parted."""
    scope = Scope(
        items[0].account_id,
        items[0].project_id,
        tuple(sorted({item.knowledge_database_id for item in items})),
    )
    prepared: list[Prepared] = []
    size = SliceSize(reader.generation)
    for one in reader.prepare(items, report):
        if not size.add(one):
            yield _Slice(scope, prepared)
            prepared, size = [], SliceSize(reader.generation)
            size.add(one)
        prepared.append(one)
    if prepared:
        yield _Slice(scope, prepared)


def _version(one: Prepared, vectors: Mapping[bytes, VectorRow]) -> ItemVersion:
    item = one.item
    return ItemVersion(
        account_id=item.account_id,
        project_id=item.project_id,
        knowledge_database_id=item.knowledge_database_id,
        knowledge_database_item_id=item.item_id,
        project_file_id=item.project_file_id,
        path=item.path,
        revision=item.revision,
        meta=one.source.meta,
        text=one.source.text,
        source_signature=one.source.signature,
        source_hash=one.source.raw_hash,
        chunks=tuple(
            EmbeddedChunk(
                chunk,
                text.embed_hash,
                vectors[text.embed_hash],
                tuple(_embedded(passage, vectors) for passage in passages),
            )
            for chunk, text, passages in zip(one.chunks, one.texts, one.passages, strict=True)
        ),
    )


def _embedded(cut: CutPassage, vectors: Mapping[bytes, VectorRow]) -> EmbeddedPassage:
    if cut.text is None:
        return EmbeddedPassage(cut.passage)
    embed_hash = cut.text.embed_hash
    return EmbeddedPassage(cut.passage, embed_hash, vectors[embed_hash])


def _outcomes(
    prepared: Sequence[Prepared], superseded: set[int], paid: frozenset[bytes]
) -> list[ItemOutcome]:
    """paid: hashes bought for this slice; the first text that needs one bought it."""
    unpaid = set(paid)
    outcomes = []
    for one in prepared:
        of_chunks = len(one.texts)
        is_paid = []
        tokens_saved = 0
        for text in one.embedded:
            is_paid.append(text.embed_hash in unpaid)
            unpaid.discard(text.embed_hash)
            tokens_saved += 0 if is_paid[-1] else text.tokens
        outcomes.append(
            ItemOutcome(
                one.item,
                "superseded" if one.item.item_id in superseded else "indexed",
                chunks=len(one.chunks),
                embedded=sum(is_paid[:of_chunks]),
                reused=of_chunks - sum(is_paid[:of_chunks]),
                passages_embedded=sum(is_paid[of_chunks:]),
                tokens=sum(text.tokens for text in one.embedded),
                tokens_saved=tokens_saved,
                source_hash=one.source.raw_hash,
            )
        )
    return outcomes
