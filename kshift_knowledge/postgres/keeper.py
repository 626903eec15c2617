"""Keeps the embedded server for a while after a short command, so that the next one finds it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from kshift_knowledge.errors import NotReady
from kshift_knowledge.postgres.embedded import EmbeddedServer
from kshift_knowledge.postgres.flock import is_locked, try_lock

LINGER_S = 600.0
_POLL_S = 0.3
_JOIN_S = 15.0
_TAKE_S = 1.0


def keep_a_while(home: Path, linger_s: float = LINGER_S) -> None:
    """
    Have the server stay for *linger_s* from now on, and return when that is sure.

    Call it before leaving the server. One keeper a home; another call extends its time.
    """
    _due_file(home).write_text(str(time.time() + linger_s), "utf-8")
    if not is_locked(_lock_file(home)):
        keeper = subprocess.Popen(
            [sys.executable, "-m", "kshift_knowledge.postgres.keeper", str(home)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        keeper.returncode = 0  # it outlives us, and nobody waits for it
    _wait_for(lambda: is_locked(_lock_file(home)))


def dismiss(home: Path) -> None:
    """Let the keeper of *home* go now; the server stops if nobody else uses it."""
    _due_file(home).unlink(missing_ok=True)
    _wait_for(lambda: not is_locked(_lock_file(home)))


def main(home: Path) -> None:
    """Hold the server until its time is over or TERM comes."""
    stopping: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        stopping.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    server = EmbeddedServer(home)
    try:
        server.ensure_running()
        if _take_lock(home):
            while not stopping and _is_wanted(home):
                server.ensure_running()  # whatever killed it
                time.sleep(_POLL_S)
        # A server whose home was deleted stops by itself within a minute.
        if home.exists():
            server.leave()
    except NotReady:
        return


def _take_lock(home: Path) -> bool:
    """
    Become the keeper; False when there is one.

    The lock goes with the process, after the server: who sees it free sees both gone. Who asks
    whether it is locked locks it for a moment, hence the second try.
    """
    give_up_at = time.monotonic() + _TAKE_S
    while try_lock(_lock_file(home)) is None:
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.01)
    return True


def _is_wanted(home: Path) -> bool:
    try:
        return time.time() < float(_due_file(home).read_text("utf-8"))
    except (OSError, ValueError):
        return False


def _wait_for(is_true: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + _JOIN_S
    while not is_true() and time.monotonic() < give_up_at:
        time.sleep(0.02)


def _lock_file(home: Path) -> Path:
    return home / "postgres.keeper"


def _due_file(home: Path) -> Path:
    return home / "postgres.keep_until"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
