"""Scheduled upkeep: the sweep of tables and partitions, and the reading of every file."""

# Dagster reads the annotations of decorated functions, so they are not postponed in this module.

from dataclasses import asdict

import dagster as dg

from kshift_assets.partitions import sync_partitions
from kshift_assets.resources import KnowledgeIndex, OperatorSettings
from kshift_knowledge.indexing.upkeep import read_every_file, sweep
from kshift_knowledge.postgres.upkeep import living_keys


@dg.op(description="Make partitions and tables hold what there is, and nothing else.")
def reconcile(
    context: dg.OpExecutionContext,
    index: dg.ResourceParam[KnowledgeIndex],
    operator: dg.ResourceParam[OperatorSettings],
) -> None:
    with index.open() as services:
        swept = sweep(services.database, operator.load().reuse_days)
        with services.database.transaction() as conn:
            keys = living_keys(conn)
        sync_partitions(context.instance, keys)
    context.add_output_metadata({**asdict(swept), "partitions": len(keys)})


@dg.op(description="Hash every file; one that changed in silence is indexed by the next tick.")
def hash_pass(context: dg.OpExecutionContext, index: dg.ResourceParam[KnowledgeIndex]) -> None:
    with index.open() as services:
        found = read_every_file(services.database, services.knowledge_dir)
    context.add_output_metadata(asdict(found))


@dg.job(description="Remove what is left of gone items, and what nobody needed for long.")
def reconcile_job() -> None:
    reconcile()


@dg.job(description="Find files whose bytes changed behind an equal size and time.")
def hash_pass_job() -> None:
    hash_pass()


reconcile_schedule = dg.ScheduleDefinition(
    name="reconcile_schedule",
    job=reconcile_job,
    cron_schedule="17 */4 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every four hours.",
)

hash_pass_schedule = dg.ScheduleDefinition(
    name="hash_pass_schedule",
    job=hash_pass_job,
    cron_schedule="37 2 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every night.",
)
