"""Answers: one question retrieved, its receipt written, and both put into the shape of HTTP."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass
from typing import Any

from kshift_knowledge.citations import citation_path, citation_payload
from kshift_knowledge.postgres import receipts
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.records import Filters, Hit, Retrieval, Scope
from kshift_knowledge.retrieval import MAX_CHARS, MODES, NO_FILTERS, TOP_K, Retrieve


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its limits, checked already; the scope travels beside it."""

    query: str
    filters: Filters = NO_FILTERS
    pins: tuple[str, ...] = ()
    top_k: int = TOP_K
    max_chars: int = MAX_CHARS
    mode: str = MODES[0]


def answer(
    database: Database,
    retrieve: Retrieve,
    question: Question,
    scope: Scope,
    *,
    key_id: str | None = None,
) -> dict[str, Any]:
    """
    Return the response of `POST /v1/retrieve`; there is none without its receipt.

    database: the reader's. Raises what Retrieve raises, and StoreUnavailable.
    """
    retrieval = retrieve(
        question.query,
        scope,
        filters=question.filters,
        pins=question.pins,
        top_k=question.top_k,
        max_chars=question.max_chars,
        mode=question.mode,
    )
    response = answer_payload(uuid.uuid4(), retrieval)
    with database.scoped(scope) as conn:
        receipts.record(
            conn,
            scope,
            retrieval,
            response,
            query=question.query,
            request={
                **asdict(question.filters),
                "pins": question.pins,
                "top_k": question.top_k,
                "max_chars": question.max_chars,
            },
            key_id=key_id,
        )
    return response


def answer_payload(receipt_id: uuid.UUID, retrieval: Retrieval) -> dict[str, Any]:
    """The response of `POST /v1/retrieve`, ready for JSON; vectors never leave."""
    return {
        "receipt_id": str(receipt_id),
        "mode": retrieval.mode,
        "embedding_model": retrieval.embedding_model,
        "hits": [_hit_payload(hit) for hit in retrieval.hits],
        "context": retrieval.context,
        "citations": citation_payload(retrieval.hits),
        "dropped": [asdict(entry) for entry in retrieval.dropped],
        "usage": {
            "context_chars": len(retrieval.context),
            "embedding_tokens": retrieval.embedding_tokens,
        },
    }


def _hit_payload(hit: Hit) -> dict[str, Any]:
    chunk = hit.chunk
    return {
        "rank": hit.rank,
        "content": hit.content,
        "item_name": chunk.item_name,
        "file": chunk.file,
        "chunk_index": chunk.chunk_index,
        "score": chunk.score,
        "knowledge_database_id": chunk.knowledge_database_id,
        "knowledge_database_item_id": chunk.knowledge_database_item_id,
        "project_file_id": chunk.project_file_id,
        "source_url": chunk.source_url,
        "origin": chunk.origin,
        "labels": list(chunk.labels),
        "content_hash": chunk.content_hash,
        "char_start": chunk.char_start,
        "char_end": chunk.char_end,
        "excerpts": [list(excerpt) for excerpt in hit.excerpts],
        "truncated": hit.is_truncated,
        "pinned": hit.is_pinned,
        "path": citation_path(chunk),
    }
