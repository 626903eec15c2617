"""What is open without a key: health, readiness, metrics, OpenAPI, and a page for each problem."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, render_template, request

from kshift_api.openapi import document
from kshift_api.problem_kinds import KINDS
from kshift_api.problems import Problem
from kshift_api.services import ApiServices, Check
from kshift_knowledge.errors import KshiftError, NotFound

# A proxy on this machine makes every client look local, but says for whom it asks.
_PROXY_HEADERS = ("Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via")


def service_blueprint(services: ApiServices) -> Blueprint:
    blueprint = Blueprint("service", __name__)
    openapi_document = document()

    @blueprint.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @blueprint.get("/readyz")
    def readyz() -> dict[str, Any]:
        results = _run(services.checks)
        if set(results.values()) - {"ok"}:
            raise Problem("not_ready", retry_after_s=5, checks=results)
        return {"status": "ready", "checks": results}

    @blueprint.get("/metrics")
    def metrics() -> Response:
        if not _is_local():
            raise NotFound("Metrics are for this machine only.")
        return Response(services.metrics.render(), content_type="text/plain; version=0.0.4")

    @blueprint.get("/openapi.json")
    def openapi() -> dict[str, Any]:
        return openapi_document

    @blueprint.get("/problems/<code>")
    def problem(code: str) -> str:
        if code not in KINDS:
            raise NotFound("There is no such problem.")
        return render_template("problem_kind.html", kind=KINDS[code])

    return blueprint


def _run(checks: Mapping[str, Check]) -> dict[str, str]:
    """What each check says; behind the first that fails, the others are left out."""
    results: dict[str, str] = {}
    for name, check in checks.items():
        try:
            check()
        except KshiftError as exc:
            return {**results, name: str(exc)}
        results[name] = "ok"
    return results


def _is_local() -> bool:
    if any(name in request.headers for name in _PROXY_HEADERS):
        return False
    try:
        return ipaddress.ip_address(request.remote_addr or "").is_loopback
    except ValueError:
        return False
