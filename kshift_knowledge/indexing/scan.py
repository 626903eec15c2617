"""One look at the knowledge tree: deletions and renames at once, everything else into a batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from uuid import UUID

from kshift_knowledge.budgets import NO_BUDGETS, Budget
from kshift_knowledge.errors import Refused
from kshift_knowledge.failpoints import failpoint
from kshift_knowledge.indexing.bookmarks import Bookmark
from kshift_knowledge.indexing.changes import Changes, compare, guard_mass_delete, identity
from kshift_knowledge.indexing.pace import UNHURRIED, Pace
from kshift_knowledge.indexing.records import KnownItem
from kshift_knowledge.item_source import SETTLE_S, is_settled, signature_now
from kshift_knowledge.postgres import batches, budget_use, items, places
from kshift_knowledge.postgres.database import Conn, Database
from kshift_knowledge.records import Generation
from kshift_knowledge.tree import TreeEntry, TreeScan, root_problem, scan_tree
from kshift_knowledge.tree_problems import TreeProblem


@dataclass(frozen=True, slots=True)
class ScanReport:
    """
    What one look found and did.

    batch_id: the new batch, None when there is nothing to index. batch_keys: its partitions.
    living_keys: the partitions that should exist now, None when only a part of the tree was
    compared; new_keys and gone_keys: those that certainly appear and vanish.
    unsettled: keys of files being written. busy_batches: batches of other runs that still hold
    items. bookmark: for the next look.
    """

    batch_id: UUID | None
    batch_keys: tuple[str, ...]
    living_keys: frozenset[str] | None
    new_keys: frozenset[str]
    gone_keys: frozenset[str]
    seen: int
    unchanged: int
    deleted: int
    unsettled: tuple[str, ...]
    busy_batches: frozenset[UUID]
    problems: tuple[TreeProblem, ...]
    bookmark: Bookmark


def look(
    database: Database,
    knowledge_dir: Path,
    generation: Generation,
    *,
    is_queued: Callable[[UUID], bool],
    is_full: bool = False,
    accept_deletes: bool = False,
    retry_failed: bool = False,
    budgets: Mapping[str, Budget] = NO_BUDGETS,
    bookmark: Bookmark | None = None,
    pace: Pace = UNHURRIED,
    on_candidates: Callable[[], None] = lambda: None,
    wait: Callable[[float], None] = time.sleep,
) -> ScanReport | None:
    """
    Compare the tree with the index and write down what is to be done.

    is_queued: says whether a run for a batch is on its way although it holds no lock yet.
    bookmark: of the look before; the tree is looked at from there, and passed over when it has
    not changed. None compares all of it. pace: when to stop, and leave the rest to the next look.
    on_candidates: called when there is something to index, a second before it is known to settle.
    Returns None when another process is looking right now.

    Raises Refused when the tree is missing, empty or more than half gone (accept_deletes goes on).
    """
    here = bookmark or Bookmark()
    if not accept_deletes:
        _guard_root(knowledge_dir)
    with batches.scan_lock(database) as is_ours:
        if not is_ours:
            return None
        # Under the lock: an older look must not undo what a newer one wrote down.
        scan = scan_tree(knowledge_dir, after=here.after, is_time_up=pace.walk_is_over)
        with database.transaction() as conn:
            closed = budget_use.exhausted_accounts(conn, budgets)
            living = _living_batches(conn, is_queued)
            if not (is_full or retry_failed) and _is_quiet(conn, scan, here, pace, living, closed):
                return _passed_over(scan, here, living)
            known = items.known_items(conn)
        changes = compare(
            scan,
            known,
            live_batches=living,
            is_full=is_full,
            retry_failed=retry_failed,
            closed_accounts=closed,
            missing_before={*here.missing, *_moved_away(knowledge_dir, scan, known)},
        )
        if not accept_deletes:
            guard_mass_delete(changes, known)
        deletions = _deletions(knowledge_dir, scan, changes, pace)
        if changes.to_index:
            on_candidates()
        candidates = _settle(knowledge_dir, _in_walk_order(scan, changes), wait, pace)
        failpoint("scan_looked")
        with database.transaction() as conn:
            batch_id = _write_down(
                conn, scan, known, changes, deletions, candidates.settled, generation
            )
    failpoint("batch_written")
    renamed_from = {rename.item.partition_key for rename in changes.renamed}
    new = changes.to_index + [entry for entry, _ in changes.broken]
    return ScanReport(
        batch_id=batch_id,
        batch_keys=tuple(entry.partition_key for entry in candidates.settled),
        living_keys=_living_keys(scan, known),
        new_keys=frozenset(entry.partition_key for entry in new),
        gone_keys=frozenset(item.partition_key for item in deletions) | renamed_from,
        seen=changes.seen,
        unchanged=changes.unchanged,
        deleted=len(deletions),
        unsettled=tuple(entry.partition_key for entry in candidates.unsettled),
        busy_batches=frozenset(item.batch_id for item in changes.busy if item.batch_id),
        problems=tuple(scan.problems),
        bookmark=_next_bookmark(scan, changes, candidates, pace),
    )


def _guard_root(knowledge_dir: Path) -> None:
    problem = root_problem(knowledge_dir)
    if problem is not None:
        raise Refused(problem.message, hint=problem.hint, code=problem.code)


def _living_batches(conn: Conn, is_queued: Callable[[UUID], bool]) -> set[UUID]:
    unfinished = batches.unfinished(conn)
    return {batch for batch, is_held in unfinished.items() if is_held or is_queued(batch)}


def _is_quiet(
    conn: Conn,
    scan: TreeScan,
    here: Bookmark,
    pace: Pace,
    living: Collection[UUID],
    closed: Collection[int],
) -> bool:
    """Say whether nothing happened since the last look, at the price of a few flat queries."""
    return (
        scan.is_whole
        and here.is_trusted(scan.fingerprint(), pace.clock())
        and not batches.waits_unattended(conn, living)
        and not items.retry_is_due(conn, closed)
    )


def _passed_over(scan: TreeScan, here: Bookmark, living: Collection[UUID]) -> ScanReport:
    seen = len(scan.entries)
    return ScanReport(
        batch_id=None,
        batch_keys=(),
        living_keys=None,
        new_keys=frozenset(),
        gone_keys=frozenset(),
        seen=seen,
        unchanged=seen,
        deleted=0,
        unsettled=(),
        busy_batches=frozenset(living),
        problems=tuple(scan.problems),
        bookmark=here,
    )


def _moved_away(root: Path, scan: TreeScan, known: Sequence[KnownItem]) -> list[int]:
    """
    Items that lie outside the part that was scanned, and whose file is in it now.

    Without them a rename from one part of a sweep into another would be a new item.
    """
    if scan.is_whole:
        return []
    keys = {item.partition_key for item in known}
    new = {
        identity(entry.signature, entry)
        for entry in scan.entries
        if entry.partition_key not in keys
    }
    return [
        item.item_id
        for item in known
        if item.state != "gone"
        and identity(item.seen_signature or "", item) in new
        and not signature_now(root, item)
    ]


def _deletions(root: Path, scan: TreeScan, changes: Changes, pace: Pace) -> list[KnownItem]:
    """Decide at the end of a sweep what is gone: a file may have come back since its part."""
    if scan.up_to is not None:
        return []
    if scan.after is None:
        return changes.gone
    return [
        item
        for item in changes.gone
        if not pace.settling_is_over() and not signature_now(root, item)
    ]


def _in_walk_order(scan: TreeScan, changes: Changes) -> list[TreeEntry]:
    """The candidates as the walk met them, so that a look can stop between two."""
    wanted = {entry.partition_key for entry in changes.to_index}
    return [entry for entry in scan.entries if entry.partition_key in wanted]


@dataclass(frozen=True, slots=True)
class _Candidates:
    """
    What is to be indexed: files at rest, and files being written.

    stopped_at: the last file that was looked at again before the time was up; None if all were.
    """

    settled: list[TreeEntry] = field(default_factory=list)
    unsettled: list[TreeEntry] = field(default_factory=list)
    stopped_at: str | None = None


def _settle(
    root: Path, entries: Sequence[TreeEntry], wait: Callable[[float], None], pace: Pace
) -> _Candidates:
    """Look at the candidates again a second later; what moved meanwhile waits for the next look."""
    found = _Candidates()
    if not entries:
        return found
    wait(SETTLE_S)
    for entry, following in zip_longest(entries, entries[1:]):
        is_at_rest = is_settled(root, entry, entry.signature)
        (found.settled if is_at_rest else found.unsettled).append(entry)
        if following is not None and pace.settling_is_over():
            place = f"{entry.account}/{entry.project}/{entry.database}/{entry.path}"
            return replace(found, stopped_at=place)
    return found


def _next_bookmark(
    scan: TreeScan, changes: Changes, candidates: _Candidates, pace: Pace
) -> Bookmark:
    """Go on where this look came to; be quiet when it came to the end and all of it is done."""
    if scan.up_to is not None:
        missing = tuple(item.item_id for item in changes.gone)
        return Bookmark(candidates.stopped_at or scan.up_to, missing)
    if candidates.stopped_at is not None:
        return Bookmark(candidates.stopped_at)
    is_done = scan.is_whole and not candidates.unsettled and not changes.busy
    return Bookmark(quiet=scan.fingerprint() if is_done else None, compared_at=pace.clock())


def _write_down(
    conn: Conn,
    scan: TreeScan,
    known: Sequence[KnownItem],
    changes: Changes,
    deletions: Sequence[KnownItem],
    settled: Sequence[TreeEntry],
    generation: Generation,
) -> UUID | None:
    known_places = {(item.account, item.project, item.database) for item in known}
    new_places = set(scan.databases) - known_places
    if new_places:
        places.register_databases(conn, new_places, generation.generation_id)
    if changes.renamed:
        places.rename(conn, changes.renamed)
    if deletions:
        items.mark_gone(conn, deletions)
    new = changes.added + [entry for entry, _ in changes.broken]
    if new:
        places.register(conn, new, generation.generation_id)
    if changes.broken:
        items.fail_unread(conn, changes.broken)
    damaged = [item.item_id for item in known if not item.is_served_whole]
    if damaged:
        items.forget_indexed(conn, damaged)
    if not settled:
        return None
    batch_id = batches.open_batch(conn)
    items.assign_to_batch(conn, batch_id, settled)
    return batch_id


def _living_keys(scan: TreeScan, known: Sequence[KnownItem]) -> frozenset[str] | None:
    """What was found, and what lies in folders that could not be listed: it stays as it is."""
    if not scan.is_whole:
        return None
    return frozenset(entry.partition_key for entry in scan.entries) | frozenset(
        item.partition_key
        for item in known
        if item.state != "gone"
        and not scan.was_listed(item.account, item.project, item.database, item.path)
    )
