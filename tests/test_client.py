"""The client: typed as the OpenAPI document says, patient as Retry-After asks, honest in errors."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from canvas_seeding import CANVAS, load
from pydantic import BaseModel
from served_api import FEAR, RAIN, STYLE, ServedApi, make_key
from test_imports import loaded_by

from kshift_api.openapi import document
from kshift_knowledge import client as client_module
from kshift_knowledge import client_records
from kshift_knowledge.client import ApiRefused, ApiUnavailable, KshiftClient

# The client's words for the document's.
SCHEMAS = {
    "Answer": "RetrieveResponse",
    "AutomationContext": "ContextResponse",
    "Comparison": "CompareResponse",
    "ToolAnswer": "ToolResponse",
    "Progress": "ProgressAnswer",
}
RECORDS = {
    name: record
    for name, record in vars(client_records).items()
    if isinstance(record, type)
    and issubclass(record, client_records.Record)
    and record is not client_records.Record
}


@pytest.fixture
def client(api: ServedApi) -> Iterator[KshiftClient]:
    with KshiftClient(
        "http://api.test", api.key, transport=httpx2.WSGITransport(api.app)
    ) as client:
        yield client


def test_the_client_needs_no_driver_and_no_framework() -> None:
    loaded = loaded_by(["kshift_knowledge.client"])

    assert loaded.isdisjoint({"psycopg", "pgvector", "flask", "dagster", "openai", "numpy"})


# Types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_has_the_fields_that_the_document_says(name: str) -> None:
    schema = document()["components"]["schemas"][SCHEMAS.get(name, name)]

    assert list(RECORDS[name].model_fields) == list(schema["properties"])


@pytest.mark.parametrize("name", RECORDS)
def test_a_field_may_be_null_exactly_where_the_document_says(name: str) -> None:
    def nullable(schema: dict[str, Any]) -> set[str]:
        return {
            field
            for field, value in schema["properties"].items()
            if {"type": "null"} in value.get("anyOf", [])
        }

    schema = document()["components"]["schemas"][SCHEMAS.get(name, name)]
    record: type[BaseModel] = RECORDS[name]
    assert nullable(record.model_json_schema(mode="serialization")) == nullable(schema)


def test_every_route_for_programs_is_called_by_a_method() -> None:
    source = Path(client_module.__file__).read_text("utf-8")

    for path in document()["paths"]:
        if path.startswith("/v1/"):
            stem = re.sub(r"{(automation|receipt)}", r"{\1_id}", path)
            assert f'"{stem}"' in source


# Calls ---------------------------------------------------------------------------------------


def test_a_question_is_answered_with_typed_hits(api: ServedApi, client: KshiftClient) -> None:
    answer = client.retrieve(
        FEAR, api.scope.project_id, api.scope.knowledge_database_ids, top_k=1, pins=["No"]
    )

    (hit,) = answer.hits
    assert (hit.content, hit.item_name, hit.excerpts) == (FEAR, "Audience", ((0, len(FEAR)),))
    assert answer.citations[0].path == hit.path
    assert answer.dropped[0].reason == "pin_not_found"
    assert answer.usage.context_chars == len(answer.context)


def test_automations_tools_and_receipts_come_typed(api: ServedApi, client: KshiftClient) -> None:
    ids = load(api, "acme", "site", CANVAS)

    context = client.context(ids["tip"], "About theft.")
    comparison = client.compare(ids["tip"])
    found = client.retrieve_knowledge(ids["tip"], FEAR)
    receipt = client.receipt(context.receipt_id)

    assert {one.slug: one.automation_id for one in client.automations()} == ids
    assert context.prompt.startswith("Write a tip about theft.\n\nAdditional context")
    assert comparison.overlap.items == 2
    assert FEAR in found.text
    assert [tool.name for tool in client.tools()] == ["retrieve_knowledge"]
    assert {one.knowledge_database for one in client.knowledge_databases()} == {"notes", "blog"}
    assert receipt.prompt == context.prompt
    assert client.progress().progress.items.failed == 0
    assert {(one.content, one.state) for one in receipt.citations} == {
        (text, "unchanged") for text in (FEAR, RAIN, STYLE)
    }


def test_receipts_come_page_by_page(api: ServedApi, client: KshiftClient) -> None:
    ids = load(api, "acme", "site", CANVAS)
    made = [client.context(ids["free"]).receipt_id for _ in range(5)]
    api.retrieve()

    lines = list(client.receipts(ids["free"], page_size=2))

    assert [line.receipt_id for line in lines] == made[::-1]
    assert len(list(client.receipts())) == 6


def test_a_problem_is_an_error_with_its_code_and_pointers(
    api: ServedApi, client: KshiftClient
) -> None:
    with pytest.raises(ApiRefused) as wrong:
        client.retrieve(" ", api.scope.project_id, [], top_k=99)
    with pytest.raises(ApiRefused) as missing:
        client.receipt(uuid4())

    assert (wrong.value.status, wrong.value.code) == (422, "invalid_request")
    assert [error["pointer"] for error in wrong.value.errors] == ["/query", "/top_k"]
    assert (missing.value.status, missing.value.code) == (404, "not_found")
    assert missing.value.hint and missing.value.request_id
    assert not missing.value.is_retryable


def test_a_wrong_key_is_refused_at_once(api: ServedApi) -> None:
    sleeps: list[float] = []
    with (
        KshiftClient(
            "http://api.test",
            "ks_no",
            transport=httpx2.WSGITransport(api.app),
            sleep=sleeps.append,
        ) as client,
        pytest.raises(ApiRefused) as refusal,
    ):
        client.automations()

    assert (refusal.value.code, sleeps) == ("unauthenticated", [])


def test_a_key_of_one_automation_sees_that_one(api: ServedApi) -> None:
    ids = load(api, "acme", "site", CANVAS)
    key = make_key(
        api.writer,
        api.scope.account_id,
        project_id=api.scope.project_id,
        automation_id=ids["tip"],
    )
    transport = httpx2.WSGITransport(api.app)
    with KshiftClient("http://api.test", key, transport=transport) as client:
        assert [one.slug for one in client.automations()] == ["tip"]


# Patience ------------------------------------------------------------------------------------


@dataclass
class Scripted:
    """A server that answers with its statuses one after the other, then well."""

    url: str
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    requests: list[tuple[str, bytes]] = field(default_factory=list)


PROBLEM = json.dumps({"code": "busy", "detail": "Too many.", "hint": "Wait."}).encode()


@contextmanager
def scripted(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[Scripted]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            script.requests.append((self.path, self.rfile.read(length)))
            good = (200, {}, b'{"automations": [], "tools": []}')
            status, headers, body = script.answers.pop(0) if script.answers else good
            if status == 0:
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script = Scripted(f"http://127.0.0.1:{server.server_port}", list(answers))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


def waiting(url: str, clock: Clock, **options: Any) -> KshiftClient:
    return KshiftClient(
        url, "ks_key", attempts=4, clock=clock, sleep=clock.sleep, chance=lambda: 0.0, **options
    )


def test_later_is_waited_for_as_long_as_it_asks() -> None:
    clock = Clock()
    with (
        scripted((503, {"Retry-After": "7"}, PROBLEM), (429, {"Retry-After": "2"}, b"")) as server,
        waiting(server.url, clock) as client,
    ):
        assert client.automations() == ()

    assert clock.sleeps == [7.0, 2.0]
    assert len(server.requests) == 3


def test_without_retry_after_the_waits_double() -> None:
    clock = Clock()
    with (
        scripted(*[(503, {}, PROBLEM)] * 3) as server,
        waiting(server.url, clock) as client,
    ):
        client.automations()

    assert clock.sleeps == [0.25, 0.5, 1.0]


def test_a_broken_connection_is_tried_again_with_the_same_body() -> None:
    with (
        scripted((0, {}, b""), (502, {}, b"<html>")) as server,
        waiting(server.url, Clock()) as client,
        pytest.raises(ApiRefused) as odd,  # the script's good answer is no context
    ):
        client.context(1, "A draft.")

    assert odd.value.code == "api_answer_malformed"
    assert server.requests == [server.requests[0]] * 3


def test_a_wait_beyond_the_patience_is_not_begun() -> None:
    clock = Clock()
    with (
        scripted((503, {"Retry-After": "3600"}, PROBLEM)) as server,
        waiting(server.url, clock) as client,
        pytest.raises(ApiUnavailable) as given_up,
    ):
        client.automations()

    assert (clock.sleeps, given_up.value.code, given_up.value.status) == ([], "busy", 503)


def test_attempts_come_to_an_end() -> None:
    clock = Clock()
    with (
        scripted(*[(503, {}, PROBLEM)] * 9) as server,
        waiting(server.url, clock) as client,
        pytest.raises(ApiUnavailable),
    ):
        client.automations()

    assert len(server.requests) == 4


def test_nobody_there_is_unavailable_with_a_hint() -> None:
    clock = Clock()
    with scripted() as server:
        url = server.url
    with waiting(url, clock) as client, pytest.raises(ApiUnavailable) as nobody:
        client.automations()

    assert (nobody.value.code, nobody.value.exit_code) == ("api_unavailable", 3)
    assert nobody.value.hint
    assert "ks_key" not in str(nobody.value)


def test_an_answer_that_is_no_problem_is_an_error_all_the_same() -> None:
    with (
        scripted((500, {}, b"<html>oops</html>")) as server,
        waiting(server.url, Clock()) as client,
        pytest.raises(ApiRefused) as odd,
    ):
        client.automations()

    assert (odd.value.code, odd.value.status) == ("api_refused", 500)
    assert "oops" not in str(odd.value)


def test_the_key_is_sent_as_a_bearer(api: ServedApi) -> None:
    seen: list[str] = []

    class Recording(httpx2.WSGITransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            seen.append(request.headers["Authorization"])
            return super().handle_request(request)

    with KshiftClient("http://api.test", api.key, transport=Recording(api.app)) as client:
        client.tools()

    assert seen == [f"Bearer {api.key}"]
