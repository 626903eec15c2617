"""Failpoints: named moments at which a test makes a process die, fail or wait; free when unset."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

VARIABLE = "KSHIFT_FAILPOINT"

# What a crash at each moment leaves behind. Every name is hit somewhere in the code:
# tests/test_failpoints.py holds both lists to one another.
MOMENTS: Mapping[str, str] = {
    "scan_looked": "the tree is read and compared, nothing of it is written down",
    "batch_written": "a batch is committed, no run for it is asked for",
    "partitions_synced": "its partitions exist, no run for it is asked for",
    "claimed": "a run holds its items, and has read none",
    "cutting": "a worker has an item's text and has cut nothing of it",
    "batch_paid": "the provider answered, its vectors are nowhere yet",
    "batch_kept": "the vectors are kept, nothing is served of them",
    "swap_deleted": "inside the swap: the old rows are deleted, the new ones are not there",
    "swap_copied": "inside the swap: the new rows are there, not committed",
    "swap_committed": "new versions are served, neither the ledger nor Dagster knows",
    "outcomes_done": "all items are done and written down, Dagster knows of none",
}

_SPELLING = re.compile(
    r"(?P<name>[a-z_]+)(?:@(?P<hit>[1-9]\d*))?:(?P<action>kill9|raise|sleep)"
    r"(?::(?P<seconds>\d+(?:\.\d+)?))?"
)


class FailpointReached(Exception):
    """A failpoint was told to raise here. No code of ours handles it, as none survives a crash."""


@dataclass(slots=True)
class _Armed:
    act: Callable[[], object]
    hit: int
    hits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reached(self) -> None:
        with self.lock:
            self.hits += 1
            is_its_turn = self.hits == self.hit
        if is_its_turn:
            self.act()


def failpoint(name: str) -> None:
    """Do what a test asked for at this moment; nothing outside tests."""
    if _armed and (armed_here := _armed.get(name)) is not None:
        armed_here.reached()


@contextmanager
def armed(name: str, act: Callable[[], object] | None = None, *, hit: int = 1) -> Iterator[None]:
    """
    Within the block, call *act* at the *hit*-th time that *name* is reached.

    act: None raises FailpointReached.
    """
    _armed[_known(name)] = _Armed(act or _raising(name), hit)
    try:
        yield
    finally:
        del _armed[name]


def parse(spelled: str) -> dict[str, _Armed]:
    """
    Read `name[@hit]:kill9|raise|sleep[:seconds]`, several joined by commas.

    hit: the how-many-th time, 1 unless said. Raises ValueError for whatever would never happen.
    """
    found = {}
    for part in filter(None, (part.strip() for part in spelled.split(","))):
        match = _SPELLING.fullmatch(part)
        if match is None or (match["seconds"] and match["action"] != "sleep"):
            raise ValueError(f"{VARIABLE}: {part!r} is not name[@hit]:kill9|raise|sleep[:seconds]")
        name = _known(match["name"])
        found[name] = _Armed(
            _action(match["action"], name, float(match["seconds"] or 1)), int(match["hit"] or 1)
        )
    return found


def _known(name: str) -> str:
    if name not in MOMENTS:
        raise ValueError(f"{VARIABLE}: there is no {name!r}; there are {', '.join(MOMENTS)}")
    return name


def _action(action: str, name: str, seconds: float) -> Callable[[], object]:
    if action == "kill9":
        return lambda: os.kill(os.getpid(), signal.SIGKILL)
    if action == "sleep":
        return lambda: time.sleep(seconds)
    return _raising(name)


def _raising(name: str) -> Callable[[], object]:
    def fail() -> None:
        raise FailpointReached(name)

    return fail


# Not a setting: no operator may want it, and it must be known before any setting is read.
_armed: dict[str, _Armed] = parse(os.environ.get(VARIABLE, ""))
