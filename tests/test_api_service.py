"""What is open without a key: health, readiness, metrics, OpenAPI, and what each problem means."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from served_api import ServedApi, served_api

from kshift_api.openapi import ROUTES, document
from kshift_api.problem_kinds import KINDS
from kshift_api.server import remembered
from kshift_knowledge.errors import NotReady
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.retrieval import MODES

DOCS = Path(__file__).parents[1] / "docs" / "http.md"


def test_health_touches_nothing_and_needs_no_key(api: ServedApi) -> None:
    api.services.database.close()

    response = api.client.get("/healthz")

    assert (response.status_code, response.json) == (200, {"status": "ok"})


def test_ready_means_that_every_check_passed(writer: Database, reader: Database) -> None:
    with served_api(
        writer, reader, checks={"database": lambda: None, "model": lambda: None}
    ) as api:
        response = api.client.get("/readyz")

    assert response.status_code == 200
    assert response.json == {"status": "ready", "checks": {"database": "ok", "model": "ok"}}


def test_not_ready_names_the_reason_and_stops_at_the_first(
    writer: Database, reader: Database
) -> None:
    def behind() -> None:
        raise NotReady("The database lacks 1 migration.", hint="Run `kshift migrate`.")

    def never() -> None:
        raise AssertionError("asked in vain")

    checks = {"database": lambda: None, "schema": behind, "model": never}
    with served_api(writer, reader, checks=checks) as api:
        response = api.client.get("/readyz")

    problem = json.loads(response.data)
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "5"
    assert problem["code"] == "not_ready"
    assert problem["checks"] == {
        "database": "ok",
        "schema": "The database lacks 1 migration. Run `kshift migrate`.",
    }


def test_a_check_rests_after_a_success_and_not_after_a_failure() -> None:
    calls: list[str] = []

    def flaky() -> None:
        calls.append("asked")
        if len(calls) < 3:
            raise NotReady("not yet")

    check = remembered(flaky, seconds=3600)
    for _ in range(2):
        with pytest.raises(NotReady):
            check()
    check()
    check()

    assert len(calls) == 3


def test_metrics_count_by_route_and_never_by_what_a_client_wrote(api: ServedApi) -> None:
    api.retrieve()
    api.retrieve(top_k=0)
    api.get("/canary-path")
    api.client.open("/v1/retrieve", method="CANARY")

    text = api.client.get("/metrics").text

    assert 'kshift_requests_total{route="/v1/retrieve",method="POST",status="200"} 1' in text
    assert 'kshift_requests_total{route="/v1/retrieve",method="POST",status="422"} 1' in text
    assert 'kshift_requests_total{route="unmatched",method="GET",status="404"} 1' in text
    assert re.search(r"^kshift_query_tokens_total [1-9]\d*$", text, re.MULTILINE)
    assert re.search(r'_bucket\{route="/v1/retrieve",le="\+Inf"\} 2$', text, re.MULTILINE)
    assert "canary" not in text.lower()


@pytest.mark.parametrize(
    ("address", "headers"),
    [
        ("192.0.2.1", {}),
        ("2001:db8::1", {}),
        ("127.0.0.1", {"X-Forwarded-For": "192.0.2.1"}),
        ("127.0.0.1", {"Forwarded": "for=127.0.0.1"}),
        ("", {}),
    ],
)
def test_metrics_are_for_this_machine_only(
    api: ServedApi, address: str, headers: dict[str, str]
) -> None:
    response = api.client.get(
        "/metrics", headers=headers, environ_overrides={"REMOTE_ADDR": address}
    )

    assert response.status_code == 404


def test_metrics_answer_on_ipv6_loopback_too(api: ServedApi) -> None:
    response = api.client.get("/metrics", environ_overrides={"REMOTE_ADDR": "::1"})

    assert response.status_code == 200
    assert response.content_type == "text/plain; version=0.0.4"


def test_each_answer_has_a_request_id_the_callers_own_when_it_is_a_plain_one(
    api: ServedApi,
) -> None:
    own = api.get("/healthz", X_Request_Id="trace-1234.ab_c")
    odd = [api.get("/healthz", X_Request_Id=value) for value in ("x", "a b c d e f", "y" * 65)]

    assert own.headers["X-Request-Id"] == "trace-1234.ab_c"
    assert all(re.fullmatch(r"[0-9a-f]{32}", reply.headers["X-Request-Id"]) for reply in odd)


def test_a_route_that_does_not_exist_is_not_found(api: ServedApi) -> None:
    for path in ("/", "/v1", "/v1/retrieve/", "//healthz", "/accounts/0/projects/1/files/1"):
        response = api.get(path)
        assert (response.status_code, response.json["code"]) == (404, "not_found")


# OpenAPI and the documentation ---------------------------------------------------------------


def test_the_openapi_document_is_served_open_and_is_3_1(api: ServedApi) -> None:
    response = api.client.get("/openapi.json")

    assert response.json == json.loads(json.dumps(document()))
    assert document()["openapi"] == "3.1.0"


def test_every_route_is_in_the_document_and_nothing_else(api: ServedApi) -> None:
    served = {
        (re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), method.lower())
        for rule in api.app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD"}
        if rule.endpoint != "static"
    }

    assert {(route.path, route.method) for route in ROUTES} == served


def test_every_reference_of_the_document_leads_somewhere() -> None:
    text = json.dumps(document())

    for name in set(re.findall(r'"#/components/schemas/(\w+)"', text)):
        assert name in document()["components"]["schemas"]


def test_the_document_states_the_bounds() -> None:
    properties = document()["components"]["schemas"]["RetrieveRequest"]["properties"]

    assert properties["query"]["maxLength"] == 200_000
    assert properties["project_id"] == {
        "minimum": 1,
        "maximum": 2**63 - 1,
        "title": "Project Id",
        "type": "integer",
    }
    assert properties["knowledge_database_ids"]["maxItems"] == 100
    assert properties["pins"]["maxItems"] == 50
    assert (properties["top_k"]["maximum"], properties["top_k"]["default"]) == (50, 6)
    assert (properties["max_chars"]["maximum"], properties["max_chars"]["default"]) == (
        100_000,
        1500,
    )
    assert properties["mode"]["enum"] == list(MODES)


def test_the_documents_example_is_answered(api: ServedApi) -> None:
    operation = document()["paths"]["/v1/retrieve"]["post"]
    example = operation["requestBody"]["content"]["application/json"]["example"]

    ids = {name: api.question[name] for name in ("project_id", "knowledge_database_ids")}
    assert api.retrieve(**{**example, **ids}).status_code == 200


@pytest.mark.parametrize("code", KINDS)
def test_every_problem_has_a_page_of_its_own_and_a_row_in_the_docs(
    api: ServedApi, code: str
) -> None:
    kind = KINDS[code]

    page = api.client.get(f"/problems/{code}")

    assert page.status_code == 200
    assert kind.title in page.text
    assert f"| `{code}` | {kind.status} | {kind.cause} | {kind.remedy} |" in DOCS.read_text("utf-8")


def test_the_docs_name_every_route_and_every_field() -> None:
    text = DOCS.read_text("utf-8")

    for route in ROUTES:
        assert f"`{route.method.upper()} {route.path}`" in text
    schemas: dict[str, Any] = document()["components"]["schemas"]
    for name in (
        *("RetrieveRequest", "RetrieveResponse", "Hit", "KnowledgeDatabase"),
        *("Automation", "ContextRequest", "ContextResponse", "CompareResponse", "Overlap"),
        *("Tool", "ToolRequest", "ToolResponse"),
        *("Receipts", "ReceiptLine", "Receipt", "ReceiptHit", "ReceiptCitation"),
    ):
        for field in schemas[name]["properties"]:
            assert f"`{field}`" in text


def test_statuses_that_ask_to_wait_say_how_long() -> None:
    for kind in KINDS.values():
        assert (kind.retry_after_s is not None) == (kind.status in (429, 503))
