"""What indexing would do now and what it would cost: the pipeline's steps, and nothing written."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from kshift_knowledge.budgets import NO_BUDGETS, Budget
from kshift_knowledge.errors import ItemError, ItemGone, Refused, Unsettled
from kshift_knowledge.indexing.changes import Changes, compare, guard_mass_delete
from kshift_knowledge.indexing.cutting import Cut, CutJob, Cutters
from kshift_knowledge.indexing.embedding_work import requests
from kshift_knowledge.indexing.pipeline import SliceSize
from kshift_knowledge.indexing.reading import READ_AHEAD
from kshift_knowledge.indexing.records import EmbedText, KnownItem
from kshift_knowledge.indexing.workload import Place, Plan, Workload
from kshift_knowledge.item_source import ItemSource, read_once
from kshift_knowledge.postgres import budget_use, items, served_texts
from kshift_knowledge.postgres.audit import snapshot
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.served_texts import ServedItem
from kshift_knowledge.records import Generation
from kshift_knowledge.tree import TreeEntry, TreeScan, root_problem, scan_tree


def make_plan(
    database: Database | None,
    knowledge_dir: Path,
    generation: Generation,
    cutters: Cutters,
    *,
    is_full: bool = False,
    budgets: Mapping[str, Budget] = NO_BUDGETS,
) -> Plan:
    """
    Compare, read and cut what would be indexed, and count what has no vector yet.

    database: as the writer; None is an index that was never made.
    Raises Refused when the tree is missing or empty, and StoreUnavailable.
    """
    problem = root_problem(knowledge_dir)
    if problem is not None:
        raise Refused(problem.message, hint=problem.hint, code=problem.code)
    scan = scan_tree(knowledge_dir)
    known, closed = _known(database, budgets)
    changes = compare(scan, known, is_full=is_full, retry_failed=True, closed_accounts=closed)
    plan = Plan(generation, {place: Workload() for place in sorted(_places(scan, known))})
    try:
        guard_mass_delete(changes, known)
    except Refused as exc:
        plan.refusal = exc
    _Planner(plan, database, knowledge_dir, cutters, known).add(changes)
    return plan


def _known(
    database: Database | None, budgets: Mapping[str, Budget]
) -> tuple[list[KnownItem], frozenset[int]]:
    if database is None:
        return [], frozenset()
    with snapshot(database) as conn:
        return items.known_items(conn), budget_use.exhausted_accounts(conn, budgets)


def _places(scan: TreeScan, known: Sequence[KnownItem]) -> set[Place]:
    return set(scan.databases) | {(item.account, item.project, item.database) for item in known}


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A file to be indexed, as it is now, with the item it is known as."""

    entry: TreeEntry
    item: KnownItem | None
    source: ItemSource


_CutCandidate = tuple[_Candidate, Cut]


