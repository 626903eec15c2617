"""The assets: files, chunks and embeddings of knowledge items, and the table they end in."""

# Dagster reads the annotations of decorated functions, so they are not postponed in this module.

import os
from collections import Counter
from collections.abc import Iterator
from uuid import UUID

import dagster as dg

from kshift_assets.checks import check_run, run_check
from kshift_assets.events import (
    CHUNKS,
    CODE_VERSION,
    EMBEDDINGS,
    FILES,
    STEP,
    TABLE,
    Announcement,
    announce,
)
from kshift_assets.partitions import knowledge_items
from kshift_assets.progress import progress_metadata
from kshift_assets.resources import KnowledgeIndex
from kshift_assets.run_tags import BATCH_TAG, HOLDER_TAG, LOCKED_TAG
from kshift_knowledge.failpoints import failpoint
from kshift_knowledge.indexing.records import ItemOutcome
from kshift_knowledge.indexing.runs import (
    IndexServices,
    index_batch,
    index_keys,
    set_announced,
    stage_keys,
)
from kshift_knowledge.postgres import run_lock

GROUP = "knowledge"
OWNERS = ["team:kshift"]
EMBEDDING_POOL = "embedding_api"  # dagster.yaml says how many runs may ask it at once

knowledge_files = dg.AssetSpec(
    FILES,
    description="The files of the knowledge tree, `<account>/<project>/<database>/<path>`.",
    partitions_def=knowledge_items,
    group_name=GROUP,
    kinds={"file"},
    owners=OWNERS,
)

served_table = dg.AssetSpec(
    TABLE,
    deps=[EMBEDDINGS],
    description="The view that answers are ranked from: every served chunk and its vector.",
    group_name=GROUP,
    kinds={"postgres"},
    owners=OWNERS,
    metadata={"dagster/table_name": TABLE.to_user_string()},
)


@dg.multi_asset(
    name=STEP,
    specs=[
        dg.AssetSpec(
            CHUNKS,
            deps=[FILES],
            description="Items cut along their structure: staged rows of a revision, not served.",
            group_name=GROUP,
            kinds={"python", "postgres"},
            owners=OWNERS,
            code_version=CODE_VERSION,
            skippable=True,
        ),
        dg.AssetSpec(
            EMBEDDINGS,
            deps=[CHUNKS],
            description="Chunks with their vectors, swapped in whole: what answers are made of.",
            group_name=GROUP,
            kinds={"python", "pgvector"},
            owners=OWNERS,
            code_version=CODE_VERSION,
            skippable=True,
        ),
    ],
    check_specs=[run_check],
    partitions_def=knowledge_items,
    backfill_policy=dg.BackfillPolicy.single_run(),
    can_subset=True,
    pool=EMBEDDING_POOL,
)
def index_items(
    context: dg.AssetExecutionContext, index: dg.ResourceParam[KnowledgeIndex]
) -> Iterator[dg.AssetCheckResult]:
    """
    Index the items of a batch, or of the partitions that a person chose.

    The events of each item are stored by announce, so no output is yielded: an output would give
    every partition of the run one and the same result.
    """
    run = context.run
    outcomes: list[ItemOutcome] = []
    with index.open() as services, run_lock.held(services.database, UUID(run.run_id)):
        context.instance.add_run_tags(run.run_id, {LOCKED_TAG: run.run_id})
        _index(context, services, outcomes)
        failpoint("outcomes_done")
        news = [Announcement.of(outcome) for outcome in outcomes]
        announce(context.instance, run, services.generation, news, context.selected_asset_keys)
        if BATCH_TAG in run.tags:
            set_announced(services, UUID(run.tags[BATCH_TAG]))
        if EMBEDDINGS in context.selected_asset_keys:
            context.log_event(dg.AssetMaterialization(TABLE, metadata=progress_metadata(services)))
        if run_check.key in context.selected_asset_check_keys:
            yield check_run(services, outcomes)
    _fail_if_any_failed(context, outcomes)


def _index(
    context: dg.AssetExecutionContext, services: IndexServices, outcomes: list[ItemOutcome]
) -> None:
    """Do what the run was started for, noting each item as it is done."""
    tags = context.run.tags
    if EMBEDDINGS not in context.selected_asset_keys:
        stage_keys(services, context.partition_keys, on_outcome=outcomes.append)
    elif BATCH_TAG in tags:
        is_held = tags.get(HOLDER_TAG) == str(os.getpid())
        index_batch(services, UUID(tags[BATCH_TAG]), on_outcome=outcomes.append, is_held=is_held)
    else:
        index_keys(
            services,
            context.partition_keys,
            on_outcome=outcomes.append,
            from_staged=CHUNKS not in context.selected_asset_keys,
        )


def _fail_if_any_failed(context: dg.AssetExecutionContext, outcomes: list[ItemOutcome]) -> None:
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        context.log.error(f"{outcome.item.partition_key}: {outcome.error}")
    if failed:
        codes = Counter(outcome.error.code for outcome in failed if outcome.error)
        listed = ", ".join(f"{count} {code}" for code, count in codes.most_common())
        # All others are saved; a run that failed because of an item is not tried again.
        raise dg.Failure(
            description=f"{len(failed)} of {len(outcomes)} items failed: {listed}.",
            allow_retries=False,
        )
