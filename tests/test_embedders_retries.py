"""What may pass is repeated with patience, and one 429 slows every worker."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from embedding_server import EmbeddingServer, Fault, refused, vector_of
from scripted_embedder import WIDTH, ScriptedEmbedder

from kshift_knowledge.embedders.limiter import Limiter
from kshift_knowledge.embedders.openai_api import OpenAIEmbedder
from kshift_knowledge.embedders.protocol import EmbeddedBatch, Embedder
from kshift_knowledge.embedders.retries import INDEXING, Patience, PatientEmbedder
from kshift_knowledge.errors import (
    BadKey,
    EmbedderUnreachable,
    EmbeddingError,
    InputTooLong,
    MalformedAnswer,
    ModelRefused,
    QuotaExhausted,
    RateLimited,
    WrongDimension,
)


class FakeTime:
    """A clock that only moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def patient(
    inner: Embedder,
    time: FakeTime,
    *,
    patience: Patience = INDEXING,
    limiter: Limiter | None = None,
    chance: float = 0.5,
) -> PatientEmbedder:
    return PatientEmbedder(
        inner,
        patience=patience,
        limiter=limiter,
        clock=time.clock,
        sleep=time.sleep,
        chance=lambda: chance,
    )


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.mark.parametrize("kind", [RateLimited, EmbedderUnreachable, MalformedAnswer])
def test_a_passing_failure_is_repeated_until_it_passes(
    time: FakeTime, kind: type[EmbeddingError]
) -> None:
    inner = ScriptedEmbedder(kind("first"), kind("second"))

    batch = patient(inner, time).embed(["a"])

    assert np.array_equal(batch.vectors, [vector_of("a", WIDTH)])
    assert inner.calls == 3


@pytest.mark.parametrize(
    "kind",
    [BadKey, ModelRefused, QuotaExhausted, InputTooLong, EmbeddingError, WrongDimension],
)
def test_a_permanent_failure_is_raised_at_once(time: FakeTime, kind: type[Exception]) -> None:
    inner = ScriptedEmbedder(kind("no"))

    with pytest.raises(kind, match="no"):
        patient(inner, time).embed(["a"])

    assert inner.calls == 1
    assert time.slept == []


@pytest.mark.parametrize(
    ("kind", "attempts"), [(RateLimited, 8), (EmbedderUnreachable, 8), (MalformedAnswer, 3)]
)
def test_attempts_are_bounded(time: FakeTime, kind: type[EmbeddingError], attempts: int) -> None:
    inner = ScriptedEmbedder(*[kind("again")] * 50)

    with pytest.raises(kind):
        patient(inner, time).embed(["a"])

    assert inner.calls == attempts


@pytest.mark.parametrize(
    ("chance", "waits"),
    [(0.0, [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]), (1.0, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0])],
)
def test_waits_double_and_are_spread_by_chance(
    time: FakeTime, chance: float, waits: list[float]
) -> None:
    inner = ScriptedEmbedder(*[EmbedderUnreachable("down")] * 7)

    patient(inner, time, chance=chance).embed(["a"])

    assert time.slept == waits


def test_a_wait_is_never_longer_than_the_longest(time: FakeTime) -> None:
    inner = ScriptedEmbedder(*[EmbedderUnreachable("down")] * 7)

    patient(inner, time, patience=Patience(longest_wait_s=3.0), chance=1.0).embed(["a"])

    assert time.slept == [0.5, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("asked", "least", "most"), [(7.0, 7.0, 7.5), (86_400.0, 60.0, 60.5), (None, 0.25, 0.5)]
)
@pytest.mark.parametrize("kind", [RateLimited, EmbedderUnreachable])
@pytest.mark.parametrize("chance", [0.0, 0.99])
def test_retry_after_is_honoured_up_to_the_cap(
    time: FakeTime,
    kind: type[EmbeddingError],
    asked: float | None,
    least: float,
    most: float,
    chance: float,
) -> None:
    inner = ScriptedEmbedder(kind("wait", retry_after_s=asked))

    patient(inner, time, chance=chance).embed(["a"])

    assert least <= sum(time.slept) <= most


def test_no_wait_begins_that_would_end_after_the_total(time: FakeTime) -> None:
    inner = ScriptedEmbedder(*[EmbedderUnreachable("down")] * 50)
    patience = Patience(attempts=50, total_s=10.0)

    with pytest.raises(EmbedderUnreachable):
        patient(inner, time, patience=patience, chance=1.0).embed(["a"])

    assert time.slept == [0.5, 1.0, 2.0, 4.0]


