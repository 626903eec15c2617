"""The partition set: one partition per knowledge item, kept in step with the tree."""

from __future__ import annotations

from collections.abc import Collection

import dagster as dg

PARTITION_SET = "knowledge_items"

knowledge_items = dg.DynamicPartitionsDefinition(name=PARTITION_SET)


def sync_partitions(instance: dg.DagsterInstance, living_keys: Collection[str]) -> None:
    """Make the set hold exactly *living_keys*; a key that went may come back."""
    existing = set(instance.get_dynamic_partitions(PARTITION_SET))
    added = sorted(key for key in living_keys if key not in existing)
    if added:
        instance.add_dynamic_partitions(PARTITION_SET, added)
    for key in existing.difference(living_keys):
        instance.delete_dynamic_partition(PARTITION_SET, key)
