"""One look at the knowledge tree: deletions and renames at once, everything else into a batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from kshift_knowledge.errors import Refused
from kshift_knowledge.failpoints import failpoint
from kshift_knowledge.indexing.changes import Changes, compare, guard_mass_delete
from kshift_knowledge.indexing.records import KnownItem
from kshift_knowledge.item_source import SETTLE_S, is_settled
from kshift_knowledge.postgres import batches, items
from kshift_knowledge.postgres.database import Conn, Database
from kshift_knowledge.records import Generation
from kshift_knowledge.tree import TreeEntry, TreeProblem, TreeScan, root_problem, scan_tree


@dataclass(frozen=True, slots=True)
class ScanReport:
    """
    What one look found and did.

    batch_id: the new batch, None when there is nothing to index. batch_keys: its partitions.
    living_keys: the partitions that should exist now. unsettled: keys of files being written.
    busy_batches: batches of other runs that still hold items.
    """

    batch_id: UUID | None
    batch_keys: tuple[str, ...]
    living_keys: frozenset[str]
    seen: int
    unchanged: int
    deleted: int
    unsettled: tuple[str, ...]
    busy_batches: frozenset[UUID]
    problems: tuple[TreeProblem, ...]


def look(
    database: Database,
    knowledge_dir: Path,
    generation: Generation,
    *,
    is_queued: Callable[[UUID], bool],
    is_full: bool = False,
    accept_deletes: bool = False,
    retry_failed: bool = False,
    wait: Callable[[float], None] = time.sleep,
) -> ScanReport | None:
    """
    Compare the tree with the index and write down what is to be done.

    is_queued: says whether a run for a batch is on its way although it holds no lock yet.
    Returns None when another process is looking right now.

    Raises Refused when the tree is missing, empty or more than half gone (accept_deletes goes on).
    """
    if not accept_deletes:
        _guard_root(knowledge_dir)
    with batches.scan_lock(database) as is_ours:
        if not is_ours:
            return None
        # Under the lock: an older look must not undo what a newer one wrote down.
        scan = scan_tree(knowledge_dir)
        with database.transaction() as conn:
            known = items.known_items(conn)
            unfinished = batches.unfinished(conn)
        live = {batch for batch, is_held in unfinished.items() if is_held or is_queued(batch)}
        changes = compare(
            scan, known, live_batches=live, is_full=is_full, retry_failed=retry_failed
        )
        if not accept_deletes:
            guard_mass_delete(changes, known)
        settled, unsettled = _settle(knowledge_dir, changes.to_index, wait)
        failpoint("scan_looked")
        with database.transaction() as conn:
            batch_id = _write_down(conn, scan, known, changes, settled, generation)
    failpoint("batch_written")
    return ScanReport(
        batch_id=batch_id,
        batch_keys=tuple(entry.partition_key for entry in settled),
        living_keys=frozenset(entry.partition_key for entry in scan.entries)
        | _unlisted_keys(scan, known),
        seen=changes.seen,
        unchanged=changes.unchanged,
        deleted=len(changes.gone),
        unsettled=tuple(entry.partition_key for entry in unsettled),
        busy_batches=frozenset(item.batch_id for item in changes.busy if item.batch_id),
        problems=tuple(scan.problems),
    )


def _guard_root(knowledge_dir: Path) -> None:
    problem = root_problem(knowledge_dir)
    if problem is not None:
        raise Refused(problem.message, hint=problem.hint, code=problem.code)


def _settle(
    root: Path, entries: Sequence[TreeEntry], wait: Callable[[float], None]
) -> tuple[list[TreeEntry], list[TreeEntry]]:
    """Look at the candidates again a second later; what moved meanwhile waits for the next look."""
    if not entries:
        return [], []
    wait(SETTLE_S)
    settled: list[TreeEntry] = []
    unsettled: list[TreeEntry] = []
    for entry in entries:
        is_at_rest = is_settled(root, entry, entry.signature)
        (settled if is_at_rest else unsettled).append(entry)
    return settled, unsettled


def _write_down(
    conn: Conn,
    scan: TreeScan,
    known: Sequence[KnownItem],
    changes: Changes,
    settled: Sequence[TreeEntry],
    generation: Generation,
) -> UUID | None:
    places = {(item.account, item.project, item.database) for item in known}
    new_places = set(scan.databases) - places
    if new_places:
        items.register_databases(conn, new_places, generation.generation_id)
    if changes.renamed:
        items.rename(conn, changes.renamed)
    if changes.gone:
        items.mark_gone(conn, changes.gone)
    new = changes.added + [entry for entry, _ in changes.broken]
    if new:
        items.register(conn, new, generation.generation_id)
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


def _unlisted_keys(scan: TreeScan, known: Sequence[KnownItem]) -> frozenset[str]:
    """Keys of items in folders that could not be listed: they stay as they are."""
    if not scan.unlisted:
        return frozenset()
    return frozenset(
        item.partition_key
        for item in known
        if item.state != "gone"
        and not scan.was_listed(item.account, item.project, item.database, item.path)
    )
