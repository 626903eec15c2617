"""Failed items made candidates again: whatever they failed of, and however often."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from kshift_knowledge.errors import ItemError, NotFound
from kshift_knowledge.item_keys import partition_key
from kshift_knowledge.item_source import SETTLE_S, signature_now
from kshift_knowledge.postgres import batches, items
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.tree import TreeEntry


@dataclass(frozen=True, slots=True)
class RetryReport:
    """
    What a retry took up: batch_id is None when there is nothing, batch_keys are its partitions.

    left: keys of items whose files are being written or cannot be looked at; they stay failed.
    """

    batch_id: UUID | None
    batch_keys: tuple[str, ...]
    left: tuple[str, ...]


def find_key(database: Database, item: str) -> str:
    """
    Return the partition key of an item given that key or the item's place in the tree.

    Raises NotFound.
    """
    spelled = [item, *_encoded(item)]
    with database.transaction() as conn:
        known = items.existing_keys(conn, spelled)
    for key in spelled:
        if key in known:
            return key
    raise NotFound(
        f"There is no item {item!r}.", hint="`kshift status` names the items that failed."
    )


def take_up_failed(
    database: Database,
    knowledge_dir: Path,
    keys: Sequence[str] | None,
    *,
    wait: Callable[[float], None] = time.sleep,
) -> RetryReport | None:
    """
    Put failed items into a batch of their own, also permanent and quarantined ones.

    keys: those of them to take up, None for all. What they serve stays served meanwhile.
    Returns None when another process is looking at the tree right now.
    """
    with batches.scan_lock(database) as is_ours:
        if not is_ours:
            return None
        with database.transaction() as conn:
            failed = items.failed_items(conn, keys)
        before = {item.partition_key: signature_now(knowledge_dir, item) for item in failed}
        if any(before.values()):
            wait(SETTLE_S)
        settled: list[TreeEntry] = []
        for item in failed:
            signature = before[item.partition_key]
            if signature and signature == signature_now(knowledge_dir, item):
                place = (item.account, item.project, item.database, item.path)
                settled.append(TreeEntry(*place, item.partition_key, signature))
        batch_id = None
        if settled:
            with database.transaction() as conn:
                batch_id = batches.open_batch(conn)
                items.assign_to_batch(conn, batch_id, settled)
    taken = {entry.partition_key for entry in settled}
    return RetryReport(
        batch_id,
        tuple(taken),
        tuple(item.partition_key for item in failed if item.partition_key not in taken),
    )


def _encoded(item: str) -> list[str]:
    levels = item.split("/", 3)
    try:
        return [partition_key(*levels)] if len(levels) == 4 else []
    except ItemError:
        return []
