"""Passages from file to table: bought once, reused, swapped with their chunks, gone with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from embedding_server import vector_of
from workshop import Workshop, open_workshop

from kshift_knowledge.consistency import assert_consistent, find_inconsistencies
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.records import Scope

FACTS = ("The shop opens at nine.", "A helmet costs four euros.", "Rain is no reason to refund.")


def text_of(*facts: str) -> str:
    """One chunk of one passage for each fact: a sentence and as much again."""
    return "\n\n".join(f"{fact} Nobody in the office has ever doubted that." for fact in facts)


@pytest.fixture
def workshop(tmp_path: Path, writer: Database) -> Iterator[Workshop]:
    with open_workshop(tmp_path / "tree", writer, passage_tokens=16) as opened:
        yield opened


@pytest.fixture
def wordy(tmp_path: Path, writer: Database) -> Iterator[Workshop]:
    """A workshop whose passages have no vectors."""
    with open_workshop(tmp_path / "tree", writer) as opened:
        yield opened


def scope_of(workshop: Workshop) -> Scope:
    ((account, project, database),) = workshop.query(
        "SELECT account_id, project_id, knowledge_database_id FROM knowledge_databases"
    )
    return Scope(account, project, (database,))


def test_passages_are_bought_with_their_chunk_and_hold_its_visible_text(
    workshop: Workshop,
) -> None:
    text = text_of(*FACTS)
    workshop.write("a.md", text)

    done = workshop.index()

    scope = scope_of(workshop)
    ids = [row[0] for row in workshop.query("SELECT chunk_id FROM knowledge_chunks ORDER BY 1")]
    passages = workshop.store.passages(scope, workshop.generation, ids)
    pieces = [text[start:end] for start, end in passages.spans.tolist()]
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert (done.figures.chunks_embedded, done.figures.passages_embedded) == (1, len(set(pieces)))
    assert len(pieces) > 1
    for piece in pieces:
        vector = vector_of(piece, workshop.generation.dimensions)
        cosines = workshop.store.passage_cosines(scope, workshop.generation, vector, ids)
        assert pieces[int(cosines.indexes[np.argmax(cosines.cosines)])] == piece
    assert_consistent(workshop.database, workshop.root)


def test_a_passage_that_stays_is_not_paid_for_again(workshop: Workshop) -> None:
    workshop.write("a.md", text_of(*FACTS))
    before = workshop.index().figures
    workshop.forget_requests()
    workshop.write("a.md", text_of(*FACTS, "One more."))

    after = workshop.index().figures

    assert 0 < after.passages_embedded < before.passages_embedded
    assert len(workshop.server.texts) == after.chunks_embedded + after.passages_embedded
    assert_consistent(workshop.database, workshop.root)


def test_a_restored_item_pays_for_no_passage(workshop: Workshop) -> None:
    path = workshop.write("a.md", text_of(*FACTS))
    workshop.write("b.md", "It stays.")
    workshop.index()
    rows = workshop.query("SELECT passage_index, embed_hash FROM passage_vectors_g1 ORDER BY 1")
    path.unlink()
    workshop.index()
    gone = workshop.query("SELECT count(*) FROM passage_vectors_g1")
    workshop.forget_requests()
    workshop.write("a.md", text_of(*FACTS))

    workshop.index()

    assert gone == [(0,)]
    assert workshop.server.texts == []
    assert rows == workshop.query(
        "SELECT passage_index, embed_hash FROM passage_vectors_g1 ORDER BY 1"
    )


def test_the_vector_of_a_passage_is_never_served_for_a_chunk(workshop: Workshop) -> None:
    workshop.write("a.md", text_of(*FACTS))
    workshop.index()
    workshop.forget_requests()
    piece = workshop.query(
        "SELECT substr(content, 1, position('.' in content)) FROM knowledge_chunks"
    )[0][0]
    workshop.write("b.md", piece)

    done = workshop.index()

    assert done.figures.chunks_embedded == 1
    assert workshop.server.texts == [piece]


def test_a_chunk_of_one_passage_buys_one_vector(workshop: Workshop) -> None:
    workshop.write("a.md", "Short.")

    done = workshop.index()

    assert (done.figures.chunks_embedded, done.figures.passages_embedded) == (1, 0)
    assert workshop.server.texts == ["Short."]


def test_without_passage_vectors_passages_have_words_all_the_same(wordy: Workshop) -> None:
    wordy.write("a.md", text_of(*FACTS) * 4)

    done = wordy.index()

    ids = [row[0] for row in wordy.query("SELECT chunk_id FROM knowledge_chunks")]
    passages = wordy.store.passages(scope_of(wordy), wordy.generation, ids)
    assert done.figures.passages_embedded == 0
    assert wordy.query("SELECT count(*) FROM passage_vectors_g1") == [(0,)]
    assert (passages.sizes > passages.own_from).all()
    assert_consistent(wordy.database, wordy.root)


@pytest.mark.parametrize(
    ("damage", "oracle"),
    [
        ("UPDATE chunk_vectors_g1 SET places = places || places", "I1"),
        ("UPDATE chunk_vectors_g1 SET lexemes = '\\x00000000'", "I1"),
        ("DELETE FROM passage_vectors_g1 WHERE passage_index = 0", "I5"),
        ("UPDATE passage_vectors_g1 SET account_id = account_id + 1", "I5"),
        ("UPDATE passage_vectors_g1 SET embedding = array_fill(0, ARRAY[16])::halfvec", "I5"),
    ],
)
def test_damaged_passages_are_found(workshop: Workshop, damage: str, oracle: str) -> None:
    workshop.write("a.md", text_of(*FACTS))
    workshop.index()
    workshop.query(f"{damage} RETURNING 1")

    found = find_inconsistencies(workshop.database, workshop.root)

    assert oracle in {one.oracle for one in found}


def test_a_chunk_without_places_counts_as_one_passage_until_it_is_indexed_again(
    workshop: Workshop,
) -> None:
    text = text_of(*FACTS)
    workshop.write("a.md", text)
    workshop.write("b.md", text_of("Bikes are red.", "Locks are black."))
    workshop.index()
    (old,) = workshop.query(
        "UPDATE chunk_vectors_g1 SET places = NULL, lexemes = NULL WHERE chunk_id ="
        " (SELECT min(chunk_id) FROM chunk_vectors_g1) RETURNING chunk_id"
    )
    ids = [row[0] for row in workshop.query("SELECT chunk_id FROM knowledge_chunks ORDER BY 1")]

    passages = workshop.store.passages(scope_of(workshop), workshop.generation, ids)

    place = passages.chunk_ids.tolist().index(old[0])
    (span,) = workshop.query("SELECT char_start, char_end FROM chunks WHERE chunk_id = %s", old[0])
    first = int(passages.counts[:place].sum())
    assert passages.counts[place] == 1
    assert tuple(passages.spans[first].tolist()) == span
    assert passages.sizes[first] == 0
