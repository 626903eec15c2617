"""One knowledge database's folder held open, so that no path below it can be led out by a link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEVER_WAIT = os.O_NONBLOCK | os.O_NOCTTY  # a FIFO put in a file's place must not hang us


class LinkLeaves(OSError):
    """A link's target lies outside its database folder."""


class DatabaseFolder:
    """
    Opens what lies below one folder part by part, each without following links.

    A link that is swapped in between two calls is refused by the system (ELOOP or ENOTDIR), so a
    file that was opened here lies in this folder, whatever happens around it. Hard links and
    mounts cannot be told from plain files; making them needs rights on the source.

    All methods raise OSError.
    """

    def __init__(self, root: Path, account: str, project: str, database: str) -> None:
        """Open the folder of one knowledge database; only *root* itself may be a link."""
        self._path = os.path.join(root, account, project, database)
        root_fd = os.open(root, _FOLDER)
        try:
            self._fd = _descend(root_fd, (account, project, database))
        finally:
            os.close(root_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @contextmanager
    def subfolder(self, parts: Sequence[str]) -> Iterator[int]:
        """Yield a file descriptor of a folder below; no parts mean the database folder itself."""
        fd = _descend(self._fd, parts)
        try:
            yield fd
        finally:
            os.close(fd)

    def stat(self, parts: Sequence[str]) -> os.stat_result:
        """Return what *parts* is, a link itself rather than its target."""
        with self.subfolder(parts[:-1]) as fd:
            return os.stat(parts[-1], dir_fd=fd, follow_symlinks=False)

    @contextmanager
    def regular_file(self, parts: Sequence[str]) -> Iterator[int]:
        """
        Yield a file descriptor of a regular file, open for reading.

        Raises what require_regular raises; pipes, devices and sockets are never opened.
        """
        with self.subfolder(parts[:-1]) as folder:
            require_regular(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False))
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | _NEVER_WAIT
            fd = os.open(parts[-1], flags, dir_fd=folder)
        try:
            require_regular(os.fstat(fd))
            yield fd
        finally:
            os.close(fd)

    def follow(self, parts: Sequence[str]) -> tuple[str, ...]:
        """
        Return where the link at *parts* leads, as parts below this folder without any link.

        Raises LinkLeaves, FileNotFoundError for a dangling link, OSError (ELOOP) for a loop.
        """
        link = os.path.join(self._path, *parts)
        here = os.path.realpath(self._path)
        # Not strict at first: whether something exists outside is nobody's business in here.
        for is_strict in (False, True):
            target = os.path.realpath(link, strict=is_strict)
            if os.path.commonpath((here, target)) != here:
                raise LinkLeaves(errno.EXDEV, "A link leads out of its database folder")
        return tuple(os.path.relpath(target, here).split("/"))


def require_regular(found: os.stat_result) -> None:
    """Raise OSError unless this is a plain file: ELOOP for a link, else ENXIO."""
    if not stat.S_ISREG(found.st_mode):
        code = errno.ELOOP if stat.S_ISLNK(found.st_mode) else errno.ENXIO
        raise OSError(code, os.strerror(code))


def _descend(fd: int, parts: Sequence[str]) -> int:
    """Return a new descriptor of the folder *parts* below *fd*."""
    current = os.open(".", _FOLDER, dir_fd=fd)
    for part in parts:
        try:
            following = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=current)
        finally:
            os.close(current)
        current = following
    return current
