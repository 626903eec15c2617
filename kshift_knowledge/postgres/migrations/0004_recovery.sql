-- Recovery: which batches Dagster has not been told the outcome of.

-- A run that breaks off between its last swap and its events leaves a batch without this; what
-- became of its items is then told for it.
ALTER TABLE index_batches ADD COLUMN announced_at timestamptz;
UPDATE index_batches SET announced_at = coalesce(finished_at, created_at);
CREATE INDEX index_batches_unannounced ON index_batches (batch_id) WHERE announced_at IS NULL;
