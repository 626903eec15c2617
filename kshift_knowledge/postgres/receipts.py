"""Receipts: what was asked, what was answered from, and what was left out."""

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
INSERT INTO receipts (receipt_id, account_id, project_id, knowledge_database_ids, key_id,
    generation_id, mode, query, query_hash, query_was_cut, query_vector, request, hits, dropped,
    context, usage, timings_ms)
VALUES (%(receipt_id)s, %(account)s, %(project)s, %(databases)s, %(key)s,
    %(generation)s, %(mode)s, %(query)s, %(query_hash)s, %(was_cut)s,
    %(vector)b::vector::real[], %(request)s,
    %(hits)s, %(dropped)s, %(context)s, %(usage)s, %(timings)s)
"""


def record(
    conn: Conn,
    scope: Scope,
    retrieval: Retrieval,
    response: Mapping[str, Any],
    *,
    query: str,
    request: Mapping[str, Any],
    key_id: str | None = None,
) -> None:
    """
    Write the receipt of one answer, for good.

    response: as it is sent; each hit is kept with the revision of its item, so that the exact
    text can be found again. request: filters, pins and limits as they were applied. key_id: None
    for the command line.
    """
    vector = retrieval.query_vector
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
            "key": key_id,
            "generation": retrieval.generation_id,
            "mode": retrieval.mode,
            "query": query,
            "query_hash": sha256(query.encode()).hexdigest(),
            "was_cut": retrieval.query_was_cut,
            "vector": None if vector is None else PgVector(np.asarray(vector, np.float32)),
            "request": Jsonb(dict(request)),
            "hits": Jsonb(hits),
            "dropped": Jsonb(response["dropped"]),
            "context": retrieval.context,
            "usage": Jsonb(response["usage"]),
            "timings": Jsonb(dict(retrieval.timings_ms)),
        },
    )
