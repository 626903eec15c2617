"""The page that a citation links to: the cited text inside its item, and the receipt's prompt."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from flask import Blueprint, render_template, request

from kshift_api.auth import calling_key
from kshift_api.problems import FieldError, Problem
from kshift_api.services import ApiServices
from kshift_knowledge.errors import NotFound
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.postgres.pages import find_page
from kshift_knowledge.postgres.receipt_views import (
    Receipt,
    citations_now,
    find_receipt,
    quotes_of,
)
from kshift_knowledge.records import ApiKey

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")  # below 2^31, as the column


def pages_blueprint(services: ApiServices) -> Blueprint:
    blueprint = Blueprint("pages", __name__)

    @blueprint.get("/accounts/<id:account>/projects/<id:project>/files/<id:file>")
    def item(account: int, project: int, file: int) -> str:
        key = calling_key()
        chunk_index = _wanted_chunk()
        if account != key.account_id:
            raise NotFound("Another account's file.")
        receipt_id = _wanted_receipt()
        with services.database.transaction() as conn:
            cited = None
            if receipt_id is not None:
                cited = _cited(conn, key, receipt_id, file, chunk_index)
            quotes = quotes_of(cited.hit) if cited else ()
            page = find_page(conn, key, project, file, chunk_index, quotes)
        return render_template(
            "item.html",
            page=page,
            wanted=chunk_index,
            cited=cited,
            link=_safe_link(page.item.source_url),
        )

    return blueprint


@dataclass(frozen=True, slots=True)
class _Cited:
    """The hit of a receipt that this page is about, and what has become of it."""

    receipt: Receipt
    hit: dict[str, Any]
    state: str


def _cited(conn: Conn, key: ApiKey, receipt_id: UUID, file: int, chunk_index: int | None) -> _Cited:
    """Raises NotFound, also for a receipt that does not cite this."""
    receipt = find_receipt(conn, key, receipt_id)
    for hit, now in zip(receipt.hits, citations_now(conn, receipt), strict=True):
        if (hit["project_file_id"], hit["chunk_index"]) == (file, chunk_index):
            return _Cited(receipt, hit, now.state)
    raise NotFound("This receipt cites no such chunk.")


def _wanted_receipt() -> UUID | None:
    text = request.args.get("receipt")
    try:
        return None if text is None else UUID(text)
    except ValueError as exc:
        raise Problem(
            "invalid_request", errors=[FieldError("/receipt", "Input should be a receipt's id")]
        ) from exc


def _wanted_chunk() -> int | None:
    text = request.args.get("chunk")
    if text is None:
        return None
    if not _INDEX.fullmatch(text):
        raise Problem(
            "invalid_request", errors=[FieldError("/chunk", "Input should be a chunk's index")]
        )
    return int(text)


def _safe_link(source_url: str | None) -> str | None:
    """The URL when it may be a link: http or https, a host, no login, nothing unprintable."""
    if source_url is None or not source_url.isprintable() or " " in source_url:
        return None
    try:
        parts = urlsplit(source_url)
        is_safe = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    except ValueError:
        return None
    return source_url if is_safe else None
