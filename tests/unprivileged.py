"""For tests of missing rights: folders others may enter, and a while without root's rights."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def public_folder() -> Iterator[Path]:
    """Yield a new folder that any user can enter; pytest's own belong to one user alone."""
    folder = Path(tempfile.mkdtemp(prefix="kshift-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        _reopen(folder)
        shutil.rmtree(folder)


@contextmanager
def without_root_rights() -> Iterator[None]:
    """Root may read everything; become nobody for a while when we are root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def _reopen(folder: Path) -> None:
    """Let the owner delete folders that a test has shut."""
    folder.chmod(0o755)
    for below in folder.iterdir():
        if below.is_dir() and not below.is_symlink():
            _reopen(below)
