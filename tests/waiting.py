"""Waits for a condition with a deadline, so that no test sleeps for a guessed time."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 30.0
POLL_S = 0.02


def wait_until(
    is_true: Callable[[], object], deadline_s: float = DEADLINE_S, *, poll_s: float = POLL_S
) -> None:
    """Raises AssertionError when the condition does not become true in time."""
    give_up_at = time.monotonic() + deadline_s
    while not is_true():
        assert time.monotonic() < give_up_at, "the condition did not become true in time"
        time.sleep(poll_s)
