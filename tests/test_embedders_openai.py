"""The openai embedder against a real HTTP server that answers rightly and wrongly."""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import numpy as np
import pytest
from embedding_server import (
    EmbeddingServer,
    Fault,
    answering,
    as_base64,
    embeddings_as,
    last_embedding_as,
    refused,
    shuffled,
    vector_of,
)

from kshift_knowledge.embedders.openai_api import OpenAIEmbedder
from kshift_knowledge.embedders.openai_models import Deadlines
from kshift_knowledge.embedders.protocol import Embedder
from kshift_knowledge.embedders.refusals import retry_after_s
from kshift_knowledge.errors import (
    BadKey,
    EmbedderUnreachable,
    EmbeddingError,
    InputTooLong,
    KshiftError,
    MalformedAnswer,
    ModelRefused,
    QuotaExhausted,
    RateLimited,
    WrongDimension,
)

MODEL = "text-embedding-3-small"
KEY = "sk-canary-5f0c1d"
TEXT = "canary text of a customer"
SHORT = Deadlines(connect_s=0.3, read_s=0.3, total_s=0.6)


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as server:
        yield server


def embedder_at(url: str, **changes: Any) -> OpenAIEmbedder:
    values: dict[str, Any] = {"model": MODEL, "dimensions": 1536, "api_key": KEY, **changes}
    return OpenAIEmbedder(base_url=url, **values)


@pytest.fixture
def embedder(server: EmbeddingServer) -> Iterator[OpenAIEmbedder]:
    embedder = embedder_at(server.url)
    yield embedder
    embedder.close()


def expected(*texts: str, dimensions: int = 1536) -> np.ndarray:
    return np.stack([vector_of(text, dimensions) for text in texts])


def test_texts_become_vectors_in_their_order(embedder: Embedder) -> None:
    batch = embedder.embed(["b", "a", "b"])

    assert np.array_equal(batch.vectors, expected("b", "a", "b"))
    assert batch.vectors.dtype == np.float32
    assert batch.tokens == 3


def test_embed_batch_returns_plain_lists(embedder: Embedder) -> None:
    rows = embedder.embed_batch(["a", "b"])

    assert rows == expected("a", "b").tolist()
    assert type(rows[0][0]) is float


def test_no_texts_send_no_request(server: EmbeddingServer, embedder: Embedder) -> None:
    batch = embedder.embed([])

    assert batch.vectors.shape == (0, 1536)
    assert server.requests == []


@pytest.mark.parametrize("text", ["", " ", "\n\t\u3000"])
def test_a_blank_text_is_refused_before_anything_is_sent(
    server: EmbeddingServer, embedder: Embedder, text: str
) -> None:
    with pytest.raises(EmbeddingError, match="Text 2 of 2 is blank"):
        embedder.embed(["a", text])

    assert server.requests == []


def test_a_lone_surrogate_is_refused_before_anything_is_sent(
    server: EmbeddingServer, embedder: Embedder
) -> None:
    with pytest.raises(EmbeddingError, match="Text 1 of 1 holds a lone surrogate"):
        embedder.embed(["a\ud800"])

    assert server.requests == []


def test_the_request_names_key_model_and_format(
    server: EmbeddingServer, embedder: Embedder
) -> None:
    embedder.embed(["a"])

    (request,) = server.requests
    assert request.authorization == f"Bearer {KEY}"
    assert (request.model, request.dimensions, request.encoding_format) == (MODEL, None, "base64")


@pytest.mark.parametrize(
    ("model", "dimensions", "asked"),
    [
        ("text-embedding-3-small", 1536, None),
        ("text-embedding-3-small", 512, 512),
        ("text-embedding-3-large", 3072, None),
        ("text-embedding-3-large", 1024, 1024),
        ("text-embedding-ada-002", 1536, None),
        ("bge-small-en-v1.5", 384, None),
    ],
)
def test_a_width_is_asked_for_only_where_a_model_can_be_shortened(
    model: str, dimensions: int, asked: int | None
) -> None:
    with EmbeddingServer(dimensions=dimensions) as server:
        embedder = embedder_at(server.url, model=model, dimensions=dimensions)

        batch = embedder.embed(["a"])

        assert server.requests[0].dimensions == asked
        assert np.array_equal(batch.vectors, expected("a", dimensions=dimensions))
        embedder.close()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(),
        answering(shuffled),
        embeddings_as(list),
        embeddings_as(as_base64),
        last_embedding_as(list),
    ],
    ids=["good", "shuffled", "floats although base64 was asked", "base64", "mixed"],
)
def test_good_answers_in_any_form_give_the_same_vectors(
    server: EmbeddingServer, embedder: Embedder, fault: Fault
) -> None:
    texts = [f"text {place}" for place in range(20)]
    server.script(fault)

    assert np.allclose(embedder.embed(texts).vectors, expected(*texts), atol=1e-7)


