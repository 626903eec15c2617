"""The asset over receipts: old ones go, and of the rest it is said whose sources have moved on."""

# Dagster reads the annotations of decorated functions, so they are not postponed in this module.

from collections.abc import Mapping

import dagster as dg

from kshift_assets.assets import OWNERS
from kshift_assets.events import EMBEDDINGS
from kshift_assets.resources import KnowledgeIndex, OperatorSettings
from kshift_knowledge.postgres import impact, receipts
from kshift_knowledge.postgres.impact import STATES

RECEIPT_IMPACT = dg.AssetKey("receipt_impact")
_MOST_PROJECTS = 100


@dg.asset(
    key=RECEIPT_IMPACT,
    deps=[EMBEDDINGS],
    description="Receipts by what became of the text they cite: a generated text whose sources "
    "changed or are gone may be wrong by now. `kshift impact ITEM` names them.",
    group_name="receipts",
    kinds={"postgres"},
    owners=OWNERS,
)
def receipt_impact(
    index: dg.ResourceParam[KnowledgeIndex], operator: dg.ResourceParam[OperatorSettings]
) -> dg.MaterializeResult[None]:
    """Delete what is older than it may be, and count the rest."""
    with index.open() as services, services.database.transaction() as conn:
        purged = receipts.purge(conn, operator.load().receipt_days)
        by_project = impact.summary(conn)
    totals = {
        f"receipts_{state.replace(' ', '_')}": sum(one[state] for one in by_project.values())
        for state in STATES
    }
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": sum(totals.values()),
            **totals,
            "receipts_purged": purged,
            "projects": dg.MetadataValue.md(_table(by_project)),
        }
    )


receipts_job = dg.define_asset_job(
    "receipts_job",
    selection=dg.AssetSelection.assets(RECEIPT_IMPACT),
    description="Delete old receipts, and count those whose sources have moved on.",
)

receipts_schedule = dg.ScheduleDefinition(
    name="receipts_schedule",
    job=receipts_job,
    cron_schedule="17 3 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every night.",
)


def _table(by_project: Mapping[str, Mapping[str, int]]) -> str:
    """The projects with the most that has moved on; places and numbers, no text of customers."""
    worst_first = sorted(
        by_project.items(), key=lambda item: ([-item[1][state] for state in STATES], item[0])
    )
    lines = [f"| project | {' | '.join(STATES)} |", "|---" * (len(STATES) + 1) + "|"]
    lines += [
        f"| {project} | {' | '.join(str(counts[state]) for state in STATES)} |"
        for project, counts in worst_first[:_MOST_PROJECTS]
    ]
    return "\n".join(lines)
