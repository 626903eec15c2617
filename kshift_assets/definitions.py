"""The code location."""

from __future__ import annotations

import dagster as dg

from kshift_assets.alerts import failed_runs_sensor
from kshift_assets.assets import index_items, knowledge_files, served_table
from kshift_assets.automations import (
    automations_files,
    automations_job,
    automations_sensor,
    load_automations,
)
from kshift_assets.checks import check_index, check_job, check_schedule
from kshift_assets.jobs import index_job
from kshift_assets.receipts import receipt_impact, receipts_job, receipts_schedule
from kshift_assets.resources import KnowledgeIndex, OperatorSettings
from kshift_assets.sensors import knowledge_files_sensor
from kshift_assets.upkeep import (
    hash_pass_job,
    hash_pass_schedule,
    reconcile_job,
    reconcile_schedule,
)

defs = dg.Definitions(
    assets=[
        *(knowledge_files, index_items, served_table),
        *(automations_files, load_automations, receipt_impact),
    ],
    asset_checks=[check_index],
    jobs=[index_job, automations_job, receipts_job, check_job, reconcile_job, hash_pass_job],
    schedules=[receipts_schedule, check_schedule, reconcile_schedule, hash_pass_schedule],
    sensors=[knowledge_files_sensor, automations_sensor, failed_runs_sensor],
    resources={"index": KnowledgeIndex(), "operator": OperatorSettings()},
    # The run is one step already: a process of its own for it would only take seconds to start.
    executor=dg.in_process_executor,
)
