"""An embedder is built from plain values, and values that do not go together are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from embedding_server import EmbeddingServer, Fault, refused, vector_of

from kshift_knowledge.embedders.factory import embedder_for
from kshift_knowledge.embedders.protocol import Embedder
from kshift_knowledge.embedders.retries import Patience
from kshift_knowledge.errors import EmbedderUnreachable, SettingsError


def identity(embedder: Embedder) -> tuple[str, str, int, int]:
    return embedder.name, embedder.model, embedder.dimensions, embedder.max_input_tokens


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"name": "local"}, ("local", "all-MiniLM-L6-v2", 384, 8192)),
        (
            {"name": "openai", "api_key": "sk-x"},
            ("openai", "text-embedding-3-small", 1536, 8192),
        ),
        (
            {"name": "openai", "api_key": "sk-x", "model": "text-embedding-3-large"},
            ("openai", "text-embedding-3-large", 3072, 8192),
        ),
        (
            {"name": "openai", "api_key": "sk-x", "dimensions": 512},
            ("openai", "text-embedding-3-small", 512, 8192),
        ),
        (
            {
                "name": "openai",
                "base_url": "http://127.0.0.1:1/v1",
                "model": "bge-small-en-v1.5",
                "dimensions": 384,
                "max_input_tokens": 512,
            },
            ("openai", "bge-small-en-v1.5", 384, 512),
        ),
    ],
)
def test_what_is_not_set_is_the_embedders_own(
    values: dict[str, Any], expected: tuple[str, str, int, int]
) -> None:
    assert identity(embedder_for(**values)) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "cohere"}, "no embedder 'cohere'"),
        ({"name": "local", "model": "text-embedding-3-small"}, "only all-MiniLM-L6-v2"),
        ({"name": "local", "dimensions": 256}, "384 numbers, not of 256"),
        ({"name": "openai"}, "needs a key"),
        ({"name": "openai", "base_url": "https://api.openai.com/v1"}, "needs a key"),
        ({"name": "openai", "api_key": "sk-x", "dimensions": 1537}, "1536 numbers, not of 1537"),
        (
            {
                "name": "openai",
                "api_key": "sk-x",
                "model": "text-embedding-ada-002",
                "dimensions": 512,
            },
            "1536 numbers, not of 512",
        ),
        ({"name": "openai", "api_key": "sk-x", "model": "bge-m3"}, "width of bge-m3's vectors"),
    ],
)
def test_values_that_do_not_go_together_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        embedder_for(**values)

    assert caught.value.hint


def test_the_openai_embedder_repeats_what_may_pass() -> None:
    with EmbeddingServer() as server:
        server.script(refused(503), refused(429, retry_after="0.01"))
        embedder = embedder_for(
            "openai",
            api_key="sk-x",
            base_url=server.url,
            patience=Patience(first_wait_s=0.001),
        )

        batch = embedder.embed(["a"])

        assert np.array_equal(batch.vectors, [vector_of("a", 1536)])
        assert len(server.requests) == 3
        embedder.close()


def test_a_request_never_takes_longer_than_the_whole_patience() -> None:
    with EmbeddingServer() as server:
        server.always(Fault(delay_s=30))
        embedder = embedder_for(
            "openai", api_key="sk-x", base_url=server.url, patience=Patience(total_s=0.3)
        )

        with pytest.raises(EmbedderUnreachable, match=r"within 0\.3 s"):
            embedder.embed(["a"])

        assert len(server.requests) == 1
        embedder.close()


def test_the_local_embedder_answers_in_the_same_form() -> None:
    embedder = embedder_for("local", threads=1)
    embedder.prepare()

    batch = embedder.embed(["a", "b"])

    assert batch.vectors.shape == (2, 384)
    assert batch.vectors.dtype == np.float32
    assert embedder.embed_batch(["a", "b"]) == batch.vectors.tolist()
    embedder.close()
