"""Keeps the embedded server for a while after a short command, so that the next one finds it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from kshift_knowledge.errors import NotReady
from kshift_knowledge.postgres.embedded import EmbeddedServer
from kshift_knowledge.postgres.flock import is_locked, try_lock

LINGER_S = 600.0
_POLL_S = 0.5
_JOIN_S = 15.0


def keep_a_while(home: Path, linger_s: float = LINGER_S) -> None:
    """
    Have the server stay for *linger_s* from now on, and return when that is sure.

    Call it before leaving the server. One keeper a home; another call extends its time.
    """
    due = _due_file(home)
    due.write_text(str(time.time() + linger_s), "utf-8")
    if not is_locked(_lock_file(home)):
        subprocess.Popen(
            [sys.executable, "-m", "kshift_knowledge.postgres.keeper", str(home)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    give_up_at = time.monotonic() + _JOIN_S
    while not is_locked(_lock_file(home)) and time.monotonic() < give_up_at:
        time.sleep(0.02)


def dismiss(home: Path) -> None:
    """Let the keeper of *home* go now; the server stops if nobody else uses it."""
    lock = _lock_file(home)
    if not is_locked(lock):
        return
    try:
        os.kill(int(lock.read_text("utf-8")), signal.SIGTERM)
    except (ValueError, ProcessLookupError):
        return
    give_up_at = time.monotonic() + _JOIN_S
    while is_locked(lock) and time.monotonic() < give_up_at:
        time.sleep(0.02)


def main(home: Path) -> None:
    """Hold the server until its time is over, TERM comes, or the home is deleted."""
    stopping: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        stopping.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    server = EmbeddedServer(home)
    try:
        server.ensure_running()
    except NotReady:
        return
    lock = try_lock(_lock_file(home))
    if lock is not None:
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        while not stopping and _is_wanted(home):
            server.ensure_running()  # whatever killed it
            time.sleep(_POLL_S)
    # The lock goes with the process, after the server: who sees it free sees the server stopped.
    server.leave() if home.exists() else server.stop()


def _is_wanted(home: Path) -> bool:
    try:
        return time.time() < float(_due_file(home).read_text("utf-8"))
    except (OSError, ValueError):
        return False


def _lock_file(home: Path) -> Path:
    return home / "postgres.keeper"


def _due_file(home: Path) -> Path:
    return home / "postgres.keep_until"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
