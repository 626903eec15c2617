-- The index: tenants, items, generations, chunks, vectors, and what is recorded about their use.
-- Applied by kshift_owner. Roles and the extension "vector" exist already (postgres/roles.py).

-- Tenancy -------------------------------------------------------------------------------------

CREATE TABLE accounts (
    account_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slug        text NOT NULL UNIQUE,
    created_at  timestamptz NOT NULL DEFAULT now(),
    disabled_at timestamptz
);

-- One way of cutting and embedding. Its vectors live in tables of its own (create_generation),
-- so that a vector column never mixes dimensions or models.
CREATE TABLE generations (
    generation_id    int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    embedder         text NOT NULL CHECK (embedder IN ('openai', 'local')),
    model            text NOT NULL,
    dimensions       int NOT NULL CHECK (dimensions BETWEEN 1 AND 4000),
    chunk_tokens     int NOT NULL CHECK (chunk_tokens > 0),
    overlap_tokens   int NOT NULL CHECK (overlap_tokens >= 0 AND overlap_tokens < chunk_tokens),
    passage_tokens   int NOT NULL CHECK (passage_tokens >= 0),
    token_counter    text NOT NULL CHECK (token_counter IN ('cl100k_base', 'approximate')),
    text_format      int NOT NULL,
    pipeline_version int NOT NULL,
    is_default       boolean NOT NULL DEFAULT false,
    created_at       timestamptz NOT NULL DEFAULT now(),
    dropped_at       timestamptz
);
-- New projects are served from the default generation; there is at most one.
CREATE UNIQUE INDEX generations_one_default ON generations (is_default) WHERE is_default;

CREATE TABLE projects (
    project_id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_id           bigint NOT NULL REFERENCES accounts ON DELETE CASCADE,
    slug                 text NOT NULL,
    served_generation_id int NOT NULL REFERENCES generations,
    created_at           timestamptz NOT NULL DEFAULT now(),
    UNIQUE (account_id, slug),
    UNIQUE (project_id, account_id)
);

CREATE TABLE knowledge_databases (
    knowledge_database_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_id            bigint NOT NULL,
    project_id            bigint NOT NULL,
    slug                  text NOT NULL,
    created_at            timestamptz NOT NULL DEFAULT now(),
    UNIQUE (project_id, slug),
    UNIQUE (knowledge_database_id, project_id, account_id),
    FOREIGN KEY (project_id, account_id) REFERENCES projects (project_id, account_id) ON DELETE CASCADE
);

-- Items ---------------------------------------------------------------------------------------

CREATE TABLE project_files (
    project_file_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_id      bigint NOT NULL,
    project_id      bigint NOT NULL,
    path            text COLLATE "C" NOT NULL,  -- below the project folder: database/path of the item
    created_at      timestamptz NOT NULL DEFAULT now(),
    UNIQUE (project_id, path),
    FOREIGN KEY (project_id, account_id) REFERENCES projects (project_id, account_id) ON DELETE CASCADE
);

-- Every claim of an item by a run, and every deletion, takes the next number: the highest wins.
CREATE SEQUENCE item_revisions AS bigint;

CREATE TABLE knowledge_database_items (
    knowledge_database_item_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_id            bigint NOT NULL,
    project_id            bigint NOT NULL,
    knowledge_database_id bigint NOT NULL,
    project_file_id       bigint NOT NULL REFERENCES project_files ON DELETE CASCADE,
    path                  text COLLATE "C" NOT NULL,  -- below the database folder
    partition_key         text COLLATE "C" NOT NULL UNIQUE,
    name                  text NOT NULL,
    kind                  text NOT NULL,
    origin                text NOT NULL DEFAULT 'uploaded' CHECK (origin IN ('scraped', 'uploaded')),
    source_url            text,
    labels                jsonb NOT NULL DEFAULT '[]',
    state                 text NOT NULL DEFAULT 'waiting'
                          CHECK (state IN ('waiting', 'indexed', 'failed', 'gone')),
    revision              bigint NOT NULL DEFAULT nextval('item_revisions'),
    seen_signature        text,   -- of the file when it was last handled, right or wrong
    waiting_since         timestamptz DEFAULT now(),
    batch_id              uuid,   -- the batch that has it, while it waits
    settled_signature     text,   -- of the file when the batch took it; another one: not settled
    failure_code          text,
    failure_message       text,
    failure_hint          text,
    failure_attempts      int NOT NULL DEFAULT 0,
    failure_is_retryable  boolean NOT NULL DEFAULT false,
    failed_at             timestamptz,
    created_at            timestamptz NOT NULL DEFAULT now(),
    gone_at               timestamptz,
    UNIQUE (knowledge_database_id, path),
    UNIQUE (knowledge_database_item_id, knowledge_database_id, project_id, account_id),
    FOREIGN KEY (knowledge_database_id, project_id, account_id)
        REFERENCES knowledge_databases (knowledge_database_id, project_id, account_id) ON DELETE CASCADE,
    CHECK ((state = 'failed') = (failure_code IS NOT NULL)),
    CHECK ((state = 'waiting') = (waiting_since IS NOT NULL))
);
CREATE INDEX knowledge_database_items_scope
    ON knowledge_database_items (account_id, project_id, knowledge_database_id);
