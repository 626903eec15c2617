"""Reading items: settled bytes in, chunks out; whatever stops an item is written down at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

from kshift_knowledge.errors import ItemError, ItemGone, KshiftError, Unsettled
from kshift_knowledge.indexing.cutting import Cut, CutJob, CutterDied, Cutters
from kshift_knowledge.indexing.embedding_work import PROVIDER_WIDE
from kshift_knowledge.indexing.records import ClaimedItem, FailedItem, ItemOutcome, Prepared
from kshift_knowledge.item_source import ItemSource, read_once
from kshift_knowledge.postgres import batches, items, staging
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.patience import transact
from kshift_knowledge.records import Generation

READ_AHEAD = 32  # items that are read while others are cut
DEATHS_BEFORE_QUARANTINE = 3

Report = Callable[[ItemOutcome], None]


class Reader:
    """Prepares claimed items for one generation, in their order, some ahead of the others."""

    def __init__(
        self,
        database: Database,
        generation: Generation,
        knowledge_dir: Path,
        cutters: Cutters,
        *,
        is_forced: bool,
        from_staged: bool,
    ) -> None:
        """is_forced and from_staged: see Pipeline.index."""
        self._database = database
        self.generation = generation
        self._root = knowledge_dir
        self._cutters = cutters
        self._is_forced = is_forced
        self._from_staged = from_staged

    def prepare(self, claimed: Sequence[ClaimedItem], report: Report) -> Iterator[Prepared]:
        """Yield what is to be embedded and served; report everything else."""
        ahead: deque[tuple[ClaimedItem, ItemSource, Future[Cut]]] = deque()
        for item in claimed:
            source = self._source(item, report)
            if source is not None:
                ahead.append((item, source, self._cut(item, source)))
            if len(ahead) > READ_AHEAD:
                yield from self._prepared(*ahead.popleft(), report)
        while ahead:
            yield from self._prepared(*ahead.popleft(), report)

    def _source(self, item: ClaimedItem, report: Report) -> ItemSource | None:
        """Read one item, or write down and report why it is not to be indexed now."""
        try:
            source = self._read(item)
        except (Unsettled, ItemGone) as exc:
            # The next scan says what became of it.
            transact(self._database, lambda conn: batches.release(conn, [item.item_id]))
            report(ItemOutcome(item, "gone" if isinstance(exc, ItemGone) else "unsettled"))
            return None
        except ItemError as exc:
            fail(self._database, item, exc, item.settled_signature)
            report(ItemOutcome(item, "failed", error=exc))
            return None
        is_same = source.raw_hash == item.indexed_hash and source.meta.name == item.name
        if is_same and not self._is_forced:
            ids, signatures = [item.item_id], [source.signature]
            transact(self._database, lambda conn: batches.set_unchanged(conn, ids, signatures))
            report(ItemOutcome(item, "unchanged", source_hash=source.raw_hash))
            return None
        return source

    def _read(self, item: ClaimedItem) -> ItemSource:
        """Read a file that is as it was when it was seen at rest, a second apart."""
        try:
            source = read_once(self._root, item)
        except ItemError as exc:
            if exc.code == "folder_unlisted":  # a disk that went away is no fault of the item
                raise Unsettled(exc.message, hint=exc.hint) from exc
            raise
        if source.signature != item.settled_signature:
            raise Unsettled(
                f"{item.partition_key} is being written.", hint="It is read when it is at rest."
            )
        return source

    def _cut(self, item: ClaimedItem, source: ItemSource) -> Future[Cut]:
        chunks = None
        if self._from_staged:
            chunks = transact(
                self._database,
                lambda conn: staging.staged(conn, self.generation, item.item_id, source.raw_hash),
            )
        job = CutJob.of(item.partition_key, source, self.generation, chunks)
        return self._cutters.submit(job)

    def _prepared(
        self, item: ClaimedItem, source: ItemSource, future: Future[Cut], report: Report
    ) -> Iterator[Prepared]:
        try:
            cut = future.result()
        except CutterDied as exc:
            error: KshiftError = exc
            if item.failure_attempts + 1 >= DEATHS_BEFORE_QUARANTINE:
                error = ItemError(exc.message, hint=exc.hint, code="quarantined")
        except ItemError as exc:
            error = exc
        else:
            yield Prepared(item, source, cut.chunks, cut.texts, cut.passages)
            return
        fail(self._database, item, error, source.signature)
        report(ItemOutcome(item, "failed", error=error))


def fail(database: Database, item: ClaimedItem, error: KshiftError, signature: str) -> None:
    """Write down why an item failed; what it served stays served."""
    failure = FailedItem(
        item.item_id,
        item.revision,
        error.code,
        error.message,
        error.hint,
        error.is_retryable or error.code in PROVIDER_WIDE,
        signature,
    )
    transact(database, lambda conn: items.fail(conn, [failure]))
