"""Faults of indexing, in one process against a real database: each ends in a true index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedding_server import Fault
from oracles import assert_true, embed
from workshop import Workshop, open_workshop, sections

from kshift_knowledge.consistency import find_inconsistencies
from kshift_knowledge.failpoints import FailpointReached, armed
from kshift_knowledge.postgres.database import Database

LATE_S, EARLY_S = 4_102_444_800, 0  # mtimes in 2100 and in 1970


@pytest.fixture
def workshop(tmp_path: Path, writer: Database) -> Iterator[Workshop]:
    with open_workshop(tmp_path / "tree", writer) as opened:
        yield opened


def test_a_kept_vector_whose_bytes_flipped_is_paid_again_and_made_whole(
    workshop: Workshop,
) -> None:
    text = sections(*(f"s{number}" for number in range(100)))  # two requests
    path = workshop.write("a.md", text)
    workshop.index()
    path.unlink()
    workshop.index()
    damaged = workshop.query(
        "UPDATE reusable_vectors SET embedding = set_byte(embedding, 9,"
        " get_byte(embedding, 9) # 255) RETURNING 1"
    )
    workshop.forget_requests()
    workshop.write("a.md", text)

    with armed("batch_kept"), pytest.raises(FailpointReached):
        workshop.index()
    before_the_crash = len(workshop.server.texts)
    workshop.index()

    assert 0 < before_the_crash < len(damaged)
    assert len(workshop.server.texts) == len(damaged), "a damaged entry that is paid is replaced"
    assert_true(workshop)


def test_a_kept_vector_that_flipped_is_replaced_when_a_good_one_stops_being_served(
    workshop: Workshop,
) -> None:
    path = workshop.write("a.md", sections("alpha"))
    workshop.index()
    workshop.query(
        "INSERT INTO reusable_vectors (account_id, embedder, model, dimensions, embed_hash,"
        " embedding, checksum) SELECT account_id, 'openai', 'text-embedding-3-small', 16,"
        " embed_hash, '\\x00', '\\x00' FROM chunk_vectors_g1 RETURNING 1"
    )
    workshop.forget_requests()
    path.unlink()
    workshop.index()
    workshop.write("a.md", sections("alpha"))
    workshop.index()

    assert workshop.server.texts == []
    assert_true(workshop)


def test_a_look_forgets_nothing_that_a_run_made_whole_meanwhile(workshop: Workshop) -> None:
    workshop.write("a.md", sections("alpha", "beta"))
    workshop.index()
    workshop.query("DELETE FROM chunks WHERE chunk_index = 1 RETURNING 1")

    with armed("scan_looked", lambda: workshop.index_by_hand("a.md")):
        report = workshop.look()

    assert find_inconsistencies(workshop.database, workshop.root, embed=embed, at_rest=False) == []
    _, outcomes = workshop.run(report.batch_id)
    assert [outcome.status for outcome in outcomes] == ["unchanged"]
    assert_true(workshop)


def test_a_failure_that_may_pass_is_due_again_although_the_clock_was_set_back(
    workshop: Workshop,
) -> None:
    workshop.write("a.md", sections("alpha"))
    workshop.server.always(Fault(status=503))
    workshop.index()
    workshop.server.always(Fault())
    workshop.query(
        "UPDATE knowledge_database_items SET failed_at = now() + interval '1 day' RETURNING 1"
    )

    assert workshop.index().statuses == {"a.md": "indexed"}


@pytest.mark.parametrize("mtime_s", [EARLY_S, LATE_S])
def test_an_edit_counts_whatever_its_mtime_says(workshop: Workshop, mtime_s: int) -> None:
    path = workshop.write("a.md", sections("alpha"))
    workshop.index()
    workshop.write("a.md", sections("gamma"))
    os.utime(path, (mtime_s, mtime_s))

    assert workshop.index().statuses == {"a.md": "indexed"}
    assert "gamma0" in "".join(workshop.served("a.md"))
    assert_true(workshop)


def test_bytes_that_changed_behind_an_equal_size_and_mtime_are_found_by_a_full_look(
    workshop: Workshop,
) -> None:
    path = workshop.write("a.md", sections("alpha"))
    workshop.index()
    before = path.stat()
    path.write_text(sections("omega"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    # The ctime tells; a file system that keeps none is played by making the index forget it.
    workshop.query(
        "UPDATE knowledge_database_items SET seen_signature = %s RETURNING 1",
        ":".join(
            map(str, (before.st_size, before.st_mtime_ns, path.stat().st_ctime_ns, before.st_ino))
        ),
    )

    assert workshop.index().report.batch_id is None
    assert workshop.index(is_full=True).statuses == {"a.md": "indexed"}
    assert_true(workshop)
