"""Generations: how the index was cut and embedded, and which one is the default."""

from __future__ import annotations

from kshift_knowledge.errors import NotFound, NotReady
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.records import Generation, Scope

_COLUMNS = (
    "generation_id, embedder, model, dimensions, chunk_tokens, overlap_tokens, passage_tokens,"
    " token_counter, text_format, pipeline_version"
)
# Two processes that start together must not both create the first generation.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('kshift.generations'))"


def default_generation(conn: Conn) -> Generation | None:
    row = conn.execute(f"SELECT {_COLUMNS} FROM generations WHERE is_default").fetchone()  # noqa: S608
    return Generation(*row) if row else None


def require_default_generation(conn: Conn) -> Generation:
    """Raises NotReady when nothing was ever indexed."""
    generation = default_generation(conn)
    if generation is None:
        raise NotReady("Nothing is indexed yet.", hint="Run `kshift index`.")
    return generation


def served_generation(conn: Conn, scope: Scope) -> Generation:
    """The generation that the scope's project is served from. Raises NotFound."""
    row = conn.execute(
        f"SELECT {_COLUMNS} FROM generations WHERE generation_id ="  # noqa: S608
        " (SELECT served_generation_id FROM projects"
        " WHERE account_id = %s AND project_id = %s)",
        (scope.account_id, scope.project_id),
    ).fetchone()
    if row is None:
        raise NotFound(f"There is no project {scope.project_id} in this account.")
    return Generation(*row)


def living_generations(conn: Conn) -> list[Generation]:
    """Every generation that was not dropped, oldest first."""
    rows = conn.execute(
        f"SELECT {_COLUMNS} FROM generations WHERE dropped_at IS NULL ORDER BY 1"  # noqa: S608
    )
    return [Generation(*row) for row in rows]


def ensure_default_generation(conn: Conn, wanted: Generation) -> Generation:
    """Return the default generation; *wanted* (its id is ignored) becomes it when none is."""
    conn.execute(_LOCK)
    existing = default_generation(conn)
    if existing is not None:
        return existing
    conn.execute(
        "SELECT create_generation(%s, %s, %s, %s, %s, %s, %s, %s, %s, true)",
        (
            wanted.embedder,
            wanted.model,
            wanted.dimensions,
            wanted.chunk_tokens,
            wanted.overlap_tokens,
            wanted.passage_tokens,
            wanted.token_counter,
            wanted.text_format,
            wanted.pipeline_version,
        ),
    )
    return require_default_generation(conn)


def vector_table(generation_id: int) -> str:
    """The table of a generation's chunk vectors; only ever built from an int."""
    return f"chunk_vectors_g{int(generation_id)}"


def passage_table(generation_id: int) -> str:
    """The table of a generation's passage vectors; only ever built from an int."""
    return f"passage_vectors_g{int(generation_id)}"
