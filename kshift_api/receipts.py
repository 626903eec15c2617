"""Receipts over HTTP: what was asked, used and left out, and what its citations say today."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from flask import Blueprint

from kshift_api.auth import calling_key
from kshift_api.query_strings import read_query_string
from kshift_api.receipt_schemas import ReceiptsQuery
from kshift_api.services import ApiServices
from kshift_knowledge.postgres import automations, receipt_views
from kshift_knowledge.postgres.receipt_views import CitationNow, Receipt


def receipts_blueprint(services: ApiServices) -> Blueprint:
    blueprint = Blueprint("receipts", __name__)

    @blueprint.get("/v1/receipts")
    def listed() -> dict[str, Any]:
        wanted = read_query_string(ReceiptsQuery)
        key = calling_key()
        with services.database.transaction() as conn:
            if wanted.automation_id is not None:
                automations.find_visible(conn, key, wanted.automation_id, may_be_gone=True)
            found = receipt_views.list_receipts(
                conn,
                key,
                limit=wanted.limit + 1,
                automation_id=wanted.automation_id,
                after=wanted.after,
            )
        page = found[: wanted.limit]
        return {
            "receipts": [{**asdict(line), "created_at": _utc(line.created_at)} for line in page],
            "next_after": page[-1].receipt_id if len(found) > len(page) else None,
        }

    @blueprint.get("/v1/receipts/<uuid:receipt>")
    def one(receipt: UUID) -> dict[str, Any]:
        with services.database.transaction() as conn:
            found = receipt_views.find_receipt(conn, calling_key(), receipt)
            now = receipt_views.citations_now(conn, found)
        return receipt_payload(found, now)

    return blueprint


def receipt_payload(receipt: Receipt, now: list[CitationNow]) -> dict[str, Any]:
    """The response of `GET /v1/receipts/{id}`; now: what has become of each hit."""
    return {
        **asdict(receipt),
        "created_at": _utc(receipt.created_at),
        "citations": [
            _citation(receipt, hit, found) for hit, found in zip(receipt.hits, now, strict=True)
        ],
    }


def _citation(receipt: Receipt, hit: dict[str, Any], now: CitationNow) -> dict[str, Any]:
    query = f"{'&' if '?' in hit['path'] else '?'}receipt={receipt.receipt_id}"
    return {
        "citation_id": f"{receipt.receipt_id}.{hit['rank']}",
        "rank": hit["rank"],
        "project_file_id": hit["project_file_id"],
        "name": hit["item_name"],
        "file": hit["file"],
        "chunk_index": hit["chunk_index"],
        "source_url": hit["source_url"],
        "path": f"{hit['path']}{query}",
        "content": hit["content"],
        "content_hash": hit["content_hash"],
        "state": now.state,
        "passage": now.passage,
    }


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
