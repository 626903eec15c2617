"""Receipts as they are written: what was asked, what was answered from, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
from pgvector import Vector as PgVector
from psycopg.types.json import Jsonb

from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.records import Retrieval, Scope

_RECORD = """
INSERT INTO receipts (receipt_id, account_id, project_id, knowledge_database_ids, automation_id,
    key_id, generation_id, embedding_model, mode, query, query_hash, query_was_cut, query_vector,
    request, hits, cited_item_ids, dropped, context, prompt, usage, timings_ms)
VALUES (%(receipt_id)s, %(account)s, %(project)s, %(databases)s, %(automation)s,
    %(key)s, %(generation)s, %(model)s, %(mode)s, %(query)s, %(query_hash)s, %(was_cut)s,
    %(vector)b::vector::real[], %(request)s, %(hits)s, %(cited)s, %(dropped)s, %(context)s,
    %(prompt)s, %(usage)s, %(timings)s)
"""

_PURGE = "DELETE FROM receipts WHERE created_at < now() - make_interval(days => %s)"


def record(
    conn: Conn,
    scope: Scope,
    retrieval: Retrieval,
    response: Mapping[str, Any],
    *,
    query: str,
    request: Mapping[str, Any],
    key_id: str | None = None,
    automation_id: int | None = None,
    keeps_query: bool = True,
) -> None:
    """
    Write the receipt of one answer, for good.

    response: as it is sent; each hit is kept with the revision of its item, so that the exact
    text can be found again. request: filters, pins and limits as they were applied. key_id: None
    for the command line. keeps_query: else only the hash of the question is written.
    """
    vector = retrieval.query_vector if keeps_query else None
    hits = [
        {**sent, "revision": hit.chunk.revision}
        for sent, hit in zip(response["hits"], retrieval.hits, strict=True)
    ]
    conn.execute(
        _RECORD,
        {
            "receipt_id": response["receipt_id"],
            "account": scope.account_id,
            "project": scope.project_id,
            "databases": list(scope.knowledge_database_ids),
            "automation": automation_id,
            "key": key_id,
            "generation": retrieval.generation_id,
            "model": retrieval.embedding_model,
            "mode": retrieval.mode,
            "query": query if keeps_query else None,
            "query_hash": sha256(query.encode()).hexdigest(),
            "was_cut": retrieval.query_was_cut,
            "vector": None if vector is None else PgVector(np.asarray(vector, np.float32)),
            "request": Jsonb(dict(request)),
            "hits": Jsonb(hits),
            "cited": sorted({hit["knowledge_database_item_id"] for hit in hits}),
            "dropped": Jsonb(response["dropped"]),
            "context": retrieval.context,
            "prompt": response.get("prompt"),
            "usage": Jsonb(response["usage"]),
            "timings": Jsonb(dict(retrieval.timings_ms)),
        },
    )


def purge(conn: Conn, older_than_days: int) -> int:
    """Delete the receipts of all tenants that are older; returns how many. Writer only."""
    return conn.execute(_PURGE, (older_than_days,)).rowcount
