"""The page that a citation links to: the cited chunk inside its item."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from flask import Blueprint, render_template, request

from kshift_api.auth import calling_key
from kshift_api.problems import FieldError, Problem
from kshift_api.services import ApiServices
from kshift_knowledge.errors import NotFound
from kshift_knowledge.postgres.pages import find_page

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")  # below 2^31, as the column


def pages_blueprint(services: ApiServices) -> Blueprint:
    blueprint = Blueprint("pages", __name__)

    @blueprint.get("/accounts/<id:account>/projects/<id:project>/files/<id:file>")
    def item(account: int, project: int, file: int) -> str:
        key = calling_key()
        chunk_index = _wanted_chunk()
        if account != key.account_id:
            raise NotFound("Another account's file.")
        with services.database.transaction() as conn:
            page = find_page(conn, key, project, file, chunk_index)
        return render_template(
            "item.html", page=page, wanted=chunk_index, link=_safe_link(page.item.source_url)
        )

    return blueprint


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
