"""Receipts as types: the list, and one of them whole."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from kshift_api.schemas import Answer, Citation, Dropped, Hit, Id, Request, Usage

MAX_RECEIPTS = 100


class ReceiptsQuery(Request):
    """Which receipts to list."""

    automation_id: Id | None = Field(default=None, description="Only those of this automation.")
    limit: Annotated[int, Field(ge=1, le=MAX_RECEIPTS)] = Field(
        default=20, description="How many at most."
    )
    after: Annotated[UUID, Field(strict=False)] | None = Field(
        default=None, description="The last receipt of the page before: `next_after` of it."
    )


class ReceiptLine(Answer):
    """A receipt in the list. hits and dropped are counts."""

    receipt_id: UUID
    created_at: datetime
    account_id: int
    project_id: int
    automation_id: int | None
    mode: str
    query: str | None = Field(description="null when only its hash was kept.")
    hits: int
    dropped: int
    context_chars: int
    embedding_tokens: int


class Receipts(Answer):
    """One page of receipts, newest first."""

    receipts: list[ReceiptLine]
    next_after: UUID | None = Field(description="`after` of the next page; null at the end.")


class ReceiptHit(Hit):
    """A hit as it was sent, with the revision of its item."""

    revision: int


class ReceiptCitation(Citation):
    """A citation, the text that it stands for, and what has become of that text."""

    citation_id: str = Field(description="Names this citation: the receipt and the hit's rank.")
    rank: int
    content: str = Field(description="The exact text that was used.")
    content_hash: str
    state: Literal["unchanged", "changed since", "gone"]
    passage: str | None = Field(
        description="All of the cited chunk, while it is served as it was; else null."
    )


class Receipt(Answer):
    """What was asked, what was answered from, what was left out and why."""

    receipt_id: UUID
    created_at: datetime
    account_id: int
    project_id: int
    knowledge_database_ids: list[int]
    automation_id: int | None
    automation: str | None = Field(description="The automation's slug.")
    key_id: str | None = Field(description="The key that asked; null for the command line.")
    generation_id: int | None
    embedding_model: str | None
    mode: str
    query: str | None = Field(description="null when only its hash was kept.")
    query_hash: str = Field(description="Hex SHA-256 of the query.")
    query_was_cut: bool = Field(description="Whether its end was beyond the model's limit.")
    vector_kept: bool = Field(description="Whether its vector was kept; it never leaves.")
    request: dict[str, Any] = Field(description="Filters, pins and limits as applied.")
    hits: list[ReceiptHit]
    citations: list[ReceiptCitation]
    dropped: list[Dropped]
    context: str
    prompt: str | None = Field(
        description="The exact text that was handed on, of an automation or a tool."
    )
    usage: Usage
    timings_ms: dict[str, float]
