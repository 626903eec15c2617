"""The sensor that notices file changes."""

# Dagster reads the annotations of decorated functions, so they are not postponed in this module.

from functools import partial

import dagster as dg

from kshift_assets.jobs import index_job
from kshift_assets.partitions import sync_partitions
from kshift_assets.resources import KnowledgeIndex
from kshift_assets.run_tags import batch_tags, is_queued
from kshift_knowledge.errors import Refused
from kshift_knowledge.failpoints import failpoint
from kshift_knowledge.indexing.scan import look

TICK_S = 5


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
    with index.open() as services:
        try:
            report = look(
                services.database,
                services.knowledge_dir,
                services.generation,
                is_queued=partial(is_queued, context.instance),
            )
        except Refused as exc:
            return dg.SkipReason(f"Nothing was changed: {exc}")
    if report is None:
        return dg.SkipReason("Another process is looking at the tree.")
    sync_partitions(context.instance, report.living_keys)
    failpoint("partitions_synced")
    if report.batch_id is None:
        return dg.SkipReason(
            f"{report.seen} items, nothing to index, {report.deleted} deleted, "
            f"{len(report.unsettled)} being written."
        )
    return dg.RunRequest(
        run_key=str(report.batch_id), tags=batch_tags(report.batch_id, report.batch_keys[0])
    )
