"""The values that travel between modules; frozen data, no behaviour, no driver and no framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = Sequence[float] | NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Scope:
    """
    What a caller may see: one account, one project, and an explicit list of knowledge databases.

    An empty list means nothing, never everything.
    """

    account_id: int
    project_id: int
    knowledge_database_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """
    A piece of one item's text, the unit of citation.

    content is exactly text[char_start:char_end] (code points); content_hash is the hex SHA-256
    of its UTF-8 bytes; heading_path runs from the outermost heading to the innermost one that
    is open where the chunk begins; token_count never exceeds the chunker's chunk_tokens.
    """

    index: int
    content: str
    content_hash: str
    char_start: int
    char_end: int
    heading_path: tuple[str, ...]
    token_count: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One way of cutting and embedding everything; vectors of two generations never meet."""

    generation_id: int
    embedder: str
    model: str
    dimensions: int
    chunk_tokens: int
    overlap_tokens: int
    passage_tokens: int
    token_counter: str  # "cl100k_base" or "approximate"
    text_format: int  # version of the embedded text: prefix rules
    pipeline_version: int  # version of reading and cutting


@dataclass(frozen=True, slots=True)
class ItemMeta:
    """What front matter and the path say about an item."""

    name: str
    title: str | None  # the front-matter name alone; it goes into the embedded text
    kind: str
    origin: str
    source_url: str | None
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SearchedPassage:
    """
    A piece of a chunk as it is searched: where it lies in the item's text, and its words.

    table_head: the range of the head row that its table rows need, None when there is none or it
    lies outside the chunk. lexemes: little-endian uint32; the first own_from of them stand for
    the item's name and the headings, the others for the passage's own text.
    """

    char_start: int
    char_end: int
    table_head: tuple[int, int] | None
    lexemes: bytes
    own_from: int


@dataclass(frozen=True, slots=True)
class EmbeddedPassage:
    """A passage with its vector; without one, its chunk's stands for it."""

    passage: SearchedPassage
    embed_hash: bytes | None = None
    embedding: Vector | None = None


@dataclass(frozen=True, slots=True)
class EmbeddedChunk:
    """A chunk with the hash of what was embedded, its vector and its passages in text order."""

    chunk: Chunk
    embed_hash: bytes
    embedding: Vector
    passages: tuple[EmbeddedPassage, ...] = ()


@dataclass(frozen=True, slots=True)
class ItemVersion:
    """One revision of one item, whole: what a store swaps in for whatever it served before."""

    account_id: int
    project_id: int
    knowledge_database_id: int
    knowledge_database_item_id: int
    project_file_id: int
    path: str  # below the database folder
    revision: int  # fencing: a store refuses a version older than what it knows
    meta: ItemMeta
    text: str  # empty for kinds that are registered only
    source_signature: str
    source_hash: str
    chunks: tuple[EmbeddedChunk, ...]


@dataclass(frozen=True, slots=True)
class Filters:
    """Narrowing inside a scope. None or empty does not narrow."""

    kind: str | None = None
    origin: str | None = None
    labels: tuple[str, ...] = ()
    item_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """
    A served chunk as the store returns it, or a whole item: then chunk_index is None.

    score is the cosine, None when no vector was used.
    """

    chunk_id: int
    account_id: int
    project_id: int
    knowledge_database_id: int
    knowledge_database_item_id: int
    project_file_id: int
    item_name: str
    file: str
    chunk_index: int | None
    content: str
    content_hash: str
    char_start: int
    char_end: int
    heading_path: tuple[str, ...]
    token_count: int
    kind: str
    origin: str
    source_url: str | None
    labels: tuple[str, ...]
    revision: int
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """One packed chunk. excerpts are the packed ranges in the item's text, in order."""

    rank: int
    chunk: StoredChunk
    content: str
    excerpts: tuple[tuple[int, int], ...]
    is_truncated: bool
    is_pinned: bool


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was ranked or asked for and did not reach the context."""

    item_name: str
    chunk_index: int | None
    reason: str  # "budget" or "pin_not_found"


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The answer to one question."""

    mode: str
    embedding_model: str
    generation_id: int
    hits: tuple[Hit, ...]
    context: str
    dropped: tuple[Dropped, ...]
    embedding_tokens: int
    query_was_cut: bool = False
    query_vector: Vector | None = None
    timings_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one item is not indexed, as `kshift status` and `kshift index` show it."""

    item: str
    code: str
    message: str
    hint: str
    attempts: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "item": self.item,
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "attempts": self.attempts,
        }


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A credential as the service knows it; the secret is never kept."""

    key_id: str
    account_id: int
    project_id: int | None
    knowledge_database_ids: tuple[int, ...] | None
    automation_id: int | None
    expires_at: datetime | None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    created_at: datetime | None = None
