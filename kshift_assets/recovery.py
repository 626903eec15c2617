"""What runs that were killed left undone in Dagster: their own end, and the news of their items."""

from __future__ import annotations

from uuid import UUID

import dagster as dg
from dagster._core.storage.dagster_run import DagsterRunStatus, RunRecord, RunsFilter

from kshift_assets.events import Announcement, announce
from kshift_assets.run_tags import BATCH_TAG, has_locked, is_queued, is_starting
from kshift_knowledge.indexing.runs import IndexServices, set_announced
from kshift_knowledge.postgres import batches, run_lock
from kshift_knowledge.postgres.database import Database

# A run gives its lock back a moment before it reports its own end.
_LAST_WORDS_S = 3.0


def recover(instance: dg.DagsterInstance, services: IndexServices) -> None:
    """
    End the runs whose process is dead, and tell Dagster what they did before they died.

    Dagster notices a killed worker through its code server alone; when both were killed, the run
    would hold its place in the queue until max_runtime_seconds. Costs two small queries when
    there is nothing to do. Raises StoreUnavailable.
    """
    end_dead_runs(instance, services)
    announce_broken_off(instance, services)


def end_dead_runs(instance: dg.DagsterInstance, services: IndexServices) -> list[str]:
    """Report as failed every started run that holds no lock any more; returns their ids."""
    dead = _without_a_lock(instance, services.database)
    if dead:
        services.wait(_LAST_WORDS_S)
        still = _without_a_lock(instance, services.database)
        dead = {run_id: record for run_id, record in still.items() if run_id in dead}
    for record in dead.values():
        instance.report_run_failed(
            record.dagster_run,
            "The process of this run is dead. What it finished is kept; the rest is taken up.",
        )
    return list(dead)


def announce_broken_off(instance: dg.DagsterInstance, services: IndexServices) -> None:
    """Store the events of items that a run finished and did not live to tell of."""
    with services.database.transaction() as conn:
        waiting = batches.unannounced(conn)
        alive = run_lock.held_among(conn, waiting)
    for batch_id, is_old in waiting.items():
        if batch_id in alive or is_queued(instance, batch_id):
            continue
        runs = instance.get_runs(RunsFilter(tags={BATCH_TAG: str(batch_id)}), limit=1)
        if runs and _is_alive(services.database, runs[0]):
            continue  # it has let go of the batch, and is telling of it now
        if runs:
            _announce(instance, services, batch_id, runs[0])
        if runs or is_old:  # a young batch without a run: it is about to be asked for
            set_announced(services, batch_id)


def _announce(
    instance: dg.DagsterInstance, services: IndexServices, batch_id: UUID, run: dg.DagsterRun
) -> None:
    with services.database.transaction() as conn:
        news = [Announcement(*one) for one in batches.settled_since(conn, batch_id)]
    announce(instance, run, services.generation, news)


def _is_alive(database: Database, run: dg.DagsterRun) -> bool:
    with database.transaction() as conn:
        return bool(run_lock.held_among(conn, [UUID(run.run_id)]))


def _without_a_lock(instance: dg.DagsterInstance, database: Database) -> dict[str, RunRecord]:
    records = instance.get_run_records(RunsFilter(statuses=[DagsterRunStatus.STARTED]))
    found = {
        record.dagster_run.run_id: record
        for record in records
        if has_locked(record) or (BATCH_TAG in record.dagster_run.tags and not is_starting(record))
    }
    if not found:
        return {}
    with database.transaction() as conn:
        held = run_lock.held_among(conn, [UUID(run_id) for run_id in found])
    return {run_id: record for run_id, record in found.items() if UUID(run_id) not in held}
