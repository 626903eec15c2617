"""Turns a provider's refusal into our errors; repeats nothing the provider wrote."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from kshift_knowledge.errors import (
    BadKey,
    EmbedderUnreachable,
    EmbeddingError,
    InputTooLong,
    ModelRefused,
    QuotaExhausted,
    RateLimited,
)

# A provider's message may echo the key or the text (BerriAI/litellm#39964), so only codes of
# these lists are read out of an answer, and only this pattern is looked for in its message.
_QUOTA_CODES = {
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "quota_exceeded",
}
_TOO_LONG_CODES = {"context_length_exceeded", "string_above_max_length", "max_tokens_per_request"}
_TOO_LONG = re.compile(
    r"max(imum)? (context|input|sequence)? ?(length|size|tokens)"
    r"|(max|maximum|more|less) (than )?\d+ tokens"
    r"|too (long|many (input )?tokens)",
    re.IGNORECASE,
)
_BY_STATUS: dict[int, type[EmbeddingError]] = {
    401: BadKey,
    402: QuotaExhausted,
    403: ModelRefused,
    404: ModelRefused,
    408: EmbedderUnreachable,  # Timed out, conflict, too early: the same request may do later.
    409: EmbedderUnreachable,
    425: EmbedderUnreachable,
    429: RateLimited,
}
_WORDS: dict[type[EmbeddingError], tuple[str, str]] = {
    BadKey: (
        "{place} does not accept the key ({status}).",
        "Set OPENAI_API_KEY to a key of this server, or KSHIFT_EMBEDDER to local.",
    ),
    QuotaExhausted: (
        "The account at {place} has no quota left ({status}).",
        "Add credit or raise the limit there; waiting does not help.",
    ),
    ModelRefused: (
        "{place} does not let this key use the model {model}, or does not have it ({status}).",
        "Check KSHIFT_EMBEDDING_MODEL, what the key may use, and that OPENAI_BASE_URL ends as the "
        "server wants it, mostly in /v1.",
    ),
    RateLimited: (
        "{place} asks for fewer requests ({status}).",
        "It is asked again later by itself; a higher limit there makes it faster.",
    ),
    InputTooLong: (
        "{place} says that a text is longer than {model} reads ({status}).",
        "Lower KSHIFT_CHUNK_TOKENS, or choose a model that reads more.",
    ),
    EmbedderUnreachable: (
        "{place} fails with status {status}.",
        "It is asked again later by itself; see the server's status page or log.",
    ),
    EmbeddingError: (
        "{place} refuses the request for {model} with status {status}.",
        "Check that KSHIFT_EMBEDDING_MODEL is an embedding model of this server and can have "
        "KSHIFT_EMBEDDING_DIMENSIONS.",
    ),
}


def refusal(
    status: int, headers: Mapping[str, str], body: bytes, *, place: str, model: str
) -> EmbeddingError:
    """
    Return the error for an answer with *status*, which is not 2xx.

    headers: case-blind, or with lower-case names. place: the server's address without
    credentials. The error names place, status and model, never the key, a text or the provider's
    own words.
    """
    kind = _kind(status, _error_object(body))
    message, hint = _WORDS[kind]
    return kind(
        message.format(place=place, status=status, model=model),
        hint=hint,
        retry_after_s=retry_after_s(headers),
    )


def _kind(status: int, error: Mapping[str, Any]) -> type[EmbeddingError]:
    codes = {str(error.get("code")), str(error.get("type"))}
    if status in (403, 429) and codes & _QUOTA_CODES:
        return QuotaExhausted
    if status in (400, 413, 422) and (
        codes & _TOO_LONG_CODES or _TOO_LONG.search(str(error.get("message")))
    ):
        return InputTooLong
    if status >= 500:
        return EmbedderUnreachable
    return _BY_STATUS.get(status, EmbeddingError)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """
    Return the wait the provider asks for, None when it names none that makes sense.

    Seconds or an HTTP date (RFC 9110, 10.2.3), which is read against the answer's own Date, so
    that a wrong clock on either side does no harm. Negative and past waits count as none.
    """
    value = headers.get("retry-after", "").strip()
    try:
        wait_s = float(value)
    except ValueError:
        date = _http_date(value)
        if date is None:
            return None
        now = _http_date(headers.get("date", "")) or datetime.now(UTC)
        wait_s = (date - now).total_seconds()
    return wait_s if math.isfinite(wait_s) and wait_s > 0 else None


def _error_object(body: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(answer, dict):
        return {}
    error = answer.get("error", answer)
    return error if isinstance(error, dict) else {"message": error}


def _http_date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
