"""`GET /v1/progress`: how far indexing is with what a key may see."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from flask import Blueprint

from kshift_api.auth import calling_key
from kshift_api.schemas import Answer
from kshift_api.services import ApiServices
from kshift_knowledge.postgres.progress import read_progress


class ItemCounts(Answer):
    done: int
    running: int
    failed: int
    waiting: int


class Figures(Answer):
    """eta_s: null when no run is alive, or it has no speed yet; cost_usd: null, price unknown."""

    items: ItemCounts
    eta_s: float | None
    oldest_waiting_at: datetime | None
    tokens_spent: int
    tokens_saved: int
    cost_usd: float | None


class DatabaseFigures(Figures):
    account_id: int
    account: str
    project_id: int
    project: str
    knowledge_database_id: int
    knowledge_database: str


class ProgressAnswer(Answer):
    """All that the key may see together, and each knowledge database."""

    progress: Figures
    knowledge_databases: list[DatabaseFigures]


def progress_blueprint(services: ApiServices) -> Blueprint:
    blueprint = Blueprint("progress", __name__)

    @blueprint.get("/v1/progress")
    def progress() -> dict[str, Any]:
        with services.database.transaction() as conn:
            report = read_progress(conn, services.prices, key=calling_key())
        return {
            "progress": report.total.as_dict(),
            "knowledge_databases": [one.as_dict() for one in report.databases],
        }

    return blueprint
