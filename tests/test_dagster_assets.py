"""The assets, the sensor and the one-run rule, on a real Dagster instance in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import dagster as dg
import pytest
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster_workshop import Dagster, knowledge_items, open_dagster
from postgres_server import PostgresServer
from workshop import DATABASE, sections

from kshift_assets.definitions import defs
from kshift_assets.events import CHUNKS, EMBEDDINGS
from kshift_assets.instance import WORKSPACE
from kshift_assets.partitions import PARTITION_SET, sync_partitions
from kshift_assets.run_tags import BATCH_TAG

pytestmark = pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.PreviewWarning")


@pytest.fixture
def dagster(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Dagster]:
    with open_dagster(tmp_path, postgres_server) as opened:
        yield opened


def test_any_change_set_is_one_run_with_each_items_own_figures(dagster: Dagster) -> None:
    workshop = dagster.workshop
    for number in range(60):
        workshop.write(f"{number}.md", sections(f"n{number}"))
    first = dagster.index()
    for number in range(0, 60, 2):
        workshop.write(f"{number}.md", sections(f"n{number}", "more", "still"))
    second = dagster.index()

    assert (first.runs, first.figures.items_indexed) == (1, 60)
    assert (second.runs, second.figures.items_indexed) == (1, 30)
    assert len(dagster.instance.get_runs()) == 2
    assert set(dagster.statuses(EMBEDDINGS).values()) == {"MATERIALIZED"}
    versions: dict[str, set[str]] = {}
    for path in ("0.md", "1.md"):
        (record,) = dagster.instance.fetch_materializations(
            dg.AssetRecordsFilter(EMBEDDINGS, asset_partitions=[f"{DATABASE}/{path}"]), limit=1
        ).records
        materialization = record.asset_materialization
        assert materialization is not None and materialization.tags is not None
        rows = materialization.metadata["dagster/row_count"].value
        assert rows == len(workshop.served(path))
        versions.setdefault(materialization.tags[DATA_VERSION_TAG], set()).add(path)
    assert len(versions) == 2


def test_the_status_of_every_item_is_true_after_a_batch_with_a_bad_one(dagster: Dagster) -> None:
    workshop = dagster.workshop
    for number in range(10):
        workshop.write(f"{number}.md", sections(f"n{number}"))
    dagster.index()
    for number in range(10):
        workshop.write(f"{number}.md", sections(f"m{number}"))
    workshop.write("3.md", b"\xff\xfe\x00")

    report = dagster.index()

    expected = {f"{number}.md": "MATERIALIZED" for number in range(10)} | {"3.md": "FAILED"}
    assert dagster.statuses(CHUNKS) == expected
    assert dagster.statuses(EMBEDDINGS) == expected
    assert (report.figures.items_indexed, report.figures.items_failed) == (9, 1)
    assert "n30" in "".join(workshop.served("3.md"))

    workshop.write("3.md", sections("good again"))
    dagster.index()
    assert set(dagster.statuses(EMBEDDINGS).values()) == {"MATERIALIZED"}


def test_a_run_that_failed_because_of_an_item_is_not_retried(dagster: Dagster) -> None:
    dagster.workshop.write("bad.md", b"\xff\xfe\x00")
    dagster.index()

    (run,) = dagster.instance.get_runs()
    assert run.status == dg.DagsterRunStatus.FAILURE
    assert dagster.instance.run_retries_enabled
    assert dagster.instance.run_retries_max_retries == 3
    assert not dagster.instance.get_settings("run_retries")["retry_on_asset_or_op_failure"]


def test_nothing_changed_launches_no_run(dagster: Dagster) -> None:
    dagster.workshop.write("a.md", sections("alpha"))
    dagster.index()

    assert dagster.index().runs == 0
    assert len(dagster.instance.get_runs()) == 1


def test_a_person_materializes_one_item(dagster: Dagster) -> None:
    workshop = dagster.workshop
    workshop.write("a.md", sections("alpha"))
    workshop.write("b.md", sections("beta"))
    dagster.index()
    workshop.write("a.md", sections("changed"))

    result = dagster.materialize(CHUNKS, EMBEDDINGS, partition_key=f"{DATABASE}/a.md")

    assert result.success
    assert "changed0" in "".join(workshop.served("a.md"))
    assert dagster.statuses(EMBEDDINGS) == {"a.md": "MATERIALIZED", "b.md": "MATERIALIZED"}


def test_a_persons_run_over_a_range_is_true_for_each_item(dagster: Dagster) -> None:
    workshop = dagster.workshop
    for name in "abcd":
        workshop.write(f"{name}.md", sections(name))
    dagster.index()
    workshop.write("b.md", b"\xff\xfe\x00")

    keys = dagster.instance.get_dynamic_partitions(PARTITION_SET)
    result = dagster.materialize(
        CHUNKS,
        EMBEDDINGS,
        tags={
            "dagster/asset_partition_range_start": keys[0],
            "dagster/asset_partition_range_end": keys[-1],
        },
    )

    assert not result.success
    expected = {f"{name}.md": "MATERIALIZED" for name in "acd"} | {"b.md": "FAILED"}
    assert dagster.statuses(EMBEDDINGS) == expected


def test_chunks_alone_stage_and_embeddings_alone_serve(dagster: Dagster) -> None:
    workshop = dagster.workshop
    workshop.write("a.md", sections("alpha"))
    dagster.index()
    workshop.write("a.md", sections("beta"))
    key = f"{DATABASE}/a.md"

    staged = dagster.materialize(CHUNKS, partition_key=key)
    between = "".join(workshop.served("a.md"))
    served = dagster.materialize(EMBEDDINGS, partition_key=key)

    assert staged.success and served.success
    assert "alpha0" in between and "beta0" not in between
    assert "beta0" in "".join(workshop.served("a.md"))
    assert workshop.query("SELECT count(*) FROM staged_chunks") == [(0,)]


def test_embeddings_alone_cut_again_when_the_file_is_newer_than_what_is_staged(
    dagster: Dagster,
) -> None:
    workshop = dagster.workshop
    workshop.write("a.md", sections("alpha"))
    dagster.index()
    key = f"{DATABASE}/a.md"
    dagster.materialize(CHUNKS, partition_key=key)
    workshop.write("a.md", sections("newest"))

    dagster.materialize(EMBEDDINGS, partition_key=key)

    assert "newest0" in "".join(workshop.served("a.md"))


def test_partitions_follow_the_tree_and_may_return(dagster: Dagster) -> None:
    workshop = dagster.workshop
    path = workshop.write("a.md", sections("alpha"))
    workshop.write("b [v2], 100%.md", sections("beta"))
    dagster.index()
    path.unlink()
    dagster.index()
    gone = dagster.instance.get_dynamic_partitions(PARTITION_SET)
    workshop.write("a.md", sections("alpha"))
    dagster.index()

    assert gone == [f"{DATABASE}/b%20%5Bv2%5D%2C%20100%25.md"]
    assert set(dagster.instance.get_dynamic_partitions(PARTITION_SET)) == {
        f"{DATABASE}/a.md",
        *gone,
    }
    assert set(dagster.statuses(EMBEDDINGS).values()) == {"MATERIALIZED"}


def test_the_sensor_asks_for_one_run_and_then_skips(dagster: Dagster) -> None:
    workshop = dagster.workshop
    for number in range(5):
        workshop.write(f"{number}.md", sections(f"n{number}"))

    first = dagster.tick()
    second = dagster.tick()

    assert isinstance(first, dg.RunRequest)
    assert first.run_key == first.tags[BATCH_TAG]
    assert isinstance(second, dg.RunRequest), "no run was launched, so the batch is taken up anew"
    assert second.run_key != first.run_key
    workshop.run(UUID(second.tags[BATCH_TAG]))
    assert isinstance(dagster.tick(), dg.SkipReason)


def test_the_sensor_survives_a_tree_that_is_not_there(dagster: Dagster) -> None:
    dagster.workshop.write("a.md", sections("alpha"))
    dagster.index()
    dagster.workshop.root.rename(dagster.workshop.root.with_name("away"))

    skipped = dagster.tick()

    assert isinstance(skipped, dg.SkipReason)
    assert "does not exist" in (skipped.skip_message or "")
    assert dagster.instance.get_dynamic_partitions(PARTITION_SET) == [f"{DATABASE}/a.md"]


def test_bad_names_fail_alone_in_one_look(dagster: Dagster) -> None:
    workshop = dagster.workshop
    for name in ("good.md", "dots...md", "new\nline.md", "a,b [c] #1 'q' \"z\" ?.md", "x" * 250):
        workshop.write(name, sections("text"))
    deep = "/".join(["d" * 200] * 6)
    workshop.write(f"{deep}/leaf.md", sections("deep"))

    report = dagster.index()

    assert (report.seen, report.runs, report.figures.items_indexed) == (6, 1, 5)
    rows = workshop.query(
        "SELECT failure_code FROM knowledge_database_items WHERE state = 'failed'"
    )
    assert rows == [("name_too_long",)]


def test_the_code_location_has_exactly_these_assets() -> None:
    keys = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}

    assert keys == {
        *("knowledge_files", "chunks", "embeddings", "knowledge_chunks"),
        *("automations_files", "automations", "knowledge_edges", "receipt_impact"),
    }
    graph = defs.resolve_asset_graph()
    assert graph.get(EMBEDDINGS).parent_keys == {CHUNKS}
    assert graph.get(CHUNKS).parent_keys == {dg.AssetKey("knowledge_files")}
    for key in (CHUNKS, EMBEDDINGS):
        node = graph.get(key)
        assert node.description and node.group_name and node.kinds and node.owners
        assert node.code_version
        assert node.partitions_def == knowledge_items()
    assert "kshift_assets.definitions" in WORKSPACE.read_text()


def test_the_storage_password_is_not_in_dagsters_settings(dagster: Dagster) -> None:
    settings = (dagster.home / "dagster.yaml").read_text()
    (line,) = (dagster.home / "pgpass").read_text().splitlines()

    assert line.rsplit(":", 1)[1] not in settings
    assert (dagster.home / "pgpass").stat().st_mode & 0o777 == 0o600


def test_syncing_partitions_adds_and_removes_only_what_differs(dagster: Dagster) -> None:
    calls: list[str] = []
    for keys in (["a", "b"], ["b", "c"], ["b", "c"]):
        sync_partitions(dagster.instance, keys)
        calls.append(",".join(sorted(dagster.instance.get_dynamic_partitions(PARTITION_SET))))

    assert calls == ["a,b", "b,c", "b,c"]
