"""Alerts: a failed run is told to whatever command the operator names."""

# Dagster reads the annotations of decorated functions, so they are not postponed in this module.

import json
import shlex
import subprocess
from typing import Any

import dagster as dg

from kshift_assets.resources import OperatorSettings
from kshift_assets.run_tags import BATCH_TAG

ALERT_S = 30.0


@dg.run_failure_sensor(
    name="failed_runs_sensor",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=10,
    description="Hands each failed run to KSHIFT_ALERT_COMMAND, as JSON on its stdin.",
)
def failed_runs_sensor(
    context: dg.RunFailureSensorContext, operator: dg.ResourceParam[OperatorSettings]
) -> dg.SkipReason | None:
    command = operator.load().alert_command
    if command is None:
        return dg.SkipReason("KSHIFT_ALERT_COMMAND is not set.")
    send_alert(command, alert_of(context))
    return None


def alert_of(context: dg.RunFailureSensorContext) -> dict[str, Any]:
    """What an operator needs to look further. Codes and counts: no text, no name of a file."""
    run = context.dagster_run
    record = context.instance.get_run_record_by_id(run.run_id)
    return {
        "event": "run_failed",
        "run_id": run.run_id,
        "job": run.job_name,
        "batch_id": run.tags.get(BATCH_TAG),
        "started_at": record.start_time if record else None,
        "ended_at": record.end_time if record else None,
        "reason": _reason(context),
    }


def send_alert(command: str, alert: dict[str, Any]) -> None:
    """Raises CalledProcessError, TimeoutExpired and OSError, which the tick then shows."""
    subprocess.run(
        shlex.split(command),
        input=json.dumps(alert).encode(),
        timeout=ALERT_S,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _reason(context: dg.RunFailureSensorContext) -> str:
    """Our own sentence about failed items, else the kind of error alone: others quote anything."""
    for event in context.get_step_failure_events():
        failure = event.step_failure_data
        if failure.user_failure_data is not None and failure.user_failure_data.description:
            return failure.user_failure_data.description
        error = failure.error
        while error is not None and error.cause is not None:
            error = error.cause
        if error is not None:
            return error.cls_name or "error"
    return "the run broke off"