class _Planner:
    def __init__(
        self,
        plan: Plan,
        database: Database | None,
        knowledge_dir: Path,
        cutters: Cutters,
        known: Sequence[KnownItem],
    ) -> None:
        self._plan = plan
        self._database = database
        self._root = knowledge_dir
        self._cutters = cutters
        self._known = known
        self._account_ids = {item.account: item.account_id for item in known}
        self._bought: dict[str, set[bytes]] = {}  # by account: texts that are embedded once

    def add(self, changes: Changes) -> None:
        by_key = {item.partition_key: item for item in self._known}
        by_key.update({one.entry.partition_key: one.item for one in changes.renamed})
        wanted = {entry.partition_key for entry in changes.to_index}
        self._add_resting(changes, {by_key[key].item_id for key in wanted if key in by_key})
        renamed = {one.entry.partition_key for one in changes.renamed}
        for entries in _by_project(changes.to_index):
            for part in _slices(self._plan.generation, self._cut(entries, by_key)):
                self._add_slice(part, renamed)

    def _add_resting(self, changes: Changes, taken: set[int]) -> None:
        """Items of which nothing is read, and those that cannot be."""
        counts = self._chunk_counts()
        gone = {item.item_id for item in changes.gone}
        broken = {entry.partition_key: entry for entry, _ in changes.broken}
        for item in self._known:
            if item.state == "gone" or item.item_id in taken:
                continue
            load = self._plan.databases[item.account, item.project, item.database]
            chunks = counts.get(item.item_id, 0)
            if item.item_id in gone:
                load.gone += 1
                load.chunks_gone += chunks
            else:
                is_failed = item.state == "failed" or item.partition_key in broken
                load.failed += is_failed
                load.unchanged += not is_failed
                load.chunks_kept += chunks
                broken.pop(item.partition_key, None)
        for entry in broken.values():
            self._load(entry).failed += 1
        for entry, problem in changes.broken:
            self._plan.failures[entry.partition_key] = ItemError(
                problem.message, hint=problem.hint, code=problem.code
            )

    def _chunk_counts(self) -> Mapping[int, int]:
        if self._database is None:
            return {}
        with snapshot(self._database) as conn:
            return served_texts.chunk_counts(conn, self._plan.generation)

    def _cut(
        self, entries: Sequence[TreeEntry], by_key: Mapping[str, KnownItem]
    ) -> Iterator[_CutCandidate]:
        """Read and cut files, some ahead of the others; what cannot be is counted as failed."""
        ahead: deque[tuple[_Candidate, Future[Cut]]] = deque()
        for entry in entries:
            source = self._read(entry)
            if source is not None:
                candidate = _Candidate(entry, by_key.get(entry.partition_key), source)
                ahead.append((candidate, self._cutters.submit(self._job(candidate))))
            if len(ahead) > READ_AHEAD:
                yield from self._when_cut(*ahead.popleft())
        while ahead:
            yield from self._when_cut(*ahead.popleft())

    def _read(self, entry: TreeEntry) -> ItemSource | None:
        try:
            return read_once(self._root, entry)
        except (Unsettled, ItemGone):
            self._load(entry).unsettled += 1
        except ItemError as exc:
            self._fail(entry, exc)
        return None

    def _job(self, candidate: _Candidate) -> CutJob:
        return CutJob.of(candidate.entry.partition_key, candidate.source, self._plan.generation)

    def _when_cut(self, candidate: _Candidate, future: Future[Cut]) -> Iterator[_CutCandidate]:
        try:
            yield candidate, future.result()
        except ItemError as exc:
            self._fail(candidate.entry, exc)

    def _fail(self, entry: TreeEntry, error: ItemError) -> None:
        self._load(entry).failed += 1
        self._plan.failures[entry.partition_key] = error

    def _add_slice(self, part: Sequence[_CutCandidate], renamed: Collection[str]) -> None:
        account = part[0][0].entry.account
        served, vectors = self._look_up(account, part)
        vectors |= self._bought.setdefault(account, set())
        missing: list[tuple[Workload, EmbedText]] = []
        of_chunks = {text.embed_hash for _, cut in part for text in cut.texts}
        for candidate, cut in part:
            load = self._load(candidate.entry)
            before = served.get(candidate.item.item_id) if candidate.item else None
            _count_item(
                load, candidate, before, is_renamed=candidate.entry.partition_key in renamed
            )
            after = Counter(text.embed_hash for text in cut.texts)
            load.chunks_gone += (before.hashes - after).total() if before else 0
            for text in cut.embedded:
                if text.embed_hash in vectors:
                    load.chunks_kept += text.embed_hash in of_chunks
                    load.tokens_saved += text.tokens
                else:
                    vectors.add(text.embed_hash)
                    missing.append((load, text))
        for load, text in missing:
            load.chunks_new += text.embed_hash in of_chunks
            load.tokens += text.tokens
            self._bought[account].add(text.embed_hash)
        for batch in requests(self._plan.generation, [text.tokens for _, text in missing]):
            missing[batch.start][0].requests += 1  # of the database whose text comes first

    def _look_up(
        self, account: str, part: Sequence[_CutCandidate]
    ) -> tuple[Mapping[int, ServedItem], set[bytes]]:
        account_id = self._account_ids.get(account)
        if self._database is None or account_id is None:
            return {}, set()
        generation = self._plan.generation
        ids = [candidate.item.item_id for candidate, _ in part if candidate.item is not None]
        hashes = {text.embed_hash for _, cut in part for text in cut.embedded}
        with snapshot(self._database) as conn:
            return (
                served_texts.served_items(conn, generation, ids),
                served_texts.known_hashes(conn, account_id, generation, list(hashes)),
            )

    def _load(self, entry: TreeEntry) -> Workload:
        return self._plan.databases[entry.account, entry.project, entry.database]


def _count_item(
    load: Workload, candidate: _Candidate, before: ServedItem | None, *, is_renamed: bool
) -> None:
    source = candidate.source
    if is_renamed:
        load.renamed += 1
    elif candidate.item is None or candidate.item.state == "gone" or before is None:
        load.added += 1
    elif (before.source_hash, before.name) == (source.raw_hash, source.meta.name):
        load.unchanged += 1  # touched, or looked at because everything is
    else:
        load.changed += 1


def _by_project(entries: Iterable[TreeEntry]) -> Iterator[list[TreeEntry]]:
    groups: dict[tuple[str, str], list[TreeEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.account, entry.project), []).append(entry)
    yield from groups.values()


def _slices(
    generation: Generation, candidates: Iterable[_CutCandidate]
) -> Iterator[list[_CutCandidate]]:
    """As the pipeline's: whole items, as many as one request embeds."""
    part: list[_CutCandidate] = []
    size = SliceSize(generation)
    for candidate, cut in candidates:
        if not size.add(cut):
            yield part
            part, size = [], SliceSize(generation)
            size.add(cut)
        part.append((candidate, cut))
    if part:
        yield part
