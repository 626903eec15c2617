"""Receipts as a key may see them, and what has become of the text that each hit cites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from kshift_knowledge.errors import NotFound
from kshift_knowledge.postgres.catalog import SEEN_BY_KEY, key_values
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.records import ApiKey

GAP = "\n…\n"  # between two excerpts of a hit
UNCHANGED, CHANGED, GONE = "unchanged", "changed since", "gone"

# What has become of `hit`, a hit of receipt r, whose item is i with text t. A text that moved
# within its item, or was cut anew, is unchanged: what was cited still stands there word for word.
CITATION_STATE = f"""
CASE WHEN i.knowledge_database_item_id IS NULL OR i.state = 'gone' THEN '{GONE}'
     WHEN EXISTS (
          SELECT FROM chunks c JOIN projects cp ON cp.project_id = c.project_id
             AND cp.served_generation_id = c.generation_id
           WHERE c.knowledge_database_item_id = i.knowledge_database_item_id
             AND c.content_hash = hit ->> 'content_hash') THEN '{UNCHANGED}'
     WHEN (SELECT bool_and(position(piece IN t.text) > 0)
             FROM unnest(string_to_array(hit ->> 'content', E'\\n…\\n')) AS piece)
          THEN '{UNCHANGED}'
     ELSE '{CHANGED}' END
"""  # noqa: S608 (constants only)

# A narrower key sees a receipt only when it sees every database that was asked: hits, names of
# what was dropped and the question itself may tell of any of them. One that asked nothing is seen
# by keys of whole projects, of its automation, and by the key that asked.
_SEEN = f"""
       r.account_id = %(account)s
   AND (%(project)s::bigint IS NULL OR r.project_id = %(project)s)
   AND (%(automation)s::bigint IS NULL OR r.automation_id = %(automation)s)
   AND (%(databases)s::bigint[] IS NULL AND %(automation)s::bigint IS NULL
        OR r.knowledge_database_ids <@ ARRAY(
               SELECT d.knowledge_database_id FROM knowledge_databases d WHERE {SEEN_BY_KEY})
           AND (r.knowledge_database_ids <> '{{}}' OR r.key_id = %(key)s
                OR r.automation_id = %(automation)s))
"""  # noqa: S608 (constants only)

_LIST = f"""
SELECT r.receipt_id, r.created_at, r.account_id, r.project_id, r.automation_id, r.mode, r.query,
       jsonb_array_length(r.hits), jsonb_array_length(r.dropped),
       (r.usage ->> 'context_chars')::int, (r.usage ->> 'embedding_tokens')::int
  FROM receipts r
 WHERE {_SEEN}
   AND (%(of)s::bigint IS NULL OR r.automation_id = %(of)s)
   AND (%(at)s::timestamptz IS NULL OR (r.created_at, r.receipt_id) < (%(at)s, %(after)s))
 ORDER BY r.created_at DESC, r.receipt_id DESC
 LIMIT %(limit)s
"""  # noqa: S608 (constants only)

_ONE = f"""
SELECT r.receipt_id, r.created_at, r.account_id, r.project_id, r.knowledge_database_ids,
       r.automation_id, u.slug, r.key_id, r.generation_id, r.embedding_model, r.mode, r.query,
       r.query_hash, r.query_was_cut, r.query_vector IS NOT NULL, r.request, r.hits, r.dropped,
       r.context, r.prompt, r.usage, r.timings_ms
  FROM receipts r LEFT JOIN automations u ON u.automation_id = r.automation_id
 WHERE r.receipt_id = %(receipt)s AND {_SEEN}
"""  # noqa: S608 (constants only)

# passage: the whole chunk, while it is served as it was.
_CITATIONS = f"""
SELECT {CITATION_STATE}, (
       SELECT c.content FROM chunks c JOIN projects cp ON cp.project_id = c.project_id
          AND cp.served_generation_id = c.generation_id
        WHERE c.knowledge_database_item_id = i.knowledge_database_item_id
          AND c.content_hash = hit ->> 'content_hash' LIMIT 1)
  FROM receipts r, jsonb_array_elements(r.hits) WITH ORDINALITY AS listed(hit, number)
  LEFT JOIN knowledge_database_items i
    ON i.knowledge_database_item_id = (hit ->> 'knowledge_database_item_id')::bigint
   AND i.account_id = %(account)s
  LEFT JOIN item_texts t ON t.knowledge_database_item_id = i.knowledge_database_item_id
 WHERE r.receipt_id = %(receipt)s
 ORDER BY number
"""  # noqa: S608 (constants only)


@dataclass(frozen=True, slots=True)
class ReceiptLine:
    """A receipt as the list shows it. query: None when only its hash was kept."""

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


@dataclass(frozen=True, slots=True)
class Receipt:
    """
    One receipt, whole. hits: as they were sent, each with its item's revision.

    prompt: what was handed on, None for a plain retrieve. vector_kept: the vector itself never
    leaves.
    """

    receipt_id: UUID
    created_at: datetime
    account_id: int
    project_id: int
    knowledge_database_ids: list[int]
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
    hits: list[dict[str, Any]]
    dropped: list[dict[str, Any]]
    context: str
    prompt: str | None
    usage: Mapping[str, Any]
    timings_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CitationNow:
    """
    What has become of a hit. state: "unchanged", "changed since" or "gone".

    passage: the whole cited chunk, None when it is not served any more as it was.
    """

    state: str
    passage: str | None


def list_receipts(
    conn: Conn,
    key: ApiKey,
    *,
    limit: int,
    automation_id: int | None = None,
    after: UUID | None = None,
) -> list[ReceiptLine]:
    """
    The receipts that *key* may see, newest first; after: the last one of the page before.

    Raises NotFound when *key* sees no receipt *after*.
    """
    values = _values(key)
    at = None if after is None else find_receipt(conn, key, after).created_at
    rows = conn.execute(
        _LIST, {**values, "of": automation_id, "at": at, "after": after, "limit": limit}
    )
    return [ReceiptLine(*row) for row in rows]


def find_receipt(conn: Conn, key: ApiKey, receipt_id: UUID) -> Receipt:
    """Raises NotFound, the same for what does not exist and for what *key* may not see."""
    row = conn.execute(_ONE, {**_values(key), "receipt": receipt_id}).fetchone()
    if row is None:
        raise NotFound("This key sees no such receipt.")
    return Receipt(*row)


def quotes_of(hit: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The texts that a hit quotes, each with where it stood in its item."""
    pieces = hit["content"].split(GAP)
    starts = [start for start, _ in hit["excerpts"]]
    if len(starts) != len(pieces):  # a line of the text itself looks like a gap
        starts = [hit["char_start"]] * len(pieces)
    return list(zip(pieces, starts, strict=True))


def citations_now(conn: Conn, receipt: Receipt) -> list[CitationNow]:
    """What has become of each hit of a receipt, in their order."""
    rows = conn.execute(_CITATIONS, {"receipt": receipt.receipt_id, "account": receipt.account_id})
    return [CitationNow(*row) for row in rows]


def _values(key: ApiKey) -> dict[str, object]:
    return {**key_values(key), "key": key.key_id}
