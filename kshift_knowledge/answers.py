"""Answers: one question retrieved, its receipt written, and both put into the shape of HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from kshift_knowledge.citations import citation_path, citation_payload
from kshift_knowledge.postgres import receipts
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.preferences import without_preferences
from kshift_knowledge.records import Filters, Hit, Retrieval, Scope
from kshift_knowledge.retrieval import MAX_CHARS, MODES, NO_FILTERS, TOP_K, Retrieve


@dataclass(frozen=True, slots=True)
class Question:
    """
    A question with its limits, checked already; the scope travels beside it.

    preferences: the preference lines of the project's automations; they are not searched.
    """

    query: str
    filters: Filters = NO_FILTERS
    pins: tuple[str, ...] = ()
    top_k: int = TOP_K
    max_chars: int = MAX_CHARS
    mode: str = MODES[0]
    preferences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asker:
    """
    For whom a question is answered, as the receipt says it; all None on the command line.

    keeps_query: whether the receipt keeps the question's text and vector, or its hash alone.
    """

    key_id: str | None = None
    automation_id: int | None = None
    keeps_query: bool = True


SOMEBODY = Asker()


def answer(
    database: Database,
    retrieve: Retrieve,
    question: Question,
    scope: Scope,
    asker: Asker = SOMEBODY,
    *,
    prompt_of: Callable[[Retrieval], str] | None = None,
) -> dict[str, Any]:
    """
    Return the response of `POST /v1/retrieve`; there is none without its receipt.

    database: the reader's. prompt_of: makes what is handed on of what was found; the response
    has it as `prompt`, the receipt keeps it. Raises what Retrieve raises, and StoreUnavailable.
    """
    searched, left_out = without_preferences(question.query, question.preferences)
    retrieval = retrieve(
        searched,
        scope,
        filters=question.filters,
        pins=question.pins,
        top_k=question.top_k,
        max_chars=question.max_chars,
        mode=question.mode,
    )
    response = answer_payload(uuid.uuid4(), retrieval)
    if prompt_of is not None:
        response["prompt"] = prompt_of(retrieval)
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
                "preferences_left_out": left_out,
            },
            key_id=asker.key_id,
            automation_id=asker.automation_id,
            keeps_query=asker.keeps_query,
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
