"""The table of every answer that is not a success; docs and OpenAPI are tested against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A code of docs/http.md. retry_after_s: sent as Retry-After where waiting may help."""

    code: str
    status: int
    title: str
    cause: str
    remedy: str
    retry_after_s: int | None = None


_KINDS = (
    ProblemKind(
        "invalid_json",
        400,
        "Not JSON",
        "The body is not one JSON value in UTF-8, repeats a key, nests too deep, or broke off.",
        "Send one JSON object, every key once.",
    ),
    ProblemKind(
        "unauthenticated",
        401,
        "No valid key",
        "There is no key, or it is malformed, unknown, expired or revoked.",
        "Send `Authorization: Bearer <key>`; `kshift keys create` makes one.",
    ),
    ProblemKind(
        "account_mismatch",
        403,
        "Another account",
        "The body names an account that is not the key's.",
        "Leave account_id out, or use a key of that account.",
    ),
    ProblemKind(
        "cross_site",
        403,
        "Sent from another site",
        "A browser sent this form from a page of another site.",
        "Open the sign-in page itself and send its form.",
    ),
    ProblemKind(
        "not_found",
        404,
        "Not found",
        "It does not exist, or it lies outside what the key may see; both look the same.",
        "`GET /v1/knowledge-databases` lists what the key may see.",
    ),
    ProblemKind(
        "method_not_allowed",
        405,
        "Method not allowed",
        "The route exists, but not with this method.",
        "Use a method of the Allow header.",
    ),
    ProblemKind(
        "body_timeout",
        408,
        "Body too slow",
        "The body did not arrive within 10 seconds.",
        "Send the body at once.",
    ),
    ProblemKind(
        "body_too_large",
        413,
        "Body too large",
        "The body is larger than 1 MiB.",
        "Shorten the query, or send fewer names.",
    ),
    ProblemKind(
        "unsupported_media_type",
        415,
        "Unsupported media type",
        "The body is not declared as application/json (a form at /sign-in), or it is compressed.",
        "Send `Content-Type: application/json` and no Content-Encoding.",
    ),
    ProblemKind(
        "invalid_request",
        422,
        "Invalid request",
        "The request is well-formed, but fields have the wrong type or are out of bounds.",
        "Correct what `errors` points at.",
    ),
    ProblemKind(
        "internal_error",
        500,
        "Internal error",
        "Something in the service failed; the log says what, under the request id.",
        "Try once more; if it stays, report the request id.",
    ),
    ProblemKind(
        "busy",
        503,
        "Busy",
        "Too many requests are waiting already.",
        "Wait as Retry-After says and try again.",
        retry_after_s=1,
    ),
    ProblemKind(
        "store_unavailable",
        503,
        "Database not reachable",
        "The database does not answer, or no connection became free in time.",
        "Wait as Retry-After says; the service recovers by itself.",
        retry_after_s=5,
    ),
    ProblemKind(
        "not_ready",
        503,
        "Not ready",
        "Something the service needs is missing: the schema, or the model.",
        "`GET /readyz` and `kshift doctor` name it.",
        retry_after_s=30,
    ),
    ProblemKind(
        "model_mismatch",
        503,
        "Another model",
        "The index holds vectors of another model than the service embeds questions with.",
        "Set KSHIFT_EMBEDDER and KSHIFT_EMBEDDING_MODEL back to what the index uses.",
        retry_after_s=30,
    ),
    ProblemKind(
        "embedding_bad_key",
        503,
        "Provider refused its key",
        "The embedding provider does not accept the service's key.",
        "Correct OPENAI_API_KEY and restart the service.",
        retry_after_s=60,
    ),
    ProblemKind(
        "embedding_model_refused",
        503,
        "Provider refused the model",
        "The embedding provider does not offer the model to the service's key.",
        "Give the key access, or set KSHIFT_EMBEDDING_MODEL back.",
        retry_after_s=60,
    ),
    ProblemKind(
        "embedding_quota_exhausted",
        503,
        "Provider quota exhausted",
        "The embedding provider's quota is used up; waiting does not help.",
        "Raise the quota, or add credit, at the provider.",
        retry_after_s=60,
    ),
    ProblemKind(
        "embedding_rate_limited",
        503,
        "Provider is limiting",
        "The embedding provider takes no more requests for now.",
        "Wait as Retry-After says and try again.",
        retry_after_s=5,
    ),
    ProblemKind(
        "embedding_unreachable",
        503,
        "Provider not reachable",
        "The embedding provider does not answer.",
        "Wait as Retry-After says and try again.",
        retry_after_s=5,
    ),
    ProblemKind(
        "embedding_malformed_answer",
        503,
        "Provider answered nonsense",
        "The embedding provider's answer is not one good vector.",
        "Try again; if it stays, look at OPENAI_BASE_URL.",
        retry_after_s=5,
    ),
    ProblemKind(
        "embedding_failed",
        503,
        "Embedding failed",
        "The question could not be embedded for another reason.",
        "Try again; the log says more, under the request id.",
        retry_after_s=5,
    ),
)
KINDS: Mapping[str, ProblemKind] = {kind.code: kind for kind in _KINDS}
