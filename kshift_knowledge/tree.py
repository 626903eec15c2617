"""The knowledge tree: which files are items and what they are called; never opens a file."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from kshift_knowledge.database_folder import DatabaseFolder, LinkLeaves
from kshift_knowledge.errors import ItemError, Refused
from kshift_knowledge.item_keys import encode_name, is_slug, partition_key, stand_in_key
from kshift_knowledge.tree_problems import TreeProblem, tree_problem
from kshift_knowledge.walk_order import GoingOn, lies_between

TEXT_EXTENSIONS = frozenset({"md", "markdown", "mdx", "txt"})
AUTOMATIONS_FILE = "automations.yaml"

# Editors, office programs and downloads leave these beside the file they will become.
_TEMPORARY = re.compile(
    r"(?:~\$.*|#.*#|.*~|.*___jb_(?:tmp|old)___"
    r"|.*\.(?:tmp|temp|part|partial|crdownload|download|sw[nopx]))",
    re.IGNORECASE | re.DOTALL,
)
_EXTENSION = re.compile(r"[^/]\.([^./\s]{1,32})\Z")


_Place = tuple[str, str, str]  # account, project, database


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """
    One item as the scan found it.

    path: below the database folder, with "/". A file whose name cannot make a partition key has
    a problem, and path and partition_key are the stand-ins of item_keys.stand_in_key.
    signature: size, mtime, ctime (ns) and inode; empty when the file could not be looked at.
    problem: why the item fails without being read.
    """

    account: str
    project: str
    database: str
    path: str
    partition_key: str
    signature: str
    problem: TreeProblem | None = None


@dataclass(frozen=True, slots=True)
class AutomationsFile:
    """A project's automations.yaml; not an item."""

    account: str
    project: str
    signature: str


@dataclass(frozen=True, slots=True)
class TreeScan:
    """
    What one scan found.

    databases: (account, project, database) of every database folder, empty ones too.
    problems: what was passed over and a person should know of; items with a problem are entries.
    unlisted: folders that could not be listed, as `acme/shop/` or `acme/shop/brand/old/`.
    after, up_to: where the scan began and where its time was up; None at the ends of the tree.
    """

    entries: list[TreeEntry] = field(default_factory=list)
    databases: list[tuple[str, str, str]] = field(default_factory=list)
    automations_files: list[AutomationsFile] = field(default_factory=list)
    problems: list[TreeProblem] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)
    after: str | None = None
    up_to: str | None = None

    @property
    def is_whole(self) -> bool:
        return self.after is None and self.up_to is None

    def was_listed(self, account: str, project: str, database: str, path: str = "") -> bool:
        """Say whether this place was looked at: only then is a missing item a deleted one."""
        place = f"{account}/{project}/{database}/{path}"
        return not place.startswith(tuple(self.unlisted)) and (
            self.is_whole or lies_between(place, self.after, self.up_to)
        )

    def fingerprint(self) -> str:
        """Return what changes with any file or folder that was found."""
        digest = sha256()
        for entry in self.entries:
            code = entry.problem.code if entry.problem else ""
            digest.update(f"{entry.partition_key}\0{entry.signature}\0{code}\n".encode())
        found = (self.databases, self.automations_files, self.unlisted)
        digest.update(repr(found).encode())
        return digest.hexdigest()


def scan_tree(
    root: Path, *, after: str | None = None, is_time_up: Callable[[], bool] = lambda: False
) -> TreeScan:
    """
    Find every item below *root*; costs a listing for each folder and a stat for each file.

    after: go on where an earlier scan's up_to was. is_time_up: asked at each file, so that a
    slow disk is walked in several scans, which together find what one finds.

    A folder link is not followed: what it leads to inside its database is listed at its own
    place already. A file link that stays in its database folder is an item of its own. Folders
    and files that change during the scan are found as they were at some moment of it.

    Raises Refused when *root* is missing or cannot be listed; an empty root is an empty scan,
    see root_problem.
    """
    problem = root_problem(root)
    if problem is not None and problem.code != "knowledge_dir_empty":
        raise Refused(problem.message, hint=problem.hint, code=problem.code)
    return _Walk(root, after, is_time_up).scan()


def root_problem(root: Path) -> TreeProblem | None:
    """
    Say what is wrong with *root* when it is missing, unreadable or holds no account.

    Each looks like a mass deletion and may be a disk that is not mounted.
    """
    try:
        with os.scandir(root) as found:
            if any(is_slug(entry.name) and entry.is_dir(follow_symlinks=False) for entry in found):
                return None
    except FileNotFoundError:
        code, state = "knowledge_dir_missing", "does not exist"
    except OSError as exc:
        code, state = "knowledge_dir_unreadable", f"cannot be listed: {exc.strerror}"
    else:
        code, state = "knowledge_dir_empty", "holds no account"
    return TreeProblem(
        where=encode_name(str(root)),
        code=code,
        message=f"The knowledge directory {encode_name(str(root))} {state}.",
        hint="Mount or restore it, or correct KSHIFT_KNOWLEDGE_DIR.",
    )


def kind_of(path: str) -> str:
    """Return `text` for the text extensions, else the lower-case extension, else `file`."""
    extension = extension_of(path).lower()
    if extension in TEXT_EXTENSIONS:
        return "text"
    return extension or "file"


def extension_of(path: str) -> str:
    """Return what follows the last dot of the file's name, as written; empty for `README`."""
    found = _EXTENSION.search(path)
    return found[1] if found else ""


def signature_of(found: os.stat_result) -> str:
    """Return size, mtime, ctime and inode as one string; any change of the file changes it."""
    return f"{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}"


