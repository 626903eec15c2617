"""Asset events for exactly the items that a run handled, stored in one batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
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

CODE_VERSION = "1"  # of the pipeline; goes up with chunker.PIPELINE_VERSION
_DEBUG = 10
_EVENTS_AT_ONCE = 1000  # one INSERT each

_DONE = ("indexed", "unchanged")


def record_outcomes(
    context: dg.AssetExecutionContext, generation: Generation, outcomes: Sequence[ItemOutcome]
) -> None:
    """
    Tell Dagster what became of each item of a run.

    One materialization per item and asset that is done; for an item that failed, the plan alone,
    which together with the failed run is what the UI shows as failed.

    store_event_batch is not public; tests/test_dagster_assets.py guards it. It is only fast for
    events of one type and one asset, for which it writes few rows at once (0.25 ms an event where
    log_event takes 8 ms), so there is one batch for each: docs/decisions.md#one-run.
    """
    done = [outcome for outcome in outcomes if outcome.status in _DONE]
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    batches = [[_observed_file(context, outcome) for outcome in done]]
    for asset_key in (CHUNKS, EMBEDDINGS):
        if asset_key in context.selected_asset_keys:
            batches.append([_materialized(context, generation, asset_key, one) for one in done])
            batches.append([_planned(context, asset_key, outcome) for outcome in failed])
    for batch in batches:
        for start in range(0, len(batch), _EVENTS_AT_ONCE):
            context.instance.event_log_storage.store_event_batch(
                [_entry(context, event) for event in batch[start : start + _EVENTS_AT_ONCE]]
            )


def _observed_file(context: dg.AssetExecutionContext, outcome: ItemOutcome) -> DagsterEvent:
    observation = dg.AssetObservation(
        FILES,
        partition=outcome.item.partition_key,
        tags={DATA_VERSION_TAG: outcome.source_hash},
    )
    return _event(context, DagsterEventType.ASSET_OBSERVATION, AssetObservationData(observation))


def _materialized(
    context: dg.AssetExecutionContext,
    generation: Generation,
    asset_key: dg.AssetKey,
    outcome: ItemOutcome,
) -> DagsterEvent:
    materialization = dg.AssetMaterialization(
        asset_key,
        partition=outcome.item.partition_key,
        metadata={
            "dagster/row_count": dg.MetadataValue.int(outcome.chunks),
            "chunks_embedded": dg.MetadataValue.int(outcome.embedded),
            "chunks_reused": dg.MetadataValue.int(outcome.reused),
            "tokens": dg.MetadataValue.int(outcome.tokens),
            "status": dg.MetadataValue.text(outcome.status),
            "revision": dg.MetadataValue.int(outcome.item.revision),
            "generation": dg.MetadataValue.int(generation.generation_id),
            "model": dg.MetadataValue.text(generation.model),
        },
        tags={
            DATA_VERSION_TAG: data_version(generation, asset_key, outcome.source_hash),
            CODE_VERSION_TAG: CODE_VERSION,
        },
    )
    return _event(
        context,
        DagsterEventType.ASSET_MATERIALIZATION,
        StepMaterializationData(materialization, []),
    )


def _planned(
    context: dg.AssetExecutionContext, asset_key: dg.AssetKey, outcome: ItemOutcome
) -> DagsterEvent:
    return _event(
        context,
        DagsterEventType.ASSET_MATERIALIZATION_PLANNED,
        AssetMaterializationPlannedData(asset_key, partition=outcome.item.partition_key),
    )


def data_version(generation: Generation, asset_key: dg.AssetKey, source_hash: str) -> str:
    """A version that changes with the bytes, the cutting and, for embeddings, the model."""
    parts = [source_hash, str(generation.chunk_tokens), str(generation.overlap_tokens)]
    if asset_key == EMBEDDINGS:
        parts += [generation.embedder, generation.model, str(generation.dimensions)]
    return sha256("\n".join(parts).encode()).hexdigest()[:32]


def _event(
    context: dg.AssetExecutionContext, event_type: DagsterEventType, data: object
) -> DagsterEvent:
    return DagsterEvent(
        event_type_value=event_type.value,
        job_name=context.run.job_name,
        step_key=context.get_step_execution_context().step.key,
        event_specific_data=data,  # type: ignore[arg-type]
        message="",
    )


def _entry(context: dg.AssetExecutionContext, event: DagsterEvent) -> EventLogEntry:
    return EventLogEntry(  # type: ignore[no-untyped-call]
        error_info=None,
        level=_DEBUG,
        user_message="",
        run_id=context.run.run_id,
        timestamp=time.time(),
        step_key=event.step_key,
        job_name=event.job_name,
        dagster_event=event,
    )
