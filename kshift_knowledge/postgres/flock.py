"""Locks between processes that vanish with their holder; it knows files, not what they guard."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RETRY_S = 0.01


def try_lock(path: Path, *, is_shared: bool = False) -> int | None:
    """
    Lock *path* and return the descriptor that holds the lock, or None when others hold it.

    Close the descriptor to give the lock back. A process that inherits it holds the lock too, so
    the lock is free only when all of them are gone, however they ended. The file stays.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_locked(path: Path) -> bool:
    """Whether anybody holds *path*, shared or not."""
    if not path.exists():
        return False
    fd = try_lock(path)
    if fd is None:
        return True
    os.close(fd)
    return False


@contextmanager
def locked(path: Path, *, wait_s: float) -> Iterator[None]:
    """Hold *path* alone. Raises TimeoutError when others keep it for *wait_s* seconds."""
    deadline = time.monotonic() + wait_s
    while (fd := try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} stayed locked for {wait_s:g} s")
        time.sleep(RETRY_S)
    try:
        yield
    finally:
        os.close(fd)