class _TimeUp(Exception):
    """The scan ends here, and goes on behind *place* another time."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


class _Walk:
    """One scan under way: the root and what it has found so far."""

    def __init__(self, root: Path, after: str | None, is_time_up: Callable[[], bool]) -> None:
        self._root = root
        self._found = TreeScan(after=after)
        self._going_on = GoingOn(after)
        self._is_time_up = is_time_up

    def scan(self) -> TreeScan:
        try:
            for account in self._slug_folders():
                for project in self._slug_folders(account):
                    for database in self._slug_folders(account, project):
                        self._found.databases.append((account, project, database))
                        self._scan_database((account, project, database))
        except _TimeUp as exc:
            return replace(self._found, up_to=exc.place)
        return self._found

    def _slug_folders(self, *levels: str) -> list[str]:
        """Return the names of the accounts, projects or databases below *levels*, sorted."""
        folders = []
        try:
            with os.scandir(os.path.join(self._root, *levels)) as found:
                for entry in sorted(found, key=lambda entry: entry.name):
                    name = entry.name
                    if name.startswith("."):
                        continue
                    if name == AUTOMATIONS_FILE and len(levels) == 2:
                        self._add_automations_file(levels, entry)
                    elif entry.is_symlink():
                        if os.path.isdir(entry.path):
                            self._report((*levels, name), "link_above_database")
                    elif not entry.is_dir():
                        continue
                    elif is_slug(name):
                        if not self._going_on.is_passed((*levels, name)):
                            folders.append(name)
                    else:
                        self._report((*levels, name), "not_a_slug")
        except OSError as exc:
            self._mark_unlisted(levels, exc)
        return folders

    def _add_automations_file(self, levels: Sequence[str], entry: os.DirEntry[str]) -> None:
        if entry.is_file(follow_symlinks=False):
            signature = signature_of(entry.stat(follow_symlinks=False))
            account, project = levels
            self._found.automations_files.append(AutomationsFile(account, project, signature))
        else:
            self._report((*levels, entry.name), "not_a_regular_file")

    def _scan_database(self, place: _Place) -> None:
        try:
            with DatabaseFolder(self._root, *place) as folder:
                pending: list[tuple[str, ...]] = [()]
                while pending:
                    parts = pending.pop()
                    self._stop_in_time((*place, *parts, ""))
                    subfolders = self._scan_folder(folder, place, parts)
                    pending.extend((*parts, name) for name in reversed(subfolders))
        except OSError as exc:
            self._mark_unlisted(place, exc)

    def _scan_folder(
        self, folder: DatabaseFolder, place: _Place, parts: tuple[str, ...]
    ) -> list[str]:
        """Add the items of one folder and return the names of its folders, sorted."""
        subfolders: list[str] = []
        above = "".join(f"{part}/" for part in parts)
        passed = self._going_on.passed_name((*place, *parts))
        try:
            with folder.subfolder(parts) as fd, os.scandir(fd) as found:
                for entry in sorted(found, key=lambda entry: entry.name):
                    name = entry.name
                    if name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if not self._going_on.is_passed((*place, *parts, name)):
                            subfolders.append(name)
                        continue
                    if passed is None or name <= passed or _TEMPORARY.fullmatch(name):
                        continue
                    if entry.is_file(follow_symlinks=False):
                        self._add_file(place, above + name, entry)
                    elif entry.is_symlink():
                        self._add_link(folder, place, (*parts, name))
                    else:
                        self._report((*place, *parts, name), "not_a_regular_file")
                    self._stop_in_time((*place, *parts, name))
        except OSError as exc:
            self._mark_unlisted((*place, *parts), exc)
        return subfolders

    def _stop_in_time(self, parts: Sequence[str]) -> None:
        if self._is_time_up() and self._going_on.is_behind(parts):
            raise _TimeUp("/".join(parts))

    def _add_file(self, place: _Place, path: str, entry: os.DirEntry[str]) -> None:
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return  # deleted since it was listed
        except OSError as exc:
            problem = tree_problem((*place, path), "unreadable", exc)
            self._add_item(place, path, "", problem)
        else:
            self._add_item(place, path, signature_of(found))

    def _add_link(self, folder: DatabaseFolder, place: _Place, parts: tuple[str, ...]) -> None:
        where = (*place, *parts)
        try:
            found = folder.stat(folder.follow(parts))
        except LinkLeaves:
            self._report(where, "link_leaves_database")
        except OSError as exc:
            if exc.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                self._report(where, "link_dangling", exc)
            else:
                self._add_item(place, "/".join(parts), "", tree_problem(where, "unreadable", exc))
        else:
            if stat.S_ISREG(found.st_mode):
                self._add_item(place, "/".join(parts), signature_of(found))
            else:
                self._report(where, "link_not_to_a_file")

    def _add_item(
        self, place: _Place, path: str, signature: str, problem: TreeProblem | None = None
    ) -> None:
        try:
            key = partition_key(*place, path)
        except ItemError as exc:
            key = stand_in_key(*place, path)
            path = key.split("/", 3)[3]
            problem = TreeProblem(key, exc.code, exc.message, exc.hint)
        self._found.entries.append(TreeEntry(*place, path, key, signature, problem))

    def _mark_unlisted(self, levels: Sequence[str], exc: OSError) -> None:
        self._found.unlisted.append("".join(f"{level}/" for level in levels))
        self._report(levels, "folder_unlisted", exc)

    def _report(self, levels: Sequence[str], code: str, exc: OSError | None = None) -> None:
        self._found.problems.append(tree_problem(levels, code, exc))
