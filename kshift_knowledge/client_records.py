"""What the API answers, as types for its clients; fields that are newer than this are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A value of the API; docs/http.md says what its fields mean."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Hit(Record):
    """One packed chunk."""

    rank: int
    content: str
    item_name: str
    file: str
    chunk_index: int | None
    score: float | None
    knowledge_database_id: int
    knowledge_database_item_id: int
    project_file_id: int
    source_url: str | None
    origin: str
    labels: tuple[str, ...]
    content_hash: str
    char_start: int
    char_end: int
    excerpts: tuple[tuple[int, int], ...]
    truncated: bool
    pinned: bool
    path: str


class Citation(Record):
    """What to keep beside a generated text."""

    project_file_id: int
    name: str
    file: str
    chunk_index: int | None
    source_url: str | None
    path: str


class Dropped(Record):
    """What was ranked or pinned and is not in the context."""

    item_name: str
    chunk_index: int | None
    reason: str


class Usage(Record):
    """What an answer took."""

    context_chars: int
    embedding_tokens: int


class Answer(Record):
    """The passages that answer, packed into the budget."""

    receipt_id: UUID
    mode: str
    embedding_model: str
    hits: tuple[Hit, ...]
    context: str
    citations: tuple[Citation, ...]
    dropped: tuple[Dropped, ...]
    usage: Usage


class AutomationContext(Answer):
    """An answer for an automation, and the prompt that takes it in."""

    prompt: str


class Overlap(Record):
    """What two answers share."""

    items: int
    chars: int
    share_of_ranked: float
    share_of_concat: float


class Comparison(Record):
    """The ranked context beside the legacy concatenation."""

    ranked: AutomationContext
    concat: AutomationContext
    overlap: Overlap


class ToolAnswer(Record):
    """What a tool call found, fenced and cited."""

    receipt_id: UUID
    text: str
    citations: tuple[Citation, ...]
    usage: Usage


class Tool(Record):
    """A function as OpenAI's function calling takes it."""

    type: str
    name: str
    description: str
    parameters: Mapping[str, Any]


class Tools(Record):
    """What an agent is given."""

    tools: tuple[Tool, ...]


class Automation(Record):
    """An automation and its knowledge edges."""

    automation_id: int
    account_id: int
    account: str
    project_id: int
    project: str
    slug: str
    name: str
    preset: str
    prompt: str
    preference: str | None
    pins: tuple[str, ...]
    retrieval: str
    knowledge: tuple[str, ...]
    knowledge_database_ids: tuple[int, ...]


class Automations(Record):
    """What the key may see."""

    automations: tuple[Automation, ...]


class KnowledgeDatabase(Record):
    """A knowledge database that the key may see."""

    account_id: int
    account: str
    project_id: int
    project: str
    knowledge_database_id: int
    knowledge_database: str
    items: int
    chunks: int
    last_indexed_at: datetime | None


class KnowledgeDatabases(Record):
    """What the key may see."""

    knowledge_databases: tuple[KnowledgeDatabase, ...]


class ItemCounts(Record):
    """How many items are in which state."""

    done: int
    running: int
    failed: int
    waiting: int


class Figures(Record):
    """How far indexing is. eta_s: None when no run is alive, or it has no speed yet."""

    items: ItemCounts
    eta_s: float | None
    oldest_waiting_at: datetime | None
    tokens_spent: int
    tokens_saved: int
    cost_usd: float | None


class DatabaseFigures(Figures):
    """The figures of one knowledge database."""

    account_id: int
    account: str
    project_id: int
    project: str
    knowledge_database_id: int
    knowledge_database: str


class Progress(Record):
    """All that the key may see together, and each knowledge database."""

    progress: Figures
    knowledge_databases: tuple[DatabaseFigures, ...]


class ReceiptLine(Record):
    """A receipt in the list; hits and dropped are counts."""

    receipt_id: UUID
    created_at: datetime
    account_id: int
    project_id: int
    automation_id: int | None
    mode: str
    query: str | None
    hits: int
    dropped: int
    context_chars: int
    embedding_tokens: int


class Receipts(Record):
    """One page of receipts; next_after: None at the end."""

    receipts: tuple[ReceiptLine, ...]
    next_after: UUID | None


class ReceiptHit(Hit):
    """A hit with the revision of its item."""

    revision: int


class ReceiptCitation(Citation):
    """A citation, the exact text it stands for, and what has become of that text."""

    citation_id: str
    rank: int
    content: str
    content_hash: str
    state: str
    passage: str | None


class Receipt(Record):
    """What was asked, what was answered from, and what was left out."""

    receipt_id: UUID
    created_at: datetime
    account_id: int
    project_id: int
    knowledge_database_ids: tuple[int, ...]
    automation_id: int | None
    automation: str | None
    key_id: str | None
    generation_id: int | None
    embedding_model: str | None
    mode: str
    query: str | None
    query_hash: str
    query_was_cut: bool
    vector_kept: bool
    request: Mapping[str, Any]
    hits: tuple[ReceiptHit, ...]
    citations: tuple[ReceiptCitation, ...]
    dropped: tuple[Dropped, ...]
    context: str
    prompt: str | None
    usage: Usage
    timings_ms: Mapping[str, float]
