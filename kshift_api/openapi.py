"""The OpenAPI 3.1 document, made from the same types that check requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kshift_api.auth import COOKIE
from kshift_api.problem_kinds import KINDS
from kshift_api.schemas import (
    MAX_ID,
    Health,
    KnowledgeDatabases,
    ProblemDetails,
    Readiness,
    RetrieveRequest,
    RetrieveResponse,
)

_ANY_ROUTE = (405, 500)
_WITH_DATABASE = (*_ANY_ROUTE, 503)
_BODY = (400, 408, 413, 415, 422)
_REF = "#/components/schemas/{model}"

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


def document() -> dict[str, Any]:
    """Build the document; the same every time."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kshift",
            "version": version("kshift"),
            "summary": "Scoped, cited, budgeted knowledge for content automations.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method}_{route.path.strip('/').replace('/', '_')}".translate(
            str.maketrans("-.", "__", "{}")
        ),
        "security": [{scheme: []} for scheme in route.security],
        "responses": {str(route.success): _success(route)}
        | {str(status): _failure(status) for status in sorted(set(route.errors))},
    }
    if route.parameters:
        operation["parameters"] = [dict(parameter) for parameter in route.parameters]
    if route.body is not None:
        content: dict[str, Any] = {"schema": {"$ref": _REF.format(model=route.body.__name__)}}
        if route.example is not None:
            content["example"] = dict(route.example)
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    if route.form is not None:
        schema = {"type": "object", "properties": dict(route.form), "required": ["key"]}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/x-www-form-urlencoded": {"schema": schema}},
        }
    return operation


def _success(route: Route) -> dict[str, Any]:
    if route.success == 303:
        return _redirect()
    if isinstance(route.answer, str):
        return {"description": "Done.", "content": {route.answer: {}}}
    schema = {"$ref": _REF.format(model=route.answer.__name__)}
    return {"description": "Done.", "content": {"application/json": {"schema": schema}}}


def _redirect() -> dict[str, Any]:
    return {
        "description": "Go on to Location.",
        "headers": {"Location": {"schema": {"type": "string"}}},
    }


def _failure(status: int) -> dict[str, Any]:
    if status == 303:
        return _redirect()
    codes = [kind.code for kind in KINDS.values() if kind.status == status]
    answer: dict[str, Any] = {
        "description": "Codes: " + ", ".join(codes),
        "content": {
            "application/problem+json": {"schema": {"$ref": _REF.format(model="ProblemDetails")}}
        },
    }
    headers = {401: "WWW-Authenticate", 405: "Allow", 503: "Retry-After"}
    if status in headers:
        answer["headers"] = {headers[status]: {"schema": {"type": "string"}}}
    return answer


def _schemas() -> dict[str, Any]:
    models: list[tuple[type[BaseModel], Any]] = [(RetrieveRequest, "validation")]
    answers = (RetrieveResponse, KnowledgeDatabases, Health, Readiness, ProblemDetails)
    models += [(model, "serialization") for model in answers]
    _, schemas = models_json_schema(models, ref_template=_REF)
    return dict(schemas["$defs"])
