"""Progress in Dagster: the numbers of `kshift status` as metadata of the table that is served."""

from __future__ import annotations

from typing import Any

import dagster as dg

from kshift_assets.events import TABLE
from kshift_knowledge.indexing.runs import IndexServices
from kshift_knowledge.postgres import status
from kshift_knowledge.postgres.progress import Progress, read_progress


def observe_progress(instance: dg.DagsterInstance, services: IndexServices) -> None:
    """Note how far indexing is, for the page of the table."""
    instance.report_runless_asset_event(
        dg.AssetObservation(TABLE, metadata=progress_metadata(services))
    )


def progress_metadata(services: IndexServices) -> dict[str, Any]:
    """Rows that are served, and how far indexing is."""
    with services.database.transaction() as conn:
        progress = read_progress(conn, services.prices).total
        rows = status.chunks_total(conn)
    return {"dagster/row_count": rows, **_figures(progress)}


def _figures(progress: Progress) -> dict[str, Any]:
    figures = {
        "items_done": progress.done,
        "items_running": progress.running,
        "items_failed": progress.failed,
        "items_waiting": progress.waiting,
        "tokens_spent": progress.tokens_spent,
        "tokens_saved": progress.tokens_saved,
        "cost_usd": progress.cost_usd,
        "eta_s": progress.eta_s,
    }
    return {name: value for name, value in figures.items() if value is not None}