CREATE INDEX knowledge_database_items_unsettled
    ON knowledge_database_items (state) WHERE state IN ('waiting', 'failed');

-- What each generation holds of an item: the truth that change detection compares the file with.
CREATE TABLE indexed_items (
    generation_id              int NOT NULL REFERENCES generations,
    knowledge_database_item_id bigint NOT NULL REFERENCES knowledge_database_items ON DELETE CASCADE,
    account_id                 bigint NOT NULL,
    project_id                 bigint NOT NULL,
    knowledge_database_id      bigint NOT NULL,
    revision                   bigint NOT NULL,
    source_signature           text NOT NULL,
    source_hash                text NOT NULL,  -- hex SHA-256 of the file's bytes
    chunk_count                int NOT NULL,
    token_count                bigint NOT NULL,
    indexed_at                 timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (generation_id, knowledge_database_item_id)
);
CREATE INDEX indexed_items_item ON indexed_items (knowledge_database_item_id);

-- The text that chunks point into; one revision an item, the one that was read last.
CREATE TABLE item_texts (
    knowledge_database_item_id bigint PRIMARY KEY REFERENCES knowledge_database_items ON DELETE CASCADE,
    account_id                 bigint NOT NULL,
    project_id                 bigint NOT NULL,
    knowledge_database_id      bigint NOT NULL,
    revision                   bigint NOT NULL,
    text                       text NOT NULL
);

-- A set of items that one run indexes. The run holds an advisory lock while it lives.
CREATE TABLE index_batches (
    batch_id    uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    figures     jsonb NOT NULL DEFAULT '{}'
);

-- Chunks --------------------------------------------------------------------------------------

CREATE TABLE chunks (
    chunk_id                   bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    generation_id              int NOT NULL REFERENCES generations,
    account_id                 bigint NOT NULL,
    project_id                 bigint NOT NULL,
    knowledge_database_id      bigint NOT NULL,
    knowledge_database_item_id bigint NOT NULL,
    project_file_id            bigint NOT NULL,
    revision                   bigint NOT NULL,
    chunk_index                int NOT NULL CHECK (chunk_index >= 0),
    content                    text NOT NULL,
    content_hash               text NOT NULL,
    heading_path               text[] NOT NULL,
    char_start                 int NOT NULL CHECK (char_start >= 0),
    char_end                   int NOT NULL CHECK (char_end > char_start),
    token_count                int NOT NULL,
    created_at                 timestamptz NOT NULL DEFAULT now(),
    updated_at                 timestamptz NOT NULL DEFAULT now(),
    UNIQUE (generation_id, knowledge_database_item_id, chunk_index),
    FOREIGN KEY (knowledge_database_item_id, knowledge_database_id, project_id, account_id)
        REFERENCES knowledge_database_items
            (knowledge_database_item_id, knowledge_database_id, project_id, account_id) ON DELETE CASCADE
);
CREATE INDEX chunks_item ON chunks (knowledge_database_item_id);

