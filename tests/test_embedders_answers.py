"""An embeddings answer is taken whole and right, or refused whole."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from embedding_server import Answer, Request, as_base64, good_answer, vector_of
from hypothesis import given
from hypothesis import strategies as st

from kshift_knowledge.embedders.answers import read_answer
from kshift_knowledge.errors import MalformedAnswer, WrongDimension

MODEL = "text-embedding-3-small"
TEXTS = ("one", "two", "three")
WIDTH = 8


def three_vectors(encoding_format: str = "float") -> Answer:
    return good_answer(Request(0, "", TEXTS, MODEL, WIDTH, encoding_format), WIDTH)


def read(answer: object, model: str = MODEL, answered_model: str | None = None) -> np.ndarray:
    return read_answer(
        json.dumps(answer).encode(),
        count=len(TEXTS),
        dimensions=WIDTH,
        model=model,
        answered_model=answered_model,
    ).vectors


EXPECTED = np.stack([vector_of(text, WIDTH) for text in TEXTS])


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
@given(order=st.permutations(range(3)))
def test_vectors_come_back_by_index_whatever_their_order(
    encoding_format: str, order: list[int]
) -> None:
    answer = three_vectors(encoding_format)
    answer["data"] = [answer["data"][place] for place in order]

    assert np.array_equal(read(answer), EXPECTED)


def test_formats_may_be_mixed() -> None:
    answer = three_vectors("float")
    answer["data"][1]["embedding"] = as_base64(answer["data"][1]["embedding"])

    assert np.array_equal(read(answer), EXPECTED)


def set_embedding(value: object) -> Callable[[Answer], None]:
    def change(answer: Answer) -> None:
        answer["data"][1]["embedding"] = value

    return change


def set_index(value: object) -> Callable[[Answer], None]:
    def change(answer: Answer) -> None:
        answer["data"][1]["index"] = value

    return change


def set_field(name: str, value: object) -> Callable[[Answer], None]:
    def change(answer: Answer) -> None:
        answer[name] = value

    return change


def number(value: object) -> Callable[[Answer], None]:
    return set_embedding([value, *[0.5] * (WIDTH - 1)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda answer: answer["data"].pop(), "2 vectors for 3 texts"),
        (lambda answer: answer["data"].append(answer["data"][0]), "4 vectors for 3 texts"),
        (lambda answer: answer.pop("data"), "no vectors for 3 texts"),
        (set_field("data", {"0": []}), "no vectors for 3 texts"),
        (set_field("data", [1, 2, 3]), "index is missing or repeated"),
        (set_index(0), "index is missing or repeated"),
        (set_index(3), "index is missing or repeated"),
        (set_index(-1), "index is missing or repeated"),
        (set_index(None), "index is missing or repeated"),
        (set_index("1"), "index is missing or repeated"),
        (set_index(True), "index is missing or repeated"),
        (set_index(1.0), "index is missing or repeated"),
        (set_embedding(None), "no list of numbers as vector 1"),
        (set_embedding({}), "no list of numbers as vector 1"),
        (set_embedding([None] * WIDTH), "no list of numbers as vector 1"),
        (set_embedding(["0.5"] * WIDTH), "no list of numbers as vector 1"),
        (set_embedding([True] * WIDTH), "no list of numbers as vector 1"),
        (set_embedding([[0.5] * WIDTH]), "no list of numbers as vector 1"),
        (set_embedding([[0.5], [0.5, 0.5]]), "no list of numbers as vector 1"),
        (set_embedding("not base64!"), "base64 that cannot be read"),
        (set_embedding("AAAA"), "base64 that cannot be read"),  # three bytes
        (number(None), "no list of numbers as vector 1"),
        (number(math.nan), "not finite"),
        (number(math.inf), "not finite"),
        (number(1e300), "not finite"),  # finite as float64, not as float32
        (number(10**400), "no list of numbers as vector 1"),
        (set_embedding(as_base64([math.nan] * WIDTH)), "not finite"),
        (set_embedding([0.0] * WIDTH), "a vector of zeros"),
        (set_embedding([0] * WIDTH), "a vector of zeros"),
        (set_embedding([1e-30] * WIDTH), "a vector of zeros"),
        (set_embedding(as_base64([0.0] * WIDTH)), "a vector of zeros"),
    ],
)
def test_one_bad_vector_refuses_the_whole_answer(
    change: Callable[[Answer], object], message: str
) -> None:
    answer = three_vectors()
    change(answer)

    with pytest.raises(MalformedAnswer, match=message):
        read(answer)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"<!doctype html><title>Welcome</title>",
        b'{"data": [{"index": 0, "embed',
        b"\xff\xfe{}",
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_no_json_object_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        read_answer(body, count=1, dimensions=WIDTH, model=MODEL)


@pytest.mark.parametrize("width", [0, 2, 7, 9, 32])
@pytest.mark.parametrize("encode", [list, as_base64])
def test_another_width_is_refused_and_both_are_named(
    width: int, encode: Callable[[list[float]], object]
) -> None:
    answer = three_vectors()
    set_embedding(encode([0.5] * width))(answer)

    with pytest.raises(WrongDimension, match=f"{width} numbers .* but 8 ") as caught:
        read(answer)

    assert "kshift reindex" in caught.value.hint


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (MODEL, MODEL),
        (MODEL, None),
        (MODEL, ""),
        (MODEL, 3),
        ("text-embedding-ada-002", "text-embedding-ada-002-v2"),
        ("nomic-embed-text", "nomic-embed-text:latest"),
        ("nomic-embed-text:latest", "nomic-embed-text"),
        ("BAAI/bge-m3", "bge-m3"),
        ("baai/BGE-M3", "BAAI/bge-m3"),
    ],
)
def test_an_answer_in_a_variant_of_the_models_name_passes(asked: str, answered: Any) -> None:
    answer = three_vectors()
    answer["model"] = answered

    assert np.array_equal(read(answer, model=asked), EXPECTED)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (MODEL, "text-embedding-3-large"),
        (MODEL, "text-embedding"),
        ("bge-small-en", "bge-small-en-v1.5"),
        ("qwen3-embedding:0.6b", "qwen3-embedding:8b"),
    ],
)
def test_an_answer_of_another_model_is_refused(asked: str, answered: str) -> None:
    answer = three_vectors()
    answer["model"] = answered

    with pytest.raises(MalformedAnswer, match=f"another model than {asked}"):
        read(answer, model=asked)


def test_a_declared_other_name_passes() -> None:
    answer = three_vectors()
    answer["model"] = "bge-m3"

    assert np.array_equal(read(answer, model="our-embedder", answered_model="bge-m3"), EXPECTED)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [({"total_tokens": 7}, 7), ({"total_tokens": -1}, 0), ({}, 0), (None, 0), ("7", 0)],
)
def test_tokens_are_what_the_server_charged(usage: object, tokens: int) -> None:
    answer = three_vectors()
    answer["usage"] = usage

    batch = read_answer(json.dumps(answer).encode(), count=3, dimensions=WIDTH, model=MODEL)

    assert batch.tokens == tokens


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["data", "index", "embedding", "model", "usage"]), inner
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_refused_by_a_typed_error(answer: object) -> None:
    with pytest.raises((MalformedAnswer, WrongDimension)):
        read(answer)
