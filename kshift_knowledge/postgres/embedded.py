"""The embedded PostgreSQL: started by whoever needs it first, stopped by whoever leaves last."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import TracebackType

import psycopg

from kshift_knowledge.errors import NotReady
from kshift_knowledge.postgres import embedded_files as files
from kshift_knowledge.postgres import embedded_processes as processes
from kshift_knowledge.postgres.credentials import Credentials
from kshift_knowledge.postgres.embedded_layout import (
    OUTSIDE,
    PORT,
    Layout,
    locate,
    recorded_folder,
)
from kshift_knowledge.postgres.embedded_processes import Launched
from kshift_knowledge.postgres.flock import is_locked, locked, try_lock
from kshift_knowledge.postgres.urls import build_url

SERVER = "embedded"  # its key in the credentials file, wherever the socket is
ADMINISTRATOR = "kshift_admin"
DATABASE = "kshift"
START_WAIT_S = 60.0  # recovery after a crash replays up to max_wal_size of WAL
ORPHAN_PATIENCE_S = 1.0  # processes of a killed server leave within milliseconds unless busy
CONNECT_TIMEOUT_S = 3
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """How the administrator reaches a running server, and the server's key among passwords."""

    admin_url: str
    server: str = SERVER


class _Answer(Enum):
    READY = auto()
    BUSY = auto()  # it is there, but starting, stopping or stuck
    BAD_PASSWORD = auto()
    SILENT = auto()  # nobody listens


