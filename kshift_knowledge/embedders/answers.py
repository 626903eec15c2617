"""Reads an OpenAI-style embeddings answer and believes nothing in it; knows no network."""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kshift_knowledge.embedders.protocol import EmbeddedBatch
from kshift_knowledge.errors import MalformedAnswer, WrongDimension

_VARIANT = re.compile(r"([:@][\w.-]+|-v\d+|-\d{4}(-\d\d-\d\d)?)?")
_SMALLEST_NORM = 1e-6  # Below it a direction is noise; models answer with about 1.


def read_answer(
    body: bytes, *, count: int, dimensions: int, model: str, answered_model: str | None = None
) -> EmbeddedBatch:
    """
    Return the vectors of an answer to *count* texts, in the order of the texts.

    Each vector may be a list of numbers or base64 of little-endian float32, whatever was asked
    for. answered_model: another name under which the server may answer for *model*.

    Raises MalformedAnswer unless there is exactly one good vector per text and the answer comes
    from *model*, and WrongDimension when its vectors have another width.
    """
    answer = _json_object(body)
    _check_model(answer.get("model"), {model, answered_model or model})
    vectors = np.empty((count, dimensions), dtype=np.float32)
    for place, embedding in enumerate(_sorted_embeddings(answer.get("data"), count)):
        row = _numbers(embedding, place)
        if row.shape != (dimensions,):
            raise WrongDimension(
                f"The server sent vectors of {row.size} numbers for {model}, but {dimensions} "
                "are stored.",
                hint="Set KSHIFT_EMBEDDING_MODEL and KSHIFT_EMBEDDING_DIMENSIONS to one another, "
                "or run `kshift reindex`.",
            )
        with np.errstate(over="ignore"):
            vectors[place] = row
    _check_numbers(vectors)
    return EmbeddedBatch(vectors, tokens=_tokens(answer.get("usage")))


def _json_object(body: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise _malformed("answered with something that is not a JSON object")
    return answer


def _check_model(answered: object, accepted: set[str]) -> None:
    """
    Refuse an answer of another model: its vectors may have the same width and mean nothing here.

    Compatible servers answer without a name, without the owner ("bge-m3" for "BAAI/bge-m3"), or
    with a tag or a version ("nomic-embed-text:latest", "text-embedding-ada-002-v2"); these pass.
    """
    if not isinstance(answered, str) or not answered:
        return
    if not any(_is_same_model(answered, name) for name in accepted):
        raise _malformed(
            f"answered with vectors of another model than {' or '.join(sorted(accepted))}",
            hint="Set KSHIFT_EMBEDDING_MODEL to the name under which the server answers.",
        )


def _is_same_model(one: str, other: str) -> bool:
    shorter, longer = sorted((_short_name(one), _short_name(other)), key=len)
    return longer.startswith(shorter) and _VARIANT.fullmatch(longer, len(shorter)) is not None


def _short_name(model: str) -> str:
    return model.rsplit("/", 1)[-1].lower()


def _sorted_embeddings(data: object, count: int) -> list[object]:
    if not isinstance(data, list) or len(data) != count:
        found = len(data) if isinstance(data, list) else "no"
        raise _malformed(f"answered with {found} vectors for {count} texts")
    by_index: dict[int, object] = {}
    for entry in data:
        index = entry.get("index") if isinstance(entry, dict) else None
        if type(index) is not int or not 0 <= index < count or index in by_index:
            raise _malformed("numbered its vectors wrongly: an index is missing or repeated")
        by_index[index] = entry.get("embedding")
    return [by_index[index] for index in range(count)]


def _numbers(embedding: object, place: int) -> NDArray[np.generic]:
    if isinstance(embedding, str):
        try:
            packed = binascii.a2b_base64(embedding, strict_mode=True)
            return np.frombuffer(packed, dtype="<f4")
        except ValueError:
            raise _malformed(f"sent vector {place} in base64 that cannot be read") from None
    if isinstance(embedding, list):
        try:
            row = np.array(embedding)
        except ValueError:  # Lists of different lengths inside.
            row = np.array(None)
        if row.ndim == 1 and row.dtype.kind in "fi":
            return row
    raise _malformed(f"sent no list of numbers as vector {place}")


def _check_numbers(vectors: NDArray[np.float32]) -> None:
    squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
    if not np.isfinite(squares).all():
        raise _malformed("sent a vector with a number that is not finite")
    if (squares < _SMALLEST_NORM**2).any():
        raise _malformed("sent a vector of zeros")


def _tokens(usage: object) -> int:
    """Return what the server charged, 0 when it does not say."""
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
    return tokens if type(tokens) is int and tokens > 0 else 0


def _malformed(what: str, *, hint: str = "") -> MalformedAnswer:
    return MalformedAnswer(
        f"The embedding server {what}.",
        hint=hint or "Check that OPENAI_BASE_URL is an OpenAI-compatible server.",
    )
