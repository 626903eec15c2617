"""The pipeline: claimed items in, whole versions swapped in, one outcome for each item."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from kshift_knowledge.chunker import Chunker
from kshift_knowledge.embedded_text import embed_hash as hash_of
from kshift_knowledge.embedded_text import embedded_text, prefix_tokens
from kshift_knowledge.embedders.protocol import Embedder
from kshift_knowledge.errors import (
    EmbeddingError,
    ItemError,
    ItemGone,
    KshiftError,
    Unsettled,
    WrongDimension,
)
from kshift_knowledge.indexing.embedding_work import MAX_IN_FLIGHT, PROVIDER_WIDE, EmbeddingWork
from kshift_knowledge.indexing.figures import Figures
from kshift_knowledge.indexing.records import (
    ClaimedItem,
    EmbedText,
    FailedItem,
    ItemOutcome,
    Prepared,
)
from kshift_knowledge.item_source import ItemSource, read_once
from kshift_knowledge.postgres import batches, items, ledger, staging
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.records import Chunk, EmbeddedChunk, Generation, ItemVersion, Scope
from kshift_knowledge.store import VectorRow, VectorStore
from kshift_knowledge.tokens import token_counter

# A slice is what one transaction writes: enough to fill requests, little enough to lose.
SLICE_CHUNKS = 512
SLICE_ITEMS = 128
SLICES_IN_FLIGHT = 4


@dataclass(frozen=True, slots=True)
class _Slice:
    scope: Scope
    prepared: list[Prepared]
    known: Mapping[bytes, VectorRow]
    asked: Mapping[bytes, Future[Mapping[bytes, VectorRow]]]


class Pipeline:
    """Indexes items for one generation. Reading, embedding and writing overlap."""

    def __init__(
        self,
        database: Database,
        store: VectorStore,
        embedder: Embedder,
        generation: Generation,
        knowledge_dir: Path,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        self._database = database
        self._store = store
        self._embedder = embedder
        self._generation = generation
        self._root = knowledge_dir
        self._chunker = Chunker(generation.chunk_tokens, generation.overlap_tokens)
        self._counter = token_counter()
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
        Index items, in tenant order, calling *on_outcome* once for each as its slice is done.

        is_forced: rewrite items whose bytes are served already too. No vector is paid for twice
        in any case. from_staged: take the staged chunks where they were cut from the file as it
        is now. An item that fails keeps what it served; the others go on.

        Raises StoreUnavailable when the database is lost; what was swapped in stays.
        """
        started = time.perf_counter()
        figures = Figures()

        def report(outcome: ItemOutcome) -> None:
            figures.count(outcome)
            on_outcome(outcome)

        with EmbeddingWork(
            self._embedder, self._store, self._generation, max_in_flight=self._max_in_flight
        ) as work:
            pending: deque[_Slice] = deque()
            for scope, prepared in self._slices(claimed, report, is_forced, from_staged):
                pending.append(self._ask(work, scope, prepared))
                if len(pending) > SLICES_IN_FLIGHT:
                    self._finish(work, pending.popleft(), report)
            while pending:
                self._finish(work, pending.popleft(), report)
            figures.embedding_requests, figures.embedding_tokens = work.requests, work.tokens
        figures.seconds = time.perf_counter() - started
        return figures

    def stage(
        self, claimed: Sequence[ClaimedItem], *, on_outcome: Callable[[ItemOutcome], None]
    ) -> None:
        """Cut items and keep the rows beside what is served; nothing is embedded or swapped."""
        for scope, prepared in self._slices(claimed, on_outcome, is_forced=True, from_staged=False):
            with self._database.scoped(scope) as conn:
                staging.stage(conn, self._generation, prepared)
            for one in prepared:
                on_outcome(
                    ItemOutcome(
                        one.item,
                        "indexed",
                        chunks=len(one.chunks),
                        tokens=sum(text.tokens for text in one.texts),
                        source_hash=one.source.raw_hash,
                    )
                )

    def _slices(
        self,
        claimed: Sequence[ClaimedItem],
        report: Callable[[ItemOutcome], None],
        is_forced: bool,
        from_staged: bool,
    ) -> Iterator[tuple[Scope, list[Prepared]]]:
        by_project = groupby(claimed, key=lambda item: (item.account_id, item.project_id))
        for (account_id, project_id), group in by_project:
            project_items = list(group)
            scope = Scope(
                account_id,
                project_id,
                tuple(sorted({item.knowledge_database_id for item in project_items})),
            )
            prepared: list[Prepared] = []
            for item in project_items:
                one = self._prepare(item, report, is_forced, from_staged)
                if one is not None:
                    prepared.append(one)
                chunks = sum(len(part.chunks) for part in prepared)
                if len(prepared) >= SLICE_ITEMS or chunks >= SLICE_CHUNKS:
                    yield scope, prepared
                    prepared = []
            if prepared:
                yield scope, prepared

    def _prepare(
        self,
        item: ClaimedItem,
        report: Callable[[ItemOutcome], None],
        is_forced: bool,
        from_staged: bool,
    ) -> Prepared | None:
        try:
            source = self._read(item)
        except Unsettled:
            self._release(item)
            report(ItemOutcome(item, "unsettled"))
            return None
        except ItemGone:
            self._release(item)  # the next scan says whether it is deleted or renamed
            report(ItemOutcome(item, "gone"))
            return None
        except ItemError as exc:
            if exc.code == "folder_unlisted":  # a disk that went away is no fault of the item
                self._release(item)
                report(ItemOutcome(item, "unsettled"))
                return None
            self._fail(item, exc, item.settled_signature)
            report(ItemOutcome(item, "failed", error=exc))
            return None
        is_same = source.raw_hash == item.indexed_hash and source.meta.name == item.name
        if is_same and not is_forced:
            with self._database.transaction() as conn:
                batches.set_unchanged(conn, [item.item_id], [source.signature])
            report(ItemOutcome(item, "unchanged", source_hash=source.raw_hash))
            return None
        chunks = self._staged(item, source) if from_staged else None
        if chunks is None:
            chunks = tuple(self._chunker.cut(source.text))
        return Prepared(item, source, chunks, self._texts(source, chunks))

    def _staged(self, item: ClaimedItem, source: ItemSource) -> tuple[Chunk, ...] | None:
        with self._database.transaction() as conn:
            return staging.staged(conn, self._generation, item.item_id, source.raw_hash)

    def _read(self, item: ClaimedItem) -> ItemSource:
        """Read a file that is as it was when it was seen at rest, a second apart."""
        source = read_once(self._root, item)
        if source.signature != item.settled_signature:
            raise Unsettled(
                f"{item.partition_key} is being written.", hint="It is read when it is at rest."
            )
        return source

    def _texts(self, source: ItemSource, chunks: Sequence[Chunk]) -> tuple[EmbedText, ...]:
        title = source.meta.title
        texts = []
        for chunk in chunks:
            text = embedded_text(chunk, title, self._counter)
            tokens = chunk.token_count + prefix_tokens(chunk, title, self._counter)
            texts.append(EmbedText(hash_of(text), text, tokens))
        return tuple(texts)

    def _ask(self, work: EmbeddingWork, scope: Scope, prepared: list[Prepared]) -> _Slice:
        texts = {text.embed_hash: text for one in prepared for text in one.texts}
        known = self._store.vectors_for(scope, self._generation, list(texts))
        missing = [text for embed_hash, text in texts.items() if embed_hash not in known]
        return _Slice(scope, prepared, known, work.submit(scope, missing))

    def _finish(
        self, work: EmbeddingWork, part: _Slice, report: Callable[[ItemOutcome], None]
    ) -> None:
        vectors = dict(part.known)
        errors: dict[bytes, KshiftError] = {}
        for embed_hash, future in part.asked.items():
            try:
                vectors[embed_hash] = future.result()[embed_hash]
            except (EmbeddingError, WrongDimension) as exc:
                errors[embed_hash] = exc
        good: list[Prepared] = []
        for one in part.prepared:
            error = next(
                (errors[text.embed_hash] for text in one.texts if text.embed_hash in errors), None
            )
            if error is None:
                good.append(one)
            else:
                self._fail(one.item, error, one.source.signature)
                report(ItemOutcome(one.item, "failed", error=error))
        versions = [_version(one, vectors) for one in good]
        superseded = self._store.replace_items(part.scope, self._generation, versions)
        work.forget(part.scope, list(part.asked))
        outcomes = _outcomes(good, superseded, paid=set(part.asked))
        with self._database.scoped(part.scope) as conn:
            ledger.record(conn, part.scope, outcomes)
        for outcome in outcomes:
            report(outcome)

    def _fail(self, item: ClaimedItem, error: KshiftError, signature: str) -> None:
        with self._database.transaction() as conn:
            items.fail(
                conn,
                [
                    FailedItem(
                        item.item_id,
                        item.revision,
                        error.code,
                        error.message,
                        error.hint,
                        error.is_retryable or error.code in PROVIDER_WIDE,
                        signature,
                    )
                ],
            )

    def _release(self, item: ClaimedItem) -> None:
        with self._database.transaction() as conn:
            batches.release(conn, [item.item_id])


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
            EmbeddedChunk(chunk, text.embed_hash, vectors[text.embed_hash])
            for chunk, text in zip(one.chunks, one.texts, strict=True)
        ),
    )


def _outcomes(
    prepared: Sequence[Prepared], superseded: set[int], paid: set[bytes]
) -> list[ItemOutcome]:
    """paid: hashes asked for; the first chunk that needs one paid for it, the others reuse it."""
    unpaid = set(paid)
    outcomes = []
    for one in prepared:
        embedded = reused = tokens_saved = 0
        for text in one.texts:
            if text.embed_hash in unpaid:
                unpaid.remove(text.embed_hash)
                embedded += 1
            else:
                reused += 1
                tokens_saved += text.tokens
        outcomes.append(
            ItemOutcome(
                one.item,
                "superseded" if one.item.item_id in superseded else "indexed",
                chunks=len(one.chunks),
                embedded=embedded,
                reused=reused,
                tokens=sum(text.tokens for text in one.texts),
                tokens_saved=tokens_saved,
                source_hash=one.source.raw_hash,
            )
        )
    return outcomes
