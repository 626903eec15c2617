"""Reads query strings as strictly as bodies: every parameter once, known, and of its type."""

from __future__ import annotations

import re
from typing import TypeVar

from flask import request
from pydantic import BaseModel

from kshift_api.bodies import validated
from kshift_api.problems import FieldError, Problem

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")

Model = TypeVar("Model", bound=BaseModel)


def read_query_string(model: type[Model]) -> Model:
    """
    Return the query string of the current request as *model*.

    Raises Problem invalid_request, with pointers such as `/limit`.
    """
    found: dict[str, str | int] = {}
    for name, values in request.args.lists():
        if len(values) > 1:
            raise Problem(
                "invalid_request", errors=[FieldError(f"/{name}", "Input should be given once")]
            )
        (value,) = values
        found[name] = int(value) if _INTEGER.fullmatch(value) else value
    return validated(model, found)
