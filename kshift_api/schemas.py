"""Requests and responses as types: what is accepted, and what OpenAPI says of both."""

from __future__ import annotations

import unicodedata
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from kshift_knowledge.retrieval import MAX_CHARS, MODES, TOP_K

MAX_ID = 2**63 - 1
MAX_QUERY_CHARS = 200_000
MAX_DATABASES = 100
MAX_NAMES = 50  # pins, labels and item names, each
MAX_NAME_CHARS = 1000
MAX_TOP_K = 50
MAX_MAX_CHARS = 100_000

_UNSEEN = {"Zs", "Zl", "Zp", "Cc", "Cf"}  # blanks, controls and zero-width marks


def without_nul(text: str) -> str:
    """Raises when the text holds a NUL."""
    # The database refuses NUL; lone surrogates do not get past pydantic's own length check.
    if "\0" in text:
        raise PydanticCustomError("string_nul", "String should not contain a NUL character")
    return text


def _not_blank(text: str) -> str:
    if all(unicodedata.category(char) in _UNSEEN for char in text):
        raise PydanticCustomError("string_blank", "String should contain a visible character")
    return text


def _supported_mode(mode: str) -> str:
    if mode not in MODES:
        raise PydanticCustomError(
            "mode_unsupported", "Mode is not supported; supported are: {modes}", {"modes": _MODES}
        )
    return mode


_MODES = ", ".join(MODES)

Id = Annotated[int, Field(ge=1, le=MAX_ID)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS), AfterValidator(without_nul)]
Names = Annotated[list[Name], Field(max_length=MAX_NAMES)]
Query = Annotated[
    str,
    Field(min_length=1, max_length=MAX_QUERY_CHARS),
    AfterValidator(without_nul),
    AfterValidator(_not_blank),
]
Mode = Annotated[
    str, AfterValidator(_supported_mode), Field(json_schema_extra={"enum": list(MODES)})
]


class Request(BaseModel):
    """A body: strict types, no unknown field."""

    # Strict: "1", 1.0 and true are no ids. JSON's own types reach this as Python's.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class RetrieveRequest(Request):
    """A question, and where the answer may come from."""

    query: Query = Field(description="What to look for; a draft of any length within the bound.")
    project_id: Id
    knowledge_database_ids: Annotated[list[Id], Field(max_length=MAX_DATABASES)] = Field(
        description="The linked knowledge databases. Empty means none, never all."
    )
    account_id: Id | None = Field(
        default=None, description="The account comes from the key; another one here is refused."
    )
    kind: Name | None = Field(default="text", description="null does not narrow.")
    origin: Literal["scraped", "uploaded"] | None = Field(
        default=None, description="null does not narrow."
    )
    labels: Names = Field(default=[], description="All of them must be on the item.")
    item_names: Names = Field(default=[], description="Only items with one of these names.")
    pins: Names = Field(
        default=[], description="Exact names of items that are always included, first."
    )
    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K)] = TOP_K
    max_chars: Annotated[int, Field(ge=1, le=MAX_MAX_CHARS)] = Field(
        default=MAX_CHARS, description="Longest context, headers included."
    )
    mode: Mode = MODES[0]


class Answer(BaseModel):
    """A response: exactly these fields."""

    model_config = ConfigDict(extra="forbid")


class Hit(Answer):
    """One packed chunk. char_start and char_end are its range in the item's text."""

    rank: int
    content: str = Field(description="Verbatim text of the chunk, whole or excerpts of it.")
    item_name: str
    file: str = Field(description="Path below the knowledge database.")
    chunk_index: int | None
    score: float | None = Field(description="Cosine of query and chunk; null without a vector.")
    knowledge_database_id: int
    knowledge_database_item_id: int
    project_file_id: int
    source_url: str | None
    origin: Literal["scraped", "uploaded"]
    labels: list[str]
    content_hash: str
    char_start: int
    char_end: int
    excerpts: list[tuple[int, int]] = Field(description="The ranges that were packed.")
    truncated: bool
    pinned: bool
    path: str = Field(description="The page of this service that shows the chunk in its item.")


class Citation(Answer):
    """What to keep beside a generated text."""

    project_file_id: int
    name: str
    file: str
    chunk_index: int | None
    source_url: str | None
    path: str


class Dropped(Answer):
    """What was ranked or pinned and is not in the context."""

    item_name: str
    chunk_index: int | None
    reason: Literal["budget", "pin_not_found"]


class Usage(Answer):
    context_chars: int
    embedding_tokens: int = Field(description="0 for a question that was asked before.")


class RetrieveResponse(Answer):
    """The passages that answer, packed into the budget."""

    receipt_id: str
    mode: str
    embedding_model: str
    hits: list[Hit]
    context: str
    citations: list[Citation]
    dropped: list[Dropped]
    usage: Usage


class KnowledgeDatabase(Answer):
    account_id: int
    account: str
    project_id: int
    project: str
    knowledge_database_id: int
    knowledge_database: str
    items: int
    chunks: int
    last_indexed_at: datetime | None


class KnowledgeDatabases(Answer):
    """What the key may see."""

    knowledge_databases: list[KnowledgeDatabase]


class Health(Answer):
    status: Literal["ok"]


class Readiness(Answer):
    """By name of the check "ok"; when one is not, the answer is a problem with the reasons."""

    status: Literal["ready"]
    checks: dict[str, str]


class FieldProblem(Answer):
    pointer: str = Field(description="JSON pointer (RFC 6901) to the value.")
    detail: str


class ProblemDetails(Answer):
    """Every error, RFC 9457. Branch on code; title, detail and hint are for people."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str
    request_id: str
    errors: list[FieldProblem] = Field(default=[], description="Of invalid_request.")
    checks: dict[str, str] = Field(default={}, description='Of `/readyz`: "ok", or why not.')
