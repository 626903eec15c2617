"""The sensor that notices file changes."""

# Dagster reads the annotations of decorated functions, so they are not postponed in this module.

from dataclasses import replace
from functools import partial

import dagster as dg

from kshift_assets.jobs import index_job
from kshift_assets.partitions import follow
from kshift_assets.progress import observe_progress
from kshift_assets.recovery import recover
from kshift_assets.resources import KnowledgeIndex
from kshift_assets.run_tags import batch_tags, is_queued
from kshift_knowledge.errors import Refused
from kshift_knowledge.failpoints import failpoint
from kshift_knowledge.indexing.bookmarks import Bookmark
from kshift_knowledge.indexing.pace import Pace
from kshift_knowledge.indexing.scan import look

TICK_S = 5
TICK_LIMIT_S = 40.0  # Dagster ends a tick after 60 s, and what it did is then not known to it


@dg.sensor(
    name="knowledge_files_sensor",
    job=index_job,
    minimum_interval_seconds=TICK_S,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Compares the knowledge tree with what is indexed; any change set is one run.",
)
def knowledge_files_sensor(
    context: dg.SensorEvaluationContext, index: dg.ResourceParam[KnowledgeIndex]
) -> dg.RunRequest | dg.SkipReason:
    pace = Pace.starting_now(TICK_LIMIT_S)
    with index.open() as services:
        recover(context.instance, services)
        try:
            report = look(
                services.database,
                services.knowledge_dir,
                services.generation,
                is_queued=partial(is_queued, context.instance),
                budgets=services.budgets,
                bookmark=Bookmark.parse(context.cursor),
                pace=pace,
                wait=services.wait,
            )
        except Refused as exc:
            context.update_cursor(Bookmark().dump())
            return dg.SkipReason(f"Nothing was changed: {exc}")
        if report is None:
            return dg.SkipReason("Another process is looking at the tree.")
        if report.batch_id or report.busy_batches:
            observe_progress(context.instance, services)
    is_followed = follow(context.instance, report, is_time_up=pace.is_over)
    failpoint("partitions_synced")
    # The cursor moves last: a tick that dies is repeated.
    bookmark = report.bookmark if is_followed else replace(report.bookmark, quiet=None)
    context.update_cursor(bookmark.dump())
    if report.batch_id is None:
        return dg.SkipReason(
            f"{report.seen} items, nothing to index, {report.deleted} deleted, "
            f"{len(report.unsettled)} being written."
        )
    return dg.RunRequest(
        run_key=str(report.batch_id), tags=batch_tags(report.batch_id, report.batch_keys[0])
    )
