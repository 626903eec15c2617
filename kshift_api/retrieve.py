"""`POST /v1/retrieve` and `GET /v1/knowledge-databases`: what a key may ask and see."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from flask import Blueprint

from kshift_api.auth import calling_key
from kshift_api.bodies import read_json
from kshift_api.problems import Problem
from kshift_api.schemas import RetrieveRequest
from kshift_api.services import ApiServices
from kshift_knowledge.answers import Asker, Question, answer
from kshift_knowledge.postgres import automations, catalog
from kshift_knowledge.postgres.generations import served_generation
from kshift_knowledge.records import ApiKey, Filters, Generation, Scope


def retrieve_blueprint(services: ApiServices) -> Blueprint:
    blueprint = Blueprint("retrieve", __name__)

    @blueprint.post("/v1/retrieve")
    def retrieve() -> dict[str, Any]:
        body = read_json(RetrieveRequest)
        key = calling_key()
        if body.account_id not in (None, key.account_id):
            raise Problem("account_mismatch")
        scope, generation, preferences = _narrow(services, key, body)
        response = answer(
            services.database,
            services.retrieve_for(generation),
            _question(services, body, preferences),
            scope,
            Asker(key.key_id, keeps_query=services.keeps_query),
        )
        services.metrics.count_query_tokens(response["usage"]["embedding_tokens"])
        return response

    @blueprint.get("/v1/knowledge-databases")
    def knowledge_databases() -> dict[str, Any]:
        with services.database.transaction() as conn:
            visible = catalog.visible_databases(conn, calling_key())
        return {
            "knowledge_databases": [
                {**asdict(database), "last_indexed_at": _utc(database.last_indexed_at)}
                for database in visible
            ]
        }

    return blueprint


def _narrow(
    services: ApiServices, key: ApiKey, body: RetrieveRequest
) -> tuple[Scope, Generation, tuple[str, ...]]:
    wanted = Scope(key.account_id, body.project_id, tuple(body.knowledge_database_ids))
    with services.database.scoped(wanted) as conn:
        scope = catalog.narrow(conn, key, wanted.project_id, wanted.knowledge_database_ids)
        preferences = automations.preferences(conn, scope.account_id, scope.project_id)
        return scope, served_generation(conn, scope), preferences


def _question(
    services: ApiServices, body: RetrieveRequest, preferences: tuple[str, ...]
) -> Question:
    said = body.model_fields_set
    return Question(
        body.query,
        Filters(body.kind, body.origin, tuple(body.labels), tuple(body.item_names)),
        tuple(body.pins),
        body.top_k if "top_k" in said else services.top_k,
        body.max_chars if "max_chars" in said else services.max_chars,
        body.mode,
        preferences,
    )


def _utc(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()
