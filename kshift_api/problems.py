"""How errors become problem+json (RFC 9457), or a page for a browser; nothing internal shows."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from flask import Flask, g, json, redirect, render_template, request, url_for
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response

from kshift_api.problem_kinds import KINDS
from kshift_knowledge.errors import (
    EmbeddingError,
    KshiftError,
    NotFound,
    NotReady,
    StoreUnavailable,
    WrongDimension,
)
from kshift_knowledge.retrieval import ModelMismatch

log = logging.getLogger("kshift_api")

MAX_RETRY_AFTER_S = 3600

_BY_STATUS = {
    400: "invalid_json",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    415: "unsupported_media_type",
}
_BY_CLASS: Sequence[tuple[type[KshiftError], str]] = (
    (StoreUnavailable, "store_unavailable"),
    (ModelMismatch, "model_mismatch"),
    (WrongDimension, "model_mismatch"),
    (EmbeddingError, "embedding_failed"),
    (NotReady, "not_ready"),
    (NotFound, "not_found"),
)


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with one value. pointer: RFC 6901 into the body, or `/name` in a query."""

    pointer: str
    detail: str


class Problem(Exception):
    """
    An answer of the table.

    headers: sent besides those that the code itself needs. checks: what `/readyz` found.
    """

    def __init__(
        self,
        code: str,
        *,
        errors: Sequence[FieldError] = (),
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        checks: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(code)
        self.kind = KINDS[code]
        self.errors = errors
        self.retry_after_s = self.kind.retry_after_s if retry_after_s is None else retry_after_s
        self.headers = dict(headers or {})
        self.checks = dict(checks or {})


def register_problems(app: Flask) -> None:
    """Let every error of *app* leave it as a problem of the table."""
    app.register_error_handler(Exception, _answer)


def is_for_a_browser() -> bool:
    """Whether the client would rather have a page than JSON."""
    offered = ["application/problem+json", "application/json", "text/html"]
    return request.accept_mimetypes.best_match(offered) == "text/html"


def _answer(exc: Exception) -> Response:
    if isinstance(exc, HTTPException) and exc.code is not None and exc.code < 400:
        return exc.get_response()  # a redirect of the routing
    problem = _problem_of(exc)
    _log(problem, exc)
    is_page = is_for_a_browser() and request.blueprint in ("pages", "sign_in")
    if is_page and problem.kind.status == 401 and not _came_from_another_site():
        return redirect(url_for("sign_in.form", next=request.full_path.rstrip("?")), 303)
    response = _page(problem) if is_page else _json(problem)
    response.status_code = problem.kind.status
    for name, value in problem.headers.items():
        response.headers[name] = value
    if problem.kind.status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="kshift"'
    if problem.retry_after_s is not None:
        seconds = min(max(problem.retry_after_s, 1), MAX_RETRY_AFTER_S)
        response.headers["Retry-After"] = str(math.ceil(seconds))
    return response


def _problem_of(exc: Exception) -> Problem:
    if isinstance(exc, Problem):
        return exc
    if isinstance(exc, HTTPException):
        headers = {name: value for name, value in exc.get_headers() if name == "Allow"}
        return Problem(_BY_STATUS.get(exc.code or 500, "internal_error"), headers=headers)
    if isinstance(exc, EmbeddingError) and exc.code in KINDS:
        return Problem(exc.code, retry_after_s=exc.retry_after_s)
    for error_class, code in _BY_CLASS:
        if isinstance(exc, error_class):
            return Problem(code)
    return Problem("internal_error")


def _came_from_another_site() -> bool:
    """
    Whether SameSite=Strict held a cookie back on the way in.

    Loading the page once more, from itself, brings it: again.html does.
    """
    return request.headers.get("Sec-Fetch-Site") == "cross-site"


def _json(problem: Problem) -> Response:
    kind = problem.kind
    body: dict[str, object] = {
        "type": url_for("service.problem", code=kind.code),
        "title": kind.title,
        "status": kind.status,
        "code": kind.code,
        "detail": kind.cause,
        "hint": kind.remedy,
        "request_id": g.request_id,
    }
    if problem.errors:
        body["errors"] = [asdict(error) for error in problem.errors]
    if problem.checks:
        body["checks"] = problem.checks
    return Response(json.dumps(body), content_type="application/problem+json")


def _page(problem: Problem) -> Response:
    name = "again.html" if problem.kind.status == 401 else "problem.html"
    page = render_template(name, problem=problem, request_id=g.request_id)
    return Response(page, content_type="text/html; charset=utf-8")


def _log(problem: Problem, exc: Exception) -> None:
    """Class and place of what went wrong, never its message: a driver's may quote values."""
    if problem.kind.status == 500:
        log.error("%s failed: %s", g.request_id, " <- ".join(_trace(exc)))
    elif problem.kind.status == 503:
        log.warning("%s answered %s: %s", g.request_id, problem.kind.code, type(exc).__name__)


def _trace(exc: BaseException | None) -> Iterator[str]:
    while exc is not None:
        frames = traceback.extract_tb(exc.__traceback__)
        place = ", ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-8:])
        yield f"{type(exc).__name__} at {place}"
        exc = exc.__cause__ or exc.__context__