-- The rows that the asset `chunks` cuts for a revision; only `embeddings` swaps them in.
CREATE TABLE staged_chunks (
    generation_id              int NOT NULL REFERENCES generations,
    knowledge_database_item_id bigint NOT NULL REFERENCES knowledge_database_items ON DELETE CASCADE,
    account_id                 bigint NOT NULL,
    revision                   bigint NOT NULL,
    source_hash                text NOT NULL,
    chunk_index                int NOT NULL,
    content                    text NOT NULL,
    content_hash               text NOT NULL,
    heading_path               text[] NOT NULL,
    char_start                 int NOT NULL,
    char_end                   int NOT NULL,
    token_count                int NOT NULL,
    PRIMARY KEY (generation_id, knowledge_database_item_id, chunk_index)
);

-- Vectors that were paid for and are not served: of text that vanished, or of a run that broke
-- off. The bytes are pgvector's own send format; a row whose checksum is wrong counts as absent.
CREATE TABLE reusable_vectors (
    account_id bigint NOT NULL REFERENCES accounts ON DELETE CASCADE,
    embedder   text NOT NULL,
    model      text NOT NULL,
    dimensions int NOT NULL,
    embed_hash bytea NOT NULL,
    embedding  bytea NOT NULL,
    checksum   bytea NOT NULL,
    kept_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account_id, embedder, model, dimensions, embed_hash)
);

-- Empty until the first generation; then the columns and rows of every served chunk.
CREATE VIEW knowledge_chunks WITH (security_invoker = true) AS
SELECT c.chunk_id, c.generation_id, c.account_id, c.project_id, c.knowledge_database_id,
       c.knowledge_database_item_id, c.project_file_id, c.chunk_index, c.content, c.content_hash,
       ''::text AS embedding_model, i.kind, i.origin, i.name AS item_name, i.source_url, i.labels,
       NULL::vector AS embedding, c.heading_path, c.char_start, c.char_end, c.token_count,
       c.revision, c.created_at, c.updated_at
  FROM chunks c JOIN knowledge_database_items i USING (knowledge_database_item_id)
 WHERE false;

-- What a person deletes from the view is deleted; the next scan notices and builds it again.
CREATE FUNCTION delete_served_chunk() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    DELETE FROM public.chunks WHERE chunk_id = OLD.chunk_id;
    RETURN OLD;
END $$;

-- Rebuilds the view over the generations that exist. Called by create_generation alone.
CREATE PROCEDURE rebuild_served_view() LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    parts text;
BEGIN
    SELECT string_agg(format($part$
        SELECT c.chunk_id, c.generation_id, c.account_id, c.project_id, c.knowledge_database_id,
               c.knowledge_database_item_id, c.project_file_id, c.chunk_index, c.content,
               c.content_hash, g.model AS embedding_model, i.kind, i.origin, i.name AS item_name,
               i.source_url, i.labels, v.embedding::public.vector AS embedding, c.heading_path,
               c.char_start, c.char_end, c.token_count, c.revision, c.created_at, c.updated_at
          FROM public.chunks c
          JOIN public.chunk_vectors_g%1$s v USING (chunk_id)
          JOIN public.projects p ON p.project_id = c.project_id AND p.served_generation_id = %1$s
          JOIN public.generations g ON g.generation_id = %1$s
          JOIN public.knowledge_database_items i
            ON i.knowledge_database_item_id = c.knowledge_database_item_id
         WHERE c.generation_id = %1$s
        $part$, generation_id), ' UNION ALL ' ORDER BY generation_id)
      INTO parts FROM generations WHERE dropped_at IS NULL;
    DROP VIEW IF EXISTS knowledge_chunks;
    EXECUTE 'CREATE VIEW public.knowledge_chunks WITH (security_invoker = true) AS ' || parts;
    CREATE TRIGGER delete_served_chunk INSTEAD OF DELETE ON knowledge_chunks
        FOR EACH ROW EXECUTE FUNCTION delete_served_chunk();
    GRANT SELECT ON knowledge_chunks TO kshift_reader, kshift_writer;
END $$;

-- Creates a generation and the table of its vectors. SECURITY DEFINER because the pipeline has
-- no DDL of its own; only integers and checked words reach the statements that it builds.
CREATE FUNCTION create_generation(
    p_embedder text, p_model text, p_dimensions int, p_chunk_tokens int, p_overlap_tokens int,
    p_passage_tokens int, p_token_counter text, p_text_format int, p_pipeline_version int,
    p_is_default boolean
) RETURNS int LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    g int;
    column_type text := CASE WHEN p_dimensions <= 2000 THEN 'vector' ELSE 'halfvec' END;
    row_fits_a_page boolean := p_dimensions <= CASE WHEN p_dimensions <= 2000 THEN 1900 ELSE 3800 END;
