"""Search: words beside vectors, passages inside chunks, pins apart, and swaps while it reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from embedding_server import vector_of
from seeding import DIMENSIONS, GENERATION, Place, version_of

from kshift_knowledge.errors import StoreUnavailable
from kshift_knowledge.excerpts import Choice
from kshift_knowledge.indexing.cutting import CutJob, cut
from kshift_knowledge.memory_store import MemoryStore
from kshift_knowledge.passage_cache import PassageCache
from kshift_knowledge.pools import ChunkPool, PassagePool
from kshift_knowledge.records import (
    EmbeddedChunk,
    EmbeddedPassage,
    Filters,
    Generation,
    ItemVersion,
    Scope,
    Vector,
)
from kshift_knowledge.search import Asked, Search

SCOPE = Scope(1, 2, (3,))
EVERYTHING = Filters()
FILLER = "Nothing of note was said about that at the time, and nobody minded. "


class WatchedStore(MemoryStore):
    """A store in memory that counts what is read and lets something happen between two reads."""

    def __init__(self) -> None:
        super().__init__(replace(GENERATION, generation_id=1))
        self.ids = itertools.count(10)
        self.places: dict[str, Place] = {}
        self.passage_reads = 0
        self.after_pool: Callable[[], None] | None = None

    @property
    def generation(self) -> Generation:
        return self.served_generation(SCOPE)

    def put(self, path: str, text: str, *, vector: Vector | None = None) -> ItemVersion:
        """
        Index a text as the pipeline does, with passages of 16 tokens.

        vector: of all that is embedded of it, by default those of the embedding server.
        """
        if path not in self.places:
            self.places[path] = Place(SCOPE, next(self.ids), next(self.ids), path)
        done = cut(CutJob(path, text, "Note", None, 64, 8, 16))

        def embed(text: str) -> Vector:
            return vector_of(text, DIMENSIONS) if vector is None else vector

        chunks = tuple(
            EmbeddedChunk(
                chunk,
                embedded.embed_hash,
                embed(embedded.text),
                tuple(
                    EmbeddedPassage(one.passage)
                    if one.text is None
                    else EmbeddedPassage(one.passage, one.text.embed_hash, embed(one.text.text))
                    for one in passages
                ),
            )
            for chunk, embedded, passages in zip(
                done.chunks, done.texts, done.passages, strict=True
            )
        )
        version = replace(version_of(self.places[path], [text]), text=text, chunks=chunks)
        assert self.replace_items(SCOPE, self.generation, [version]) == set()
        return version

    def pool(
        self,
        scope: Scope,
        generation: Generation,
        vector: Vector,
        filters: Filters = EVERYTHING,
    ) -> ChunkPool:
        found = super().pool(scope, generation, vector, filters)
        if self.after_pool is not None:
            self.after_pool()
        return found

    def passages(
        self, scope: Scope, generation: Generation, chunk_ids: Sequence[int]
    ) -> PassagePool:
        self.passage_reads += 1
        return super().passages(scope, generation, chunk_ids)


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore()


@pytest.fixture
def search(store: WatchedStore) -> Search:
    return Search(store, PassageCache())


def asked(store: WatchedStore, query: str, *, words: bool = True) -> Asked:
    vector = vector_of(query, DIMENSIONS)
    return Asked(SCOPE, store.generation, vector, query if words else None)


def test_words_decide_among_texts_of_one_vector_and_only_where_they_count(
    store: WatchedStore, search: Search
) -> None:
    same = vector_of("anything", DIMENSIONS)
    for number in range(3):
        store.put(f"{number}.md", FILLER, vector=same)
    store.put("code.md", f"{FILLER} The error is E4711.", vector=same)
    query = "what does E4711 mean"

    by_words = search.ranked(asked(store, query), EVERYTHING, top_k=1)
    by_vectors = search.ranked(asked(store, query, words=False), EVERYTHING, top_k=1)

    assert [chunk.file for chunk in by_words.chunks] == ["code.md"]
    assert [chunk.file for chunk in by_vectors.chunks] == ["0.md"]


def test_a_chunk_ranks_by_its_best_passage_and_that_is_offered_first(
    store: WatchedStore, search: Search
) -> None:
    fact = "A helmet costs four euros a day."
    store.put("long.md", f"{FILLER}\n\n{fact}\n\n{FILLER}")
    store.put("other.md", FILLER * 3)

    found = search.ranked(asked(store, fact, words=False), EVERYTHING, top_k=2)

    best = found.excerpts[0]
    chunk = found.chunks[0]
    said = chunk.content[best.char_start - chunk.char_start : best.char_end - chunk.char_start]
    assert (chunk.file, said) == ("long.md", fact)


def test_chunks_that_are_packed_anyway_are_left_out_and_take_no_place(
    store: WatchedStore, search: Search
) -> None:
    for number in range(4):
        store.put(f"{number}.md", f"Fact {number}.")
    question = asked(store, "Fact 1.")
    pinned = [chunk for chunk in _all(store, search, "x").chunks if chunk.file == "1.md"]

    found = search.ranked(question, EVERYTHING, top_k=2, without=pinned)

    assert len(found.chunks) == 2
    assert "1.md" not in {chunk.file for chunk in found.chunks}


def test_given_chunks_keep_their_order_and_offer_their_best_passages_first(
    store: WatchedStore, search: Search
) -> None:
    store.put("a.md", "First fact.")
    store.put("b.md", "Second fact.")
    query = "Second fact."
    chunks = sorted(_all(store, search, query).chunks, key=lambda chunk: chunk.file)

    found = search.within(asked(store, query), chunks)

    assert list(found.chunks) == chunks
    assert [excerpt.chunk_id for excerpt in found.excerpts] == [
        chunks[1].chunk_id,
        chunks[0].chunk_id,
    ]


def test_passages_are_read_once_until_a_chunk_is_swapped(
    store: WatchedStore, search: Search
) -> None:
    store.put("a.md", "Fact.")
    for query in ("one", "two"):
        search.ranked(asked(store, query), EVERYTHING, top_k=1)
    once = store.passage_reads
    store.put("a.md", "Another fact.")

    found = search.ranked(asked(store, "three"), EVERYTHING, top_k=1)

    assert (once, store.passage_reads) == (1, 2)
    assert [chunk.content for chunk in found.chunks] == ["Another fact."]


def test_a_swap_between_two_reads_is_answered_from_the_new_chunks(
    store: WatchedStore, search: Search
) -> None:
    store.put("a.md", "Old.")

    def swap() -> None:
        store.after_pool = None
        store.put("a.md", "New.")

    store.after_pool = swap

    found = search.ranked(asked(store, "Old."), EVERYTHING, top_k=1)

    assert [chunk.content for chunk in found.chunks] == ["New."]


def test_a_pool_that_never_rests_is_said_so(store: WatchedStore, search: Search) -> None:
    store.put("a.md", "Old.")
    counted = itertools.count()
    store.after_pool = lambda: void(store.put("a.md", f"New {next(counted)}."))

    with pytest.raises(StoreUnavailable, match="replaced while they were read"):
        search.ranked(asked(store, "Old."), EVERYTHING, top_k=1)


def test_a_cache_that_is_full_forgets_the_longest_unused_pool() -> None:
    loads: list[int] = []

    def pool(number: int) -> PassagePool:
        loads.append(number)
        none = np.zeros(0, dtype=np.int64)
        words = np.zeros(100, dtype=np.uint32)
        ids = np.array([number], dtype=np.int64)
        return PassagePool(ids, none, none, none, none, none, words)

    cache = PassageCache(max_bytes=1000)
    generation = replace(GENERATION, generation_id=1)

    def ask(number: int) -> None:
        scope = replace(SCOPE, project_id=number)
        ids = np.array([number], dtype=np.int64)
        cache.get(scope, generation, EVERYTHING, ids, lambda: pool(number))

    for number in (1, 2, 1, 3, 1, 2):
        ask(number)

    assert loads == [1, 2, 3, 2]


def _all(store: WatchedStore, search: Search, query: str) -> Choice:
    return search.ranked(asked(store, query), EVERYTHING, top_k=50)


def void(_: object) -> None: ...
