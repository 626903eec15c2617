"""Automations over HTTP: their context, both ways compared, and the tool for agents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flask import Blueprint

from kshift_api.auth import calling_key
from kshift_api.automation_schemas import CompareRequest, ContextRequest, ToolRequest
from kshift_api.bodies import read_json
from kshift_api.services import ApiServices
from kshift_knowledge.answers import Asker, Question
from kshift_knowledge.automation_answers import Desk, automation_context, compare, tool_answer
from kshift_knowledge.automations import StoredAutomation
from kshift_knowledge.postgres import automations
from kshift_knowledge.postgres.generations import served_generation
from kshift_knowledge.tools import tool_definitions


def automations_blueprint(services: ApiServices) -> Blueprint:
    blueprint = Blueprint("automations", __name__)

    @blueprint.get("/v1/automations")
    def listed() -> dict[str, Any]:
        with services.database.transaction() as conn:
            visible = automations.visible_automations(conn, calling_key())
        return {"automations": [asdict(one) for one in visible]}

    @blueprint.post("/v1/automations/<id:automation>/context")
    def context(automation: int) -> dict[str, Any]:
        body = read_json(ContextRequest)
        desk, found = _open_desk(services, automation)
        response = automation_context(desk, found, body.subject_text, body.mode)
        return _counted(services, response)

    @blueprint.post("/v1/automations/<id:automation>/compare")
    def compared(automation: int) -> dict[str, Any]:
        body = read_json(CompareRequest)
        desk, found = _open_desk(services, automation)
        response = compare(desk, found, body.subject_text)
        _counted(services, response["ranked"])
        return response

    @blueprint.get("/v1/tools")
    def tools() -> dict[str, Any]:
        return {"tools": tool_definitions()}

    @blueprint.post("/v1/automations/<id:automation>/tools/retrieve_knowledge")
    def retrieve_knowledge(automation: int) -> dict[str, Any]:
        body = read_json(ToolRequest)
        desk, found = _open_desk(services, automation)
        return _counted(services, tool_answer(desk, found, body.query))

    return blueprint


def _open_desk(services: ApiServices, automation_id: int) -> tuple[Desk, StoredAutomation]:
    """Everything that answers for this automation; the scope is its edges. Raises NotFound."""
    key = calling_key()
    with services.database.transaction() as conn:
        automation = automations.find_visible(conn, key, automation_id)
        generation = served_generation(conn, automation.scope)
        preferences = automations.preferences(conn, automation.account_id, automation.project_id)
    limits = Question(
        "", top_k=services.top_k, max_chars=services.max_chars, preferences=preferences
    )
    asker = Asker(key.key_id, keeps_query=services.keeps_query)
    return Desk(services.database, services.retrieve_for(generation), limits, asker), automation


def _counted(services: ApiServices, response: dict[str, Any]) -> dict[str, Any]:
    services.metrics.count_query_tokens(response["usage"]["embedding_tokens"])
    return response
