"""Partition keys: an item's place in the tree as one readable, reversible string, and back."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from kshift_knowledge.errors import ItemError

MAX_KEY_BYTES = 1_000  # docs/decisions.md#partition-keys
MAX_SLUG_LENGTH = 100

_SLUG = re.compile(r"[A-Za-z0-9]+(?:(?:-+|_+|\.)[A-Za-z0-9]+)*")
# Dagster refuses control characters and "..."; the others break its selections, links or quoting.
# Surrogates are bytes of a file name that are no UTF-8 (os.fsdecode).
_UNSAFE = re.compile(r"""[\x00-\x20\x7f-\x9f%,\[\]"'#?\\\ud800-\udfff]|\.{3,}""")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_STAND_IN = "./"


class ItemKey(NamedTuple):
    """Where an item lives: three slugs, and its path below the database folder with "/"."""

    account: str
    project: str
    database: str
    path: str


def partition_key(account: str, project: str, database: str, path: str) -> str:
    """
    Return `<account>/<project>/<database>/<path>` with what a key must not hold percent-encoded.

    Different places never share a key; split_partition_key gives the place back.

    Raises ItemError: name_not_utf8, name_too_long (above 1,000 bytes), bad_partition_key when
    a level is no slug or the path is not the plain path of a file.
    """
    for slug in (account, project, database):
        if not is_slug(slug):
            raise _bad_key(slug, "one of its first three levels is not a slug")
    check_item_path(path)
    if _SURROGATE.search(path):
        raise ItemError(
            f"The name of {stand_in_key(account, project, database, path)} is not UTF-8.",
            code="name_not_utf8",
            hint="Rename the file; the %-codes show the bytes that are no UTF-8.",
        )
    key = f"{account}/{project}/{database}/{encode_name(path)}"
    if not _fits(key):
        raise ItemError(
            f"The place of {stand_in_key(account, project, database, path)} is longer than "
            f"{MAX_KEY_BYTES:,} bytes.",
            code="name_too_long",
            hint="Shorten the file's name or the names of its folders.",
        )
    return key


def split_partition_key(key: str) -> ItemKey:
    """
    Return the place that partition_key made *key* from.

    Raises ItemError with code bad_partition_key for any string it would not have made, such as
    a key that a person typed: nothing decodes into a path that leaves the database folder.
    """
    try:
        levels = [unquote_to_bytes(level).decode() for level in key.split("/", 3)]
        if len(levels) == 4:
            place = ItemKey(*levels)
            if partition_key(*place) == key:
                return place
    except (UnicodeError, ItemError):
        pass
    raise _bad_key(key, "it is not <account>/<project>/<database>/<path> as kshift writes it")


def is_slug(name: str) -> bool:
    """Say whether *name* can be an account, a project or a database: `18f`, `brand-styles`."""
    return len(name) <= MAX_SLUG_LENGTH and _SLUG.fullmatch(name) is not None


def check_item_path(path: str) -> None:
    """Raise ItemError unless *path* is the plain path of a file: no "..", no empty part, no NUL."""
    if "\0" in path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise _bad_key(path, "its path is not the plain path of a file")


def encode_name(name: str) -> str:
    """
    Percent-encode what a key must not hold; "/" stays.

    Also bytes that are no UTF-8, so that the result can always be stored and printed.
    """
    return _UNSAFE.sub(_percent, name)


def stand_in_key(account: str, project: str, database: str, path: str) -> str:
    """
    Return a key for a file whose own name cannot make one, to report its failure under.

    It can be stored, differs for different files, and is never the key of a readable item: its
    path starts with "./", which split_partition_key refuses.
    """
    key = f"{account}/{project}/{database}/{_STAND_IN}{encode_name(path)}"
    if _fits(key):
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    room = MAX_KEY_BYTES - len(digest) - 1
    return f"{key.encode()[:room].decode(errors='ignore')}~{digest}"


def is_stand_in(path: str) -> bool:
    """Say whether an item's path is the stand-in of a name that cannot make a key."""
    return path.startswith(_STAND_IN)


def _fits(key: str) -> bool:
    if len(key) * 4 <= MAX_KEY_BYTES:  # UTF-8 needs at most four bytes a character
        return True
    return len(key.encode()) <= MAX_KEY_BYTES


def _percent(match: re.Match[str]) -> str:
    is_raw_byte = "\udc80" <= match[0] <= "\udcff"  # as os.fsdecode writes it
    errors = "surrogateescape" if is_raw_byte else "surrogatepass"
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", errors))


def _bad_key(key: str, reason: str) -> ItemError:
    return ItemError(
        f"{encode_name(key)[:200]!r} is no partition key: {reason}.",
        code="bad_partition_key",
        hint="Choose one of the keys in `knowledge_items`; `kshift index` adds them.",
    )
