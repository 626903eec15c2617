"""When others fail: the provider, the database, ourselves. What is said, and what never is."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from embedding_server import GOOD, Fault, refused
from postgres_server import PostgresServer, running_server
from served_api import FEAR, SECRET, ServedApi, served_api
from waiting import wait_until

from kshift_api.app import create_app
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.roles import Connections
from kshift_knowledge.records import Generation
from kshift_knowledge.retrieval import Retrieve

CANARY = "provider-canary-text"


@pytest.mark.parametrize(
    ("fault", "code", "retry_after"),
    [
        (refused(401, "invalid_api_key", message=CANARY), "embedding_bad_key", "60"),
        (refused(403, "model_not_found", message=CANARY), "embedding_model_refused", "60"),
        (refused(404, "model_not_found", message=CANARY), "embedding_model_refused", "60"),
        (refused(429, "insufficient_quota", message=CANARY), "embedding_quota_exhausted", "60"),
        (refused(429, "rate_limit", retry_after="7"), "embedding_rate_limited", "7"),
        (refused(429, "rate_limit", retry_after="999999"), "embedding_rate_limited", "3600"),
        (refused(429, "rate_limit", message=CANARY), "embedding_rate_limited", "5"),
        (refused(500, message=CANARY), "embedding_unreachable", "5"),
        (Fault(reset_after=10), "embedding_unreachable", "5"),
        (Fault(body=CANARY.encode()), "embedding_malformed_answer", "5"),
        (refused(400, "context_length_exceeded", message=CANARY), None, "5"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_failing_provider_is_a_503_with_a_code_and_none_of_its_words(
    api: ServedApi,
    caplog: pytest.LogCaptureFixture,
    fault: Fault,
    code: str | None,
    retry_after: str,
) -> None:
    api.embeddings.script(fault)

    response = api.retrieve()

    assert response.status_code == 503
    problem = json.loads(response.data)
    assert code is None or problem["code"] == code
    assert problem["code"].startswith("embedding_")
    assert response.headers["Retry-After"] == retry_after
    for text in (response.text, caplog.text):
        assert CANARY not in text
        assert "sk-provider-canary" not in text
    assert api.retrieve().status_code == 200


def test_a_service_that_embeds_with_another_model_says_so(
    writer: Database, reader: Database
) -> None:
    with served_api(writer, reader) as api:

        def other_model(generation: Generation) -> Retrieve:
            return api.services.retrieve_for(replace(generation, model="text-embedding-3-large"))

        with served_again(api, retrieve_for=other_model) as other:
            response = other.retrieve()

    assert (response.status_code, response.json["code"]) == (503, "model_mismatch")


def test_what_nobody_thought_of_is_a_500_that_tells_nothing(
    writer: Database, reader: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(generation: Generation) -> Retrieve:
        try:
            raise ValueError(f"inner {FEAR} postgresql://u:dsn-canary@h/d")
        except ValueError as exc:
            raise RuntimeError(f"outer {FEAR}") from exc

    with served_api(writer, reader, retrieve_for=broken) as api:
        response = api.retrieve()

    assert response.status_code == 500
    problem = response.json
    assert problem["code"] == "internal_error"
    assert "Retry-After" not in response.headers
    for text in (response.text, caplog.text):
        assert FEAR not in text
        assert "dsn-canary" not in text
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert problem["request_id"] in record.getMessage()
    assert "RuntimeError at " in record.getMessage()
    assert "ValueError at " in record.getMessage()


def test_no_log_line_holds_a_key_a_question_or_knowledge(
    api: ServedApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    api.retrieve(pins=["pin-canary"])
    api.retrieve(knowledge_database_ids=list(api.foreign.knowledge_database_ids))
    api.retrieve(query="\0 query-canary")
    api.send(b"body-canary")
    api.get(f"{api.page(api.audience, 0)}&x=url-canary")
    api.client.post("/sign-in", data={"key": api.key})
    api.get("/path-canary", Accept="text/html", X_Request_Id="short")

    ours = [record.getMessage() for record in caplog.records if record.name.startswith("kshift")]

    assert len(ours) >= 7
    for canary in (api.key.split("_")[2], FEAR, SECRET, "canary"):
        assert not any(canary in line for line in ours)
    assert any(f"key={api.key.split('_')[1]}" in line for line in ours)


def test_no_free_connection_in_time_is_a_503(writer: Database, database_urls: Connections) -> None:
    with (
        Database(database_urls.reader_url, max_connections=1, timeout_s=0.2) as narrow,
        served_api(writer, narrow) as api,
    ):
        with narrow.transaction():
            response = api.retrieve()
        after = api.retrieve()

    assert (response.status_code, response.json["code"]) == (503, "store_unavailable")
    assert response.headers["Retry-After"] == "5"
    assert after.status_code == 200


def test_too_many_at_once_are_turned_away_while_health_answers(
    writer: Database, reader: Database
) -> None:
    with served_api(writer, reader, max_in_flight=1) as api, ThreadPoolExecutor() as threads:
        release = threading.Event()

        def hold(_: object) -> Fault:
            release.wait(30)
            return GOOD

        api.embeddings.always(hold)
        held = threads.submit(api.retrieve)
        wait_until(lambda: api.embeddings.counts["requests"] == 1)
        turned_away = api.get("/v1/knowledge-databases")
        health = api.client.get("/healthz")
        release.set()
        answered = held.result()
        later = api.get("/v1/knowledge-databases")

    assert (turned_away.status_code, turned_away.json["code"]) == (503, "busy")
    assert turned_away.headers["Retry-After"] == "1"
    assert health.status_code == 200
    assert (answered.status_code, later.status_code) == (200, 200)


def test_threads_of_two_tenants_never_see_each_other(api: ServedApi) -> None:
    theirs = {
        "key": api.foreign_key,
        "project_id": api.foreign.project_id,
        "knowledge_database_ids": list(api.foreign.knowledge_database_ids),
    }

    def ask(n: int) -> set[str]:
        response = api.retrieve(**(theirs if n % 2 else {}), top_k=50)
        assert response.status_code == 200
        return {hit["item_name"] for hit in response.json["hits"]}

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(80)))

    assert all(names == {"Audience", "Brand Styles"} for names in answers[0::2])
    assert all(names == {"Launch"} for names in answers[1::2])


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    with running_server() as server:
        yield server


def test_a_lost_database_is_a_503_until_it_is_back_and_nothing_sticks(
    own_server: PostgresServer,
) -> None:
    with (
        own_server.fresh_database() as urls,
        Database(urls.writer_url) as writer,
        Database(urls.reader_url, timeout_s=0.5) as reader,
        served_api(writer, reader, checks={"database": lambda: _touch(reader)}) as api,
        ThreadPoolExecutor(8) as threads,
    ):
        assert api.retrieve().status_code == 200
        own_server.embedded.stop()

        lost = list(threads.map(lambda _: api.retrieve(), range(16)))
        ready = api.client.get("/readyz")
        health = api.client.get("/healthz")
        unknown_key = api.get("/v1/knowledge-databases", key=api.foreign_key)

        own_server.embedded.ensure_running()
        wait_until(lambda: api.client.get("/readyz").status_code == 200)
        found = list(threads.map(lambda _: api.retrieve(), range(16)))

    assert {(reply.status_code, reply.json["code"]) for reply in lost} == {
        (503, "store_unavailable")
    }
    assert all(reply.headers["Retry-After"] == "5" for reply in lost)
    assert ready.status_code == 503
    assert list(json.loads(ready.data)["checks"]) == ["database"]
    assert health.status_code == 200
    assert unknown_key.status_code == 503
    assert {reply.status_code for reply in found} == {200}


def _touch(database: Database) -> None:
    with database.transaction():
        pass


@contextmanager
def served_again(api: ServedApi, **changes: object) -> Iterator[ServedApi]:
    """The same tenants behind an application with other services."""
    services = replace(api.services, **changes)  # type: ignore[arg-type]
    yield replace(api, app=create_app(services), services=services)
