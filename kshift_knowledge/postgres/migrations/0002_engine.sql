-- The engine: what an account may spend in a period, and what the API may see of progress.

-- Tokens are taken before they are asked for, so that two runs cannot both spend the last ones.
-- A period begins with what the ledger says was spent in it already.
CREATE TABLE token_budget_use (
    account_id bigint NOT NULL REFERENCES accounts ON DELETE CASCADE,
    period     text NOT NULL CHECK (period IN ('day', 'month')),
    starts_on  date NOT NULL,
    tokens     bigint NOT NULL CHECK (tokens >= 0),
    closed_at  bigint,  -- the budget that was used up: a larger one, or the next period, opens it
    PRIMARY KEY (account_id, period, starts_on)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON token_budget_use TO kshift_writer;

-- Progress over HTTP: what was spent, and since when the batch runs that has an item. A batch's
-- figures are sums over accounts and stay with the writer.
GRANT SELECT ON token_ledger TO kshift_reader;
GRANT SELECT (batch_id, created_at, finished_at) ON index_batches TO kshift_reader;
