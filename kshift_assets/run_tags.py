"""The tags that tie a run to its batch, and the question whether such a run is on its way."""

from __future__ import annotations

import time
from uuid import UUID

import dagster as dg
from dagster._core.storage.dagster_run import DagsterRunStatus, RunRecord, RunsFilter

BATCH_TAG = "kshift/batch"
HOLDER_TAG = "kshift/holder"  # the process that holds the batch's lock while it runs in itself
LOCKED_TAG = "kshift/locked"  # its own id, since a retry inherits the tags of its parent

# A run that started this long ago and holds no lock is dead: it takes the lock first of all.
_STARTUP_S = 60.0
_ON_ITS_WAY = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
]


def batch_tags(batch_id: UUID, any_key: str, *, holder: int | None = None) -> dict[str, str]:
    """
    The tags of a run over any set of items.

    A range of one partition makes it a partitioned run; deferred asset events leave it to us to
    say which partitions it was: docs/decisions.md#one-run.
    """
    tags = {
        "dagster/defer_asset_events": "true",
        "dagster/asset_partition_range_start": any_key,
        "dagster/asset_partition_range_end": any_key,
        BATCH_TAG: str(batch_id),
        # The next look takes up what a dead run left: a retry of Dagster's would find nothing.
        "dagster/max_retries": "0",
    }
    if holder is not None:
        tags[HOLDER_TAG] = str(holder)
    return tags


def is_queued(instance: dg.DagsterInstance, batch_id: UUID) -> bool:
    """Say whether a run for this batch waits for its turn or has only just started."""
    records = instance.get_run_records(
        RunsFilter(tags={BATCH_TAG: str(batch_id)}, statuses=_ON_ITS_WAY)
    )
    return any(not has_locked(record) and is_starting(record) for record in records)


def has_locked(record: RunRecord) -> bool:
    """Say whether the run has taken its lock: from then on the lock alone says if it is alive."""
    return record.dagster_run.tags.get(LOCKED_TAG) == record.dagster_run.run_id


def is_starting(record: RunRecord) -> bool:
    """Say whether a run that holds no lock may be about to take it."""
    # abs(): a clock that was set back must not make a dead run look new for hours.
    return record.start_time is None or abs(time.time() - record.start_time) < _STARTUP_S