class EmbeddedServer:
    """
    The server of one home, shared by all processes that use the home.

    Each process that uses it holds a shared lock from `ensure_running` to `leave`, and loses it
    with its life; who leaves last stops the server. A server whose users were all killed is found
    by the next one. Whether it runs is decided by connecting, and whether a process of it is left,
    by a lock that the server's processes inherit: no process id is trusted.
    """

    def __init__(self, home: Path, *, is_durable: bool = True, outside: Path = OUTSIDE) -> None:
        self._home = home.expanduser().absolute().resolve()
        self._is_durable = is_durable
        self._outside = outside
        self._credentials = Credentials(self._home)
        self._users_fd: int | None = None

    def ensure_running(self) -> ServerAddress:
        """
        Start the server or join a running one; call it again after a crash to restart it.

        Raises NotReady when it is not installed or does not start; the hint names the log.
        """
        with self._alone() as layout:
            if self._users_fd is None:
                self._users_fd = try_lock(layout.users_lock, is_shared=True)
            try:
                self._bring_up(layout)
            except BaseException:
                self._drop_users_lock()
                if not is_locked(layout.users_lock):
                    with contextlib.suppress(NotReady):
                        processes.shut_down(layout)  # interrupted: nobody would stop it
                raise
            password = self._credentials.password(SERVER, ADMINISTRATOR)
            assert password is not None
            return ServerAddress(_admin_url(layout, password, DATABASE))

    def leave(self) -> bool:
        """Stop using the server. Returns whether this was its last user, who stops it."""
        if self._users_fd is None:
            return False
        with self._alone() as layout:
            self._drop_users_lock()
            if is_locked(layout.users_lock):
                return False
            processes.shut_down(layout)
            return True

    def stop(self) -> None:
        """Stop the server whoever uses it; a server that does not run is fine."""
        with self._alone() as layout:
            self._drop_users_lock()
            processes.shut_down(layout)

    def is_running(self) -> bool:
        """Whether the server answers the administrator."""
        layout = self._locate()
        return self._ask(layout) is _Answer.READY

    def __enter__(self) -> ServerAddress:
        return self.ensure_running()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()

    def _locate(self) -> Layout:
        return locate(self._home, is_durable=self._is_durable, outside=self._outside)

    @contextmanager
    def _alone(self) -> Iterator[Layout]:
        """Nobody else starts, joins, leaves or stops the server meanwhile."""
        try:
            files.make_home(self._home)
            layout = self._locate()
            files.make_folder(layout)
            with locked(layout.start_lock, wait_s=2 * START_WAIT_S):
                yield layout
        except TimeoutError as exc:
            raise NotReady(
                "Another process has been starting or stopping the embedded PostgreSQL for "
                f"{2 * START_WAIT_S:g} s.",
                hint=f"Find out who holds {layout.start_lock}.",
            ) from exc
        except OSError as exc:
            raise NotReady(
                f"The embedded PostgreSQL of {self._home} cannot be used: {exc}.",
                hint="Run kshift as the user who made this home, set another KSHIFT_HOME, or set "
                "KSHIFT_DATABASE_URL to another server.",
            ) from exc

    def _drop_users_lock(self) -> None:
        if self._users_fd is not None:
            os.close(self._users_fd)
            self._users_fd = None

    def _bring_up(self, layout: Layout) -> None:
        if layout.is_outside and recorded_folder(self._home) is None:
            # The home was deleted and is new again: what an older one left there is not its own.
            processes.shut_down(layout)
            shutil.rmtree(layout.data, ignore_errors=True)
            files.record_folder(layout)
        answer = self._settle(layout, silence_s=ORPHAN_PATIENCE_S)
        if answer is _Answer.READY:
            return
        answer, launched = self._start(layout, renews_password=answer is _Answer.BAD_PASSWORD)
        if answer is _Answer.BAD_PASSWORD:
            answer, launched = self._start(layout, renews_password=True)
        if answer is not _Answer.READY:
            raise NotReady(
                f"The embedded PostgreSQL did not start: {processes.last_words(layout, launched)}",
                hint=f"See {layout.log}.",
            )

    def _settle(self, layout: Layout, *, silence_s: float) -> _Answer:
        """
        Wait until the server answers or nothing of it is left, and return its last answer.

        A server that does not know the administrator's password, and one that has not listened
        for *silence_s* (orphans of a killed one, or its socket was removed), is stopped.
        """
        asked_at = time.monotonic()
        while True:
            answer = self._ask(layout)
            if answer is _Answer.READY or not is_locked(layout.server_lock):
                return answer
            waited_s = time.monotonic() - asked_at
            is_lost = answer is _Answer.SILENT and waited_s > silence_s
            if is_lost or answer is _Answer.BAD_PASSWORD:
                processes.shut_down(layout)
                return answer
            if waited_s > START_WAIT_S:
                raise NotReady(
                    f"The embedded PostgreSQL has not answered for {START_WAIT_S:g} s.",
                    hint=f"See {layout.log}.",
                )
            time.sleep(POLL_S)

    def _start(self, layout: Layout, *, renews_password: bool) -> tuple[_Answer, Launched]:
        """Start the server of which nothing is left; return how it answers."""
        server_lock = try_lock(layout.server_lock)
        assert server_lock is not None, "_settle saw the lock free, and nobody else may take it"
        try:
            processes.clear_leftovers(layout)
            files.prepare_start(layout)
            files.copy_programs(layout)
            password, is_new = self._credentials.obtain(SERVER, ADMINISTRATOR)
            set_password = f"ALTER ROLE {ADMINISTRATOR} PASSWORD '{password}';"
            if not layout.data.exists():
                create = f"CREATE DATABASE {DATABASE};"
                processes.initialise(layout, server_lock, ADMINISTRATOR, [set_password, create])
            elif is_new or renews_password:
                processes.run_alone(layout, server_lock, [set_password])
            files.check_data_version(layout)
            launched = processes.launch(layout, server_lock)
        finally:
            os.close(server_lock)  # the server holds it now, and its death sets it free
        return self._settle(layout, silence_s=START_WAIT_S), launched

    def _ask(self, layout: Layout) -> _Answer:
        """Connect as the administrator and say what came of it."""
        password = self._credentials.password(SERVER, ADMINISTRATOR)
        if password is None:
            is_there = _listens(layout.socket)
            return _Answer.BAD_PASSWORD if is_there else _Answer.SILENT
        url = _admin_url(layout, password, "postgres")
        try:
            psycopg.connect(url, connect_timeout=CONNECT_TIMEOUT_S).close()
        except psycopg.OperationalError as exc:
            # libpq has no SQLSTATE for a failed connection; the server's messages are English.
            if "password authentication failed" in str(exc):
                return _Answer.BAD_PASSWORD
            if "connection slots" in str(exc) or "too many clients" in str(exc):
                return _Answer.READY
            return _Answer.BUSY if _listens(layout.socket) else _Answer.SILENT
        return _Answer.READY


def _admin_url(layout: Layout, password: str, database: str) -> str:
    return build_url(
        {
            "user": ADMINISTRATOR,
            "password": password,
            "host": str(layout.socket_folder),
            "port": str(PORT),
            "dbname": database,
        }
    )


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return False
        except OSError:
            return True  # somebody is there but does not take the call: stuck or overrun
        return True
