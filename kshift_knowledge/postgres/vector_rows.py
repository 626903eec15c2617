"""Vector rows in PostgreSQL's binary COPY format, built as arrays: vectors are of one width."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from kshift_knowledge.records import Generation, ItemVersion, SearchedPassage

MAX_FULL_DIMENSIONS = 2000  # wider vectors are stored as halfvec, as create_generation() does
_OWNERS = "account_id, project_id, knowledge_database_id, knowledge_database_item_id"
CHUNK_COLUMNS = f"chunk_id, {_OWNERS}, embed_hash, embedding, places, lexemes"
PASSAGE_COLUMNS = f"chunk_id, {_OWNERS}, embed_hash, embedding, passage_index"

PLACE = np.dtype("<i4")  # six for each passage, as migrations/0005_passages.sql says
PLACE_NUMBERS = 6

# https://www.postgresql.org/docs/current/sql-copy.html, "Binary Format"
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_IDS = ("chunk_id", *_OWNERS.split(", "))
_HASH_BYTES = 32

_Owned = tuple[int, int, int, int, int]


def chunk_copy(
    generation: Generation, versions: Sequence[ItemVersion], chunk_ids: Sequence[int]
) -> bytes:
    """
    Return the whole input of a COPY of CHUNK_COLUMNS: a row for each chunk, in order.

    chunk_ids: one for each chunk. Some fifty times as fast as a row at a time by the driver.
    """
    embedded = [chunk for version in versions for chunk in version.chunks]
    rows = _rows(
        _owned(versions, chunk_ids),
        [chunk.embed_hash for chunk in embedded],
        np.asarray([chunk.embedding for chunk in embedded], dtype=np.float32),
        is_half=generation.dimensions > MAX_FULL_DIMENSIONS,
        columns=len(_IDS) + 4,
    )
    size, sent = rows.itemsize, rows.tobytes()
    parts = [_HEADER]
    for number, chunk in enumerate(embedded):
        parts.append(sent[number * size : (number + 1) * size])
        parts.append(_sized(places([one.passage for one in chunk.passages])))
        parts.append(_sized(b"".join(one.passage.lexemes for one in chunk.passages)))
    return b"".join((*parts, _TRAILER))


def passage_copy(versions: Sequence[ItemVersion], chunk_ids: Sequence[int]) -> bytes | None:
    """Return the input of a COPY of PASSAGE_COLUMNS; None where no passage has a vector."""
    owners, hashes, vectors, indexes = [], [], [], []
    owned = iter(_owned(versions, chunk_ids))
    for chunk in (chunk for version in versions for chunk in version.chunks):
        owner = next(owned)
        for index, one in enumerate(chunk.passages):
            if one.embed_hash is not None and one.embedding is not None:
                owners.append(owner)
                hashes.append(one.embed_hash)
                vectors.append(one.embedding)
                indexes.append(index)
    if not owners:
        return None
    embeddings = np.asarray(vectors, dtype=np.float32)
    rows = _rows(owners, hashes, embeddings, is_half=True, columns=len(_IDS) + 3)
    tail = np.zeros(len(rows), dtype=[("bytes", ">i4"), ("index", ">i2")])
    tail["bytes"], tail["index"] = 2, indexes
    whole = np.zeros(len(rows), dtype=[("row", rows.dtype), ("tail", tail.dtype)])
    whole["row"], whole["tail"] = rows, tail
    return _HEADER + whole.tobytes() + _TRAILER


def places(passages: Sequence[SearchedPassage]) -> bytes:
    """Return where passages lie and how their lexemes part, as the column has it."""
    numbers = [
        (
            one.char_start,
            one.char_end,
            *(one.table_head or (0, 0)),
            len(one.lexemes) // 4,
            one.own_from,
        )
        for one in passages
    ]
    return np.array(numbers, dtype=PLACE).tobytes()


def _owned(versions: Sequence[ItemVersion], chunk_ids: Sequence[int]) -> list[_Owned]:
    ids = iter(chunk_ids)
    return [
        (
            next(ids),
            version.account_id,
            version.project_id,
            version.knowledge_database_id,
            version.knowledge_database_item_id,
        )
        for version in versions
        for _ in version.chunks
    ]


def _rows(
    owned: Sequence[_Owned],
    hashes: Sequence[bytes],
    embeddings: np.ndarray,
    *,
    is_half: bool,
    columns: int,
) -> np.ndarray:
    """Return the rows up to the vector; *columns* counts what follows it too."""
    rows = np.zeros(len(owned), dtype=_layout(embeddings.shape[1], is_half))
    rows["columns"] = columns
    for name, values in zip(_IDS, zip(*owned, strict=True), strict=True):
        rows[f"{name}_bytes"] = 8
        rows[name] = values
    rows["embed_hash_bytes"] = _HASH_BYTES
    rows["embed_hash"] = np.frombuffer(b"".join(hashes), f"V{_HASH_BYTES}")
    rows["embedding_bytes"] = 4 + rows["embedding"][:1].nbytes
    rows["dimensions"] = embeddings.shape[1]
    rows["embedding"] = embeddings
    return rows


def _sized(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


@lru_cache(maxsize=4)
def _layout(dimensions: int, is_half: bool) -> np.dtype[np.void]:
    """Each column is its length and its value; a vector's value is its width, a zero, numbers."""
    number = ">f2" if is_half else ">f4"
    fields: list[tuple[str, str] | tuple[str, str, tuple[int]]] = [("columns", ">i2")]
    for name in _IDS:
        fields += [(f"{name}_bytes", ">i4"), (name, ">i8")]
    fields += [
        ("embed_hash_bytes", ">i4"),
        ("embed_hash", f"V{_HASH_BYTES}"),
        ("embedding_bytes", ">i4"),
        ("dimensions", ">i2"),
        ("unused", ">i2"),
        ("embedding", number, (dimensions,)),
    ]
    return np.dtype(fields)
