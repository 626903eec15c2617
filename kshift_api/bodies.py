"""Reads JSON bodies within their bounds, strictly: what is odd is refused, never guessed."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from flask import current_app, request
from pydantic import BaseModel, ValidationError
from werkzeug.exceptions import HTTPException

from kshift_api.problems import FieldError, Problem

MAX_BODY_BYTES = 1024 * 1024
# One more than is allowed: of a body whose length is not told, werkzeug reads so much and no more.
READ_LIMIT = MAX_BODY_BYTES + 1
MAX_ERRORS = 20
_LONGEST_INTEGER = 20  # digits and a sign; 2^63 has 19

Model = TypeVar("Model", bound=BaseModel)


def read_json(model: type[Model]) -> Model:
    """
    Return the body of the current request as *model*.

    Raises Problem: unsupported_media_type, body_too_large, body_timeout, invalid_json,
    invalid_request.
    """
    require_media_type("application/json")
    return validated(model, _parse(read_bytes()))


def require_media_type(media_type: str) -> None:
    """Raises Problem unless the body is declared as *media_type* and not compressed."""
    encoding = request.headers.get("Content-Encoding", "identity")
    if request.mimetype != media_type or encoding.lower() != "identity":
        raise Problem("unsupported_media_type")


def read_bytes() -> bytes:
    """Return the whole body, also of a chunked request, when it is small and comes in time."""
    with _body_deadline() as is_over:
        try:
            body = request.get_data(cache=False)
        except Exception as exc:  # the server has errors of its own for broken chunks
            if isinstance(exc, HTTPException) and exc.code == 413:
                raise Problem("body_too_large") from exc
            raise Problem("body_timeout" if is_over.is_set() else "invalid_json") from exc
    if len(body) > MAX_BODY_BYTES:
        raise Problem("body_too_large")
    return body


def validated(model: type[Model], value: Any) -> Model:
    """Raises Problem with a pointer to each wrong field, at most MAX_ERRORS."""
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        found = exc.errors(include_url=False, include_context=False, include_input=False)
    errors = [
        FieldError(
            _pointer(error["loc"]),
            "Input should be an object" if error["type"] == "model_type" else error["msg"],
        )
        for error in found[:MAX_ERRORS]
    ]
    raise Problem("invalid_request", errors=errors)


@contextmanager
def _body_deadline() -> Iterator[threading.Event]:
    """Cut the connection's reading side when the body takes too long; drips count as slow."""
    is_over = threading.Event()
    connection: socket.socket | None = request.environ.get("gunicorn.socket")
    if connection is None:
        yield is_over
        return

    def stop_reading() -> None:
        is_over.set()
        connection.shutdown(socket.SHUT_RD)

    timer = threading.Timer(current_app.config["BODY_TIMEOUT_S"], stop_reading)
    timer.daemon = True
    timer.start()
    try:
        yield is_over
    finally:
        timer.cancel()


def _parse(body: bytes) -> Any:
    try:
        return json.loads(
            body.decode("utf-8"), object_pairs_hook=_object_with_unique_keys, parse_int=_integer
        )
    except (ValueError, RecursionError) as exc:  # UnicodeDecodeError is a ValueError
        raise Problem("invalid_json") from exc


def _object_with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _integer(digits: str) -> int | float:
    """Far out of every bound stays a number, so that it is refused as a value and not as JSON."""
    return int(digits) if len(digits) <= _LONGEST_INTEGER else math.inf


def _pointer(location: tuple[int | str, ...]) -> str:
    """RFC 6901. A key that a client made up is named only when it is plain and short."""
    parts = [str(part).replace("~", "~0").replace("/", "~1") for part in location]
    return "".join(f"/{part}" for part in parts if len(part) <= 100 and part.isprintable())
