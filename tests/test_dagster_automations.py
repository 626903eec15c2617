"""The assets behind automations: lineage, the check, the sensor, and a command's own run."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
import pytest
from test_dagster_assets import Dagster, dagster  # noqa: F401 (a fixture)
from workshop import sections

from kshift_assets.automations import (
    AUTOMATIONS,
    EDGES,
    FILES,
    SOUND_CHECK,
    STALE_ONLY,
    automations_sensor,
    load_automations,
)
from kshift_assets.definitions import defs
from kshift_assets.launch_automations import load_automations_once
from kshift_assets.receipts import RECEIPT_IMPACT, receipt_impact
from kshift_assets.resources import FixedSettings, OpenIndex
from kshift_knowledge.settings import load_settings

pytestmark = pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.PreviewWarning")

GOOD = "automations: [{slug: tip, prompt: Write., knowledge: [notes]}]"


def write(place: Dagster, text: str) -> None:
    folder = place.workshop.root / "acme" / "site"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "automations.yaml").write_text(text)


def load(place: Dagster, **options: bool) -> bool:
    return load_automations_once(place.workshop.services, place.home, **options)


def tick(place: Dagster) -> object:
    context = dg.build_sensor_context(
        instance=place.instance,
        resources={"index": OpenIndex(place.workshop.services)},
        definitions=defs,
    )
    evaluate: Callable[..., object] = automations_sensor
    return evaluate(context)


def metadata(place: Dagster, asset: dg.AssetKey) -> dict[str, object]:
    event = place.instance.get_latest_materialization_event(asset)
    assert event is not None and event.asset_materialization is not None
    return {name: entry.value for name, entry in event.asset_materialization.metadata.items()}


def check(place: Dagster) -> dg.AssetCheckEvaluation:
    key = dg.AssetCheckKey(AUTOMATIONS, SOUND_CHECK)
    (record,) = place.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert record.event is not None and record.event.dagster_event is not None
    evaluation = record.event.dagster_event.event_specific_data
    assert isinstance(evaluation, dg.AssetCheckEvaluation)
    return evaluation


@pytest.fixture
def place(dagster: Dagster) -> Dagster:  # noqa: F811
    dagster.workshop.write("note.md", sections("alpha"))
    dagster.index()
    return dagster


def test_lineage_leads_from_the_file_to_the_edges() -> None:
    graph = defs.resolve_asset_graph()

    assert graph.get(AUTOMATIONS).parent_keys == {FILES}
    assert graph.get(EDGES).parent_keys == {AUTOMATIONS}
    for key in (FILES, AUTOMATIONS, EDGES):
        node = graph.get(key)
        assert node.description and node.group_name and node.kinds and node.owners


def test_a_changed_canvas_is_one_run_and_none_when_nothing_changed(place: Dagster) -> None:
    write(place, GOOD)
    runs_before = len(place.instance.get_runs())

    assert [load(place), load(place), load(place)] == [True, False, False]
    assert len(place.instance.get_runs()) == runs_before + 1
    assert metadata(place, AUTOMATIONS) == {
        "dagster/row_count": 1,
        "canvases_loaded": 1,
        "canvases_refused": 0,
        "canvases_removed": 0,
        "canvases_being_written": 0,
    }
    assert metadata(place, EDGES) == {"dagster/row_count": 1}
    assert check(place).passed


def test_every_canvas_is_loaded_again_when_that_is_asked_for(place: Dagster) -> None:
    write(place, GOOD)
    load(place)

    assert load(place, is_full=True)
    assert metadata(place, AUTOMATIONS)["canvases_loaded"] == 1


def test_a_person_materializes_the_automations_by_hand(place: Dagster) -> None:
    write(place, GOOD)
    result = dg.materialize(
        [load_automations],
        instance=place.instance,
        resources={"index": OpenIndex(place.workshop.services)},
    )

    assert result.success
    assert place.workshop.query("SELECT slug FROM automations") == [("tip",)]


def test_a_mistake_shows_as_a_warning_without_the_customers_words(place: Dagster) -> None:
    write(place, "automations: [{slug: tip, prompt: p, knowledge: [gone], pins: [SECRET NAME]}]")
    load(place)

    evaluation = check(place)
    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
    shown = {name: entry.value for name, entry in evaluation.metadata.items()}
    assert shown["automation_unknown_database"] == shown["automation_unknown_pin"] == 1
    assert "| acme/site | tip | automation_unknown_pin |" in str(shown["problems"])
    assert "SECRET" not in str(shown)


def test_the_sensor_asks_for_a_run_while_a_canvas_is_stale(place: Dagster) -> None:
    idle = tick(place)
    write(place, GOOD)
    first, again = tick(place), tick(place)
    load(place)

    assert isinstance(idle, dg.SkipReason)
    assert isinstance(first, dg.RunRequest) and isinstance(again, dg.RunRequest)
    assert first.run_key is None, "a canvas that goes back to what it was is loaded again"
    assert dict(first.tags) == STALE_ONLY
    assert isinstance(tick(place), dg.SkipReason)


def test_the_sensor_waits_for_a_run_that_is_on_its_way(place: Dagster) -> None:
    write(place, GOOD)
    job = defs.resolve_job_def("load_automations_job")
    place.instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)

    skipped = tick(place)

    assert isinstance(skipped, dg.SkipReason)
    assert "on its way" in (skipped.skip_message or "")


def test_the_receipts_asset_purges_and_counts_without_the_customers_words(place: Dagster) -> None:
    database = place.workshop.database
    with database.transaction() as conn:
        conn.execute(
            "INSERT INTO receipts (receipt_id, account_id, project_id, knowledge_database_ids,"
            " mode, query, query_hash, request, hits, cited_item_ids, dropped, context, usage,"
            " timings_ms, created_at)"
            " SELECT gen_random_uuid(), account_id, project_id, '{}', 'vector', 'SECRET', '', '{}',"
            "  jsonb_build_array(jsonb_build_object('knowledge_database_item_id',"
            "   knowledge_database_item_id, 'content_hash', '', 'content', words)), '{}', '[]',"
            "  'SECRET', '{}', '{}', now() - age"
            " FROM knowledge_database_items, (VALUES ('alpha0', interval '1 day'),"
            "  ('SECRET', '1 day'), ('alpha0', '31 days')) AS v(words, age)"
        )

    result = dg.materialize(
        [receipt_impact],
        instance=place.instance,
        resources={
            "index": OpenIndex(place.workshop.services),
            "operator": FixedSettings(load_settings(env_file=None, receipt_days=30)),
        },
    )

    assert result.success
    shown = metadata(place, RECEIPT_IMPACT)
    assert shown["receipts_purged"] == 1
    assert (shown["receipts_unchanged"], shown["receipts_changed_since"]) == (1, 1)
    assert "| acme/site | 0 | 1 | 1 |" in str(shown["projects"])
    assert "SECRET" not in str(shown)
    assert defs.resolve_asset_graph().get(RECEIPT_IMPACT).parent_keys == {dg.AssetKey("embeddings")}
