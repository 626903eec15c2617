-- Automations as the canvas says them, and receipts that can be looked up and looked back from.

-- knowledge: slugs as written; those that exist are edges. An automation that its canvas names no
-- more stays as gone, like an item: its id, and nothing it said. Named again, it has the same id.
ALTER TABLE automations
    ADD COLUMN knowledge  jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN updated_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN gone_at    timestamptz;

-- What was loaded of a project's automations.yaml: the file's signature, and what was wrong.
CREATE TABLE canvases (
    project_id bigint PRIMARY KEY,
    account_id bigint NOT NULL,
    signature  text NOT NULL,
    problems   jsonb NOT NULL DEFAULT '[]',
    loaded_at  timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (project_id, account_id) REFERENCES projects (project_id, account_id) ON DELETE CASCADE
);

-- prompt: what was handed to whoever generates, for an automation or a tool; null for a plain
-- retrieve. cited_item_ids: of the hits, to find the receipts that cite an item.
ALTER TABLE receipts
    ADD COLUMN prompt          text,
    ADD COLUMN embedding_model text,
    ADD COLUMN cited_item_ids  bigint[] NOT NULL DEFAULT '{}';
UPDATE receipts r
   SET cited_item_ids = ARRAY(
           SELECT DISTINCT (hit ->> 'knowledge_database_item_id')::bigint
             FROM jsonb_array_elements(r.hits) hit),
       embedding_model = (SELECT model FROM generations g WHERE g.generation_id = r.generation_id);
CREATE INDEX receipts_cited ON receipts USING gin (cited_item_ids);
DROP INDEX receipts_recent;
CREATE INDEX receipts_recent ON receipts (account_id, created_at DESC, receipt_id DESC);
CREATE INDEX receipts_of_automation ON receipts (automation_id, created_at DESC, receipt_id DESC)
    WHERE automation_id IS NOT NULL;
CREATE INDEX receipts_age ON receipts (created_at);

GRANT SELECT, INSERT, UPDATE, DELETE ON canvases TO kshift_writer;
