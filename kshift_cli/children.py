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
        """TERM to all, KILL after 25 s to what is left, then to what they left behind."""
        running = [child for child in self._children if child.process is not None]
        families = _descendants({child.process.pid for child in running if child.process})
        for child in reversed(running):
            assert child.process is not None
            child.process.terminate()
        give_up_at = time.monotonic() + _STOP_WAIT_S
        for child in running:
            assert child.process is not None
            families |= _descendants({child.process.pid})
            try:
                child.process.wait(max(0.0, give_up_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._talk(f"{child.name} does not stop; killing it.")
                child.process.kill()
                child.process.wait()
        # Dagster's code servers would notice within 20 s that nobody needs them.
        for pid, started in families:
            if _start_time(pid) == started:
                os.kill(pid, signal.SIGKILL)


def wait_until(is_true: Callable[[], bool], timeout_s: float) -> bool:
    """Poll a condition; says whether it came true in time."""
    give_up_at = time.monotonic() + timeout_s
    while time.monotonic() < give_up_at:
        if is_true():
            return True
        time.sleep(_POLL_S)
    return False


_Process = tuple[int, str]  # id and start time, which together name a process for good


def _descendants(roots: set[int]) -> set[_Process]:
    """What the processes started, and what that started, as it is now."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))):
            parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    frontier = roots
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return {(pid, started) for pid in found if (started := _start_time(pid))}


def _start_time(pid: int) -> str:
    fields = _stat_fields(pid)
    return fields[19] if fields else ""


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on (state, parent); empty when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()


def _die_with_parent() -> None:
    """Runs in the child before the program: signals as by default, TERM when the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
