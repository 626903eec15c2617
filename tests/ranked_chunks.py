"""Stored chunks and hits made up for tests of what is done with them."""

from __future__ import annotations

from hashlib import sha256

from kshift_knowledge.records import Hit, StoredChunk


def chunk_of(
    content: str,
    *,
    name: str = "Note",
    index: int = 0,
    chunk_id: int = 1,
    char_start: int = 0,
    source_url: str | None = None,
) -> StoredChunk:
    return StoredChunk(
        chunk_id=chunk_id,
        account_id=1,
        project_id=2,
        knowledge_database_id=3,
        knowledge_database_item_id=4,
        project_file_id=5,
        item_name=name,
        file="note.md",
        chunk_index=index,
        content=content,
        content_hash=sha256(content.encode()).hexdigest(),
        char_start=char_start,
        char_end=char_start + len(content),
        heading_path=(),
        token_count=1,
        kind="text",
        origin="uploaded",
        source_url=source_url,
        labels=(),
        revision=1,
        score=0.5,
    )


def hit_of(chunk: StoredChunk) -> Hit:
    """The chunk packed whole."""
    return Hit(1, chunk, chunk.content, ((chunk.char_start, chunk.char_end),), False, False)
