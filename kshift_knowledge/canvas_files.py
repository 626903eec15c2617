"""Where the canvases of a tree are, and what they say now; follows no link, knows no database."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kshift_knowledge.canvas import Canvas, CanvasRefused, parse_canvas
from kshift_knowledge.errors import ItemError, Unsettled
from kshift_knowledge.item_keys import is_slug
from kshift_knowledge.item_source import decode
from kshift_knowledge.tree import AUTOMATIONS_FILE, signature_of

MAX_CANVAS_BYTES = 4 * 1024 * 1024
NOT_A_FILE = "not a plain file"  # the signature of a link, a folder or a device of that name

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

Place = tuple[str, str]  # account, project


@dataclass(frozen=True, slots=True)
class CanvasFiles:
    """
    What one look found. signatures: by account and project.

    unlisted: accounts (project empty) and projects that could not be looked at: what was loaded
    of them stays.
    """

    signatures: dict[Place, str] = field(default_factory=dict)
    unlisted: frozenset[Place] = frozenset()

    def signature(self, place: Place) -> str | None:
        """None where there is no file. Of what could not be looked at nothing is known."""
        return self.signatures.get(place)

    def was_listed(self, place: Place) -> bool:
        return self.unlisted.isdisjoint({place, (place[0], "")})


def find_canvases(root: Path) -> CanvasFiles:
    """
    Find every `<account>/<project>/automations.yaml`; one listing an account, one stat a project.

    Raises OSError when *root* itself cannot be listed.
    """
    signatures: dict[Place, str] = {}
    unlisted: set[Place] = set()
    for account in _slug_folders(root):
        try:
            projects = _slug_folders(root / account)
        except OSError:
            unlisted.add((account, ""))
            continue
        for project in projects:
            try:
                found = os.stat(root / account / project / AUTOMATIONS_FILE, follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                unlisted.add((account, project))
                continue
            is_file = stat.S_ISREG(found.st_mode)
            signatures[account, project] = signature_of(found) if is_file else NOT_A_FILE
    return CanvasFiles(signatures, frozenset(unlisted))


def read_canvas(root: Path, place: Place, signature: str) -> Canvas:
    """
    Read a canvas whose file still has *signature*, before and after.

    Raises CanvasRefused with the reason, and Unsettled when the file has changed since.
    """
    where = "/".join((*place, AUTOMATIONS_FILE))
    if signature == NOT_A_FILE:
        raise _refused(f"{where} is not a plain file.", "Put a plain file there.")
    try:
        with _opened(root, place) as fd:
            if os.fstat(fd).st_size > MAX_CANVAS_BYTES:
                raise _refused(
                    f"{where} is larger than {MAX_CANVAS_BYTES:,} bytes.", "Shorten its prompts."
                )
            raw = os.read(fd, MAX_CANVAS_BYTES + 1)
            if signature_of(os.fstat(fd)) != signature:
                raise Unsettled(f"{where} is being written.", hint="It is read again later.")
    except OSError as exc:
        if exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise Unsettled(f"{where} has just moved.", hint="It is read again later.") from exc
        raise _refused(
            f"{where} cannot be read: {exc.strerror}.",
            "Give the user that runs kshift the right to read it.",
        ) from exc
    try:
        return parse_canvas(decode(raw, where))
    except ItemError as exc:
        raise CanvasRefused(exc.message, hint=exc.hint) from exc


def _refused(message: str, hint: str) -> CanvasRefused:
    return CanvasRefused(message, hint=hint)


def _slug_folders(folder: Path) -> list[str]:
    with os.scandir(folder) as found:
        return sorted(
            entry.name
            for entry in found
            if is_slug(entry.name) and entry.is_dir(follow_symlinks=False)
        )


@contextmanager
def _opened(root: Path, place: Place) -> Iterator[int]:
    """The file, reached part by part so that no link leads out of the tree."""
    fd = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for name, flags in ((place[0], _FOLDER), (place[1], _FOLDER), (AUTOMATIONS_FILE, _FILE)):
            above, fd = fd, os.open(name, flags, dir_fd=fd)
            os.close(above)
        yield fd
    finally:
        os.close(fd)
