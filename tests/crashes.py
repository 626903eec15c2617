"""Crashes of the real PostgreSQL of a test, as `pg_ctl stop -m immediate` and as kill -9."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from waiting import wait_until

from kshift_knowledge.postgres.embedded_layout import Layout, locate
from kshift_knowledge.postgres.embedded_processes import reap
from kshift_knowledge.postgres.flock import is_locked


def crash_postgres(home: Path, how: signal.Signals = signal.SIGQUIT) -> None:
    """
    End the embedded server of *home* without a checkpoint, and return when nothing of it is left.

    SIGQUIT is the immediate stop; after SIGKILL its children find out by themselves.
    """
    layout = _layout(home)
    postmaster = int((layout.data / "postmaster.pid").read_text().split("\n")[0])
    os.kill(postmaster, how)
    reap(postmaster)
    wait_until(lambda: not is_locked(layout.server_lock))


def _layout(home: Path) -> Layout:
    return locate(home, is_durable=False)
