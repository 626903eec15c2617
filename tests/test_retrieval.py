"""Retrieve: embed once, stay in the scope, rank, pin and pack; over the store in memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from embedding_server import vector_of
from seeding import DIMENSIONS, GENERATION, Place, version_of

from kshift_knowledge.embedders.protocol import EmbeddedBatch, Embedder
from kshift_knowledge.embedders.queries import QueryEmbedder
from kshift_knowledge.memory_store import MemoryStore
from kshift_knowledge.records import Dropped, Filters, Scope
from kshift_knowledge.retrieval import MODES, ModelMismatch, Retrieve
from kshift_knowledge.tokens import token_counter

SCOPE = Scope(1, 2, (3, 4))


class CountingEmbedder(Embedder):
    """The embedding server's vectors without the server; it counts what it is asked."""

    name = GENERATION.embedder
    dimensions = DIMENSIONS

    def __init__(self, *, model: str = GENERATION.model, max_input_tokens: int = 8192) -> None:
        self.model = model
        self.max_input_tokens = max_input_tokens
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> EmbeddedBatch:
        self.asked += texts
        return EmbeddedBatch(np.stack([vector_of(t, DIMENSIONS) for t in texts]), tokens=7)

    def prepare(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(replace(GENERATION, generation_id=1))
    ids = itertools.count(10)

    def put(path: str, *texts: str, database: int = 3, **about: object) -> None:
        scope = replace(SCOPE, knowledge_database_ids=(database,))
        version = version_of(Place(scope, next(ids), next(ids), path), texts, **about)  # type: ignore[arg-type]
        store.replace_items(scope, store.served_generation(scope), [version])

    put("audience.md", "Riders fear theft.", "They like rain.", name="Audience", labels=["p"])
    put("brand.md", "Bold and short.", name="Brand Styles", origin="scraped", database=4)
    put("profile.md", "We rent bikes.", "In nine towns.", name="App Profile")
    return store


@pytest.fixture
def embedder() -> CountingEmbedder:
    return CountingEmbedder()


def _retrieve(store: MemoryStore, embedder: CountingEmbedder) -> Retrieve:
    return Retrieve(store, QueryEmbedder(embedder, token_counter()))


def test_the_chunk_that_says_it_comes_first_and_the_context_carries_it(
    store: MemoryStore, embedder: CountingEmbedder
) -> None:
    found = _retrieve(store, embedder)("Riders fear theft.", SCOPE)

    assert found.hits[0].chunk.content == "Riders fear theft."
    assert found.hits[0].chunk.score == pytest.approx(1.0)
    assert found.context.startswith("[Audience#0]\nRiders fear theft.\n\n[")
    assert (found.mode, found.embedding_model) == (MODES[0], GENERATION.model)
    assert found.generation_id == 1
    assert found.embedding_tokens == 7
    assert set(found.timings_ms) == {"embed", "search", "pack"}


def test_a_scope_without_databases_finds_nothing_and_embeds_nothing(
    store: MemoryStore, embedder: CountingEmbedder
) -> None:
    nothing = replace(SCOPE, knowledge_database_ids=())

    found = _retrieve(store, embedder)("Riders fear theft.", nothing, pins=["Audience"])

    assert (found.hits, found.context, found.embedding_tokens) == ((), "", 0)
    assert found.dropped == (Dropped("Audience", None, "pin_not_found"),)
    assert embedder.asked == []


def test_the_list_for_a_smaller_top_k_is_a_prefix_and_reaches_the_whole_pool(
    store: MemoryStore, embedder: CountingEmbedder
) -> None:
    retrieve = _retrieve(store, embedder)

    def ranked(top_k: int) -> list[tuple[str, int | None]]:
        found = retrieve("question", SCOPE, top_k=top_k, max_chars=60)
        packed = [(hit.chunk.item_name, hit.chunk.chunk_index) for hit in found.hits]
        return packed + [(entry.item_name, entry.chunk_index) for entry in found.dropped]

    lists = [ranked(top_k) for top_k in range(1, 8)]

    assert [len(found) for found in lists] == [1, 2, 3, 4, 5, 5, 5]
    assert all(shorter == longer[: len(shorter)] for shorter, longer in itertools.pairwise(lists))


def test_pins_come_first_whole_and_do_not_count_in_top_k(
    store: MemoryStore, embedder: CountingEmbedder
) -> None:
    found = _retrieve(store, embedder)("We rent bikes.", SCOPE, pins=["App Profile"], top_k=1)

    names = [(hit.chunk.item_name, hit.chunk.chunk_index, hit.is_pinned) for hit in found.hits]
    assert names[:2] == [("App Profile", 0, True), ("App Profile", 1, True)]
    assert len(names) == 3
    assert names[2][0] != "App Profile"
    assert found.hits[0].chunk.score == pytest.approx(1.0)


def test_pins_ignore_the_filters_but_never_the_scope_or_the_kind(
    store: MemoryStore, embedder: CountingEmbedder
) -> None:
    retrieve = _retrieve(store, embedder)
    filters = Filters(kind="text", origin="uploaded", labels=("p",), item_names=("Audience",))

    found = retrieve("question", SCOPE, pins=["Brand Styles"], filters=filters)
    narrower = retrieve(
        "question", replace(SCOPE, knowledge_database_ids=(3,)), pins=["Brand Styles"]
    )
    other_kind = retrieve("question", SCOPE, pins=["Brand Styles"], filters=Filters(kind="pdf"))

    assert [hit.chunk.item_name for hit in found.hits] == ["Brand Styles", "Audience", "Audience"]
    for without in (narrower, other_kind):
        assert not any(hit.is_pinned for hit in without.hits)
        assert Dropped("Brand Styles", None, "pin_not_found") in without.dropped


def test_an_unknown_pin_is_reported_once(store: MemoryStore, embedder: CountingEmbedder) -> None:
    found = _retrieve(store, embedder)("question", SCOPE, pins=["Nope", "audience", "Nope"])

    assert found.dropped[-2:] == (
        Dropped("Nope", None, "pin_not_found"),
        Dropped("audience", None, "pin_not_found"),
    )


def test_a_repeated_question_costs_nothing_but_not_across_accounts(
    store: MemoryStore, embedder: CountingEmbedder
) -> None:
    retrieve = _retrieve(store, embedder)

    costs = [retrieve("question", SCOPE).embedding_tokens for _ in range(2)]
    elsewhere = retrieve("question", replace(SCOPE, account_id=9)).embedding_tokens

    assert costs == [7, 0]
    assert elsewhere == 7


def test_a_question_longer_than_the_model_reads_is_cut_and_says_so(store: MemoryStore) -> None:
    embedder = CountingEmbedder(max_input_tokens=5)

    found = _retrieve(store, embedder)("one two three four five six seven", SCOPE)

    assert embedder.asked == ["one two three four five"]
    assert found.query_was_cut


def test_vectors_of_another_model_are_never_compared(store: MemoryStore) -> None:
    retrieve = _retrieve(store, CountingEmbedder(model="text-embedding-3-large"))

    with pytest.raises(ModelMismatch, match=r"text-embedding-3-small .* text-embedding-3-large"):
        retrieve("question", SCOPE)
