"""Asset checks, scheduled upkeep and alerts, on a real Dagster instance in PostgreSQL."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.instance.config import PoolGranularity
from dagster_workshop import Dagster, open_dagster
from postgres_server import PostgresServer
from workshop import DATABASE, sections

from kshift_assets import checks
from kshift_assets.alerts import failed_runs_sensor
from kshift_assets.definitions import defs
from kshift_assets.events import CHUNKS, EMBEDDINGS, TABLE
from kshift_assets.partitions import PARTITION_SET
from kshift_assets.resources import FixedSettings, OpenIndex
from kshift_knowledge.failpoints import armed
from kshift_knowledge.indexing.bookmarks import TRUSTED_S, Bookmark
from kshift_knowledge.postgres.progress import read_progress
from kshift_knowledge.settings import load_settings

pytestmark = pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.PreviewWarning")

WHOLE_INDEX = {
    checks.COVERAGE,
    checks.NO_GAPS,
    checks.NO_GHOSTS,
    checks.SOUND_VECTORS,
    checks.ONE_GENERATION,
    checks.CLEAN_REBUILD,
    checks.FRESHNESS,
}


@pytest.fixture
def dagster(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Dagster]:
    with open_dagster(tmp_path, postgres_server) as dagster:
        yield dagster


def run_job(dagster: Dagster, name: str, **settings: Any) -> dg.ExecuteInProcessResult:
    return defs.resolve_job_def(name).execute_in_process(
        instance=dagster.instance,
        resources={
            "index": OpenIndex(dagster.workshop.services),
            "operator": FixedSettings(load_settings(env_file=None, **settings)),
        },
    )


def evaluations(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {one.check_name: one for one in result.get_asset_check_evaluations()}


def failing(dagster: Dagster) -> set[str]:
    found = evaluations(run_job(dagster, "check_knowledge"))
    assert set(found) == WHOLE_INDEX
    return {name for name, one in found.items() if not one.passed}


def last_run_check(dagster: Dagster) -> dg.AssetCheckEvaluation:
    """The newest outcome of the check that every run makes, as the page shows it."""
    key = dg.AssetCheckKey(EMBEDDINGS, checks.RUN_IS_WHOLE)
    (record,) = dagster.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert record.event is not None and record.event.dagster_event is not None
    return record.event.dagster_event.asset_check_evaluation_data


def named(evaluation: dg.AssetCheckEvaluation) -> list[str]:
    table = evaluation.metadata["first"]
    assert isinstance(table, dg.TableMetadataValue)
    return [str(record.data["item"]) for record in table.records]


def execute(dagster: Dagster, statement: str) -> None:
    with dagster.workshop.database.transaction() as conn:
        conn.execute(statement)  # type: ignore[arg-type]


def test_every_run_says_whether_its_items_are_whole(dagster: Dagster) -> None:
    dagster.workshop.write("a.md", sections("alpha", "beta"))
    dagster.workshop.write("b.md", sections("gamma"))

    dagster.index()

    evaluation = last_run_check(dagster)
    assert evaluation.passed
    assert evaluation.metadata["items"].value == 2


def test_a_row_that_is_lost_during_a_run_is_found_by_its_own_check(dagster: Dagster) -> None:
    dagster.workshop.write("a.md", sections("alpha", "beta"))
    dagster.workshop.write("b.md", sections("gamma"))

    def lose_a_row() -> None:
        execute(
            dagster,
            "DELETE FROM chunks WHERE chunk_index = 0 AND knowledge_database_item_id ="
            " (SELECT knowledge_database_item_id FROM knowledge_database_items"
            "   WHERE path = 'a.md')",
        )

    with armed("outcomes_done", lose_a_row):
        dagster.index()

    evaluation = last_run_check(dagster)
    assert not evaluation.passed
    assert named(evaluation) == [f"{DATABASE}/a.md"]


def test_a_run_with_a_bad_item_checks_the_good_ones(dagster: Dagster) -> None:
    dagster.workshop.write("bad.md", b"\xff\xfe\x00")
    dagster.workshop.write("good.md", sections("alpha"))

    dagster.index()

    assert last_run_check(dagster).passed
    assert last_run_check(dagster).metadata["items"].value == 1


def test_an_item_that_a_person_materializes_is_checked_too(dagster: Dagster) -> None:
    dagster.workshop.write("a.md", sections("alpha"))
    dagster.index()

    result = dagster.materialize(CHUNKS, EMBEDDINGS, partition_key=f"{DATABASE}/a.md")

    assert [one.passed for one in result.get_asset_check_evaluations()] == [True]


def test_a_good_index_passes_every_check(dagster: Dagster) -> None:
    for number in range(5):
        dagster.workshop.write(f"{number}.md", sections(f"n{number}", "more"))
    dagster.workshop.write("logo.png", b"\x89PNG")
    dagster.workshop.write("bad.md", b"\xff\xfe\x00")
    dagster.index()

    assert failing(dagster) == set()


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("DELETE FROM chunks WHERE chunk_index = 0", {checks.COVERAGE, checks.NO_GAPS}),
        ("DELETE FROM indexed_items", {checks.COVERAGE}),
        ("DELETE FROM chunk_vectors_g1", {checks.SOUND_VECTORS}),
        (
            "UPDATE chunk_vectors_g1 SET embedding = array_fill(0::real, ARRAY[16])::vector",
            {checks.SOUND_VECTORS},
        ),
        (
            "UPDATE knowledge_database_items SET state = 'gone'",
            {checks.NO_GHOSTS},
        ),
        ("UPDATE chunks SET chunk_index = chunk_index + 100", {checks.NO_GAPS}),
        ("UPDATE generations SET dimensions = 17", {checks.ONE_GENERATION}),
        (
            "UPDATE chunks SET content = content || '!',"
            " content_hash = encode(sha256(convert_to(content || '!', 'UTF8')), 'hex')",
            {checks.CLEAN_REBUILD},
        ),
    ],
)
def test_each_kind_of_damage_turns_its_check_red(
    dagster: Dagster, damage: str, found: set[str]
) -> None:
    dagster.workshop.write("a.md", sections("alpha", "beta", "gamma", "delta", words=60))
    dagster.index()
    assert len(dagster.workshop.served("a.md")) > 1
    execute(dagster, damage)

    red = failing(dagster)

    assert found <= red
    assert red - {checks.CLEAN_REBUILD} <= found


def test_what_waits_too_long_is_named_with_its_database(dagster: Dagster) -> None:
    dagster.workshop.write("a.md", sections("alpha"))
    dagster.workshop.write("b.md", sections("beta"), "globex/shop/plans")
    dagster.workshop.look()
    assert failing(dagster) == set()
    execute(
        dagster,
        "UPDATE knowledge_database_items SET waiting_since = now() - interval '20 minutes'"
        " WHERE path = 'b.md'",
    )

    evaluation = evaluations(run_job(dagster, "check_knowledge"))[checks.FRESHNESS]

    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert evaluation.metadata["databases_late"].value == 1
    table = evaluation.metadata["waiting"]
    assert isinstance(table, dg.TableMetadataValue)
    waiting = {str(record.data["knowledge database"]): record.data for record in table.records}
    assert set(waiting) == {DATABASE, "globex/shop/plans"}
    assert waiting["globex/shop/plans"]["waiting"] == 1


def test_checks_spend_no_token_and_quote_no_text(dagster: Dagster) -> None:
    dagster.workshop.write("a.md", sections("confidential"))
    dagster.index()
    execute(dagster, "DELETE FROM chunks")
    dagster.workshop.forget_requests()

    found = evaluations(run_job(dagster, "check_knowledge"))

    assert dagster.workshop.server.requests == []
    assert "confidential" not in repr(found)


def test_the_sweep_removes_ghosts_old_vectors_and_lost_partitions(dagster: Dagster) -> None:
    workshop = dagster.workshop
    workshop.write("stays.md", sections("alpha"))
    gone = workshop.write("goes.md", sections("beta"))
    dagster.index()
    execute(dagster, "UPDATE knowledge_database_items SET state = 'gone' WHERE path = 'goes.md'")
    gone.unlink()
    dagster.instance.add_dynamic_partitions(PARTITION_SET, ["acme/site/notes/never.md"])
    dagster.instance.delete_dynamic_partition(PARTITION_SET, f"{DATABASE}/stays.md")

    run_job(dagster, "reconcile_job")
    execute(dagster, "UPDATE reusable_vectors SET kept_at = now() - interval '2 days'")
    kept = workshop.query("SELECT count(*) FROM reusable_vectors")
    run_job(dagster, "reconcile_job", reuse_days=1)

    assert workshop.query(
        "SELECT DISTINCT i.path FROM chunks JOIN knowledge_database_items i"
        " USING (knowledge_database_item_id)"
    ) == [("stays.md",)]
    assert dagster.instance.get_dynamic_partitions(PARTITION_SET) == [f"{DATABASE}/stays.md"]
    assert kept != [(0,)]
    assert workshop.query("SELECT count(*) FROM reusable_vectors") == [(0,)]


def test_the_hash_pass_finds_other_bytes_behind_an_equal_signature(dagster: Dagster) -> None:
    workshop = dagster.workshop
    path = workshop.write("a.md", sections("alpha"))
    workshop.write("b.md", sections("beta"))
    dagster.run_batch(dagster.request())
    pretend_that_the_file_was_like_this(dagster, path, sections("omega"))
    workshop.forget_requests()
    unnoticed = dagster.tick()

    run_job(dagster, "hash_pass_job")

    cursor = Bookmark.parse(dagster.cursor)
    aged = Bookmark(quiet=cursor.quiet, compared_at=cursor.compared_at - TRUSTED_S)
    request = dagster.tick(aged.dump())
    assert isinstance(unnoticed, dg.SkipReason)
    assert isinstance(request, dg.RunRequest)
    assert dagster.run_batch(request).success
    assert "omega0" in "".join(workshop.served("a.md"))
    assert all("beta" not in text for text in workshop.server.texts)


def pretend_that_the_file_was_like_this(dagster: Dagster, path: Path, text: str) -> None:
    """Give a file other bytes, and the tables the signature that it has now."""
    path.write_text(text)
    found = path.stat()
    signature = f"{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}"
    execute(
        dagster,
        f"UPDATE knowledge_database_items SET seen_signature = '{signature}'"
        f" WHERE path = '{path.name}'",
    )
    dagster.tick("")


def test_a_failed_run_is_told_to_the_operators_command(dagster: Dagster, tmp_path: Path) -> None:
    dagster.workshop.write("secret-name.md", b"\xff\xfe\x00")
    dagster.index()
    inbox = tmp_path / "inbox.json"
    command = tmp_path / "alert"
    command.write_text(f"#!/bin/sh\ncat > '{inbox}'\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)

    skipped = alert(dagster, alert_command=f"{command} --to oncall")

    told = json.loads(inbox.read_text())
    (run,) = dagster.instance.get_runs()
    assert skipped is None
    assert told["run_id"] == run.run_id
    assert told["started_at"] <= told["ended_at"]
    assert (told["event"], told["job"]) == ("run_failed", "index_knowledge")
    assert told["reason"] == "1 of 1 items failed: 1 not_utf8."
    assert "secret-name" not in inbox.read_text()


def test_without_a_command_nobody_is_told(dagster: Dagster) -> None:
    dagster.workshop.write("bad.md", b"\xff\xfe\x00")
    dagster.index()

    assert isinstance(alert(dagster), dg.SkipReason)


def test_a_command_that_fails_fails_the_tick_and_not_in_silence(dagster: Dagster) -> None:
    dagster.workshop.write("bad.md", b"\xff\xfe\x00")
    dagster.index()

    with pytest.raises(subprocess.CalledProcessError):
        alert(dagster, alert_command=f"{sys.executable} -c 'raise SystemExit(3)'")


def alert(dagster: Dagster, **settings: Any) -> object:
    """Evaluate the failure sensor for the newest run, as the daemon does."""
    (run,) = dagster.instance.get_runs(limit=1)
    (failure,) = dagster.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    assert failure.dagster_event is not None
    context = dg.build_run_status_sensor_context(
        sensor_name="failed_runs_sensor",
        dagster_event=failure.dagster_event,
        dagster_instance=dagster.instance,
        dagster_run=run,
        resources={"operator": FixedSettings(load_settings(env_file=None, **settings))},
    ).for_run_failure()
    evaluate: Callable[..., object] = failed_runs_sensor
    return evaluate(context)


def test_all_that_watches_and_tidies_runs_by_default() -> None:
    location = defs.get_repository_def()

    assert {one.name for one in location.schedule_defs} >= {
        "check_schedule",
        "reconcile_schedule",
        "hash_pass_schedule",
    }
    assert {one.name for one in location.sensor_defs} >= {
        "knowledge_files_sensor",
        "failed_runs_sensor",
    }
    for schedule in location.schedule_defs:
        assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    for sensor in location.sensor_defs:
        assert sensor.default_status == dg.DefaultSensorStatus.RUNNING


def test_few_runs_ask_the_embedding_api_at_once(dagster: Dagster) -> None:
    pools = dagster.instance.get_concurrency_config().pool_config
    (op,) = defs.resolve_job_def("index_knowledge").nodes_in_topological_order

    assert op.definition.pools == {"embedding_api"}
    assert (pools.default_pool_limit, pools.pool_granularity) == (2, PoolGranularity.RUN)


def test_the_page_of_the_table_shows_rows_and_progress(dagster: Dagster) -> None:
    for number in range(3):
        dagster.workshop.write(f"{number}.md", sections(f"n{number}"))
    dagster.workshop.write("bad.md", b"\xff\xfe\x00")
    request = dagster.request()
    at_the_tick = latest_observation(dagster)

    dagster.run_batch(request)

    (materialized,) = dagster.instance.fetch_materializations(TABLE, limit=1).records
    assert materialized.asset_materialization is not None
    shown = plain(materialized.asset_materialization.metadata)
    with dagster.workshop.database.transaction() as conn:
        progress = read_progress(conn, dagster.workshop.services.prices).total
    assert (at_the_tick["items_waiting"], at_the_tick["items_done"]) == (4, 0)
    assert shown == {
        "dagster/row_count": len(dagster.workshop.served("0.md")) * 3,
        "items_done": 3,
        "items_running": 0,
        "items_failed": 1,
        "items_waiting": 0,
        "tokens_spent": progress.tokens_spent,
        "tokens_saved": progress.tokens_saved,
        "cost_usd": progress.cost_usd,
        "eta_s": 0.0,
    }


def test_an_idle_tick_writes_nothing_to_dagster(dagster: Dagster) -> None:
    dagster.workshop.write("a.md", sections("alpha"))
    dagster.run_batch(dagster.request())
    dagster.tick()
    before = latest_observation(dagster)

    dagster.tick()

    assert latest_observation(dagster) == before
    assert len(dagster.instance.fetch_observations(TABLE, limit=10).records) == 1


def latest_observation(dagster: Dagster) -> dict[str, object]:
    (record,) = dagster.instance.fetch_observations(TABLE, limit=1).records
    assert record.asset_observation is not None
    return plain(record.asset_observation.metadata)


def plain(metadata: Mapping[str, dg.MetadataValue[Any]]) -> dict[str, object]:
    return {name: value.value for name, value in metadata.items()}
