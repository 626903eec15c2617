"""Generated passwords of one home, kept in one file of mode 0600; it knows no server."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kshift_knowledge.errors import NotReady
from kshift_knowledge.postgres.flock import locked

LOCK_WAIT_S = 10.0
Passwords = dict[str, dict[str, str]]


class Credentials:
    """
    The file `credentials` of a home: `{"passwords": {server: {role: password}}}`.

    Roles belong to a server, not to one of its databases, so the server is the key. Several
    processes may read and write at once. A lost file costs nothing: whoever needs a password
    that is not there sets a new one.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / "credentials"

    def password(self, server: str, role: str) -> str | None:
        """The password of *role* on *server*, None when this home has none."""
        return self._read().get(server, {}).get(role)

    def obtain(self, server: str, role: str) -> tuple[str, bool]:
        """Return the password of *role*, made and saved when there is none, and whether it was."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._alone():
            passwords = self._read()
            of_server = passwords.setdefault(server, {})
            if role in of_server:
                return of_server[role], False
            of_server[role] = secrets.token_urlsafe(32)
            self._write(passwords)
            return of_server[role], True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        lock = self._path.with_suffix(".lock")
        try:
            with locked(lock, wait_s=LOCK_WAIT_S):
                yield
        except TimeoutError as exc:
            raise NotReady(
                f"Another process has been writing {self._path} for {LOCK_WAIT_S:g} s.",
                hint=f"Find out who holds {lock}.",
            ) from exc

    def _read(self) -> Passwords:
        try:
            content = json.loads(self._path.read_text("utf-8"))
            return {server: dict(roles) for server, roles in content["passwords"].items()}
        except FileNotFoundError:
            return {}
        except PermissionError as exc:
            raise NotReady(
                f"{self._path} belongs to another user.",
                hint="Run kshift as the user who made this home, or set another KSHIFT_HOME.",
            ) from exc
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise NotReady(
                f"{self._path} is damaged.",
                hint="Delete it and run `kshift migrate`: it sets new passwords.",
            ) from exc

    def _write(self, passwords: Passwords) -> None:
        draft = self._path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            if os.geteuid() == 0:  # root in a user's home must not lock the user out
                owner = self._path.parent.stat()
                os.fchown(fd, owner.st_uid, owner.st_gid)
            json.dump({"passwords": passwords}, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(fd)
        draft.replace(self._path)
