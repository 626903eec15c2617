"""Asset events for exactly the items that a run handled, stored many at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

import dagster as dg
from dagster._core.definitions.data_version import CODE_VERSION_TAG, DATA_VERSION_TAG
from dagster._core.events import (
    AssetMaterializationPlannedData,
    AssetObservationData,
    DagsterEvent,
    DagsterEventType,
    StepMaterializationData,
)
from dagster._core.events.log import EventLogEntry

from kshift_knowledge.indexing.records import ItemOutcome
from kshift_knowledge.records import Generation

FILES = dg.AssetKey("knowledge_files")
CHUNKS = dg.AssetKey("chunks")
EMBEDDINGS = dg.AssetKey("embeddings")
TABLE = dg.AssetKey("knowledge_chunks")

CODE_VERSION = "2"  # of the pipeline; goes up with chunker.PIPELINE_VERSION
_DEBUG = 10
_EVENTS_AT_ONCE = 1000  # one INSERT each

STEP = "index_items"

_DONE = ("indexed", "unchanged")


@dataclass(frozen=True, slots=True)
class Announcement:
    """What Dagster is told of one item; cost: more metadata, where the run that knew it lived."""

    partition_key: str
    status: str
    revision: int
    chunks: int
    tokens: int
    source_hash: str
    cost: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, outcome: ItemOutcome) -> Announcement:
        return cls(
            outcome.item.partition_key,
            outcome.status,
            outcome.item.revision,
            outcome.chunks,
            outcome.tokens,
            outcome.source_hash,
            (("chunks_embedded", outcome.embedded), ("chunks_reused", outcome.reused)),
        )


def announce(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    generation: Generation,
    announcements: Sequence[Announcement],
    assets: Collection[dg.AssetKey] = (CHUNKS, EMBEDDINGS),
) -> None:
    """
    Tell Dagster what became of each item of a run.

    One materialization per item and asset that is done; for an item that failed, the plan alone,
    which together with the failed run is what the UI shows as failed.

    store_event_batch is not public; tests/test_dagster_assets.py guards it. It is only fast for
    events of one type and one asset, for which it writes few rows at once (0.25 ms an event where
    log_event takes 8 ms), so there is one batch for each: docs/decisions.md#one-run.
    """
    done = [one for one in announcements if one.status in _DONE]
    failed = [one for one in announcements if one.status == "failed"]
    _store(instance, run, done, partial(_observed_file, run))
    for asset_key in (CHUNKS, EMBEDDINGS):
        if asset_key in assets:
            _store(instance, run, done, partial(_materialized, run, generation, asset_key))
            _store(instance, run, failed, partial(_planned, run, asset_key))


def _store(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    announcements: Sequence[Announcement],
    event_of: Callable[[Announcement], DagsterEvent],
) -> None:
    """Store a batch of one kind; events are made a part at a time, since each weighs kilobytes."""
    for start in range(0, len(announcements), _EVENTS_AT_ONCE):
        part = announcements[start : start + _EVENTS_AT_ONCE]
        instance.event_log_storage.store_event_batch([_entry(run, event_of(one)) for one in part])


def _observed_file(run: dg.DagsterRun, one: Announcement) -> DagsterEvent:
    observation = dg.AssetObservation(
        FILES, partition=one.partition_key, tags={DATA_VERSION_TAG: one.source_hash}
    )
    return _event(run, DagsterEventType.ASSET_OBSERVATION, AssetObservationData(observation))


def _materialized(
    run: dg.DagsterRun, generation: Generation, asset_key: dg.AssetKey, one: Announcement
) -> DagsterEvent:
    materialization = dg.AssetMaterialization(
        asset_key,
        partition=one.partition_key,
        metadata={
            "dagster/row_count": dg.MetadataValue.int(one.chunks),
            **{name: dg.MetadataValue.int(count) for name, count in one.cost},
            "tokens": dg.MetadataValue.int(one.tokens),
            "status": dg.MetadataValue.text(one.status),
            "revision": dg.MetadataValue.int(one.revision),
            "generation": dg.MetadataValue.int(generation.generation_id),
            "model": dg.MetadataValue.text(generation.model),
        },
        tags={
            DATA_VERSION_TAG: data_version(generation, asset_key, one.source_hash),
            CODE_VERSION_TAG: CODE_VERSION,
        },
    )
    return _event(
        run, DagsterEventType.ASSET_MATERIALIZATION, StepMaterializationData(materialization, [])
    )


def _planned(run: dg.DagsterRun, asset_key: dg.AssetKey, one: Announcement) -> DagsterEvent:
    return _event(
        run,
        DagsterEventType.ASSET_MATERIALIZATION_PLANNED,
        AssetMaterializationPlannedData(asset_key, partition=one.partition_key),
    )


def data_version(generation: Generation, asset_key: dg.AssetKey, source_hash: str) -> str:
    """A version that changes with the bytes, the cutting and, for embeddings, the model."""
    parts = [source_hash, str(generation.chunk_tokens), str(generation.overlap_tokens)]
    if asset_key == EMBEDDINGS:
        parts += [generation.embedder, generation.model, str(generation.dimensions)]
    return sha256("\n".join(parts).encode()).hexdigest()[:32]


def _event(run: dg.DagsterRun, event_type: DagsterEventType, data: object) -> DagsterEvent:
    return DagsterEvent(
        event_type_value=event_type.value,
        job_name=run.job_name,
        step_key=STEP,
        event_specific_data=data,  # type: ignore[arg-type]
        message="",
    )


def _entry(run: dg.DagsterRun, event: DagsterEvent) -> EventLogEntry:
    return EventLogEntry(  # type: ignore[no-untyped-call]
        error_info=None,
        level=_DEBUG,
        user_message="",
        run_id=run.run_id,
        timestamp=time.time(),
        step_key=event.step_key,
        job_name=event.job_name,
        dagster_event=event,
    )
