"""Faults between our tables and Dagster: what was done is told, what is dead is ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import dagster as dg
import pytest
from crashes import crash_postgres
from dagster_workshop import Dagster, open_dagster
from embedding_server import Fault, Request
from indexing_worker import Work, working
from oracles import assert_true
from postgres_server import PostgresServer, running_server
from waiting import wait_until
from workshop import DATABASE, sections

from kshift_assets.events import CHUNKS, EMBEDDINGS
from kshift_assets.partitions import PARTITION_SET
from kshift_assets.recovery import announce_broken_off, end_dead_runs
from kshift_assets.run_tags import BATCH_TAG, is_starting
from kshift_knowledge.failpoints import FailpointReached, armed
from kshift_knowledge.postgres import batches

pytestmark = pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.PreviewWarning")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that these tests may crash."""
    with running_server() as running:
        yield running


@pytest.fixture
def dagster(tmp_path: Path, server: PostgresServer) -> Iterator[Dagster]:
    with open_dagster(tmp_path, server) as opened:
        yield opened


def write(dagster: Dagster, word: str) -> dict[str, str]:
    """Ten items, one of them bad; returns what their partitions should show."""
    for number in range(10):
        dagster.workshop.write(f"{number}.md", sections(f"{word}{number}"))
    dagster.workshop.write("3.md", b"\xff\xfe\x00")
    return {f"{number}.md": "MATERIALIZED" for number in range(10)} | {"3.md": "FAILED"}


def test_items_of_a_run_that_broke_off_before_it_told_are_told_of_by_the_next_look(
    dagster: Dagster,
) -> None:
    expected = write(dagster, "alpha")
    with armed("outcomes_done"):
        broken_off = dagster.run_batch(dagster.request())
    before = dagster.statuses(EMBEDDINGS)

    report = dagster.index()

    assert not broken_off.success
    assert set(before.values()) == {"none"}
    assert report.runs == 0, "everything is indexed already"
    assert dagster.statuses(EMBEDDINGS) == dagster.statuses(CHUNKS) == expected
    (record,) = dagster.instance.fetch_materializations(
        dg.AssetRecordsFilter(EMBEDDINGS, asset_partitions=[f"{DATABASE}/1.md"]), limit=1
    ).records
    assert record.asset_materialization is not None
    rows = record.asset_materialization.metadata["dagster/row_count"].value
    assert rows == len(dagster.workshop.served("1.md"))
    assert record.run_id == broken_off.run_id


def test_a_killed_command_leaves_a_run_that_the_next_look_ends_and_makes_up_for(
    dagster: Dagster,
) -> None:
    expected = write(dagster, "alpha")
    work = Work(
        dagster.writer_url,
        str(dagster.workshop.root),
        dagster.workshop.server.url,
        dagster_home=str(dagster.home),
    )
    with working(work, failpoint="swap_committed:kill9") as worker:
        assert worker.process.wait(120) == -signal.SIGKILL
    (dead,) = dagster.instance.get_runs()
    wait_until(lambda: not dagster.is_held(UUID(dead.run_id)))

    first = dagster.tick()
    ended = dagster.instance.get_run_by_id(dead.run_id)
    if isinstance(first, dg.RunRequest):
        dagster.run_batch(first)

    assert dead.status == dg.DagsterRunStatus.STARTED
    assert ended is not None and ended.status == dg.DagsterRunStatus.FAILURE
    assert dagster.statuses(EMBEDDINGS) == expected
    assert isinstance(dagster.tick(), dg.SkipReason)
    assert_true(dagster.workshop)


def test_a_run_that_is_about_to_tell_is_not_told_of_by_somebody_else(dagster: Dagster) -> None:
    dagster.workshop.write("a.md", sections("alpha"))
    services = dagster.workshop.services

    with armed("outcomes_done", lambda: announce_broken_off(dagster.instance, services)):
        dagster.run_batch(dagster.request())

    told = dagster.instance.fetch_materializations(
        dg.AssetRecordsFilter(EMBEDDINGS, asset_partitions=[f"{DATABASE}/a.md"]), limit=5
    )
    assert len(told.records) == 1