def test_one_429_makes_the_other_workers_wait(time: FakeTime) -> None:
    limiter = Limiter(clock=time.clock, sleep=time.sleep)
    impatient = Patience(attempts=1)
    refused_one = ScriptedEmbedder(RateLimited("wait", retry_after_s=7.0))
    with pytest.raises(RateLimited):
        patient(refused_one, time, patience=impatient, limiter=limiter, chance=0).embed(["a"])
    assert time.slept == []

    patient(ScriptedEmbedder(), time, limiter=limiter).embed(["b"])

    assert time.slept == [7.0]


def test_a_caller_without_that_much_time_fails_at_once_with_the_wait(time: FakeTime) -> None:
    limiter = Limiter(clock=time.clock, sleep=time.sleep)
    limiter.slow_down(30.0, began_at=time.now)
    inner = ScriptedEmbedder()

    with pytest.raises(RateLimited) as caught:
        patient(inner, time, patience=Patience(total_s=5.0), limiter=limiter).embed(["a"])

    assert caught.value.retry_after_s == 30.0
    assert inner.calls == 0
    assert time.slept == []


def test_a_burst_of_429_halves_the_flight_once_and_successes_restore_it(time: FakeTime) -> None:
    limiter = Limiter(16, clock=time.clock, sleep=time.sleep)
    with ExitStack() as burst:
        began = [burst.enter_context(limiter.turn(time.now + 1)) for _ in range(16)]
        time.now += 0.1
        for began_at in began:
            limiter.slow_down(1.0, began_at)
    assert limiter.allowed == 8

    limiter.slow_down(1.0, began_at=time.now)
    assert limiter.allowed == 4

    for _ in range(200):
        limiter.speed_up()
    assert limiter.allowed == 16


def test_the_flight_never_falls_below_one(time: FakeTime) -> None:
    limiter = Limiter(16, clock=time.clock, sleep=time.sleep)
    for _ in range(10):
        limiter.slow_down(1.0, began_at=time.now)

    assert limiter.allowed == 1


def test_a_turn_that_stays_taken_is_given_up_in_time(time: FakeTime) -> None:
    limiter = Limiter(1, clock=time.clock, sleep=time.sleep)

    with (
        limiter.turn(time.now),
        pytest.raises(RateLimited, match="All turns are taken"),
        limiter.turn(time.now),
    ):
        raise AssertionError("The second turn must not begin.")


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer(dimensions=1536) as server:
        yield server


def embed_all(server: EmbeddingServer, batches: int, *, in_flight: int) -> list[EmbeddedBatch]:
    plain = OpenAIEmbedder(
        model="text-embedding-3-small", dimensions=1536, api_key="sk-x", base_url=server.url
    )
    embedder = PatientEmbedder(
        plain, patience=Patience(first_wait_s=0.001), limiter=Limiter(in_flight)
    )
    with ThreadPoolExecutor(32) as workers:
        answers = list(workers.map(lambda place: embedder.embed([f"text {place}"]), range(batches)))
    embedder.close()
    return answers


def test_every_third_call_refused_loses_nothing_and_repeats_only_the_refused(
    server: EmbeddingServer,
) -> None:
    server.always(
        lambda request: refused(429, retry_after="0.01") if request.order % 3 == 2 else Fault()
    )

    answers = embed_all(server, 60, in_flight=16)

    vectors = np.concatenate([answer.vectors for answer in answers])
    assert np.array_equal(vectors, [vector_of(f"text {place}", 1536) for place in range(60)])
    refusals = sum(request.order % 3 == 2 for request in server.requests)
    assert len(server.requests) == 60 + refusals


def test_no_more_requests_are_in_flight_than_allowed(server: EmbeddingServer) -> None:
    server.latency_s = 0.02

    embed_all(server, 40, in_flight=3)

    assert server.most_in_flight == 3


def test_an_exhausted_quota_is_asked_once(server: EmbeddingServer) -> None:
    server.always(refused(429, "insufficient_quota", retry_after="1"))

    with pytest.raises(QuotaExhausted):
        embed_all(server, 1, in_flight=1)

    assert len(server.requests) == 1
