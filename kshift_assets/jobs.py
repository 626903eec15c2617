"""The job that sensor, command line and people run."""

from __future__ import annotations

import dagster as dg

from kshift_assets.events import CHUNKS, EMBEDDINGS

index_job = dg.define_asset_job(
    "index_knowledge",
    selection=dg.AssetSelection.assets(CHUNKS, EMBEDDINGS),
    description="Index the items of one batch, or of the partitions chosen.",
)
