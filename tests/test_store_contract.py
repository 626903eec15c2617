"""What every VectorStore promises, tried on the one in PostgreSQL and the one in memory."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from embedding_server import vector_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seeding import (
    DIMENSIONS,
    GENERATION,
    Place,
    add_databases,
    add_item,
    only,
    served_generation,
    version_of,
)

from kshift_knowledge.errors import NotFound, WrongDimension
from kshift_knowledge.memory_store import MemoryStore
from kshift_knowledge.pools import ChunkPool
from kshift_knowledge.postgres import generations
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.vector_store import PgVectorStore
from kshift_knowledge.records import (
    EmbeddedPassage,
    Filters,
    Generation,
    ItemVersion,
    Scope,
    SearchedPassage,
    StoredChunk,
)
from kshift_knowledge.store import VectorStore


@dataclass
class World:
    """A store and the ways to make places in it."""

    store: VectorStore
    generation: Generation
    add_scope: Callable[..., Scope]  # account, project, *databases
    add_item: Callable[[Scope, str], Place]

    def put(self, place: Place, *texts: str, **about: object) -> set[int]:
        version = version_of(place, texts, **about)  # type: ignore[arg-type]
        return self.store.replace_items(place.scope, self.generation, [version])

    def nearest(
        self, scope: Scope, text: str, k: int = 10, filters: Filters | None = None
    ) -> list[StoredChunk]:
        vector = vector_of(text, DIMENSIONS)
        return self.store.nearest(scope, self.generation, vector, k, filters or Filters())

    def texts(self, scope: Scope, filters: Filters | None = None) -> set[str]:
        """Every text that the scope serves."""
        return {chunk.content for chunk in self.nearest(scope, "anything", 50, filters)}


@pytest.fixture
def pg_world(writer: Database) -> World:
    def make_scope(account: str, project: str, *databases: str) -> Scope:
        return add_databases(writer, account, project, *databases)

    def make_item(scope: Scope, path: str) -> Place:
        return add_item(writer, scope, path)

    return World(PgVectorStore(writer), served_generation(writer), make_scope, make_item)


@pytest.fixture
def memory_world() -> World:
    generation = replace(GENERATION, generation_id=1)
    ids = itertools.count(1)
    known: dict[tuple[str, ...], int] = {}

    def make_scope(account: str, project: str, *databases: str) -> Scope:
        names = [(account,), (account, project), *((account, project, slug) for slug in databases)]
        account_id, project_id, *rest = (known.setdefault(name, next(ids)) for name in names)
        return Scope(account_id, project_id, tuple(rest))

    def make_item(scope: Scope, path: str) -> Place:
        return Place(scope, next(ids), next(ids), path)

    return World(MemoryStore(generation), generation, make_scope, make_item)


@pytest.fixture(params=["pgvector", "memory"])
def world(request: pytest.FixtureRequest) -> World:
    fixture = {"pgvector": "pg_world", "memory": "memory_world"}[request.param]
    found: World = request.getfixturevalue(fixture)
    return found


@pytest.fixture
def notes(world: World) -> Scope:
    return world.add_scope("acme", "site", "notes")


def test_a_chunk_is_found_by_its_own_text_with_everything_that_is_known_of_it(
    world: World, notes: Scope
) -> None:
    place = world.add_item(notes, "deep/audience.md")
    world.put(
        place,
        "Riders fear theft.",
        "They like rain.",
        name="Audience",
        origin="scraped",
        source_url="https://example.com/a",
        labels=["persona", "de"],
    )

    best = world.nearest(notes, "They like rain.")[0]

    assert best.score == pytest.approx(1.0)
    assert best == StoredChunk(
        chunk_id=best.chunk_id,
        account_id=notes.account_id,
        project_id=notes.project_id,
        knowledge_database_id=notes.knowledge_database_ids[0],
        knowledge_database_item_id=place.item_id,
        project_file_id=place.file_id,
        item_name="Audience",
        file="deep/audience.md",
        chunk_index=1,
        content="They like rain.",
        content_hash=best.content_hash,
        char_start=20,
        char_end=35,
        heading_path=(),
        token_count=4,
        kind="text",
        origin="scraped",
        source_url="https://example.com/a",
        labels=("persona", "de"),
        revision=best.revision,
        score=best.score,
    )


def test_nearest_is_ordered_by_cosine_and_the_length_of_vectors_does_not_matter(
    world: World, notes: Scope
) -> None:
    query = np.zeros(DIMENSIONS, dtype=np.float32)
    query[0] = 3.0
    vectors = [
        [cosine * 7, (1 - cosine**2) ** 0.5 * 7, *[0.0] * 14] for cosine in (-1, 0.2, 0.9, 0)
    ]
    world.put(world.add_item(notes, "a.md"), "worst", "fair", "best", "poor", vectors=vectors)

    found = world.store.nearest(notes, world.generation, query, 4)

    assert [chunk.content for chunk in found] == ["best", "fair", "poor", "worst"]
    assert [chunk.score for chunk in found] == pytest.approx([0.9, 0.2, 0, -1], abs=1e-6)


def test_a_smaller_k_gives_a_prefix_and_a_larger_one_the_whole_pool(
    world: World, notes: Scope
) -> None:
    world.put(world.add_item(notes, "a.md"), *(f"sentence {n}" for n in range(12)))

    lists = [[c.chunk_id for c in world.nearest(notes, "question", k)] for k in range(1, 51)]

    assert all(len(found) == min(k, 12) for k, found in enumerate(lists, start=1))
    assert all(shorter == longer[: len(shorter)] for shorter, longer in itertools.pairwise(lists))


def test_a_small_tenant_beside_a_large_one_gets_all_it_has(world: World, notes: Scope) -> None:
    crowd = world.add_scope("globex", "shop", "catalogue")
    near = vector_of("question", DIMENSIONS)
    world.put(
        world.add_item(crowd, "crowd.md"),
        *(f"crowd {n}" for n in range(2000)),
        vectors=[near] * 2000,
    )
    far = [-near] * 10
    world.put(world.add_item(notes, "a.md"), *(f"mine {n}" for n in range(10)), vectors=far)

    found = world.nearest(notes, "question", 6)

    assert len(found) == 6
    assert all(chunk.content.startswith("mine") for chunk in found)


def test_only_what_the_scope_names_is_seen(world: World) -> None:
    site = world.add_scope("acme", "site", "notes", "blog")
    notes, blog = (only(site, database_id) for database_id in site.knowledge_database_ids)
    app = world.add_scope("acme", "app", "notes")
    foreign = world.add_scope("globex", "site", "notes")
    for scope in (notes, blog, app, foreign):
        world.put(world.add_item(scope, "a.md"), f"text of {scope}", name="Same Name")

    for scope in (notes, blog, app, foreign):
        assert world.texts(scope) == {f"text of {scope}"}
        assert len(world.store.named(scope, world.generation, ["Same Name"])) == 1
    assert world.texts(site) == {f"text of {notes}", f"text of {blog}"}


@pytest.mark.parametrize("field", ["account_id", "project_id"])
def test_an_id_of_another_tenant_in_the_scope_finds_nothing(world: World, field: str) -> None:
    mine = world.add_scope("acme", "site", "notes")
    foreign = world.add_scope("globex", "shop", "notes")
    for scope in (mine, foreign):
        world.put(world.add_item(scope, "a.md"), "secret", name="Same Name")

    crossed = replace(foreign, **{field: getattr(mine, field)})

    assert world.texts(crossed) == set()
    assert world.store.named(crossed, world.generation, ["Same Name"]) == []
    hashes = [version_of(Place(mine, 1, 1, "x"), ["secret"]).chunks[0].embed_hash]
    if field == "project_id":  # vectors are reused within the account
        assert set(world.store.vectors_for(crossed, world.generation, hashes)) == set(hashes)


def test_a_scope_without_databases_sees_and_changes_nothing(world: World, notes: Scope) -> None:
    place = world.add_item(notes, "a.md")
    world.put(place, "text", name="Note")
    nothing = replace(notes, knowledge_database_ids=())

    assert world.texts(nothing) == set()
    assert world.store.named(nothing, world.generation, ["Note"]) == []
    assert world.store.delete_items(nothing, [place.item_id]) == 0
    with pytest.raises(NotFound):
        world.store.replace_items(nothing, world.generation, [version_of(place, ["other"])])
    assert world.texts(notes) == {"text"}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(), {"a", "b", "c"}),
        (Filters(kind="text"), {"a", "b"}),
        (Filters(origin="scraped"), {"b", "c"}),
        (Filters(labels=("de",)), {"a", "b"}),
        (Filters(labels=("de", "persona")), {"b"}),
        (Filters(item_names=("Alpha", "Gamma")), {"a", "c"}),
        (Filters(kind="text", origin="scraped", labels=("de",), item_names=("Beta",)), {"b"}),
        (Filters(item_names=("alpha",)), set()),
        (Filters(labels=("d",)), set()),
        (Filters(labels=("x' OR '1'='1",)), set()),
        (Filters(labels=('"] || true',)), set()),
        (Filters(labels=("%",)), set()),
        (Filters(item_names=("Alpha'; DROP TABLE chunks; --",)), set()),
        (Filters(kind="%"), set()),
    ],
)
def test_filters_narrow_and_their_values_are_only_values(
    world: World, notes: Scope, filters: Filters, expected: set[str]
) -> None:
    world.put(world.add_item(notes, "a.md"), "a", name="Alpha", labels=["de"])
    world.put(
        world.add_item(notes, "b.md"), "b", name="Beta", origin="scraped", labels=["persona", "de"]
    )
    world.put(world.add_item(notes, "c.html"), "c", name="Gamma", origin="scraped", kind="html")

    assert world.texts(notes, filters) == expected


def test_named_gives_all_chunks_of_all_items_of_the_name_in_order(
    world: World, notes: Scope
) -> None:
    world.put(world.add_item(notes, "z.md"), "z0", "z1", name="Profile")
    world.put(world.add_item(notes, "a.md"), "a0", "a1", name="Profile")
    world.put(world.add_item(notes, "b.md"), "b0", name="Other")

    found = world.store.named(notes, world.generation, ["Profile", "Nobody"])

    assert [chunk.content for chunk in found] == ["a0", "a1", "z0", "z1"]
    assert {chunk.score for chunk in found} == {None}


def test_named_scores_by_a_vector_and_keeps_to_a_kind(world: World, notes: Scope) -> None:
    world.put(world.add_item(notes, "a.md"), "a0", name="Profile")
    world.put(world.add_item(notes, "b.pdf"), "b0", name="Profile", kind="pdf")

    found = world.store.named(
        notes, world.generation, ["Profile"], kind="text", vector=vector_of("a0", DIMENSIONS)
    )

    assert [chunk.content for chunk in found] == ["a0"]
    assert found[0].score == pytest.approx(1.0)


def test_whole_items_come_in_path_order_each_with_what_all_of_it_is(
    world: World, notes: Scope
) -> None:
    texts = {"b.md": ("Second.", "Its end."), "a/deep.md": ("First.",), "c.md": ("Third 🚲.",)}
    for path, content in texts.items():
        world.put(world.add_item(notes, path), *content, name=path, labels=["x"])

    items = world.store.whole_items(notes, world.generation, limit=10, max_chars=9)

    assert [(item.file, item.chunk_index, item.score) for item in items] == [
        (path, None, None) for path in ("a/deep.md", "b.md", "c.md")
    ]
    assert [item.content for item in items] == ["First.", "Second.\n\n", "Third 🚲."]
    whole = "Second.\n\nIts end."
    assert (items[1].char_start, items[1].char_end) == (0, len(whole))
    assert items[1].content_hash == sha256(whole.encode()).hexdigest()
    first, rest = items[0], items[1:]
    behind = world.store.whole_items(notes, world.generation, after=first, limit=10, max_chars=9)
    assert behind == rest
    assert world.store.whole_items(notes, world.generation, limit=1, max_chars=9) == [first]


def test_whole_items_keep_to_scope_and_filters(world: World) -> None:
    scope = world.add_scope("acme", "site", "notes", "blog")
    foreign = world.add_scope("globex", "shop", "plans")
    for place, about in (
        (only(scope, scope.knowledge_database_ids[0]), {"name": "A", "labels": ["x"]}),
        (only(scope, scope.knowledge_database_ids[1]), {"name": "B", "origin": "scraped"}),
        (foreign, {"name": "A"}),
    ):
        world.put(world.add_item(place, "a.md"), "text", **about)

    def names(scope: Scope, **filters: object) -> list[str]:
        found = world.store.whole_items(
            scope,
            world.generation,
            Filters(**filters),
            limit=10,
            max_chars=9,  # type: ignore[arg-type]
        )
        return [item.item_name for item in found]

    assert names(scope) == ["A", "B"]
    assert names(replace(scope, knowledge_database_ids=())) == []
    assert names(only(foreign, scope.knowledge_database_ids[0])) == []
    assert names(scope, origin="scraped") == ["B"]
    assert names(scope, labels=("x",)) == ["A"]
    assert names(scope, item_names=("B", "C")) == ["B"]
    assert names(scope, kind="csv") == []


def test_a_shorter_version_leaves_nothing_of_the_longer_one(world: World, notes: Scope) -> None:
    place = world.add_item(notes, "a.md")
    world.put(place, *(f"section {n}" for n in range(10)), name="Old")
    world.put(place, "section 0", name="New")

    found = world.nearest(notes, "section 9")

    assert [(chunk.content, chunk.chunk_index, chunk.item_name) for chunk in found] == [
        ("section 0", 0, "New")
    ]


def test_a_version_without_chunks_serves_nothing(world: World, notes: Scope) -> None:
    place = world.add_item(notes, "a.md")
    world.put(place, "text")

    assert world.put(place, kind="pdf") == set()

    assert world.texts(notes) == set()


def test_an_older_revision_is_superseded_and_writes_nothing(world: World, notes: Scope) -> None:
    late, fine = world.add_item(notes, "late.md"), world.add_item(notes, "fine.md")
    world.put(late, "new", revision=2_000_005)

    superseded = world.store.replace_items(
        notes,
        world.generation,
        [version_of(late, ["old"], revision=2_000_004), version_of(fine, ["other"])],
    )

    assert superseded == {late.item_id}
    assert world.texts(notes) == {"new", "other"}


def test_the_same_revision_may_be_written_again(world: World, notes: Scope) -> None:
    place = world.add_item(notes, "a.md")

    for _ in range(2):
        assert world.put(place, "text", revision=2_000_005) == set()

    assert world.texts(notes) == {"text"}


def test_a_deletion_wins_over_a_run_that_began_before_it(world: World, notes: Scope) -> None:
    place = world.add_item(notes, "a.md")
    world.put(place, "one", "two", revision=2_000_005)

    assert world.store.delete_items(notes, [place.item_id]) == 2
    assert world.put(place, "one", "two", revision=2_000_005) == {place.item_id}

    assert world.texts(notes) == set()
    assert world.store.delete_items(notes, [place.item_id]) == 0


def test_deleting_touches_nothing_outside_the_scope(world: World, notes: Scope) -> None:
    foreign = world.add_scope("globex", "shop", "notes")
    place = world.add_item(foreign, "a.md")
    world.put(place, "theirs")

    assert world.store.delete_items(notes, [place.item_id]) == 0

    assert world.texts(foreign) == {"theirs"}
    assert world.put(place, "still theirs") == set()


def test_a_wrong_width_anywhere_writes_nothing_at_all(world: World, notes: Scope) -> None:
    good, bad = world.add_item(notes, "good.md"), world.add_item(notes, "bad.md")
    versions = [
        version_of(good, ["good"]),
        version_of(bad, ["fine", "narrow"], vectors=[[1.0] * DIMENSIONS, [1.0] * 3]),
    ]

    with pytest.raises(WrongDimension, match=f"3 numbers .* stores {DIMENSIONS}"):
        world.store.replace_items(notes, world.generation, versions)

    assert world.texts(notes) == set()


def test_a_question_of_another_width_is_refused(world: World, notes: Scope) -> None:
    world.put(world.add_item(notes, "a.md"), "text", name="Note")

    with pytest.raises(WrongDimension):
        world.store.nearest(notes, world.generation, [1.0] * 3, 5)
    with pytest.raises(WrongDimension):
        world.store.named(notes, world.generation, ["Note"], vector=[1.0] * 3)


def test_an_item_outside_the_scope_cannot_be_written(world: World, notes: Scope) -> None:
    foreign = world.add_scope("globex", "shop", "notes")
    mine, theirs = world.add_item(notes, "a.md"), world.add_item(foreign, "a.md")

    with pytest.raises(NotFound):
        world.store.replace_items(
            notes, world.generation, [version_of(mine, ["mine"]), version_of(theirs, ["theirs"])]
        )

    assert world.texts(notes) == world.texts(foreign) == set()


def _hashes(*texts: str) -> list[bytes]:
    place = Place(Scope(1, 1, (1,)), 1, 1, "a.md")
    return [chunk.embed_hash for chunk in version_of(place, texts).chunks]


def test_vectors_that_were_paid_for_are_found_wherever_their_text_went(
    world: World, notes: Scope
) -> None:
    place, gone = world.add_item(notes, "a.md"), world.add_item(notes, "gone.md")
    world.put(place, "kept", "replaced")
    world.put(place, "kept", "new")
    world.put(gone, "deleted")
    world.store.delete_items(notes, [gone.item_id])
    served, replaced, new, deleted, unknown = _hashes("kept", "replaced", "new", "deleted", "?")

    found = world.store.vectors_for(
        notes, world.generation, [served, replaced, new, deleted, unknown]
    )

    assert set(found) == {served, replaced, new, deleted}
    for embed_hash, text in ((served, "kept"), (replaced, "replaced"), (deleted, "deleted")):
        np.testing.assert_array_equal(found[embed_hash], vector_of(text, DIMENSIONS))


def test_vectors_of_another_account_model_or_width_are_never_found(
    world: World, notes: Scope
) -> None:
    world.put(world.add_item(notes, "a.md"), "served")
    (served, kept) = _hashes("served", "kept")
    world.store.keep_vectors(notes, world.generation, {kept: vector_of("kept", DIMENSIONS)})
    foreign = world.add_scope("globex", "shop", "notes")
    others = [
        replace(world.generation, model="text-embedding-3-large"),
        replace(world.generation, embedder="local"),
        replace(world.generation, dimensions=8),
    ]

    assert set(world.store.vectors_for(notes, world.generation, [served, kept])) == {served, kept}
    assert world.store.vectors_for(foreign, world.generation, [served, kept]) == {}
    for other in others:
        assert kept not in world.store.vectors_for(notes, other, [served, kept])


def test_kept_vectors_survive_and_a_wrong_width_is_not_kept(world: World, notes: Scope) -> None:
    first, second = _hashes("first", "second")
    world.store.keep_vectors(notes, world.generation, {first: vector_of("first", DIMENSIONS)})
    world.store.keep_vectors(notes, world.generation, {first: vector_of("first", DIMENSIONS)})

    with pytest.raises(WrongDimension):
        world.store.keep_vectors(notes, world.generation, {second: np.ones(3, dtype=np.float32)})

    assert set(world.store.vectors_for(notes, world.generation, [first, second])) == {first}


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    noise=st.lists(
        st.tuples(st.sampled_from(["put", "shrink", "delete"]), st.integers(0, 3)), max_size=6
    )
)
def test_what_others_do_never_changes_my_hits_order_or_scores(
    memory_world: World, noise: Sequence[tuple[str, int]]
) -> None:
    _check_noise(memory_world, noise)


@pytest.mark.parametrize("seed", range(3))
def test_what_others_do_never_changes_my_hits_in_the_database(pg_world: World, seed: int) -> None:
    actions = ["put", "shrink", "delete"]
    _check_noise(pg_world, [(actions[(n + seed) % 3], n % 4) for n in range(6)])


def _check_noise(world: World, noise: Sequence[tuple[str, int]]) -> None:
    mine = world.add_scope("acme", "site", f"mine {next(_NAMES)}")
    world.put(world.add_item(mine, "a.md"), "one", "two", "three")
    foreign = world.add_scope("globex", "shop", f"theirs {next(_NAMES)}")
    places = [world.add_item(foreign, f"{n}.md") for n in range(4)]
    before = world.nearest(mine, "question")

    for action, n in noise:
        if action == "delete":
            world.store.delete_items(foreign, [places[n].item_id])
        else:
            world.put(places[n], *["question"] * (9 if action == "put" else 1))

    assert world.nearest(mine, "question") == before


_NAMES = itertools.count(1)


# The database alone ----------------------------------------------------------------------------


def test_the_reader_can_search_and_cannot_write(
    pg_world: World, reader: Database, writer: Database
) -> None:
    notes = pg_world.add_scope("acme", "site", "notes")
    place = pg_world.add_item(notes, "a.md")
    pg_world.put(place, "text", name="Note")
    readers_world = replace(pg_world, store=PgVectorStore(reader))

    assert readers_world.texts(notes) == {"text"}
    assert len(readers_world.store.named(notes, pg_world.generation, ["Note"])) == 1
    with pytest.raises(Exception, match="permission denied"):
        readers_world.put(place, "other")


def test_an_unknown_project_has_no_generation(pg_world: World) -> None:
    notes = pg_world.add_scope("acme", "site", "notes")
    foreign = pg_world.add_scope("globex", "shop", "notes")

    assert pg_world.store.served_generation(notes) == pg_world.generation
    with pytest.raises(NotFound):
        pg_world.store.served_generation(replace(notes, project_id=foreign.project_id))


def test_a_damaged_kept_vector_counts_as_absent(pg_world: World, writer: Database) -> None:
    notes = pg_world.add_scope("acme", "site", "notes")
    good, flipped, cut = _hashes("good", "flipped", "cut")
    vectors = {h: vector_of("any", DIMENSIONS) for h in (good, flipped, cut)}
    pg_world.store.keep_vectors(notes, pg_world.generation, vectors)
    with writer.transaction() as conn:
        conn.execute(
            "UPDATE reusable_vectors SET embedding = set_byte(embedding, 9,"
            " get_byte(embedding, 9) # 1) WHERE embed_hash = %s",
            (flipped,),
        )
        conn.execute(
            "UPDATE reusable_vectors SET embedding = substr(embedding, 1, 20)"
            " WHERE embed_hash = %s",
            (cut,),
        )

    assert set(pg_world.store.vectors_for(notes, pg_world.generation, list(vectors))) == {good}


def test_vectors_wider_than_2000_are_searched_in_half_precision(
    pg_world: World, writer: Database
) -> None:
    notes = pg_world.add_scope("acme", "site", "notes")
    with writer.transaction() as conn:
        row = conn.execute(
            "SELECT create_generation('openai', 'wide', 3072, 512, 64, 0, 'cl100k_base', 1, 1,"
            " false)"
        ).fetchone()
        assert row is not None
        conn.execute("UPDATE projects SET served_generation_id = %s", (row[0],))
        wide = generations.served_generation(conn, notes)
    texts = ["one", "two"]
    version = version_of(
        pg_world.add_item(notes, "a.md"), texts, vectors=[vector_of(t, 3072) for t in texts]
    )
    pg_world.store.replace_items(notes, wide, [version])

    found = pg_world.store.nearest(notes, wide, vector_of("two", 3072), 2)

    assert [chunk.content for chunk in found] == ["two", "one"]
    assert found[0].score == pytest.approx(1.0, abs=1e-3)


def test_a_reader_sees_the_old_version_or_the_new_one_and_never_a_mixture(
    pg_world: World, reader: Database
) -> None:
    notes = pg_world.add_scope("acme", "site", "notes")
    place = pg_world.add_item(notes, "a.md")
    versions = [[f"{letter}{n}" for n in range(size)] for letter, size in (("a", 7), ("b", 3))]
    pg_world.put(place, *versions[0])
    readers_world = replace(pg_world, store=PgVectorStore(reader))
    seen: list[set[str]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append(readers_world.texts(notes))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for turn in range(1, 41):
            pg_world.put(place, *versions[turn % 2])
    finally:
        stop.set()
        thread.join()

    assert len(seen) > 5
    assert all(texts in (set(versions[0]), set(versions[1])) for texts in seen)


# What ranking reads


def with_passages(version: ItemVersion) -> ItemVersion:
    """The version with two passages for each chunk; the second has a vector of its own."""
    chunks = []
    for one in version.chunks:
        start, end = one.chunk.char_start, one.chunk.char_end
        middle = (start + end) // 2
        first = SearchedPassage(start, middle, None, b"\1\0\0\0\2\0\0\0", 1)
        second = SearchedPassage(middle, end, (start, middle), b"\3\0\0\0", 0)
        text = version.text[middle:end]
        own = EmbeddedPassage(
            second, sha256(f"passage {text}".encode()).digest(), vector_of(text, DIMENSIONS)
        )
        chunks.append(replace(one, passages=(EmbeddedPassage(first), own)))
    return replace(version, chunks=tuple(chunks))


def put_with_passages(world: World, place: Place, *texts: str) -> ItemVersion:
    version = with_passages(version_of(place, texts))
    world.store.replace_items(place.scope, world.generation, [version])
    return version


def pool_of(world: World, scope: Scope, text: str = "x", **filters: Any) -> ChunkPool:
    vector = vector_of(text, DIMENSIONS)
    return world.store.pool(scope, world.generation, vector, Filters(**filters))


def test_the_pool_is_every_allowed_chunk_by_ascending_id_with_its_cosine(world: World) -> None:
    scope = world.add_scope("acme", "site", "one", "two")
    here, there = only(scope, scope.knowledge_database_ids[0]), scope
    first = world.add_item(here, "a.md")
    second = world.add_item(only(scope, scope.knowledge_database_ids[1]), "b.md")
    world.put(second, "Far away.", origin="scraped")
    world.put(first, "Near by.", "Next door.")

    pool = pool_of(world, there, "Near by.")
    near = {c.chunk_id: c.score for c in world.nearest(there, "Near by.")}

    assert pool.chunk_ids.tolist() == sorted(near)
    assert pool.cosines == pytest.approx([near[one] for one in sorted(near)])
    assert sorted(pool.item_ids.tolist()) == [first.item_id, first.item_id, second.item_id]
    assert len(pool_of(world, here).chunk_ids) == 2
    assert len(pool_of(world, there, origin="scraped").chunk_ids) == 1
    assert len(pool_of(world, replace(scope, knowledge_database_ids=())).chunk_ids) == 0


def test_passages_come_in_the_order_of_chunks_and_text(world: World) -> None:
    scope = world.add_scope("acme", "site", "one")
    put_with_passages(world, world.add_item(scope, "a.md"), "Near by.", "Next door.")
    ids = pool_of(world, scope).chunk_ids

    passages = world.store.passages(scope, world.generation, ids.tolist())

    assert passages.chunk_ids.tolist() == ids.tolist()
    assert passages.counts.tolist() == [2, 2]
    assert passages.spans.tolist() == [[0, 4], [4, 8], [10, 15], [15, 20]]
    assert passages.heads.tolist() == [[0, 0], [0, 4], [0, 0], [10, 15]]
    assert passages.sizes.tolist() == [2, 1, 2, 1]
    assert passages.own_from.tolist() == [1, 0, 1, 0]
    assert passages.lexemes.tolist() == [1, 2, 3, 1, 2, 3]


def test_a_chunk_of_unknown_passages_counts_as_one_without_words(world: World) -> None:
    scope = world.add_scope("acme", "site", "one")
    put_with_passages(world, world.add_item(scope, "a.md"), "Near by.")
    world.put(world.add_item(scope, "b.md"), "Old one.", "Older.")
    ids = pool_of(world, scope).chunk_ids

    passages = world.store.passages(scope, world.generation, ids.tolist())

    assert passages.counts.tolist() == [2, 1, 1]
    assert passages.spans.tolist()[2:] == [[0, 8], [10, 16]]
    assert passages.sizes.tolist() == [2, 1, 0, 0]


def test_only_passages_with_a_vector_have_a_cosine(world: World) -> None:
    scope = world.add_scope("acme", "site", "one")
    put_with_passages(world, world.add_item(scope, "a.md"), "Near by.")
    (chunk_id,) = pool_of(world, scope).chunk_ids.tolist()
    vector = vector_of(" by.", DIMENSIONS)

    found = world.store.passage_cosines(scope, world.generation, vector, [chunk_id])

    assert (found.chunk_ids.tolist(), found.indexes.tolist()) == ([chunk_id], [1])
    assert found.cosines == pytest.approx([1.0], abs=1e-3)


def test_chunks_come_by_id_and_never_from_outside_the_scope(world: World) -> None:
    ours, theirs = world.add_scope("acme", "site", "one"), world.add_scope("blix", "site", "one")
    world.put(world.add_item(ours, "a.md"), "Ours.")
    put_with_passages(world, world.add_item(theirs, "a.md"), "Theirs.")
    vector = vector_of("Ours.", DIMENSIONS)
    ids = [*pool_of(world, ours).chunk_ids.tolist(), *pool_of(world, theirs).chunk_ids.tolist()]

    chunks = world.store.chunks(ours, world.generation, vector, ids)
    passages = world.store.passages(ours, world.generation, ids)
    cosines = world.store.passage_cosines(ours, world.generation, vector, ids)

    assert [(chunk.content, chunk.score) for chunk in chunks] == [("Ours.", pytest.approx(1.0))]
    assert passages.chunk_ids.tolist() == [chunks[0].chunk_id]
    assert len(cosines.cosines) == 0


def test_a_swapped_chunk_gets_a_new_id_and_its_passages_go_with_it(world: World) -> None:
    scope = world.add_scope("acme", "site", "one")
    place = world.add_item(scope, "a.md")
    before = put_with_passages(world, place, "Near by.")
    old = pool_of(world, scope).chunk_ids.tolist()
    world.put(place, "Near by.")

    kept = before.chunks[0].passages[1].embed_hash
    assert kept is not None

    assert pool_of(world, scope).chunk_ids.tolist() != old
    assert len(world.store.passages(scope, world.generation, old).chunk_ids) == 0
    assert set(world.store.vectors_for(scope, world.generation, [kept])) == {kept}


def test_a_passage_of_the_wrong_width_is_refused_before_anything_is_written(world: World) -> None:
    scope = world.add_scope("acme", "site", "one")
    place = world.add_item(scope, "a.md")
    version = with_passages(version_of(place, ["Near by."]))
    (chunk,) = version.chunks
    narrow = replace(chunk.passages[1], embedding=[1.0])
    wrong = replace(version, chunks=(replace(chunk, passages=(narrow,)),))

    with pytest.raises(WrongDimension):
        world.store.replace_items(scope, world.generation, [wrong])
    assert len(pool_of(world, scope).chunk_ids) == 0
