"""The embedded server's processes: initialised, launched, found and ended, as its own user."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kshift_knowledge.errors import NotReady
from kshift_knowledge.postgres import embedded_files as files
from kshift_knowledge.postgres.embedded_layout import Layout
from kshift_knowledge.postgres.flock import is_locked

STOP_WAIT_S = 30.0
KILL_WAIT_S = 10.0
MAX_LOG_BYTES = 8_000_000
POLL_S = 0.01

_children: set[int] = set()  # servers that this process launched and has not reaped


@dataclass(frozen=True, slots=True)
class Launched:
    """A server that was launched, and where its lines begin in the log."""

    pid: int
    log_offset: int


def clear_leftovers(layout: Layout) -> None:
    """
    Remove what a killed server left behind; whoever calls this holds the server's lock.

    A postmaster.pid whose number another process has by now would stop PostgreSQL for ever.
    """
    if (killed := _postmaster_of(layout)) is not None:
        reap(killed)
    for stale in (layout.data / "postmaster.pid", *layout.socket_folder.glob(".s.PGSQL.*")):
        stale.unlink(missing_ok=True)


def initialise(layout: Layout, server_lock: int, administrator: str, sql: Sequence[str]) -> None:
    """
    Make the data of a new server and run *sql* in it; all of it or, when killed, nothing.

    Encoding UTF-8, sorted by code point, so that no library of the system changes an order.
    """
    draft = files.make_data_folder(layout, "data.new")
    command = [
        *(layout.programs / "bin" / "initdb", "--pgdata", draft, "--username", administrator),
        *("--auth=reject", "--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions"),
        *("--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
    ]
    if not layout.is_durable:
        command.append("--no-sync")
    _run_named(layout, server_lock, command, [])
    run_alone(layout, server_lock, sql, data=draft)
    draft.rename(layout.data)


def run_alone(
    layout: Layout, server_lock: int, sql: Sequence[str], *, data: Path | None = None
) -> None:
    """Run each line of *sql* as the bootstrap administrator while no server runs."""
    command = [
        *(layout.programs / "bin" / "postgres", "--single", "-D", data or layout.data),
        *("-c", f"config_file={layout.configuration}", "-c", "exit_on_error=on", "postgres"),
    ]
    _run_named(layout, server_lock, command, sql)


def launch(layout: Layout, server_lock: int) -> Launched:
    """Start the server without waiting for it; all its processes inherit *server_lock*."""
    if layout.log.exists() and layout.log.stat().st_size > MAX_LOG_BYTES:
        layout.log.replace(layout.log.with_suffix(".log.1"))
    with open(layout.log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
        offset = log.tell()
        process = subprocess.Popen(
            [
                *(str(layout.programs / "bin" / "postgres"), "-D", str(layout.data)),
                *("-c", f"config_file={layout.configuration}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(server_lock,),
            start_new_session=True,  # Ctrl-C is for us, not for the server
            **_as_server_user(layout),
        )
    process.returncode = 0  # it may outlive us, so Popen must not mind; reap() looks after it
    _children.add(process.pid)
    return Launched(process.pid, offset)


def reap(pid: int) -> None:
    """Take the exit status of an ended server that is our child, or it stays as a zombie."""
    if pid in _children:
        with contextlib.suppress(ChildProcessError):  # a fork of the process that launched it
            _wait(lambda: os.waitpid(pid, os.WNOHANG) != (0, 0), KILL_WAIT_S)
        _children.discard(pid)


def shut_down(layout: Layout) -> None:
    """Stop the server and whatever a killed one left; gently first, by force in the end."""
    postmaster = _postmaster_of(layout)
    for signal_name, wait_s in (
        ("INT", STOP_WAIT_S),  # fast: roll back, disconnect, checkpoint
        ("QUIT", KILL_WAIT_S),  # immediate: as a crash
        ("KILL", KILL_WAIT_S),
    ):
        if not is_locked(layout.server_lock):
            break
        holders = _holders_of(layout.server_lock)
        if signal_name != "KILL":
            holders = [pid for pid in holders if pid == postmaster]
        if holders:
            _run(layout, ["/bin/sh", "-c", 'kill -s "$@"', "sh", signal_name, *holders])
            _wait(lambda: not is_locked(layout.server_lock), wait_s)
    if is_locked(layout.server_lock):
        raise NotReady(
            "The embedded PostgreSQL does not stop.",
            hint=f"Find out who holds {layout.server_lock}, and see {layout.log}.",
        )
    if postmaster is not None:
        reap(postmaster)
    if layout.socket_folder.parent != layout.folder:
        with contextlib.suppress(OSError):  # after a kill it still holds the dead socket
            layout.socket_folder.rmdir()


def last_words(layout: Layout, launched: Launched) -> str:
    """Why a launched server ended, by its log, which never holds a statement."""
    reap(launched.pid)
    with open(layout.log, "rb") as log:
        log.seek(launched.log_offset)
        return _reason_in(log.read().decode("utf-8", "replace"))


def _run_named(
    layout: Layout, server_lock: int, command: Sequence[object], lines: Sequence[str]
) -> None:
    """Run a program that insists on a name for its user: a container's user often has none."""
    prefix: list[str] = []
    try:
        pwd.getpwuid(layout.user.uid)
    except KeyError:
        if shutil.which("unshare") is None:
            raise _nameless(layout) from None
        prefix = ["unshare", "--user", f"--map-user={pwd.getpwnam('nobody').pw_uid}"]
    finished = _run(
        layout,
        [*prefix, *command],
        input="".join(f"{line}\n" for line in lines),
        text=True,
        capture_output=True,
        pass_fds=(server_lock,),
    )
    if finished.returncode != 0:
        if prefix and finished.stderr.startswith("unshare"):
            raise _nameless(layout)
        raise NotReady(
            f"The embedded PostgreSQL cannot prepare its data: {_reason_in(finished.stderr)}",
            hint=f"Is there room and permission in {layout.folder}?",
        )


def _reason_in(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reasons = [line for line in lines if "FATAL" in line or "error" in line]
    return (reasons or lines or ["it said nothing"])[-1]


def _nameless(layout: Layout) -> NotReady:
    return NotReady(
        f"PostgreSQL's initdb needs a user with a name, but user {layout.user.uid} has none here.",
        hint="Run kshift as a user of /etc/passwd, or set KSHIFT_DATABASE_URL.",
    )


def _run(
    layout: Layout, command: Sequence[object], **options: Any
) -> subprocess.CompletedProcess[Any]:
    return subprocess.run(
        [str(part) for part in command], check=False, **_as_server_user(layout), **options
    )


def _as_server_user(layout: Layout) -> dict[str, Any]:
    options: dict[str, Any] = {
        "cwd": "/",
        "env": {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "TZ": "UTC"},
        "umask": 0o077,
    }
    if not layout.user.is_me:
        options |= {"user": layout.user.uid, "group": layout.user.gid, "extra_groups": []}
    return options


def _postmaster_of(layout: Layout) -> int | None:
    try:
        return int((layout.data / "postmaster.pid").read_text("utf-8").split("\n")[0])
    except (FileNotFoundError, ValueError):
        return None


def _holders_of(lock: Path) -> list[int]:
    """The processes that have *lock* open; without /proc nobody is known."""
    holders = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or belongs to somebody else
            if descriptor.readlink() == lock:
                holders.add(int(descriptor.parts[2]))
    return sorted(holders)


def _wait(is_true: Callable[[], bool], wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while not is_true() and time.monotonic() < deadline:
        time.sleep(POLL_S)