def test_a_living_run_is_never_ended(dagster: Dagster) -> None:
    dagster.workshop.write("a.md", sections("alpha"))
    ended: list[str] = []

    def look_for_dead_runs(_: Request) -> Fault:
        ended.extend(end_dead_runs(dagster.instance, dagster.workshop.services))
        (run,) = dagster.instance.get_runs()
        assert run.status == dg.DagsterRunStatus.STARTED
        return Fault()

    dagster.workshop.server.always(look_for_dead_runs)
    report = dagster.index()

    assert (ended, report.figures.items_indexed) == ([], 1)


def test_a_run_outlives_a_crash_of_the_database_that_dagster_writes_to_as_well(
    dagster: Dagster, server: PostgresServer
) -> None:
    expected = write(dagster, "alpha")

    def crash() -> None:
        crash_postgres(server.home)
        server.embedded.ensure_running()

    with armed("swap_deleted", crash):
        report = dagster.index()

    assert (report.runs, report.figures.items_indexed) == (1, 9)
    assert dagster.statuses(EMBEDDINGS) == expected
    assert_true(dagster.workshop)


@pytest.mark.parametrize("moment", ["batch_written", "partitions_synced"])
def test_a_tick_that_dies_before_its_run_is_made_up_for_by_the_next(
    dagster: Dagster, moment: str
) -> None:
    dagster.workshop.write("a.md", sections("alpha"))
    with armed(moment), pytest.raises(FailpointReached):
        dagster.tick()

    request = dagster.tick()

    assert isinstance(request, dg.RunRequest)
    assert dagster.run_batch(request).success
    assert dagster.statuses(EMBEDDINGS) == {"a.md": "MATERIALIZED"}
    assert_true(dagster.workshop)


@pytest.mark.parametrize("cursor", ["", '{"version": 0}'])
def test_a_lost_or_broken_cursor_costs_a_compare_and_neither_skips_nor_repeats(
    dagster: Dagster, cursor: str
) -> None:
    dagster.workshop.write("a.md", sections("alpha"))
    dagster.workshop.write("b.md", sections("beta"))
    dagster.run_batch(dagster.request())
    dagster.workshop.forget_requests()
    dagster.workshop.write("b.md", sections("gamma"))

    request = dagster.tick(cursor)

    assert isinstance(request, dg.RunRequest)
    dagster.run_batch(request)
    assert all("gamma" in text for text in dagster.workshop.server.texts)
    assert isinstance(dagster.tick(cursor), dg.SkipReason)
    assert_true(dagster.workshop)


def test_a_lost_partition_set_comes_back_and_indexes_nothing_again(dagster: Dagster) -> None:
    expected = write(dagster, "alpha")
    dagster.index()
    dagster.workshop.forget_requests()
    for key in dagster.instance.get_dynamic_partitions(PARTITION_SET):
        dagster.instance.delete_dynamic_partition(PARTITION_SET, key)

    skipped = dagster.tick("")

    assert isinstance(skipped, dg.SkipReason)
    assert dagster.statuses(EMBEDDINGS) == expected
    assert dagster.workshop.server.requests == []


def test_two_ticks_at_once_make_one_batch(dagster: Dagster) -> None:
    dagster.workshop.write("a.md", sections("alpha"))
    others: list[object] = []
    with armed("scan_looked", lambda: others.append(dagster.tick(""))):
        request = dagster.tick("")

    assert isinstance(request, dg.RunRequest)
    assert [type(other) for other in others] == [dg.SkipReason]
    with dagster.workshop.database.transaction() as conn:
        assert list(batches.unfinished(conn)) == [UUID(request.tags[BATCH_TAG])]


@pytest.mark.parametrize("jump_s", [-86_400, 86_400])
def test_a_dead_run_is_not_taken_for_new_because_the_clock_was_set_back(
    dagster: Dagster, jump_s: int
) -> None:
    dagster.workshop.write("a.md", sections("alpha"))
    dagster.index()
    (record,) = dagster.instance.get_run_records()
    assert record.start_time is not None

    assert is_starting(record._replace(start_time=time.time()))
    assert not is_starting(record._replace(start_time=time.time() + jump_s))
