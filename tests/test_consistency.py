"""The consistency check: silent over a true index, and every kind of damage is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from embedding_server import vector_of
from numpy.typing import ArrayLike
from workshop import DATABASE, DIMENSIONS, Workshop, open_workshop, sections

from kshift_knowledge.consistency import (
    Inconsistency,
    IndexInconsistent,
    assert_consistent,
    find_inconsistencies,
)
from kshift_knowledge.indexing.runs import stage_keys
from kshift_knowledge.postgres.database import Database


@pytest.fixture
def workshop(tmp_path: Path, writer: Database) -> Iterator[Workshop]:
    """Three good items of two accounts, one that is only registered, and one bad."""
    with open_workshop(tmp_path / "tree", writer, passage_tokens=24) as opened:
        opened.write("a.md", "---\nname: The A\nlabels: [x]\n---\n" + sections("alpha", "beta"))
        opened.write("deep/b.md", sections("gamma"))
        opened.write("c.md", sections("gamma"), "blix/site/notes")
        opened.write("plan.pdf", b"%PDF")
        opened.write("bad.md", b"\xff\xfe\x00")
        opened.index()
        yield opened


def add_and_delete(workshop: Workshop, path: str) -> None:
    """Leave an item that is gone."""
    file = workshop.write(path, sections("delta"))
    workshop.index()
    file.unlink()
    workshop.index()


def embed(texts: Sequence[str]) -> ArrayLike:
    return np.stack([vector_of(text, DIMENSIONS) for text in texts])


def found_in(workshop: Workshop, **options: object) -> list[Inconsistency]:
    options.setdefault("embed", embed)
    return find_inconsistencies(workshop.database, workshop.root, **options)  # type: ignore[arg-type]


def test_a_true_index_has_no_contradiction(workshop: Workshop) -> None:
    assert found_in(workshop) == []
    assert_consistent(workshop.database, workshop.root, embed=embed)


def test_a_true_index_stays_so_through_edits_renames_and_restores(workshop: Workshop) -> None:
    add_and_delete(workshop, "gone.md")
    workshop.path("a.md").rename(workshop.path("renamed.md"))
    workshop.write("deep/b.md", sections("epsilon", "gamma"))
    workshop.write("gone.md", sections("delta"))
    workshop.write("bad.md", "good now")
    workshop.write("plan.pdf", b"%PDF-2")
    workshop.write("c.md", "", "blix/site/notes")
    assert {one.oracle for one in found_in(workshop)} == {"I1", "I4"}

    workshop.index()

    assert found_in(workshop) == []


DAMAGE = {
    "a changed content": ("UPDATE chunks SET content = content || '!' WHERE chunk_index = 0", "I1"),
    "a moved offset": ("UPDATE chunks SET char_end = char_end + 1 WHERE chunk_index = 1", "I1"),
    "another file's citation": (
        "UPDATE chunks SET project_file_id = (SELECT max(project_file_id) FROM project_files)",
        "I1",
    ),
    "an old revision": ("UPDATE chunks SET revision = revision - 1 WHERE chunk_index = 0", "I1"),
    "a lost chunk": ("DELETE FROM chunks WHERE chunk_index = 0", "I3"),
    "a lost note": ("DELETE FROM indexed_items", "I1"),
    "a lost text": ("DELETE FROM item_texts", "I1"),
    "another text": ("UPDATE item_texts SET text = text || ' and more' WHERE text <> ''", "I1"),
    "other labels": ("UPDATE knowledge_database_items SET labels = '[\"y\"]'", "I1"),
    "another folder": ("UPDATE project_files SET path = path || '2'", "I1"),
    "a lost vector": ("DELETE FROM chunk_vectors_g1", "I5"),
    "a lost passage": ("DELETE FROM passage_vectors_g1 WHERE passage_index = 0", "I5"),
    "a zero passage": (
        "UPDATE passage_vectors_g1 SET embedding = array_fill(0, ARRAY[16])::halfvec",
        "I5",
    ),
    "another passage's vector": (
        "UPDATE passage_vectors_g1 p SET embedding = other.embedding FROM passage_vectors_g1 other"
        " WHERE p.chunk_id = other.chunk_id AND p.passage_index <> other.passage_index",
        "I5",
    ),
    "a zero vector": (
        "UPDATE chunk_vectors_g1 SET embedding = array_fill(0, ARRAY[16])::vector",
        "I5",
    ),
    "another tenant's vector": ("UPDATE chunk_vectors_g1 SET account_id = account_id + 1", "I5"),
    "another text's vector": ("UPDATE chunk_vectors_g1 SET embed_hash = '\\x00'", "I5"),
    "an item that is gone only by name": (
        "UPDATE knowledge_database_items SET state = 'gone' WHERE state = 'indexed'",
        "I4",
    ),
    "a failure without a remedy": (
        "UPDATE knowledge_database_items SET failure_hint = '' WHERE state = 'failed'",
        "I9",
    ),
}


@pytest.mark.parametrize(("statement", "oracle"), DAMAGE.values(), ids=DAMAGE)
def test_damage_in_the_tables_is_found(workshop: Workshop, statement: str, oracle: str) -> None:
    workshop.query(f"{statement} RETURNING 1")

    assert oracle in {one.oracle for one in found_in(workshop, at_rest=False)}


def test_two_vectors_in_each_others_place_are_found_by_embedding_again(workshop: Workshop) -> None:
    workshop.query(
        "UPDATE chunk_vectors_g1 v SET embedding = other.embedding FROM chunk_vectors_g1 other"
        " WHERE v.knowledge_database_item_id = other.knowledge_database_item_id"
        " AND v.chunk_id <> other.chunk_id RETURNING 1"
    )

    assert found_in(workshop, embed=None) == []
    assert {one.oracle for one in found_in(workshop)} == {"I5"}


def test_staged_rows_of_an_item_that_went_are_found(workshop: Workshop) -> None:
    add_and_delete(workshop, "gone.md")
    stage_keys(workshop.services, [f"{DATABASE}/a.md"], on_outcome=lambda outcome: None)
    assert found_in(workshop) == []
    workshop.query(
        "UPDATE staged_chunks SET knowledge_database_item_id = (SELECT"
        " knowledge_database_item_id FROM knowledge_database_items WHERE state = 'gone')"
        " RETURNING 1"
    )

    assert [(one.oracle, one.item) for one in found_in(workshop)] == [("I4", f"{DATABASE}/gone.md")]


def edit(workshop: Workshop) -> None:
    workshop.write("a.md", sections("edited"))


def add(workshop: Workshop) -> None:
    workshop.write("new.md", sections("new"))


def delete(workshop: Workshop) -> None:
    workshop.path("a.md").unlink()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (edit, ("I1", f"{DATABASE}/a.md")),
        (add, ("I1", f"{DATABASE}/new.md")),
        (delete, ("I4", f"{DATABASE}/a.md")),
    ],
)
def test_a_file_that_moved_on_counts_only_once_everything_is_at_rest(
    workshop: Workshop, change: Callable[[Workshop], None], expected: tuple[str, str]
) -> None:
    change(workshop)

    assert found_in(workshop, at_rest=False) == []
    assert expected in {(one.oracle, one.item) for one in found_in(workshop)}


def test_a_sample_rebuilds_so_many_items_and_the_same_ones_again(workshop: Workshop) -> None:
    workshop.query("UPDATE item_texts SET text = text || ' and more' WHERE text <> '' RETURNING 1")

    damaged = {one.item for one in found_in(workshop, at_rest=False)}
    sampled = [found_in(workshop, at_rest=False, sample=2, seed=7) for _ in range(2)]

    assert len(damaged) == 3
    assert len({one.item for one in sampled[0]}) <= 2
    assert sampled[0] == sampled[1]
    assert {one.item for seed in range(9) for one in found_in(workshop, sample=2, seed=seed)} == (
        damaged
    )


def test_the_error_names_the_items_and_quotes_no_text(workshop: Workshop) -> None:
    workshop.query("UPDATE chunks SET content = 'secret' || content RETURNING 1")

    with pytest.raises(IndexInconsistent) as raised:
        assert_consistent(workshop.database, workshop.root)

    assert f"{DATABASE}/a.md" in raised.value.message
    assert "secret" not in str(raised.value)
    workshop.index_by_hand("a.md", "deep/b.md")
    assert {one.item for one in found_in(workshop)} == {"blix/site/notes/c.md"}, "as the hint says"


def test_what_is_written_meanwhile_is_not_mixed_in(workshop: Workshop) -> None:
    def index_meanwhile(texts: Sequence[str]) -> ArrayLike:
        for name in ("a.md", "deep/b.md"):
            workshop.write(name, sections("meanwhile", name.replace("/", "-")))
        workshop.index()
        return embed(texts)

    assert found_in(workshop, embed=index_meanwhile, at_rest=False) == []
