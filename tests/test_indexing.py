"""The life of items, through a real database and real HTTP to an embedding server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedding_server import Fault, refused
from workshop import DATABASE, Workshop, open_workshop, sections

from kshift_knowledge.errors import Refused, WrongDimension
from kshift_knowledge.indexing.embedding_work import MAX_INPUTS
from kshift_knowledge.indexing.runs import index_batch, stage_keys
from kshift_knowledge.postgres import items
from kshift_knowledge.postgres.database import Database


@pytest.fixture
def workshop(tmp_path: Path, writer: Database) -> Iterator[Workshop]:
    with open_workshop(tmp_path / "tree", writer) as opened:
        yield opened


def test_a_new_item_is_served_with_all_its_text(workshop: Workshop) -> None:
    text = sections("alpha", "beta")
    workshop.write("a.md", text)

    done = workshop.index()

    assert done.statuses == {"a.md": "indexed"}
    assert "".join("".join(workshop.served("a.md")).split()) == "".join(text.split())
    assert workshop.item("a.md")["state"] == "indexed"


def test_nothing_changed_makes_no_batch_and_no_request(workshop: Workshop) -> None:
    workshop.write("a.md", sections("alpha"))
    workshop.index()
    workshop.forget_requests()

    again = workshop.index()

    assert (again.report.batch_id, again.report.unchanged) == (None, 1)
    assert workshop.server.requests == []


def test_a_touched_item_is_read_and_left_as_it_is(workshop: Workshop) -> None:
    path = workshop.write("a.md", sections("alpha"))
    workshop.index()
    before = workshop.query("SELECT chunk_id FROM knowledge_chunks ORDER BY 1")
    os.utime(path, ns=(1, 1))

    done = workshop.index()

    assert done.statuses == {"a.md": "unchanged"}
    assert workshop.query("SELECT chunk_id FROM knowledge_chunks ORDER BY 1") == before
    assert workshop.index().report.batch_id is None


def test_a_section_inserted_at_the_top_embeds_only_its_own_chunks(workshop: Workshop) -> None:
    names = [f"s{number}" for number in range(12)]
    workshop.write("a.md", sections(*names))
    before = workshop.index().figures
    workshop.forget_requests()
    workshop.write("a.md", sections("fresh", *names))

    after = workshop.index().figures

    assert before.chunks_embedded >= 12
    assert all("fresh0" in text for text in workshop.server.texts)
    assert after.chunks_embedded == len(workshop.server.texts) <= 2
    assert after.chunks_reused >= 12


def test_an_item_that_gets_shorter_leaves_no_old_chunk(workshop: Workshop) -> None:
    workshop.write("a.md", sections(*(f"s{number}" for number in range(10))))
    workshop.index()
    workshop.write("a.md", sections("s0", "s1"))
    workshop.index()

    text = "".join(workshop.served("a.md"))
    assert "s1" in text
    assert "s9" not in text
    counts = workshop.query("SELECT chunk_index FROM knowledge_chunks ORDER BY 1")
    assert counts == [(number,) for number in range(len(counts))]


def test_a_then_b_then_a_ends_at_a_and_pays_once_for_each(workshop: Workshop) -> None:
    for name in ("alpha", "beta", "alpha"):
        workshop.write("a.md", sections(name))
        workshop.index()

    assert "alpha0" in "".join(workshop.served("a.md"))
    assert len(workshop.server.texts) == len(set(workshop.server.texts))


def test_a_rename_keeps_the_ids_and_costs_nothing(workshop: Workshop) -> None:
    path = workshop.write("old-name.md", sections("alpha"))
    workshop.index()
    before = workshop.item("old-name.md")
    workshop.forget_requests()
    path.rename(path.with_name("new-name.md"))

    done = workshop.index()

    after = workshop.item("new-name.md")
    same = ("knowledge_database_item_id", "project_file_id")
    assert [after[column] for column in same] == [before[column] for column in same]
    assert (after["name"], done.report.deleted) == ("New Name", 0)
    assert workshop.server.requests == []
    assert workshop.query("SELECT count(*) FROM knowledge_database_items") == [(1,)]


def test_a_copy_under_another_name_is_another_item_and_costs_nothing(workshop: Workshop) -> None:
    workshop.write("a.md", sections("alpha"))
    workshop.index()
    workshop.forget_requests()
    workshop.write("b.md", sections("alpha"))

    done = workshop.index()

    assert (done.figures.chunks_embedded, workshop.server.requests) == (0, [])
    assert workshop.served("b.md") == workshop.served("a.md")


def test_a_deleted_item_is_gone_at_once_and_comes_back_with_its_ids(workshop: Workshop) -> None:
    path = workshop.write("a.md", sections("alpha"))
    workshop.write("b.md", sections("beta"))
    workshop.index()
    before = workshop.item("a.md")
    path.unlink()

    gone = workshop.index()
    row = workshop.item("a.md")

    assert (gone.report.deleted, workshop.served("a.md")) == (1, [])
    assert (row["state"], gone.report.living_keys) == ("gone", {f"{DATABASE}/b.md"})
    assert workshop.query("SELECT text FROM item_texts WHERE position('alpha' IN text) > 0") == []

    workshop.forget_requests()
    workshop.write("a.md", sections("alpha"))
    workshop.index()
    restored = workshop.item("a.md")

    assert restored["knowledge_database_item_id"] == before["knowledge_database_item_id"]
    assert "alpha0" in "".join(workshop.served("a.md"))
    assert workshop.server.requests == []


def test_a_bad_item_fails_alone_and_its_old_text_is_still_served(workshop: Workshop) -> None:
    for number in range(10):
        workshop.write(f"{number}.md", sections(f"first{number}"))
    workshop.index()
    for number in range(10):
        workshop.write(f"{number}.md", sections(f"second{number}"))
    workshop.write("7.md", b"caf\xe9 in latin-1")

    done = workshop.index()
    row = workshop.item("7.md")

    assert sorted(done.statuses.values()) == ["failed"] + ["indexed"] * 9
    assert (row["state"], row["failure_code"], row["failure_attempts"]) == (
        "failed",
        "not_utf8",
        1,
    )
    assert "first70" in "".join(workshop.served("7.md"))
    assert "second60" in "".join(workshop.served("6.md"))
    with workshop.database.transaction() as conn:
        (failure,) = items.failures(conn)
    assert failure.message and failure.hint

    assert workshop.index().report.batch_id is None, "the same bytes would fail again"
    workshop.write("7.md", sections("third7"))
    assert workshop.index().statuses == {"7.md": "indexed"}
    assert workshop.item("7.md")["failure_code"] is None


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"with\x00nul", "nul_in_text"),
        (b"\xed\xa0\xbd\xed\xb8\x80 surrogates", "not_utf8"),
        ("\u65e5\u672c".encode()[:-1], "not_utf8"),
        (b"\xff\xfea\x00\x00", "not_utf8"),
    ],
)
def test_undecodable_items_are_named_with_a_code(
    workshop: Workshop, content: bytes, code: str
) -> None:
    workshop.write("bad.md", content)
    workshop.write("good.md", sections("alpha"))

    done = workshop.index()

    assert done.statuses == {"bad.md": "failed", "good.md": "indexed"}
    assert workshop.item("bad.md")["failure_code"] == code


@pytest.mark.parametrize("text", ["", " \n\t\u00a0\u3000\n", "\ufeff"])
def test_an_item_without_text_has_no_chunk_and_asks_for_nothing(
    workshop: Workshop, text: str
) -> None:
    workshop.write("a.md", sections("alpha"))
    workshop.index()
    workshop.forget_requests()
    workshop.write("a.md", text)

    done = workshop.index()

    assert (done.statuses, workshop.served("a.md")) == ({"a.md": "indexed"}, [])
    assert workshop.server.requests == []
    assert workshop.index().report.batch_id is None


def test_other_kinds_are_registered_and_not_cut(workshop: Workshop) -> None:
    workshop.write("plan.pdf", b"%PDF-1.7 \xff\x00")
    workshop.write("board.md", "---\nkind: storyboard\n---\nScenes.\n")

    workshop.index()

    assert workshop.item("plan.pdf")["kind"] == "pdf"
    assert workshop.item("board.md")["kind"] == "storyboard"
    assert workshop.query("SELECT count(*) FROM knowledge_chunks") == [(0,)]
    assert workshop.index().report.batch_id is None


def test_twins_by_case_and_unicode_form_are_two_items(workshop: Workshop) -> None:
    for name in ("Note.md", "note.md", "caf\u00e9.md", "cafe\u0301.md"):
        workshop.write(name, sections(name.encode().hex()))

    done = workshop.index()

    assert len(done.statuses) == 4
    assert set(done.statuses.values()) == {"indexed"}
    assert workshop.index().report.batch_id is None


def test_rows_that_were_lost_come_back(workshop: Workshop) -> None:
    workshop.write("a.md", sections("alpha", "beta"))
    workshop.index()
    before = workshop.served("a.md")
    workshop.query("DELETE FROM chunks WHERE chunk_index = 1 RETURNING 1")

    done = workshop.index()

    assert done.statuses == {"a.md": "indexed"}
    assert workshop.served("a.md") == before


def test_a_file_that_changes_while_it_is_watched_waits_for_the_next_look(
    workshop: Workshop,
) -> None:
    path = workshop.write("a.md", "half of ")

    def still_writing(_: float) -> None:
        path.write_text("half of it and the rest")

    first = workshop.index(wait=still_writing)
    second = workshop.index()

    assert (first.report.batch_id, first.report.unsettled) == (None, (f"{DATABASE}/a.md",))
    assert second.statuses == {"a.md": "indexed"}
    assert workshop.served("a.md") == ["half of it and the rest"]


def test_a_file_that_changes_between_look_and_run_is_left_for_the_next_look(
    workshop: Workshop,
) -> None:
    workshop.write("a.md", sections("alpha"))
    report = workshop.look()
    workshop.write("a.md", sections("beta"))

    _, outcomes = workshop.run(report.batch_id)

    assert [outcome.status for outcome in outcomes] == ["unsettled"]
    assert workshop.index().statuses == {"a.md": "indexed"}
    assert "beta0" in "".join(workshop.served("a.md"))


def test_a_file_deleted_between_look_and_run_becomes_gone(workshop: Workshop) -> None:
    path = workshop.write("a.md", sections("alpha"))
    workshop.write("b.md", sections("beta"))
    report = workshop.look()
    path.unlink()

    _, outcomes = workshop.run(report.batch_id)
    after = workshop.index()

    assert {outcome.item.path: outcome.status for outcome in outcomes} == {
        "a.md": "gone",
        "b.md": "indexed",
    }
    assert after.report.deleted == 1
    assert workshop.item("a.md")["state"] == "gone"


def test_a_deletion_wins_over_a_run_that_ends_later(workshop: Workshop) -> None:
    path = workshop.write("a.md", sections("alpha"))
    report = workshop.look()

    def delete_now(fault: Fault) -> Fault:
        path.unlink()
        workshop.look(is_queued=lambda batch: True)
        return fault

    deleted: list[int] = []
    workshop.server.always(
        lambda request: Fault() if deleted or deleted.append(1) else delete_now(Fault())
    )
    _, outcomes = workshop.run(report.batch_id)

    assert [outcome.status for outcome in outcomes] == ["superseded"]
    assert (workshop.served("a.md"), workshop.item("a.md")["state"]) == ([], "gone")


def test_the_run_that_claimed_last_wins_whichever_ends_last(workshop: Workshop) -> None:
    workshop.write("a.md", sections("alpha"))
    report = workshop.look()
    newer: list[str] = []

    def claim_again(_: object) -> Fault:
        if not newer:
            newer.append("running")
            workshop.write("a.md", sections("beta"))
            newer.extend(outcome.status for outcome in workshop.index_by_hand("a.md"))
        return Fault()

    workshop.server.always(claim_again)
    _, outcomes = workshop.run(report.batch_id)

    assert (newer, [outcome.status for outcome in outcomes]) == (
        ["running", "indexed"],
        ["superseded"],
    )
    assert "beta0" in "".join(workshop.served("a.md"))


def test_an_item_can_be_indexed_by_hand_again_and_again_without_paying(
    workshop: Workshop,
) -> None:
    workshop.write("a.md", sections("alpha"))
    workshop.index()
    workshop.forget_requests()

    statuses = [workshop.index_by_hand("a.md")[0].status for _ in range(2)]

    assert statuses == ["indexed", "indexed"]
    assert workshop.server.requests == []


def test_staged_chunks_are_not_served_until_they_are_embedded(workshop: Workshop) -> None:
    workshop.write("a.md", sections("alpha"))
    workshop.index()
    workshop.write("a.md", sections("beta"))
    key = f"{DATABASE}/a.md"

    stage_keys(workshop.services, [key], on_outcome=lambda outcome: None)

    staged = workshop.query("SELECT content FROM staged_chunks ORDER BY chunk_index")
    assert "beta0" in "".join(row[0] for row in staged)
    assert "alpha0" in "".join(workshop.served("a.md"))


def test_a_bad_key_stops_the_run_after_one_request_and_names_every_item(
    workshop: Workshop,
) -> None:
    for number in range(300):
        workshop.write(f"{number}.md", sections(f"n{number}"))
    workshop.server.always(refused(401, "invalid_api_key"))

    done = workshop.index()

    assert set(done.statuses.values()) == {"failed"}
    assert len(workshop.server.requests) <= 16
    assert workshop.item("7.md")["failure_code"] == "embedding_bad_key"
    workshop.server.always(Fault())
    assert set(workshop.index(retry_failed=True).statuses.values()) == {"indexed"}


def test_a_retryable_failure_is_tried_again_when_asked(workshop: Workshop) -> None:
    workshop.write("a.md", sections("alpha"))
    workshop.server.always(Fault(status=503))
    first = workshop.index()
    workshop.server.always(Fault())

    later = workshop.index()
    asked = workshop.index(retry_failed=True)

    assert (first.statuses, later.report.batch_id) == ({"a.md": "failed"}, None)
    assert asked.statuses == {"a.md": "indexed"}


def test_batches_that_were_paid_for_survive_the_failure_of_others(workshop: Workshop) -> None:
    names = [f"n{number}" for number in range(2 * MAX_INPUTS + 1)]
    workshop.write("big.md", sections(*names))

    def third_fails(request: object) -> Fault:
        return Fault(status=400) if names[-1] in str(request) else Fault()

    workshop.server.always(third_fails)
    first = workshop.index()
    paid = {
        text
        for request in workshop.server.requests
        if names[-1] not in str(request)
        for text in request.texts
    }
    workshop.server.always(Fault())
    workshop.forget_requests()
    workshop.write("big.md", sections(*names) + "\n")

    second = workshop.index()

    assert (first.statuses, second.statuses) == ({"big.md": "failed"}, {"big.md": "indexed"})
    assert paid and not paid & set(workshop.server.texts)


def test_requests_never_mix_accounts_and_accounts_share_no_vector(workshop: Workshop) -> None:
    for account in ("acme", "blix"):
        for number in range(20):
            database = f"{account}/site/notes"
            workshop.write(f"{number}.md", sections(f"shared{number}"), database)

    workshop.index()

    texts = workshop.server.texts
    assert len(texts) == 2 * len(set(texts))
    spent = workshop.query("SELECT account_id, sum(tokens_spent) FROM token_ledger GROUP BY 1")
    assert len({tokens for _, tokens in spent}) == 1
    for request in workshop.server.requests:
        assert len(set(request.texts)) == len(request.texts)


def test_the_ledger_tells_spent_from_saved(workshop: Workshop) -> None:
    workshop.write("a.md", sections("alpha", "beta"))
    first = workshop.index()
    spent = sum(outcome.tokens for outcome in first.outcomes)
    workshop.index_by_hand("a.md")

    assert workshop.query("SELECT tokens_spent, tokens_saved FROM token_ledger") == [(spent, spent)]


def test_a_scan_that_would_delete_most_items_changes_nothing(workshop: Workshop) -> None:
    for number in range(30):
        workshop.write(f"{number}.md", sections(f"n{number}"))
    workshop.index()
    for number in range(25):
        workshop.path(f"{number}.md").unlink()

    with pytest.raises(Refused) as refusal:
        workshop.look()

    assert (refusal.value.code, refusal.value.exit_code) == ("mass_delete", 4)
    assert "n0" in "".join(workshop.served("0.md"))
    assert workshop.index(accept_deletes=True).report.deleted == 25


@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_tree_that_went_away_changes_nothing(workshop: Workshop, how: str) -> None:
    workshop.write("a.md", sections("alpha"))
    workshop.index()
    away = workshop.root.with_name("away")
    workshop.root.rename(away)
    if how == "empty":
        workshop.root.mkdir()

    with pytest.raises(Refused):
        workshop.look()

    assert "alpha0" in "".join(workshop.served("a.md"))


def test_a_dead_runs_items_are_taken_up_by_the_next_look(workshop: Workshop) -> None:
    workshop.write("a.md", sections("alpha"))
    dead = workshop.look()

    queued = workshop.look(is_queued=lambda batch: batch == dead.batch_id)
    taken = workshop.index()

    assert (queued.batch_id, queued.busy_batches) == (None, {dead.batch_id})
    assert taken.statuses == {"a.md": "indexed"}
    assert dead.batch_id is not None
    outcomes: list[object] = []
    index_batch(workshop.services, dead.batch_id, on_outcome=outcomes.append)
    assert outcomes == [], "a late run of the old batch finds nothing left to do"


def test_a_name_in_front_matter_is_embedded_and_a_file_name_is_not(workshop: Workshop) -> None:
    workshop.write("app-profile.md", "---\nname: The Profile\n---\nText of it.\n")
    workshop.write("other-file.md", "Text of the other.\n")

    workshop.index()

    texts = workshop.server.texts
    assert any(text.startswith("The Profile\n") for text in texts)
    assert not any("Other File" in text for text in texts)


def test_no_vector_of_another_width_is_ever_written(workshop: Workshop) -> None:
    workshop.write("a.md", sections("alpha"))
    workshop.server.dimensions = 8
    workshop.server.always(Fault(alter=_narrowed))

    done = workshop.index()

    assert done.statuses == {"a.md": "failed"}
    assert workshop.item("a.md")["failure_code"] == WrongDimension.code
    assert workshop.query("SELECT count(*) FROM chunks") == [(0,)]


def _narrowed(answer: dict[str, object]) -> dict[str, object]:
    for entry in answer["data"]:  # type: ignore[attr-defined]
        entry["embedding"] = [0.5] * 8
    return answer
