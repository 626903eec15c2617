"""The OpenAPI 3.1 document, made from the same types that check requests."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kshift_api.auth import COOKIE
from kshift_api.problem_kinds import KINDS
from kshift_api.routes import ROUTES, Route
from kshift_api.schemas import ProblemDetails

_REF = "#/components/schemas/{model}"


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
    models: dict[tuple[type[BaseModel], Any], None] = {}
    for route in ROUTES:
        if route.body is not None:
            models[route.body, "validation"] = None
        if not isinstance(route.answer, str):
            models[route.answer, "serialization"] = None
    models[ProblemDetails, "serialization"] = None
    _, schemas = models_json_schema(list(models), ref_template=_REF)
    return dict(schemas["$defs"])
