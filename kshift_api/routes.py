"""The routes as the OpenAPI document names them: what goes in, what comes out, what may fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from kshift_api.automation_schemas import (
    Automations,
    CompareRequest,
    CompareResponse,
    ContextRequest,
    ContextResponse,
    ToolRequest,
    ToolResponse,
    Tools,
)
from kshift_api.progress import ProgressAnswer
from kshift_api.receipt_schemas import MAX_RECEIPTS, Receipt, Receipts
from kshift_api.schemas import (
    MAX_ID,
    Health,
    KnowledgeDatabases,
    Readiness,
    RetrieveRequest,
    RetrieveResponse,
)

_ANY_ROUTE = (405, 500)
_WITH_DATABASE = (*_ANY_ROUTE, 503)
_BODY = (400, 408, 413, 415, 422)
_RETRIEVE_EXAMPLE = {
    "query": "What do first-time users worry about?",
    "project_id": 1,
    "knowledge_database_ids": [1, 2],
    "pins": ["App Profile"],
}


@dataclass(frozen=True, slots=True)
class Route:
    """
    One operation. answer: the model of a success, or its media type when it is no JSON.

    security: the schemes of which one is needed, none for open routes. errors: statuses of the
    problem table.
    """

    path: str
    method: str
    summary: str
    answer: type[BaseModel] | str
    errors: Sequence[int]
    security: Sequence[str] = ()
    body: type[BaseModel] | None = None
    form: Mapping[str, Any] | None = None
    parameters: Sequence[Mapping[str, Any]] = ()
    success: int = 200
    example: Mapping[str, Any] | None = None


def _path_parameter(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": dict(schema)}


def _query_parameter(name: str, schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": dict(schema), "description": description}


_ID = {"type": "integer", "minimum": 1, "maximum": MAX_ID}
_UUID = {"type": "string", "format": "uuid"}

ROUTES = (
    Route(
        "/v1/retrieve",
        "post",
        "The passages that answer a question, cited and within a budget.",
        RetrieveResponse,
        (401, *_BODY, 403, 404, *_WITH_DATABASE),
        security=("key",),
        body=RetrieveRequest,
        example=_RETRIEVE_EXAMPLE,
    ),
    Route(
        "/v1/knowledge-databases",
        "get",
        "The knowledge databases that the key may see.",
        KnowledgeDatabases,
        (401, *_WITH_DATABASE),
        security=("key",),
    ),
    Route(
        "/v1/progress",
        "get",
        "How far indexing is with what the key may see, and what it cost.",
        ProgressAnswer,
        (401, *_WITH_DATABASE),
        security=("key",),
    ),
    Route(
        "/v1/automations",
        "get",
        "The automations that the key may see.",
        Automations,
        (401, *_WITH_DATABASE),
        security=("key",),
    ),
    Route(
        "/v1/automations/{automation}/context",
        "post",
        "The automation's prompt with what its linked knowledge says, cited and fenced.",
        ContextResponse,
        (401, *_BODY, 404, *_WITH_DATABASE),
        security=("key",),
        body=ContextRequest,
        parameters=(_path_parameter("automation", _ID),),
        example={"subject_text": "A tip about riding in the rain."},
    ),
    Route(
        "/v1/automations/{automation}/compare",
        "post",
        "The ranked context beside the legacy concatenation, and what they share.",
        CompareResponse,
        (401, *_BODY, 404, *_WITH_DATABASE),
        security=("key",),
        body=CompareRequest,
        parameters=(_path_parameter("automation", _ID),),
        example={"subject_text": "A tip about riding in the rain."},
    ),
    Route(
        "/v1/tools",
        "get",
        "The tools of an automation, as OpenAI's function calling takes them.",
        Tools,
        (401, *_WITH_DATABASE),
        security=("key",),
    ),
    Route(
        "/v1/automations/{automation}/tools/retrieve_knowledge",
        "post",
        "What an agent's tool call finds in the automation's linked knowledge.",
        ToolResponse,
        (401, *_BODY, 404, *_WITH_DATABASE),
        security=("key",),
        body=ToolRequest,
        parameters=(_path_parameter("automation", _ID),),
        example={"query": "What do riders fear?"},
    ),
    Route(
        "/v1/receipts",
        "get",
        "The receipts that the key may see, newest first.",
        Receipts,
        (401, 404, 422, *_WITH_DATABASE),
        security=("key",),
        parameters=(
            _query_parameter("automation_id", _ID, "Only those of this automation."),
            _query_parameter(
                "limit",
                {"type": "integer", "minimum": 1, "maximum": MAX_RECEIPTS, "default": 20},
                "How many at most.",
            ),
            _query_parameter("after", _UUID, "`next_after` of the page before: its last receipt."),
        ),
    ),
    Route(
        "/v1/receipts/{receipt}",
        "get",
        "One receipt: what was asked, used and left out, and what its citations say today.",
        Receipt,
        (401, 404, *_WITH_DATABASE),
        security=("key",),
        parameters=(_path_parameter("receipt", _UUID),),
    ),
    Route(
        "/accounts/{account}/projects/{project}/files/{file}",
        "get",
        "The page a citation links to: the cited chunk inside its item.",
        "text/html",
        (303, 401, 404, 422, *_WITH_DATABASE),
        security=("key", "cookie"),
        parameters=(
            _path_parameter("account", _ID),
            _path_parameter("project", _ID),
            _path_parameter("file", _ID),
            _query_parameter(
                "chunk",
                {"type": "integer", "minimum": 0, "maximum": 999_999_999},
                "Index of the chunk to highlight.",
            ),
            _query_parameter(
                "receipt",
                _UUID,
                "A receipt that cites it: its text is highlighted, and its prompt shown.",
            ),
        ),
    ),
    Route(
        "/sign-in",
        "get",
        "A form that takes a key.",
        "text/html",
        _WITH_DATABASE,
        parameters=(_query_parameter("next", {"type": "string"}, "A path to go on to."),),
    ),
    Route(
        "/sign-in",
        "post",
        "Checks the key, sets the cookie for 12 hours and goes on.",
        "text/html",
        (400, 401, 403, 408, 413, 415, 422, *_WITH_DATABASE),
        form={"key": {"type": "string"}, "next": {"type": "string"}},
        success=303,
    ),
    Route(
        "/sign-out",
        "post",
        "Takes the cookie away.",
        "text/html",
        (403, *_WITH_DATABASE),
        success=303,
    ),
    Route("/healthz", "get", "The process runs; touches nothing.", Health, _ANY_ROUTE),
    Route(
        "/readyz",
        "get",
        "Database, schema and model are there, or 503 with the reasons.",
        Readiness,
        _WITH_DATABASE,
    ),
    Route("/metrics", "get", "Counters, loopback only.", "text/plain", (404, 405, 500)),
    Route("/openapi.json", "get", "This document.", "application/json", _ANY_ROUTE),
    Route(
        "/problems/{code}",
        "get",
        "What a problem's code means and what to do.",
        "text/html",
        (404, *_WITH_DATABASE),
        parameters=(_path_parameter("code", {"type": "string"}),),
    ),
)
