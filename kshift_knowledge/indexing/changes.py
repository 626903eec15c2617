"""What changed: the tree as it is against what is indexed now. Pure; touches no file and no row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from unicodedata import normalize
from uuid import UUID

from kshift_knowledge.errors import BudgetExhausted, Refused
from kshift_knowledge.indexing.records import KnownItem, Rename
from kshift_knowledge.item_keys import is_stand_in
from kshift_knowledge.tree import TreeEntry, TreeScan
from kshift_knowledge.tree_problems import TreeProblem

MASS_DELETE_ITEMS = 20  # docs/decisions.md#mass-delete


@dataclass(slots=True)
class Changes:
    """What a scan found to do. busy: items that a living batch has already."""

    added: list[TreeEntry] = field(default_factory=list)
    changed: list[TreeEntry] = field(default_factory=list)
    renamed: list[Rename] = field(default_factory=list)
    gone: list[KnownItem] = field(default_factory=list)
    broken: list[tuple[TreeEntry, TreeProblem]] = field(default_factory=list)
    busy: list[KnownItem] = field(default_factory=list)
    unchanged: int = 0
    seen: int = 0

    @property
    def to_index(self) -> list[TreeEntry]:
        return self.added + self.changed + [rename.entry for rename in self.renamed]


def compare(
    scan: TreeScan,
    known: Iterable[KnownItem],
    *,
    live_batches: Collection[UUID] = (),
    is_full: bool = False,
    retry_failed: bool = False,
    closed_accounts: Collection[int] = (),
    missing_before: Collection[int] = (),
) -> Changes:
    """
    Compare the tree, or the part of it that was scanned, with the items.

    live_batches: batches whose run is queued or alive; their items are left to them.
    is_full: every item is a candidate, whatever its signature says.
    retry_failed: retryable failures are candidates without waiting for their turn.
    closed_accounts: accounts whose token budget is used up.
    missing_before: items outside the part that was scanned whose files are known to be gone.
    """
    changes = Changes(seen=len(scan.entries))
    by_key = {item.partition_key: item for item in known}
    found = {entry.partition_key for entry in scan.entries}
    missing = [
        item
        for item in by_key.values()
        if item.partition_key not in found
        and item.state != "gone"
        and (item.item_id in missing_before or _was_looked_for(scan, item))
    ]
    new: list[TreeEntry] = []
    for entry in scan.entries:
        item = by_key.get(entry.partition_key)
        if entry.problem is not None:
            if item is None or (item.state, item.failure_code) != ("failed", entry.problem.code):
                changes.broken.append((entry, entry.problem))
        elif item is None:
            new.append(entry)
        elif item.batch_id is not None and item.batch_id in live_batches:
            changes.busy.append(item)
        elif is_full or _needs_index(item, entry, retry_failed, closed_accounts):
            changes.changed.append(entry)
        else:
            changes.unchanged += item.state != "failed"
    renames = _match_renames(missing, new)
    changes.renamed.extend(renames.values())
    changes.gone.extend(item for item in missing if item.partition_key not in renames)
    moved = {rename.entry.partition_key for rename in renames.values()}
    changes.added.extend(entry for entry in new if entry.partition_key not in moved)
    return changes


def guard_mass_delete(changes: Changes, known: Sequence[KnownItem]) -> None:
    """
    Raise Refused when more than half of the items, and at least 20, would go at once.

    An unmounted disk or a wrong folder looks just like that.
    """
    living = sum(item.state != "gone" for item in known)
    doomed = len(changes.gone)
    if doomed >= MASS_DELETE_ITEMS and doomed * 2 > living:
        raise Refused(
            f"{doomed} of {living} items are gone from the knowledge tree; nothing was changed.",
            hint="Is the tree mounted and whole? `kshift index --accept-deletes` goes on.",
            code="mass_delete",
        )


def identity(signature: str, place: KnownItem | TreeEntry) -> tuple[str, ...]:
    """Database, size, mtime and inode: what a rename leaves alone (it touches the ctime)."""
    size, mtime, _, inode = (signature.split(":") + [""] * 4)[:4]
    unknown = () if signature else (place.partition_key,)
    return (place.account, place.project, place.database, size, mtime, inode, *unknown)


def _was_looked_for(scan: TreeScan, item: KnownItem) -> bool:
    # A stand-in says nothing of where the file lies; only a scan of all can miss it.
    return (scan.is_whole or not is_stand_in(item.path)) and scan.was_listed(
        item.account, item.project, item.database, item.path
    )


def _needs_index(
    item: KnownItem, entry: TreeEntry, retry_failed: bool, closed_accounts: Collection[int]
) -> bool:
    if item.state in ("waiting", "gone"):
        return True
    if item.seen_signature != entry.signature:
        return True
    if item.failure_code == BudgetExhausted.code:
        return item.account_id not in closed_accounts
    if item.state == "failed":
        return item.failure_is_retryable and (retry_failed or item.is_retry_due)
    return not item.is_served_whole


def _match_renames(missing: Sequence[KnownItem], new: Sequence[TreeEntry]) -> Mapping[str, Rename]:
    """By old key: the same bytes on disk, or a name that differs only in case or Unicode form."""
    renames: dict[str, Rename] = {}
    by_identity = {identity(entry.signature, entry): entry for entry in new}
    by_folded = {_folded(entry): entry for entry in new}
    taken: set[str] = set()
    for item in missing:
        entry = by_identity.get(identity(item.seen_signature or "", item)) or by_folded.get(
            _folded(item)
        )
        if entry is not None and entry.partition_key not in taken:
            taken.add(entry.partition_key)
            renames[item.partition_key] = Rename(item, entry)
    return renames


def _folded(place: KnownItem | TreeEntry) -> tuple[str, ...]:
    return (
        place.account,
        place.project,
        place.database,
        normalize("NFC", place.path).casefold(),
    )
