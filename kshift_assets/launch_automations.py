"""Loading canvases from the command line: the asset's run, in this very process."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from kshift_assets.automations import STALE_ONLY, automations_job
from kshift_assets.definitions import defs
from kshift_assets.resources import OpenIndex
from kshift_knowledge.errors import KshiftError
from kshift_knowledge.indexing.canvases import stale_canvases
from kshift_knowledge.indexing.runs import IndexServices


def load_automations_once(
    services: IndexServices, dagster_home: Path, *, is_full: bool = False
) -> bool:
    """
    Load the canvases that are stale, with is_full all of them; says whether there was a run.

    Mistakes in a canvas are not an error here: postgres.canvases.problems() lists them.
    """
    if not is_full and not stale_canvases(services.database, services.knowledge_dir):
        return False
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        result = defs.resolve_job_def(automations_job.name).execute_in_process(
            instance=instance,
            tags={} if is_full else STALE_ONLY,
            resources={"index": OpenIndex(services)},
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            raise_on_error=False,
        )
    if not result.success:
        raise KshiftError(
            f"The run {result.run_id} that loads automations broke off.",
            hint="Its log in Dagster says why; `kshift index` tries again.",
            code="run_broke_off",
        )
    return True
