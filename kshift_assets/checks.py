"""Asset checks: whether the index is what it should be. Few, since each is looked up often."""

# Dagster reads the annotations of decorated functions, so they are not postponed in this module.

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from kshift_assets.events import EMBEDDINGS, TABLE
from kshift_assets.resources import KnowledgeIndex
from kshift_knowledge.consistency import Inconsistency, find_inconsistencies
from kshift_knowledge.indexing.records import ItemOutcome
from kshift_knowledge.indexing.runs import IndexServices
from kshift_knowledge.postgres import index_audit, status
from kshift_knowledge.postgres.status import DatabaseStatus

RUN_IS_WHOLE = "items_of_the_run_are_whole"

COVERAGE = "every_item_has_its_rows"
NO_GAPS = "chunk_index_without_gaps"
NO_GHOSTS = "no_rows_of_what_is_gone"
SOUND_VECTORS = "no_zero_or_foreign_vector"
ONE_GENERATION = "one_generation_width_and_model"
CLEAN_REBUILD = "sample_equals_a_clean_rebuild"
FRESHNESS = "nothing_waits_too_long"

REBUILT_ITEMS = 50
MOST_WAITING = timedelta(minutes=15)
_MOST_NAMED = 20

# Which check a contradiction among rows belongs to: consistency.Inconsistency, "oracle".
_CHECK_OF_ORACLE = {"I1": COVERAGE, "I9": COVERAGE, "I3": NO_GAPS, "I4": NO_GHOSTS}
_DESCRIPTIONS = {
    COVERAGE: "Every item that is indexed has the rows, the text and the note it should have.",
    NO_GAPS: "The chunks of an item count from 0 without a gap.",
    NO_GHOSTS: "Nothing is left of items that are gone.",
    SOUND_VECTORS: "Every chunk has a vector of its own item and generation, finite and not zero.",
    ONE_GENERATION: "A project is served from one generation: one width and one model.",
    CLEAN_REBUILD: f"{REBUILT_ITEMS} items, read and cut again, give the rows that are served.",
    FRESHNESS: f"No item of a knowledge database waits longer than {MOST_WAITING}.",
}

run_check = dg.AssetCheckSpec(
    RUN_IS_WHOLE,
    asset=EMBEDDINGS,
    description="Every item that the run indexed has all its rows, in order, with sound vectors.",
)


def check_run(services: IndexServices, outcomes: Iterable[ItemOutcome]) -> dg.AssetCheckResult:
    """Look at what a run has just written."""
    ids = [outcome.item.item_id for outcome in outcomes if outcome.status == "indexed"]
    with services.database.transaction() as conn:
        broken = index_audit.broken_items(conn, services.generation, ids)
    return dg.AssetCheckResult(
        asset_key=EMBEDDINGS,
        check_name=RUN_IS_WHOLE,
        passed=not broken,
        metadata={"items": len(ids), **_named(broken)},
    )


@dg.multi_asset_check(
    name="check_index",
    specs=[
        dg.AssetCheckSpec(name, asset=TABLE, description=description)
        for name, description in _DESCRIPTIONS.items()
    ],
)
def check_index(index: dg.ResourceParam[KnowledgeIndex]) -> Iterator[dg.AssetCheckResult]:
    """Look at the whole index; costs no token."""
    now = datetime.now(UTC)
    with index.open() as services:
        database, root = services.database, services.knowledge_dir
        among_rows = find_inconsistencies(database, root, sample=0, at_rest=False)
        seed = int(time.time())
        everything = find_inconsistencies(
            database, root, sample=REBUILT_ITEMS, seed=seed, at_rest=False
        )
        with database.transaction() as conn:
            mixed = index_audit.mixed_projects(conn)
            databases = status.database_statuses(conn)
    by_check: dict[str, list[Inconsistency]] = {}
    for one in among_rows:
        by_check.setdefault(_CHECK_OF_ORACLE.get(one.oracle, SOUND_VECTORS), []).append(one)
    for name in (COVERAGE, NO_GAPS, NO_GHOSTS, SOUND_VECTORS):
        yield _result(name, [(one.item, one.what) for one in by_check.get(name, [])])
    yield _result(ONE_GENERATION, mixed)
    known = set(among_rows)
    rebuilt = [(one.item, one.what) for one in everything if one not in known]
    yield _result(CLEAN_REBUILD, rebuilt, {"sample": REBUILT_ITEMS, "seed": seed})
    yield _freshness(databases, now)


def _freshness(databases: Iterable[DatabaseStatus], now: datetime) -> dg.AssetCheckResult:
    """Say of each knowledge database that has something waiting how long it has."""
    waiting = [one for one in databases if one.oldest_waiting_at is not None]
    late = [
        one
        for one in waiting
        if one.oldest_waiting_at is not None and now - one.oldest_waiting_at > MOST_WAITING
    ]
    records = [
        dg.TableRecord(
            {
                "knowledge database": f"{one.account}/{one.project}/{one.knowledge_database}",
                "waiting": one.waiting,
                "oldest waiting since": str(one.oldest_waiting_at),
                "last indexed": str(one.last_indexed_at or "never"),
            }
        )
        for one in waiting
    ]
    return dg.AssetCheckResult(
        asset_key=TABLE,
        check_name=FRESHNESS,
        passed=not late,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "databases_late": len(late),
            "items_waiting": sum(one.waiting for one in waiting),
            **({"waiting": dg.MetadataValue.table(records)} if records else {}),
        },
    )


def _result(
    name: str, findings: Sequence[tuple[str, str]], metadata: Mapping[str, int] | None = None
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=TABLE,
        check_name=name,
        passed=not findings,
        metadata={**(metadata or {}), **_named(findings)},
    )


def _named(findings: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """How many, and the first by key; what is wrong is our sentence and quotes nobody."""
    if not findings:
        return {}
    records = [dg.TableRecord({"item": key, "what": what}) for key, what in findings]
    return {
        "findings": len(findings),
        "first": dg.MetadataValue.table(records[:_MOST_NAMED]),
    }


check_job = dg.define_asset_job(
    "check_knowledge",
    selection=dg.AssetSelection.checks(check_index),
    description="Look at the whole index; costs no token.",
)

check_schedule = dg.ScheduleDefinition(
    name="check_schedule",
    job=check_job,
    cron_schedule="47 */4 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every four hours.",
)
