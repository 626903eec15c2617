"""Requests and responses of automations and their tools, as types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from kshift_api.schemas import (
    Answer,
    Citation,
    Mode,
    Query,
    Request,
    RetrieveResponse,
    Usage,
    without_nul,
)

MAX_SUBJECT_CHARS = 1_000_000  # the body ends earlier

SubjectText = Annotated[str, Field(max_length=MAX_SUBJECT_CHARS), AfterValidator(without_nul)]


class ContextRequest(Request):
    """What an automation is about to write about."""

    subject_text: SubjectText | None = Field(
        default=None,
        description="The draft or page upstream. It is searched with the prompt; of a long one "
        "the beginning, within the model's limit.",
    )
    mode: Mode | None = Field(default=None, description="null is the automation's own.")


class CompareRequest(Request):
    """What both ways are tried on."""

    subject_text: SubjectText | None = None


class ToolRequest(Request):
    """The arguments of `retrieve_knowledge`; there are no others."""

    query: Query


class Automation(Answer):
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
    preference: str | None = Field(description="The line that says what to prefer.")
    pins: list[str]
    retrieval: Literal["hybrid", "vector", "concat"]
    knowledge: list[str] = Field(description="Slugs of the linked knowledge databases.")
    knowledge_database_ids: list[int] = Field(description="Their ids, in the same order.")


class Automations(Answer):
    """What the key may see."""

    automations: list[Automation]


class ContextResponse(RetrieveResponse):
    """A retrieve for an automation, and the prompt that takes it in."""

    prompt: str = Field(
        description="The automation's prompt, then the fenced context; without hits the prompt "
        "as it is."
    )


class Overlap(Answer):
    """What the packed texts of two answers share."""

    items: int
    chars: int
    share_of_ranked: float
    share_of_concat: float


class CompareResponse(Answer):
    """The ranked context beside the legacy concatenation."""

    ranked: ContextResponse
    concat: ContextResponse
    overlap: Overlap


class Tool(Answer):
    """A function as OpenAI's function calling takes it."""

    type: Literal["function"]
    name: str
    description: str
    parameters: dict[str, Any]


class Tools(Answer):
    """What an agent is given."""

    tools: list[Tool]


class ToolResponse(Answer):
    """What the tool found, fenced and cited."""

    receipt_id: str
    text: str
    citations: list[Citation]
    usage: Usage
