"""The assets behind automations: canvases of the tree, the automations they say, their edges."""

# Dagster reads the annotations of decorated functions, so they are not postponed in this module.

from collections import Counter
from collections.abc import Iterator

import dagster as dg
from dagster._core.storage.dagster_run import IN_PROGRESS_RUN_STATUSES, RunsFilter

from kshift_assets.assets import OWNERS
from kshift_assets.resources import KnowledgeIndex
from kshift_knowledge.indexing.canvases import LoadReport, load_canvases, stale_canvases
from kshift_knowledge.postgres import canvases
from kshift_knowledge.postgres.canvases import AutomationProblem

FILES = dg.AssetKey("automations_files")
AUTOMATIONS = dg.AssetKey("automations")
EDGES = dg.AssetKey("knowledge_edges")
SOUND_CHECK = "canvases_are_sound"
GROUP = "automations"
TICK_S = 10

STALE_ONLY_TAG = "kshift/stale_only"  # of runs that the sensor or a command starts
STALE_ONLY = {STALE_ONLY_TAG: "true"}

automations_files = dg.AssetSpec(
    FILES,
    description="The canvases of the tree, `<account>/<project>/automations.yaml`.",
    group_name=GROUP,
    kinds={"yaml"},
    owners=OWNERS,
)


@dg.multi_asset(
    name="load_automations",
    specs=[
        dg.AssetSpec(
            AUTOMATIONS,
            deps=[FILES],
            description="What is generated automatically: prompt, preset, pins. A table.",
            group_name=GROUP,
            kinds={"postgres"},
            owners=OWNERS,
            metadata={"dagster/table_name": "automations"},
        ),
        dg.AssetSpec(
            EDGES,
            deps=[AUTOMATIONS],
            description="Which knowledge databases an automation is told about; no edge, nothing.",
            group_name=GROUP,
            kinds={"postgres"},
            owners=OWNERS,
            metadata={"dagster/table_name": "knowledge_edges"},
        ),
    ],
    check_specs=[
        dg.AssetCheckSpec(
            SOUND_CHECK,
            asset=AUTOMATIONS,
            description="Every canvas is read, and every name in it leads somewhere.",
        )
    ],
)
def load_automations(
    context: dg.AssetExecutionContext, index: dg.ResourceParam[KnowledgeIndex]
) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
    """Load what is stale; a run that a person started loads every canvas again."""
    with index.open() as services:
        report = load_canvases(
            services.database,
            services.knowledge_dir,
            services.generation.generation_id,
            is_full=STALE_ONLY_TAG not in context.run.tags,
        )
        with services.database.transaction() as conn:
            problems = canvases.problems(conn)
    yield dg.MaterializeResult(asset_key=AUTOMATIONS, metadata=_metadata(report))
    yield dg.MaterializeResult(asset_key=EDGES, metadata={"dagster/row_count": report.edges})
    yield _checked(problems)


automations_job = dg.define_asset_job(
    "load_automations_job",
    selection=dg.AssetSelection.assets(AUTOMATIONS, EDGES),
    description="Load the canvases that have changed.",
)


@dg.sensor(
    name="automations_sensor",
    job=automations_job,
    minimum_interval_seconds=TICK_S,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Compares the canvases of the tree with what was loaded of them.",
)
def automations_sensor(
    context: dg.SensorEvaluationContext, index: dg.ResourceParam[KnowledgeIndex]
) -> dg.RunRequest | dg.SkipReason:
    with index.open() as services:
        stale = stale_canvases(services.database, services.knowledge_dir)
    if not stale:
        return dg.SkipReason("Every canvas is loaded.")
    # No run key: a canvas may go back to what it was before, and must be loaded then, too.
    on_its_way = RunsFilter(job_name=automations_job.name, statuses=IN_PROGRESS_RUN_STATUSES)
    if context.instance.get_runs_count(on_its_way):
        return dg.SkipReason(f"A run is on its way for {len(stale)} canvases.")
    return dg.RunRequest(tags=STALE_ONLY)


def _metadata(report: LoadReport) -> dict[str, int]:
    return {
        "dagster/row_count": report.automations,
        "canvases_loaded": len(report.loaded),
        "canvases_refused": len(report.refused),
        "canvases_removed": len(report.removed),
        "canvases_being_written": len(report.unsettled),
    }


def _checked(problems: list[AutomationProblem]) -> dg.AssetCheckResult:
    """Places and codes alone: a message may quote what a customer wrote."""
    rows = [f"| {one.project} | {one.automation or '-'} | {one.code} |" for one in problems[:100]]
    table = "\n".join(["| project | automation | code |", "|---|---|---|", *rows])
    codes = Counter(one.code for one in problems)
    return dg.AssetCheckResult(
        check_name=SOUND_CHECK,
        asset_key=AUTOMATIONS,
        passed=not problems,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={**codes, "problems": dg.MetadataValue.md(table)} if problems else {},
    )
