"""The partition set: one partition per knowledge item, kept in step with the tree."""

from __future__ import annotations

from collections.abc import Callable, Collection

import dagster as dg

from kshift_knowledge.indexing.scan import ScanReport

PARTITION_SET = "knowledge_items"

knowledge_items = dg.DynamicPartitionsDefinition(name=PARTITION_SET)


def follow(
    instance: dg.DagsterInstance,
    report: ScanReport,
    *,
    is_time_up: Callable[[], bool] = lambda: False,
) -> bool:
    """
    Make the set follow what a look found; says whether that was done in time.

    Only a look that compared the whole tree lists the set: it may hold 100,000 keys.
    """
    if report.living_keys is not None:
        return sync_partitions(instance, report.living_keys, is_time_up=is_time_up)
    if report.new_keys:
        instance.add_dynamic_partitions(PARTITION_SET, sorted(report.new_keys))
    return _delete(instance, report.gone_keys, is_time_up)


def sync_partitions(
    instance: dg.DagsterInstance,
    living_keys: Collection[str],
    *,
    is_time_up: Callable[[], bool] = lambda: False,
) -> bool:
    """Make the set hold exactly *living_keys*; a key that went may come back."""
    existing = set(instance.get_dynamic_partitions(PARTITION_SET))
    added = sorted(key for key in living_keys if key not in existing)
    if added:
        instance.add_dynamic_partitions(PARTITION_SET, added)
    return _delete(instance, existing.difference(living_keys), is_time_up)


def _delete(
    instance: dg.DagsterInstance, keys: Collection[str], is_time_up: Callable[[], bool]
) -> bool:
    """Dagster deletes one at a time."""
    for key in keys:
        if is_time_up():
            return False
        instance.delete_dynamic_partition(PARTITION_SET, key)
    return True
