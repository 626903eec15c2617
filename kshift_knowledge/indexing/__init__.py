"""From changed files to served chunks: what changed, in which batch, and the pipeline."""
