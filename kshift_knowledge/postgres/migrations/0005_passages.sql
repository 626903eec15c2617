-- Passages: where the pieces of each chunk lie, the words that they hold, and their vectors.

-- Adds to the tables of a generation what its passages need. places: six little-endian int4 for
-- each passage: start, end, head start, head end (0, 0: none), lexemes, those before its own text.
-- lexemes: of all passages, one after the other, as little-endian int4. Both NULL for chunks that
-- were written before; such a chunk counts as one passage without words.
CREATE PROCEDURE add_passages(g int, dimensions int) LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    EXECUTE format('ALTER TABLE public.chunk_vectors_g%s ADD COLUMN places bytea, ADD COLUMN lexemes bytea', g);
    -- Beside the vector as long as the row fits a page: docs/decisions.md#passages
    EXECUTE format('ALTER TABLE public.chunk_vectors_g%s ALTER COLUMN places SET STORAGE MAIN,
                    ALTER COLUMN lexemes SET STORAGE MAIN', g);
    EXECUTE format('ALTER TABLE public.chunk_vectors_g%s SET (toast_tuple_target = 8160)', g);
    EXECUTE format($ddl$
        CREATE TABLE public.passage_vectors_g%1$s (
            chunk_id                   bigint NOT NULL REFERENCES public.chunks ON DELETE CASCADE,
            passage_index              smallint NOT NULL,
            account_id                 bigint NOT NULL,
            project_id                 bigint NOT NULL,
            knowledge_database_id      bigint NOT NULL,
            knowledge_database_item_id bigint NOT NULL,
            embed_hash                 bytea NOT NULL,
            embedding                  public.halfvec(%2$s) NOT NULL,
            PRIMARY KEY (chunk_id, passage_index)
        )$ddl$, g, dimensions);
    IF dimensions <= 3800 THEN
        EXECUTE format('ALTER TABLE public.passage_vectors_g%s ALTER COLUMN embedding SET STORAGE PLAIN', g);
    END IF;
    EXECUTE format('CREATE INDEX passage_vectors_g%1$s_item ON public.passage_vectors_g%1$s
                    (knowledge_database_item_id)', g);
    EXECUTE format('CREATE INDEX passage_vectors_g%1$s_hash ON public.passage_vectors_g%1$s
                    (account_id, embed_hash)', g);
    EXECUTE format('GRANT SELECT ON public.passage_vectors_g%s TO kshift_reader', g);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON public.passage_vectors_g%s TO kshift_writer', g);
END $$;
REVOKE EXECUTE ON PROCEDURE add_passages FROM PUBLIC;

DO $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT generation_id, dimensions FROM generations WHERE dropped_at IS NULL LOOP
        CALL add_passages(one.generation_id, one.dimensions);
    END LOOP;
END $$;

-- As before, and with what passages need.
CREATE OR REPLACE FUNCTION create_generation(
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
    CALL add_passages(g, p_dimensions);
    CALL rebuild_served_view();
    RETURN g;
END $$;
