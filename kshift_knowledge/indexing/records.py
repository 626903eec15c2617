"""The values of indexing: items as the tables, a run and the pipeline know them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from kshift_knowledge.errors import KshiftError
from kshift_knowledge.item_source import ItemSource
from kshift_knowledge.records import Chunk, SearchedPassage
from kshift_knowledge.tree import TreeEntry

Status = Literal["indexed", "unchanged", "failed", "gone", "unsettled", "superseded"]


@dataclass(frozen=True, slots=True)
class KnownItem:
    """
    An item as the tables know it.

    is_retry_due: it failed, may succeed later, and has waited long enough.
    is_served_whole: the rows that it should have are there.
    """

    item_id: int
    account_id: int
    project_id: int
    knowledge_database_id: int
    account: str
    project: str
    database: str
    path: str
    partition_key: str
    state: str
    seen_signature: str | None
    batch_id: UUID | None
    failure_code: str | None
    failure_is_retryable: bool
    is_retry_due: bool
    is_served_whole: bool


@dataclass(frozen=True, slots=True)
class Rename:
    """A known item that is found under another path of the same database."""

    item: KnownItem
    entry: TreeEntry


@dataclass(frozen=True, slots=True)
class ClaimedItem:
    """
    An item that a run has claimed: newer claims and deletions win over this one.

    settled_signature: the file's when it was seen at rest; empty for a file that is not there.
    indexed_hash: of the bytes that are served now, None when nothing is.
    """

    item_id: int
    account_id: int
    project_id: int
    knowledge_database_id: int
    project_file_id: int
    account: str
    project: str
    database: str
    path: str
    partition_key: str
    name: str
    revision: int
    settled_signature: str
    indexed_hash: str | None
    generation_id: int
    failure_attempts: int


@dataclass(frozen=True, slots=True)
class EmbedText:
    """A text to embed, by its hash, with its tokens."""

    embed_hash: bytes
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class CutPassage:
    """A passage and what would be embedded of it; None where its chunk's vector stands for it."""

    passage: SearchedPassage
    text: EmbedText | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """An item that was read and cut; for each chunk what would be embedded, and its passages."""

    item: ClaimedItem
    source: ItemSource
    chunks: tuple[Chunk, ...]
    texts: tuple[EmbedText, ...]
    passages: tuple[tuple[CutPassage, ...], ...]

    @property
    def embedded(self) -> tuple[EmbedText, ...]:
        """All that would be embedded: of the chunks, then of the passages."""
        return embedded_texts(self.texts, self.passages)


def embedded_texts(
    texts: Sequence[EmbedText], passages: Sequence[Sequence[CutPassage]]
) -> tuple[EmbedText, ...]:
    """The texts of chunks, then those of the passages that have one."""
    return (*texts, *(one.text for those in passages for one in those if one.text is not None))


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """
    One item at the end of its run.

    chunks: what is served of it now; embedded and reused: of those, paid for in this run or not;
    passages_embedded: paid for in this run; tokens: of all its embedded texts; tokens_saved: of
    the reused ones.
    """

    item: ClaimedItem
    status: Status
    chunks: int = 0
    embedded: int = 0
    reused: int = 0
    passages_embedded: int = 0
    tokens: int = 0
    tokens_saved: int = 0
    source_hash: str = ""
    error: KshiftError | None = None


@dataclass(frozen=True, slots=True)
class FailedItem:
    """An item that could not be indexed by the claim that holds *revision*."""

    item_id: int
    revision: int
    code: str
    message: str
    hint: str
    is_retryable: bool
    signature: str


@dataclass(frozen=True, slots=True)
class FailedPlace:
    """Where an item lies that stands failed."""

    account: str
    project: str
    database: str
    path: str
    partition_key: str


@dataclass(frozen=True, slots=True)
class IndexedSource:
    """An indexed item and the file it was made of."""

    item_id: int
    account: str
    project: str
    database: str
    path: str
    seen_signature: str | None
    source_hash: str
