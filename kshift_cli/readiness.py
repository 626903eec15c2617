"""Whether the API of this machine is ready to answer."""

from __future__ import annotations

import urllib.request
from http import HTTPStatus

_TIMEOUT_S = 5.0


def is_ready(api_url: str) -> bool:
    """Whether `/readyz` says yes: database, schema and model are at hand."""
    try:
        with urllib.request.urlopen(f"{api_url}/readyz", timeout=_TIMEOUT_S) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False
