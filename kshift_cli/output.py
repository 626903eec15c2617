"""What commands print: one JSON document or text for people, and errors with their exit code."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, ParamSpec

import click
from rich.console import Console

from kshift_knowledge.errors import KshiftError

P = ParamSpec("P")

DONE, PARTLY, USAGE, NOT_READY, REFUSED = range(5)

# Everything a terminal obeys; line ends and tabs stay.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_PIPE_WIDTH = 160

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout."
)


def printable(text: str) -> str:
    """Text of customers without control codes."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def say(text: str) -> None:
    """Talk and progress, on stderr so that stdout stays a document."""
    click.echo(printable(text), err=True)


def show(text: str) -> None:
    """A result for people."""
    click.echo(printable(text))


def console() -> Console:
    """A terminal's own width; a file or pipe has none and must not cut what it is given."""
    found = Console()
    return found if found.is_terminal else Console(width=_PIPE_WIDTH)


def show_json(document: Any) -> None:
    click.echo(json.dumps(document, ensure_ascii=False))


def show_error(code: str, message: str, hint: str) -> None:
    """An error as those read it who asked for JSON."""
    show_json({"error": {"code": code, "message": message, "hint": hint}})


def leave(code: int) -> NoReturn:
    sys.exit(code)


def reporting_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn a KshiftError into its message, hint and exit code; JSON callers get it as JSON."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except KshiftError as exc:
            if kwargs.get("as_json"):
                show_error(exc.code, exc.message, exc.hint)
            say(f"kshift: {exc.message}")
            if exc.hint:
                say(f"  {exc.hint}")
            leave(exc.exit_code)

    return wrapped
