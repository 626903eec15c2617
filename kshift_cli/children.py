"""Child processes that live no longer than their parent, and are started again when they die."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_STOP_WAIT_S = 25.0
_RESTART_WAIT_S = 2.0
_POLL_S = 0.2


@dataclass(slots=True)
class Child:
    """One program and the log it writes to."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    folder: Path | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    started_at: float = field(default=0.0, init=False)

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                env=dict(self.environment),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A session of its own, so that Ctrl-C reaches us first and we stop it in order.
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 (no thread of ours runs yet)
            )
        self.started_at = time.monotonic()


class Children:
    """A set of programs that run together."""

    def __init__(self, children: Sequence[Child], talk: Callable[[str], None]) -> None:
        self._children = list(children)
        self._talk = talk

    def start(self) -> None:
        for child in self._children:
            child.start()

    def tend(self) -> None:
        """Start again what died; call it often."""
        for child in self._children:
            process = child.process
            if process is None or process.poll() is None:
                continue
            if time.monotonic() - child.started_at < _RESTART_WAIT_S:
                continue
            self._talk(f"{child.name} ended ({process.returncode}); starting it again.")
            child.start()

    def stop(self) -> None:
        """TERM to all, KILL after 25 s to what is left, its descendants included."""
        running = [child for child in self._children if child.process is not None]
        for child in reversed(running):
            _signal_session(child, signal.SIGTERM)
        give_up_at = time.monotonic() + _STOP_WAIT_S
        for child in running:
            assert child.process is not None
            try:
                child.process.wait(max(0.0, give_up_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._talk(f"{child.name} does not stop; killing it.")
            _signal_session(child, signal.SIGKILL)
            child.process.wait()


def wait_until(is_true: Callable[[], bool], timeout_s: float) -> bool:
    """Poll a condition; says whether it came true in time."""
    give_up_at = time.monotonic() + timeout_s
    while time.monotonic() < give_up_at:
        if is_true():
            return True
        time.sleep(_POLL_S)
    return False


def _signal_session(child: Child, number: int) -> None:
    assert child.process is not None
    try:
        os.killpg(child.process.pid, number)
    except ProcessLookupError:
        return


def _die_with_parent() -> None:
    """Runs in the child before the program: signals as by default, TERM when the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