BEGIN
    INSERT INTO generations (embedder, model, dimensions, chunk_tokens, overlap_tokens,
                             passage_tokens, token_counter, text_format, pipeline_version, is_default)
    VALUES (p_embedder, p_model, p_dimensions, p_chunk_tokens, p_overlap_tokens,
            p_passage_tokens, p_token_counter, p_text_format, p_pipeline_version, p_is_default)
    RETURNING generation_id INTO g;
    EXECUTE format($ddl$
        CREATE TABLE public.chunk_vectors_g%1$s (
            chunk_id                   bigint PRIMARY KEY REFERENCES public.chunks ON DELETE CASCADE,
            account_id                 bigint NOT NULL,
            project_id                 bigint NOT NULL,
            knowledge_database_id      bigint NOT NULL,
            knowledge_database_item_id bigint NOT NULL,
            embed_hash                 bytea NOT NULL,
            embedding                  public.%2$I(%3$s) NOT NULL
        )$ddl$, g, column_type, p_dimensions);
    IF row_fits_a_page THEN
        -- Two to five times faster exact scans than TOAST: docs/decisions.md#storage-plain
        EXECUTE format('ALTER TABLE public.chunk_vectors_g%s ALTER COLUMN embedding SET STORAGE PLAIN', g);
    END IF;
    EXECUTE format('CREATE INDEX chunk_vectors_g%1$s_scope ON public.chunk_vectors_g%1$s
                    (account_id, project_id, knowledge_database_id)', g);
    EXECUTE format('CREATE INDEX chunk_vectors_g%1$s_item ON public.chunk_vectors_g%1$s
                    (knowledge_database_item_id)', g);
    EXECUTE format('CREATE INDEX chunk_vectors_g%1$s_hash ON public.chunk_vectors_g%1$s
                    (account_id, embed_hash)', g);
    EXECUTE format('GRANT SELECT ON public.chunk_vectors_g%s TO kshift_reader', g);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON public.chunk_vectors_g%s TO kshift_writer', g);
    CALL rebuild_served_view();
    RETURN g;
END $$;
REVOKE EXECUTE ON FUNCTION create_generation FROM PUBLIC;
REVOKE EXECUTE ON PROCEDURE rebuild_served_view FROM PUBLIC;

-- Use and cost --------------------------------------------------------------------------------

CREATE TABLE token_ledger (
    account_id            bigint NOT NULL,
    project_id            bigint NOT NULL,
    knowledge_database_id bigint NOT NULL,
    day                   date NOT NULL,
    tokens_spent          bigint NOT NULL DEFAULT 0,
    tokens_saved          bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (knowledge_database_id, day),
    FOREIGN KEY (knowledge_database_id, project_id, account_id)
        REFERENCES knowledge_databases (knowledge_database_id, project_id, account_id) ON DELETE CASCADE
);

CREATE TABLE automations (
    automation_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_id    bigint NOT NULL,
    project_id    bigint NOT NULL,
    slug          text NOT NULL,
    name          text NOT NULL,
    preset        text NOT NULL,
    prompt        text NOT NULL,
    preference    text,
    pins          jsonb NOT NULL DEFAULT '[]',
    retrieval     text NOT NULL DEFAULT 'hybrid' CHECK (retrieval IN ('hybrid', 'vector', 'concat')),
    UNIQUE (project_id, slug),
    UNIQUE (automation_id, project_id, account_id),
    FOREIGN KEY (project_id, account_id) REFERENCES projects (project_id, account_id) ON DELETE CASCADE
);

CREATE TABLE knowledge_edges (
    automation_id         bigint NOT NULL,
    knowledge_database_id bigint NOT NULL,
    account_id            bigint NOT NULL,
    project_id            bigint NOT NULL,
    PRIMARY KEY (automation_id, knowledge_database_id),
    FOREIGN KEY (automation_id, project_id, account_id)
        REFERENCES automations (automation_id, project_id, account_id) ON DELETE CASCADE,
    FOREIGN KEY (knowledge_database_id, project_id, account_id)
        REFERENCES knowledge_databases (knowledge_database_id, project_id, account_id) ON DELETE CASCADE
);

CREATE TABLE api_keys (
    key_id                 text PRIMARY KEY,
    key_hash               bytea NOT NULL UNIQUE,  -- SHA-256 of the whole key
    account_id             bigint NOT NULL REFERENCES accounts ON DELETE CASCADE,
    project_id             bigint REFERENCES projects ON DELETE CASCADE,
    knowledge_database_ids bigint[],
    automation_id          bigint REFERENCES automations ON DELETE CASCADE,
    parent_key_id          text REFERENCES api_keys ON DELETE CASCADE,
    created_at             timestamptz NOT NULL DEFAULT now(),
    expires_at             timestamptz,
    revoked_at             timestamptz,
    last_used_at           timestamptz,
    CHECK (knowledge_database_ids IS NULL OR project_id IS NOT NULL),
    CHECK (automation_id IS NULL OR project_id IS NOT NULL)
);

-- The only way from a credential to an account. Rows of dead keys and accounts do not come back.
CREATE FUNCTION authenticate(p_key_hash bytea)
RETURNS TABLE (key_id text, key_hash bytea, account_id bigint, project_id bigint,
               knowledge_database_ids bigint[], automation_id bigint, expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    UPDATE api_keys k SET last_used_at = now()
     WHERE k.key_hash = p_key_hash
       AND (k.last_used_at IS NULL OR k.last_used_at < now() - interval '1 minute');
    RETURN QUERY
    SELECT k.key_id, k.key_hash, k.account_id, k.project_id, k.knowledge_database_ids,
           k.automation_id, least(k.expires_at, parent.expires_at)
      FROM api_keys k
      JOIN accounts a ON a.account_id = k.account_id AND a.disabled_at IS NULL
      LEFT JOIN api_keys parent ON parent.key_id = k.parent_key_id
     WHERE k.key_hash = p_key_hash
       AND k.revoked_at IS NULL AND parent.revoked_at IS NULL
       AND (k.expires_at IS NULL OR k.expires_at > now())
       AND (parent.expires_at IS NULL OR parent.expires_at > now());
END $$;
REVOKE EXECUTE ON FUNCTION authenticate FROM PUBLIC;

CREATE TABLE receipts (
    receipt_id             uuid PRIMARY KEY,
    account_id             bigint NOT NULL,
    project_id             bigint NOT NULL,
    knowledge_database_ids bigint[] NOT NULL,
    automation_id          bigint,
    key_id                 text,
    generation_id          int,
    mode                   text NOT NULL,
    query                  text,
    query_hash             text NOT NULL,
    query_was_cut          boolean NOT NULL DEFAULT false,
    query_vector           real[],
    request                jsonb NOT NULL,  -- filters, pins, top_k, max_chars
    hits                   jsonb NOT NULL,
    dropped                jsonb NOT NULL,
    context                text NOT NULL,
    usage                  jsonb NOT NULL,
    timings_ms             jsonb NOT NULL,
    created_at             timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (project_id, account_id) REFERENCES projects (project_id, account_id) ON DELETE CASCADE
);
CREATE INDEX receipts_recent ON receipts (account_id, project_id, created_at DESC);

-- Grants --------------------------------------------------------------------------------------

GRANT SELECT, INSERT, UPDATE, DELETE ON
    accounts, projects, knowledge_databases, project_files, knowledge_database_items,
    indexed_items, item_texts, index_batches, chunks, staged_chunks, reusable_vectors,
    token_ledger, automations, knowledge_edges, api_keys, receipts
    TO kshift_writer;
GRANT SELECT, UPDATE ON generations TO kshift_writer;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO kshift_writer;
GRANT UPDATE ON SEQUENCE chunks_chunk_id_seq TO kshift_writer;  -- ids are taken in blocks
GRANT SELECT ON knowledge_chunks TO kshift_writer, kshift_reader;
GRANT EXECUTE ON FUNCTION create_generation TO kshift_writer;

GRANT SELECT ON
    accounts, projects, knowledge_databases, project_files, knowledge_database_items,
    indexed_items, item_texts, generations, chunks, automations, knowledge_edges, receipts
    TO kshift_reader;
GRANT INSERT ON receipts TO kshift_reader;
GRANT EXECUTE ON FUNCTION authenticate TO kshift_reader;
