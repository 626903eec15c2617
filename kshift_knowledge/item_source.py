"""Reading one item: its bytes taken safely and settled, its text decoded; knows no database."""

from __future__ import annotations

import codecs
import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kshift_knowledge.database_folder import DatabaseFolder, LinkLeaves, require_regular
from kshift_knowledge.errors import ItemError, ItemGone, Unsettled
from kshift_knowledge.front_matter import FrontMatter, item_meta, parse_front_matter
from kshift_knowledge.item_keys import ItemKey, partition_key
from kshift_knowledge.records import ItemMeta
from kshift_knowledge.tree import kind_of, signature_of

SETTLE_S = 1.0  # contract: equal before and after the read and again a second later
MAX_ITEM_BYTES = 32 * 1024 * 1024

# Longest first: the mark of UTF-32-LE starts with that of UTF-16-LE.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

# ELOOP and EINVAL: a file became a link, or a link a file, between two looks.
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL}


class Place(Protocol):
    """What says where an item lives: a TreeEntry or an ItemKey."""

    @property
    def account(self) -> str: ...
    @property
    def project(self) -> str: ...
    @property
    def database(self) -> str: ...
    @property
    def path(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ItemSource:
    """
    One item as its file was at one moment.

    text: what is cut into chunks, front matter included; empty for kinds that are only registered.
    raw_hash: hex SHA-256 of the file's bytes; of size, mtime and inode for files that are never
    opened.
    warnings: what front matter said that was ignored.
    """

    key: ItemKey
    text: str
    raw_hash: str
    meta: ItemMeta
    signature: str
    warnings: tuple[str, ...] = ()


def read_item(
    root: Path,
    place: Place,
    *,
    max_bytes: int = MAX_ITEM_BYTES,
    wait: Callable[[float], None] = time.sleep,
) -> ItemSource:
    """
    Read one item and wait the second that shows it settled.

    For many items call read_once for each, wait SETTLE_S once, and ask is_settled for each.

    Raises what read_once raises.
    """
    source = read_once(root, place, max_bytes=max_bytes)
    wait(SETTLE_S)
    if not is_settled(root, source.key, source.signature):
        raise _unsettled(partition_key(*source.key))
    return source


def read_once(root: Path, place: Place, *, max_bytes: int = MAX_ITEM_BYTES) -> ItemSource:
    """
    Read one item as it is now; trust it only when is_settled says so a second later.

    Only files with a text extension are opened.

    Raises Unsettled (it changed during the read), ItemGone, and ItemError: unreadable, too_large,
    not_utf8, nul_in_text, not_a_regular_file, link_leaves_database, folder_unlisted, and the
    codes of partition_key.
    """
    key = ItemKey(place.account, place.project, place.database, place.path)
    where = partition_key(*key)
    with _opened(root, key, where) as (folder, parts):
        if kind_of(key.path) != "text":
            return _register(key, folder.stat(parts))
        with folder.regular_file(parts) as fd:
            raw, found = _read_stable(fd, where, max_bytes)
    text = decode(raw, where)
    front_matter = parse_front_matter(text)
    meta = item_meta(key.path, front_matter)
    return ItemSource(
        key=key,
        text=text if meta.kind == "text" else "",
        raw_hash=hashlib.sha256(raw).hexdigest(),
        meta=meta,
        signature=signature_of(found),
        warnings=front_matter.warnings,
    )


def is_settled(root: Path, place: Place, signature: str) -> bool:
    """Say whether the file still has this signature; False when it cannot be looked at."""
    return signature != "" and signature_now(root, place) == signature


def signature_now(root: Path, place: Place) -> str:
    """Return the file's signature; empty when it cannot be looked at."""
    key = ItemKey(place.account, place.project, place.database, place.path)
    try:
        with _opened(root, key, "") as (folder, parts):
            return signature_of(folder.stat(parts))
    except ItemError:
        return ""


def decode(raw: bytes, where: str) -> str:
    """
    Return the text of *raw*: UTF-8, or UTF-16/32 by its mark; line ends become LF.

    One leading mark is dropped, nothing else changes. *where* names the item in errors.

    Raises ItemError: not_utf8, nul_in_text.
    """
    mark, encoding = next((m for m in _MARKS if raw.startswith(m[0])), (b"", "utf-8"))
    try:
        text = str(memoryview(raw)[len(mark) :], encoding)
    except UnicodeDecodeError as exc:
        raise _not_decodable(raw, where, encoding, len(mark) + exc.start, exc.reason) from None
    if "\0" in text:
        raise ItemError(
            f"{where} holds a NUL at character {text.index(chr(0)):,}, which no database text "
            "can hold.",
            code="nul_in_text",
            hint=_UTF16_HINT if _looks_like_utf16(raw) else "Remove the NUL from the file.",
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


_UTF16_HINT = "It looks like UTF-16 without a byte order mark: save it as UTF-8."


def _not_decodable(raw: bytes, where: str, encoding: str, offset: int, reason: str) -> ItemError:
    if reason in {"unexpected end of data", "truncated data"}:
        hint = "The file ends inside a character; copy it again, whole."
    elif encoding == "utf-8" and _looks_like_utf16(raw):
        hint = _UTF16_HINT
    else:
        hint = "Save the file as UTF-8."
    return ItemError(
        f"{where} is not {encoding.upper()} at byte {offset:,}.", code="not_utf8", hint=hint
    )


def _looks_like_utf16(raw: bytes) -> bool:
    """Say whether most even bytes are NUL and no odd ones, or the reverse: Latin in UTF-16."""
    sample = raw[:4096]
    fewer, more = sorted((sample[::2].count(0), sample[1::2].count(0)))
    return fewer == 0 and more * 4 > len(sample)


@contextmanager
def _opened(
    root: Path, key: ItemKey, where: str
) -> Iterator[tuple[DatabaseFolder, tuple[str, ...]]]:
    """Yield the item's database folder and the parts of its file there; name its OSErrors."""
    try:
        folder = DatabaseFolder(root, key.account, key.project, key.database)
    except OSError as exc:
        raise ItemError(
            f"The database folder of {where} cannot be opened: {exc.strerror}.",
            code="folder_unlisted",
            hint="Restore the folder, or let the next scan find that it is gone.",
        ) from exc
    with folder:
        try:
            parts = tuple(key.path.split("/"))
            if stat.S_ISLNK(folder.stat(parts).st_mode):
                parts = folder.follow(parts)
            yield folder, parts
        except OSError as exc:
            raise _item_error(where, exc) from exc


def _item_error(where: str, exc: OSError) -> ItemError:
    if isinstance(exc, LinkLeaves):
        return ItemError(
            f"{where} is a link to a place outside its database folder.",
            code="link_leaves_database",
            hint="Copy the file itself into the folder.",
        )
    if exc.errno in _NOT_THERE:
        return ItemGone(f"{where} is not there any more.", hint="The next scan removes it.")
    if exc.errno == errno.ENXIO:
        return ItemError(
            f"{where} is not a plain file and is never opened.",
            code="not_a_regular_file",
            hint="Remove it from the knowledge tree.",
        )
    return ItemError(
        f"{where} cannot be read: {exc.strerror}.",
        code="unreadable",
        hint="Give the user that runs kshift the right to read it.",
    )


def _register(key: ItemKey, found: os.stat_result) -> ItemSource:
    require_regular(found)
    identity = f"{found.st_size}:{found.st_mtime_ns}:{found.st_ino}"
    return ItemSource(
        key=key,
        text="",
        raw_hash=hashlib.sha256(identity.encode()).hexdigest(),
        meta=item_meta(key.path, FrontMatter()),
        signature=signature_of(found),
    )


def _read_stable(fd: int, where: str, max_bytes: int) -> tuple[bytes, os.stat_result]:
    """Return a file's bytes and its stat, equal before and after."""
    before = os.fstat(fd)
    if before.st_size > max_bytes:
        raise ItemError(
            f"{where} has {before.st_size:,} bytes, more than the {max_bytes:,} an item may have.",
            code="too_large",
            hint="Split the file.",
        )
    room, blocks = before.st_size + 1, []
    while room and (block := os.read(fd, room)):
        blocks.append(block)
        room -= len(block)
    if room != 1 or signature_of(os.fstat(fd)) != signature_of(before):
        raise _unsettled(where)
    return b"".join(blocks), before


def _unsettled(where: str) -> Unsettled:
    return Unsettled(f"{where} is being written.", hint="It is read again at the next tick.")
