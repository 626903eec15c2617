"""What is done now and then although nothing seems to have changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kshift_knowledge.errors import ItemError
from kshift_knowledge.item_source import read_once
from kshift_knowledge.postgres import kept_vectors, upkeep
from kshift_knowledge.postgres.database import Database

BATCH_DAYS = 30  # docs/decisions.md#upkeep


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep removed: rows of gone items, vectors nobody needed, batches long over."""

    ghosts: int
    vectors: int
    batches: int


@dataclass(frozen=True, slots=True)
class HashPass:
    """How many files were read, and how many had other bytes behind an equal signature."""

    read: int
    changed: int


def sweep(database: Database, reuse_days: int) -> Swept:
    """
    Remove what has no use any more.

    reuse_days: how long vectors of vanished text stay reusable. Raises StoreUnavailable.
    """
    with database.transaction() as conn:
        return Swept(
            ghosts=upkeep.delete_ghosts(conn),
            vectors=kept_vectors.purge(conn, reuse_days),
            batches=upkeep.prune_batches(conn, BATCH_DAYS),
        )


def read_every_file(database: Database, knowledge_dir: Path) -> HashPass:
    """
    Hash the file of every indexed item; one whose bytes are not those that were indexed is
    indexed by the next look.

    A file with another signature than the item's is left to the looks, which see it anyway.
    Raises StoreUnavailable.
    """
    with database.transaction() as conn:
        sources = upkeep.indexed_sources(conn)
    read = 0
    changed = []
    for known in sources:
        try:
            found = read_once(knowledge_dir, known)
        except ItemError:
            continue  # gone, being written or unreadable: a look says which
        read += 1
        if found.signature == known.seen_signature and found.raw_hash != known.source_hash:
            changed.append(known.item_id)
    if changed:
        with database.transaction() as conn:
            upkeep.distrust(conn, changed)
    return HashPass(read, len(changed))