ECHO = f"Incorrect API key provided: {KEY}. You sent: {TEXT}"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (refused(401, "invalid_api_key", message=ECHO), BadKey),
        (refused(403, "model_not_found", message=ECHO), ModelRefused),
        (refused(404, "model_not_found", message=ECHO), ModelRefused),
        (Fault(404, body=b"<html>nothing here</html>"), ModelRefused),
        (refused(403, "insufficient_quota", message=ECHO), QuotaExhausted),
        (refused(429, "insufficient_quota", message=ECHO), QuotaExhausted),
        (refused(429, "billing_hard_limit_reached", message=ECHO), QuotaExhausted),
        (refused(402, message=ECHO), QuotaExhausted),
        (refused(429, "rate_limit_exceeded", message=ECHO), RateLimited),
        (Fault(429, body=b"slow down"), RateLimited),
        (refused(400, "context_length_exceeded", message=ECHO), InputTooLong),
        (
            refused(
                400,
                "invalid_request_error",
                message="This model's maximum context length is 8192 tokens, however you "
                "requested 9001 tokens (9001 in your prompt; 0 for the completion).",
            ),
            InputTooLong,
        ),
        (refused(413, message="`inputs` must have less than 512 tokens. Given: 600"), InputTooLong),
        (
            refused(400, message="Requested 310000 tokens, max 300000 tokens per request"),
            InputTooLong,
        ),
        (refused(400, "invalid_request_error", message=ECHO), EmbeddingError),
        (refused(422, message=ECHO), EmbeddingError),
        (Fault(418, body=b"{"), EmbeddingError),
        (Fault(500, body=ECHO.encode()), EmbedderUnreachable),
        (Fault(502, body=b"<html>bad gateway</html>"), EmbedderUnreachable),
        (refused(503, message=ECHO), EmbedderUnreachable),
        (Fault(408), EmbedderUnreachable),
        (Fault(body=b"<!doctype html><p>Please sign in</p>"), MalformedAnswer),
        (Fault(body=b'{"object": "list", "data": [{"emb'), MalformedAnswer),
        (Fault(body=b'{"error": {"message": "overloaded"}}'), MalformedAnswer),
        (Fault(204, body=b""), MalformedAnswer),
        (answering(lambda answer: {**answer, "data": answer["data"][:-1]}), MalformedAnswer),
        (answering(lambda answer: {**answer, "data": answer["data"][:1] * 2}), MalformedAnswer),
        (answering(lambda answer: {**answer, "model": TEXT}), MalformedAnswer),
        (last_embedding_as(lambda numbers: None), MalformedAnswer),
        (last_embedding_as(lambda numbers: [float("nan"), *numbers[1:]]), MalformedAnswer),
        (last_embedding_as(lambda numbers: [0.0] * len(numbers)), MalformedAnswer),
        (last_embedding_as(lambda numbers: numbers[:-1]), WrongDimension),
        (embeddings_as(lambda numbers: as_base64(numbers[: len(numbers) // 4])), WrongDimension),
        (embeddings_as(lambda numbers: as_base64(numbers, "<f8")), WrongDimension),
        (Fault(delay_s=30), EmbedderUnreachable),
        (Fault(bytes_per_s=20), EmbedderUnreachable),
        (Fault(reset_after=0), EmbedderUnreachable),
        (Fault(reset_after=40), EmbedderUnreachable),
        (Fault(reset_after=2000), EmbedderUnreachable),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_each_failure_has_its_class_and_betrays_nothing(
    server: EmbeddingServer,
    caplog: pytest.LogCaptureFixture,
    fault: Fault,
    kind: type[KshiftError],
) -> None:
    is_slow = fault.delay_s or fault.bytes_per_s
    embedder = embedder_at(server.url, deadlines=SHORT if is_slow else None)
    server.script(fault)

    with caplog.at_level(logging.DEBUG), pytest.raises(KshiftError) as caught:
        embedder.embed([TEXT, "another text"])

    error = caught.value
    assert type(error) is kind
    assert error.is_retryable == (kind in (RateLimited, EmbedderUnreachable, MalformedAnswer))
    assert error.message and error.hint
    everything = "".join([caplog.text, *traceback.format_exception(error), repr(vars(error))])
    assert error.__context__ is None or error.__suppress_context__
    assert KEY not in everything
    assert "canary" not in everything
    assert len(server.requests) == 1  # This layer never repeats.
    embedder.close()


def test_the_next_request_after_a_failure_is_good(server: EmbeddingServer) -> None:
    embedder = embedder_at(server.url, deadlines=Deadlines(total_s=1.5))
    for fault in (Fault(reset_after=40), Fault(delay_s=30), Fault(500), Fault(bytes_per_s=20)):
        server.script(fault)
        with pytest.raises(EmbedderUnreachable):
            embedder.embed(["a"])

        assert np.array_equal(embedder.embed(["a"]).vectors, expected("a"))
    embedder.close()


@pytest.mark.parametrize(
    "fault",
    [Fault(delay_s=30), Fault(bytes_per_s=20), Fault(bytes_per_s=2000)],
    ids=["silence", "head drips", "body drips"],
)
def test_the_total_deadline_ends_every_kind_of_slowness(fault: Fault) -> None:
    with EmbeddingServer() as server:
        deadlines = Deadlines(connect_s=1, read_s=1, total_s=0.4)
        embedder = embedder_at(server.url, deadlines=deadlines)
        server.script(fault)
        started = time.monotonic()

        with pytest.raises(EmbedderUnreachable, match=r"no whole answer within 0\.4 s"):
            embedder.embed([f"text {place}" for place in range(10)])

        assert time.monotonic() - started < 10
        embedder.close()


def test_a_server_that_never_stops_sending_is_cut_off(
    server: EmbeddingServer, embedder: Embedder
) -> None:
    server.script(Fault(body=b" " * 3_000_000))

    with pytest.raises(MalformedAnswer, match="more than"):
        embedder.embed(["a"])


def test_nobody_listening_is_unreachable_and_the_place_is_named_without_credentials() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    embedder = embedder_at(f"http://user:canary@127.0.0.1:{port}/v1")

    with pytest.raises(EmbedderUnreachable) as caught:
        embedder.embed([TEXT])

    assert f"http://127.0.0.1:{port} cannot be reached" in caught.value.message
    assert "canary" not in "".join(traceback.format_exception(caught.value))
    embedder.close()


def test_a_peer_that_accepts_and_never_answers_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        embedder = embedder_at(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", deadlines=SHORT)

        with pytest.raises(EmbedderUnreachable):
            embedder.embed(["a"])

        embedder.close()


@pytest.mark.parametrize("key", ["sk-canary\n2", "sk canary", "schlüssel-canary"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(BadKey) as caught:
        embedder_at("http://127.0.0.1:1/v1", api_key=key)

    assert "canary" not in str(caught.value)


def test_blanks_around_a_key_are_dropped(server: EmbeddingServer) -> None:
    embedder = embedder_at(server.url, api_key=f" {KEY}\n")

    embedder.embed(["a"])

    assert server.requests[0].authorization == f"Bearer {KEY}"
    embedder.close()


def test_a_server_without_keys_needs_none(server: EmbeddingServer) -> None:
    embedder = embedder_at(server.url, api_key=None)

    assert np.array_equal(embedder.embed(["a"]).vectors, expected("a"))
    embedder.close()


def test_a_wrong_key_is_refused_by_the_server() -> None:
    with EmbeddingServer(api_key="sk-right") as server:
        embedder = embedder_at(server.url)

        with pytest.raises(BadKey, match=r"does not accept the key \(401\)"):
            embedder.embed(["a"])

        embedder.close()


def test_many_threads_share_one_embedder(server: EmbeddingServer) -> None:
    embedder = embedder_at(server.url)
    texts = [f"text {place}" for place in range(200)]

    with ThreadPoolExecutor(16) as threads:
        batches = list(threads.map(lambda text: embedder.embed([text]), texts))

    vectors = np.concatenate([batch.vectors for batch in batches])
    assert np.array_equal(vectors, expected(*texts))
    embedder.close()


def test_a_closed_embedder_connects_again(server: EmbeddingServer) -> None:
    embedder = embedder_at(server.url)
    embedder.embed(["a"])
    embedder.close()

    assert np.array_equal(embedder.embed(["b"]).vectors, expected("b"))
    embedder.close()
    embedder.close()


def test_a_forgotten_embedder_closes_its_connections(server: EmbeddingServer) -> None:
    embedder = embedder_at(server.url)
    embedder.embed(["a"])
    assert server.open_connections == 1

    del embedder
    gc.collect()

    deadline = time.monotonic() + 10
    while server.open_connections and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert server.open_connections == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_embeds_on_a_connection_of_its_own(server: EmbeddingServer) -> None:
    embedder = embedder_at(server.url)
    embedder.embed(["before"])

    child = os.fork()
    if child == 0:
        same = np.array_equal(embedder.embed(["in the child"]).vectors, expected("in the child"))
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert np.array_equal(embedder.embed(["after"]).vectors, expected("after"))
    assert server.texts == ["before", "in the child", "after"]
    embedder.close()


NOW = datetime(2026, 11, 1, 12, 0, 0, tzinfo=UTC)


def http_date(seconds: float) -> str:
    return format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("3", 3.0),
        (" 1.5 ", 1.5),
        ("86400", 86400.0),
        ("0", None),
        ("-5", None),
        ("nan", None),
        ("inf", None),
        ("1e999", None),
        ("soon", None),
        (http_date(30), 30.0),
        (http_date(-30), None),
        ("Wed, 99 Foo 2026", None),
    ],
)
def test_retry_after_is_read_in_every_form(value: str | None, seconds: float | None) -> None:
    headers = {"date": http_date(0)} | ({} if value is None else {"retry-after": value})

    assert retry_after_s(headers) == seconds


@pytest.mark.parametrize("status", [429, 503])
def test_an_error_carries_the_wait_that_the_server_asks_for(
    server: EmbeddingServer, embedder: Embedder, status: int
) -> None:
    server.script(refused(status, retry_after="7"))

    with pytest.raises(EmbeddingError) as caught:
        embedder.embed(["a"])

    assert caught.value.retry_after_s == 7.0
