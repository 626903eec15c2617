"""Indexing from the command line: the sensor's look, then the run in this very process."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import dagster as dg
import sqlalchemy.event
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.pool import Pool

from kshift_assets.definitions import defs
from kshift_assets.jobs import index_job
from kshift_assets.partitions import PARTITION_SET, follow
from kshift_assets.recovery import recover
from kshift_assets.resources import OpenIndex
from kshift_assets.run_tags import batch_tags, is_queued
from kshift_knowledge.errors import KshiftError, NotReady
from kshift_knowledge.failpoints import failpoint
from kshift_knowledge.indexing.figures import Figures
from kshift_knowledge.indexing.retrying import RetryReport, take_up_failed
from kshift_knowledge.indexing.runs import IndexServices
from kshift_knowledge.indexing.scan import ScanReport, look
from kshift_knowledge.postgres import batches
from kshift_knowledge.tree_problems import TreeProblem

UNSETTLED_WAIT_S = 10.0  # contract: a file that is being written is waited for this long
BUSY_POLL_S = 0.5
DAEMON_FRESH_S = 60.0
_STATEMENT_TIMEOUT_MS = 60_000
_RECYCLE_S = 3600


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What an `index` did. figures: summed over its runs. unsettled: keys left for later."""

    seen: int
    deleted: int
    unchanged: int
    runs: int
    figures: Figures
    unsettled: tuple[str, ...]
    problems: tuple[TreeProblem, ...]


def index_once(
    services: IndexServices,
    dagster_home: Path,
    *,
    is_full: bool = False,
    accept_deletes: bool = False,
    talk: Callable[[str], None],
) -> IndexReport:
    """
    Index whatever differs from the tree, waiting for files that are being written.

    Items that another living run has are waited for too. Raises Refused, StoreUnavailable.
    """
    give_up_at = time.monotonic() + UNSETTLED_WAIT_S
    reports: list[ScanReport] = []
    figures: list[dict[str, int | float]] = []
    with _open_instance(dagster_home) as instance:
        recover(instance, services)
        while True:
            report = look(
                services.database,
                services.knowledge_dir,
                services.generation,
                is_queued=partial(is_queued, instance),
                is_full=is_full and not reports,
                accept_deletes=accept_deletes,
                retry_failed=not reports,
                budgets=services.budgets,
                on_candidates=services.cutters.warm,
                wait=services.wait,
            )
            if report is None:
                time.sleep(BUSY_POLL_S)
                continue
            reports.append(report)
            follow(instance, report)
            failpoint("partitions_synced")
            if report.batch_id is not None:
                talk(f"Indexing {len(report.batch_keys)} of {report.seen} items.")
                figures.append(_run(services, instance, report.batch_id, report.batch_keys[0]))
            if report.busy_batches:
                talk("Another run is indexing; waiting for it.")
                time.sleep(BUSY_POLL_S)
            elif not report.unsettled or time.monotonic() > give_up_at:
                break
    return IndexReport(
        seen=report.seen,
        deleted=sum(part.deleted for part in reports),
        unchanged=reports[0].unchanged,
        runs=len(figures),
        figures=Figures.total(figures),
        unsettled=report.unsettled,
        problems=report.problems,
    )


def hand_over(
    services: IndexServices, dagster_home: Path, *, is_full: bool, accept_deletes: bool
) -> ScanReport:
    """
    Write down what is to be done and leave the run to the sensor of a running daemon.

    Raises NotReady when no daemon runs.
    """
    with _open_instance(dagster_home) as instance:
        _require_daemon(instance)
        while True:
            report = look(
                services.database,
                services.knowledge_dir,
                services.generation,
                is_queued=partial(is_queued, instance),
                is_full=is_full,
                accept_deletes=accept_deletes,
                retry_failed=True,
                budgets=services.budgets,
                wait=services.wait,
            )
            if report is not None:
                follow(instance, report)
                return report
            time.sleep(BUSY_POLL_S)


def retry(
    services: IndexServices,
    dagster_home: Path,
    keys: Sequence[str] | None,
    *,
    talk: Callable[[str], None],
) -> tuple[RetryReport, Figures]:
    """
    Index failed items again; keys: None for all of them.

    Raises StoreUnavailable, KshiftError.
    """
    with _open_instance(dagster_home) as instance:
        while (report := _take_up_failed(services, keys)) is None:
            time.sleep(BUSY_POLL_S)
        if report.batch_id is None:
            return report, Figures()
        instance.add_dynamic_partitions(PARTITION_SET, list(report.batch_keys))
        talk(f"Indexing {len(report.batch_keys)} failed items again.")
        figures = _run(services, instance, report.batch_id, report.batch_keys[0])
    return report, Figures.total([figures])


def _take_up_failed(services: IndexServices, keys: Sequence[str] | None) -> RetryReport | None:
    return take_up_failed(services.database, services.knowledge_dir, keys, wait=services.wait)


@contextmanager
def _open_instance(dagster_home: Path) -> Iterator[dg.DagsterInstance]:
    """
    Dagster's instance with connections that stay open.

    Its storage opens one for every statement otherwise, 5 ms each: docs/decisions.md#storage-pool.
    """
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        instance.optimize_for_webserver(
            statement_timeout=_STATEMENT_TIMEOUT_MS, pool_recycle=_RECYCLE_S, max_overflow=4
        )
        opened: set[Any] = set()

        def refuse_dead(connection: Any, *_: object) -> None:
            """Replace an idle connection that has something to say: its server is gone."""
            opened.add(connection)
            if select.select([connection], [], [], 0)[0]:
                raise InvalidatePoolError

        sqlalchemy.event.listen(Pool, "checkout", refuse_dead)
        try:
            yield instance
        finally:
            sqlalchemy.event.remove(Pool, "checkout", refuse_dead)
            for connection in opened:  # the instance leaves its pools to the garbage collector
                connection.close()


def _run(
    services: IndexServices, instance: dg.DagsterInstance, batch_id: UUID, any_key: str
) -> dict[str, int | float]:
    with batches.running(services.database, batch_id):
        result = defs.resolve_job_def(index_job.name).execute_in_process(
            instance=instance,
            tags=batch_tags(batch_id, any_key, holder=os.getpid()),
            resources={"index": OpenIndex(services)},
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            raise_on_error=False,  # a bad item fails the run and not the command
        )
    with services.database.transaction() as conn:
        done = batches.figures(conn, batch_id)
    if not done or not (result.success or done["items_failed"]):
        raise KshiftError(
            f"The run {result.run_id} broke off before its items were done: {_reason(result)}",
            hint="What it finished is kept; `kshift index` goes on from there.",
            code="run_broke_off",
        )
    return done


def _reason(result: dg.ExecuteInProcessResult) -> str:
    errors = [
        event.step_failure_data.error
        for event in result.all_events
        if event.is_step_failure and event.step_failure_data.error
    ]
    innermost = errors[0] if errors else None
    while innermost is not None and innermost.cause is not None:
        innermost = innermost.cause
    return innermost.message.strip() if innermost else "see its log in Dagster."


def _require_daemon(instance: dg.DagsterInstance) -> None:
    heartbeats = instance.get_daemon_heartbeats()
    newest = max((beat.timestamp for beat in heartbeats.values()), default=0.0)
    if time.time() - newest > DAEMON_FRESH_S:
        raise NotReady(
            "No Dagster daemon is running that could take the run.",
            hint="Start `kshift up`, or leave out --no-wait.",
        )
