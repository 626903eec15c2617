"""Progress: the same true numbers over HTTP, on the command line and in the tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from embedding_server import Fault, Request
from indexing_worker import Work, working
from postgres_server import PostgresServer
from served_api import ServedApi, bearer, make_key
from waiting import wait_until
from workshop import Workshop, open_workshop, sections

from kshift_api.progress import ProgressAnswer
from kshift_cli.status import progress_line
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.progress import Progress, read_progress

PRICES = {"text-embedding-3-small": 0.02}


@pytest.fixture
def urls(postgres_server: PostgresServer) -> Iterator[Any]:
    with postgres_server.fresh_database() as urls:
        yield urls


@pytest.fixture
def workshop(tmp_path: Path, urls: Any) -> Iterator[Workshop]:
    with (
        Database(urls.writer_url, max_connections=20) as database,
        open_workshop(tmp_path / "tree", database) as workshop,
    ):
        yield workshop


def total(workshop: Workshop) -> Progress:
    with workshop.database.transaction() as conn:
        return read_progress(conn, PRICES).total


def counts(progress: Progress) -> tuple[int, int, int, int]:
    return progress.done, progress.running, progress.failed, progress.waiting


def test_an_index_that_is_done_has_nothing_left_and_its_cost(workshop: Workshop) -> None:
    workshop.write("a.md", sections("alpha"))
    workshop.write("copy.md", sections("alpha"))
    workshop.write("bad.md", b"\xff\xfe\x00")
    workshop.index()

    progress = total(workshop)

    assert counts(progress) == (2, 0, 1, 0)
    assert (progress.eta_s, progress.oldest_waiting_at) == (0.0, None)
    assert progress.tokens_spent == progress.tokens_saved > 0
    assert progress.cost_usd == round(progress.tokens_spent * 0.02 / 1_000_000, 6)


def test_what_no_run_has_taken_waits_without_an_end_in_sight(workshop: Workshop) -> None:
    workshop.write("a.md", sections("alpha"))
    workshop.look()

    progress = total(workshop)

    assert counts(progress) == (0, 0, 0, 1)
    assert progress.eta_s is None
    assert progress.oldest_waiting_at is not None


def test_a_run_under_way_counts_what_it_has_and_says_how_long(workshop: Workshop) -> None:
    for number in range(130):
        workshop.write(f"{number}.md", sections(f"n{number}"))
    seen: list[Progress] = []

    def look_at_progress(_: Request) -> Fault:
        seen.append(total(workshop))
        return Fault()

    workshop.server.always(look_at_progress)
    workshop.services = replace(workshop.services, max_in_flight=1)
    workshop.index()

    assert all(sum(counts(one)) == 130 for one in seen)
    assert counts(seen[0])[:2] == (0, 130)
    assert seen[0].eta_s is None
    under_way = [one for one in seen if one.done]
    assert under_way
    for one in under_way:
        assert one.eta_s is not None and one.eta_s > 0
        assert (one.failed, one.waiting) == (0, 0)


def test_a_run_that_was_killed_leaves_what_it_had_waiting(workshop: Workshop, urls: Any) -> None:
    for number in range(130):
        workshop.write(f"{number}.md", sections(f"n{number}"))
    batch_id = str(workshop.look().batch_id)
    work = Work(urls.writer_url, str(workshop.root), workshop.server.url, batch_id)
    with working(work, failpoint="swap_committed:kill9") as worker:
        worker.process.wait(120)

    wait_until(lambda: not total(workshop).running)

    progress = total(workshop)
    assert progress.done > 0 and progress.waiting > 0
    assert progress.done + progress.waiting == 130
    assert progress.eta_s is None


def test_the_price_of_an_unknown_model_is_unknown(workshop: Workshop) -> None:
    workshop.write("a.md", sections("alpha"))
    workshop.index()

    with workshop.database.transaction() as conn:
        report = read_progress(conn, {})

    assert report.total.cost_usd is None
    assert [one.progress.cost_usd for one in report.databases] == [None]


def test_http_answers_what_the_key_may_see_and_no_more(api: ServedApi) -> None:
    notes, blog = api.scope.knowledge_database_ids
    narrow = make_key(
        api.writer,
        api.scope.account_id,
        project_id=api.scope.project_id,
        knowledge_database_ids=[notes],
    )
    with api.writer.transaction() as conn:
        conn.execute(
            "UPDATE knowledge_database_items SET state = 'waiting', waiting_since = now()"
            " WHERE account_id <> %s",
            (api.scope.account_id,),
        )
        conn.execute(
            "INSERT INTO token_ledger SELECT account_id, project_id, knowledge_database_id,"
            " current_date, 1000000 * knowledge_database_id, 7 FROM knowledge_databases"
        )

    mine = api.get("/v1/progress").json
    narrowed = api.get("/v1/progress", key=narrow).json
    foreign = api.get("/v1/progress", key=api.foreign_key).json

    ProgressAnswer.model_validate(mine)
    assert [one["knowledge_database"] for one in mine["knowledge_databases"]] == ["blog", "notes"]
    assert mine["progress"]["items"] == {"done": 2, "running": 0, "failed": 0, "waiting": 0}
    assert mine["progress"]["tokens_spent"] == 1_000_000 * (notes + blog)
    assert mine["progress"]["eta_s"] == 0
    (one,) = narrowed["knowledge_databases"]
    assert one["knowledge_database_id"] == notes
    assert narrowed["progress"]["tokens_spent"] == one["tokens_spent"] == 1_000_000 * notes
    assert foreign["progress"]["items"] == {"done": 0, "running": 0, "failed": 0, "waiting": 1}
    assert foreign["progress"]["oldest_waiting_at"] is not None


def test_progress_needs_a_key(api: ServedApi) -> None:
    assert api.client.get("/v1/progress").status_code == 401
    assert api.client.get("/v1/progress", headers=bearer("ks_no_such")).status_code == 401
    assert api.client.post("/v1/progress", headers=bearer(api.key)).status_code == 405


def test_the_line_for_people_says_all_of_it() -> None:
    progress = Progress(1200, 30, 2, 4, 75.2, None, 1_234_567, 89, 0.0247)
    at_rest = {**asdict(progress), "running": 0, "eta_s": 0.0, "cost_usd": None}

    assert progress_line(progress) == (
        "1,200 done, 30 running, 2 failed, 4 waiting, about 0:01:16 left; "
        "1,234,567 tokens for $0.0247, 89 saved."
    )
    assert progress_line(Progress(**at_rest)) == (
        "1,200 done, 0 running, 2 failed, 4 waiting; "
        "1,234,567 tokens at an unknown price, 89 saved."
    )
