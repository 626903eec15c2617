"""Reading an item: the right bytes, settled, decoded or refused with a reason, never outside."""

from __future__ import annotations

import codecs
import hashlib
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unprivileged import public_folder, without_root_rights

from kshift_knowledge.errors import ItemError, ItemGone, Unsettled
from kshift_knowledge.item_keys import ItemKey
from kshift_knowledge.item_source import (
    SETTLE_S,
    ItemSource,
    decode,
    is_settled,
    read_item,
    read_once,
)
from kshift_knowledge.records import ItemMeta
from kshift_knowledge.tree import scan_tree, signature_of

VOICE = ItemKey("acme", "shop", "brand", "voice.md")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "acme/shop/brand").mkdir(parents=True)
    return folder


def item(path: str) -> ItemKey:
    return VOICE._replace(path=path)


def file_of(root: Path, key: ItemKey = VOICE) -> Path:
    return root.joinpath(*key)


def no_wait(_seconds: float) -> None:
    """The test changes the file itself, or not at all."""


def code_of(read: Callable[[], object]) -> str:
    with pytest.raises(ItemError) as failure:
        read()
    assert failure.value.message
    assert failure.value.hint
    return failure.value.code


def test_item_is_read_with_its_text_meta_hash_and_signature(root: Path) -> None:
    raw = b"---\r\nname: Our Voice\r\nlabels: [a]\r\n---\r\n\r\nPlain.\r\n"
    file_of(root).write_bytes(raw)

    source = read_item(root, VOICE, wait=no_wait)

    assert source == ItemSource(
        key=VOICE,
        text="---\nname: Our Voice\nlabels: [a]\n---\n\nPlain.\n",
        raw_hash=hashlib.sha256(raw).hexdigest(),
        meta=ItemMeta("Our Voice", "Our Voice", "text", "uploaded", None, ("a",)),
        signature=signature_of(file_of(root).stat()),
    )


def test_entry_of_a_scan_is_read_like_a_key(root: Path) -> None:
    file_of(root).write_bytes(b"x")
    (entry,) = scan_tree(root).entries

    source = read_once(root, entry)

    assert source == read_once(root, VOICE)
    assert source.signature == entry.signature


def test_front_matter_that_is_ignored_is_told(root: Path) -> None:
    file_of(root).write_bytes(b"---\norigin: stolen\n---\n")

    assert read_once(root, VOICE).warnings == (
        "Front matter: origin is not uploaded or scraped and is ignored.",
    )


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", ""),
        (b"\xef\xbb\xbf", ""),
        (b"a\r\nb\rc\nd\r\r\n", "a\nb\nc\nd\n\n"),
        (b"\xef\xbb\xbfname", "name"),
        (b"\xef\xbb\xbf\xef\xbb\xbfname", "\ufeffname"),
        (b"a\xef\xbb\xbfb", "a\ufeffb"),
        (codecs.BOM_UTF16_LE + "a\r\nü🎯".encode("utf-16-le"), "a\nü🎯"),
        (codecs.BOM_UTF16_BE + "a\r\nü🎯".encode("utf-16-be"), "a\nü🎯"),
        (codecs.BOM_UTF32_LE + "a\r\nü🎯".encode("utf-32-le"), "a\nü🎯"),
        (codecs.BOM_UTF32_BE + "a\r\nü🎯".encode("utf-32-be"), "a\nü🎯"),
        ("a\f\v\x1b[31m\a\u2028\u2029\x85b".encode(), "a\f\v\x1b[31m\a\u2028\u2029\x85b"),
        ("cafe\u0301 \ufffd".encode(), "cafe\u0301 \ufffd"),
    ],
)
def test_text_is_decoded_by_its_mark_with_line_feeds_and_nothing_else_changed(
    raw: bytes, text: str
) -> None:
    assert decode(raw, "x") == text


@given(
    st.text(st.characters(exclude_characters="\0\r\ufeff", exclude_categories=["Cs"])),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]),
)
def test_any_text_survives_every_encoding(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding), "x") == text


@pytest.mark.parametrize(
    ("raw", "message", "hint"),
    [
        (
            b"caf\xe9 au lait",
            "a/b/c/x.md is not UTF-8 at byte 3.",
            "Save the file as UTF-8.",
        ),
        (
            "顧客".encode()[:-1],
            "a/b/c/x.md is not UTF-8 at byte 3.",
            "The file ends inside a character; copy it again, whole.",
        ),
        (
            b"pair \xed\xa0\xbd\xed\xb8\x80",
            "a/b/c/x.md is not UTF-8 at byte 5.",
            "Save the file as UTF-8.",
        ),
        (
            codecs.BOM_UTF8 + b"caf\xe9 au lait",
            "a/b/c/x.md is not UTF-8 at byte 6.",
            "Save the file as UTF-8.",
        ),
        (
            codecs.BOM_UTF16_LE + b"a\0b",
            "a/b/c/x.md is not UTF-16-LE at byte 4.",
            "The file ends inside a character; copy it again, whole.",
        ),
        (
            codecs.BOM_UTF16_LE + b"\x3d\xd8a\0",
            "a/b/c/x.md is not UTF-16-LE at byte 2.",
            "Save the file as UTF-8.",
        ),
        (
            codecs.BOM_UTF32_LE + b"\0\xd8\0\0",
            "a/b/c/x.md is not UTF-32-LE at byte 4.",
            "Save the file as UTF-8.",
        ),
        (
            "Grüße aus Köln".encode("utf-16-le"),
            "a/b/c/x.md is not UTF-8 at byte 4.",
            "It looks like UTF-16 without a byte order mark: save it as UTF-8.",
        ),
    ],
)
def test_undecodable_bytes_fail_with_their_place_and_a_remedy(
    raw: bytes, message: str, hint: str
) -> None:
    with pytest.raises(ItemError) as failure:
        decode(raw, "a/b/c/x.md")

    assert (failure.value.code, failure.value.message, failure.value.hint) == (
        "not_utf8",
        message,
        hint,
    )


@pytest.mark.parametrize(
    ("raw", "message", "hint"),
    [
        (
            b"some \0 text",
            "x holds a NUL at character 5, which no database text can hold.",
            "Remove the NUL from the file.",
        ),
        (
            "plain ASCII".encode("utf-16-be"),
            "x holds a NUL at character 0, which no database text can hold.",
            "It looks like UTF-16 without a byte order mark: save it as UTF-8.",
        ),
    ],
)
def test_nul_fails_before_it_reaches_a_database(raw: bytes, message: str, hint: str) -> None:
    with pytest.raises(ItemError) as failure:
        decode(raw, "x")

    assert (failure.value.code, failure.value.message, failure.value.hint) == (
        "nul_in_text",
        message,
        hint,
    )


@given(st.binary(max_size=64))
def test_no_bytes_raise_anything_but_an_item_error_or_leave_what_a_database_refuses(
    raw: bytes,
) -> None:
    try:
        text = decode(raw, "x")
    except ItemError as exc:
        assert exc.code in {"not_utf8", "nul_in_text"}
    else:
        assert text.encode().decode() == text
        assert not {"\0", "\r"} & set(text)


def test_error_of_a_bad_file_shows_none_of_its_content(root: Path) -> None:
    file_of(root).write_bytes(b"canary-secret \xff canary-secret")

    with pytest.raises(ItemError) as failure:
        read_once(root, VOICE)

    shown = "".join(traceback.format_exception(failure.value))
    assert "canary-secret" not in shown.replace('b"canary-secret', "")
    assert failure.value.__cause__ is None


@pytest.mark.parametrize("name", ["deck.pdf", "sheet.XLSX", "archive.tar.gz", "notes.docx", "page"])
def test_other_formats_are_registered_and_never_opened(name: str) -> None:
    key = item(name)
    with public_folder() as root:
        file_of(root, key).parent.mkdir(parents=True)
        file_of(root, key).write_bytes(b"---\nname: Not read\n---\n\0\xff")
        file_of(root, key).chmod(0)

        with without_root_rights():
            source = read_once(root, key)

        assert source.text == ""
        assert source.meta.name != "Not read"
        assert source.meta.kind == (Path(name).suffix[1:].lower() or "file")
        assert is_settled(root, source.key, source.signature)


def test_registered_file_has_another_hash_when_it_changes(root: Path) -> None:
    key = item("deck.pdf")
    file_of(root, key).write_bytes(b"one")
    before = read_once(root, key)

    file_of(root, key).write_bytes(b"other")

    after = read_once(root, key)
    assert before.raw_hash != after.raw_hash
    assert len(after.raw_hash) == len(hashlib.sha256().hexdigest())


def test_registered_file_keeps_its_hash_when_it_is_renamed(root: Path) -> None:
    file_of(root, item("deck.pdf")).write_bytes(b"one")
    before = read_once(root, item("deck.pdf"))

    file_of(root, item("deck.pdf")).rename(file_of(root, item("talk.pdf")))

    assert read_once(root, item("talk.pdf")).raw_hash == before.raw_hash


def test_front_matter_of_another_kind_registers_without_text(root: Path) -> None:
    file_of(root).write_bytes(b"---\nkind: Image\nname: Logo\n---\nbody\n")

    source = read_once(root, VOICE)

    assert (source.text, source.meta.kind, source.meta.name) == ("", "image", "Logo")


def test_file_above_the_limit_fails_without_being_read(root: Path) -> None:
    os.truncate(os.open(file_of(root), os.O_CREAT | os.O_WRONLY), 1 << 40)  # sparse

    assert code_of(lambda: read_once(root, VOICE)) == "too_large"


def test_file_of_exactly_the_limit_is_read(root: Path) -> None:
    file_of(root).write_bytes(b"x" * 10)

    assert read_once(root, VOICE, max_bytes=10).text == "x" * 10
    assert code_of(lambda: read_once(root, VOICE, max_bytes=9)) == "too_large"


def test_unreadable_file_fails_alone() -> None:
    with public_folder() as root:
        file_of(root).parent.mkdir(parents=True)
        file_of(root).write_bytes(b"x")
        file_of(root, item("good.md")).write_bytes(b"good")
        file_of(root).chmod(0)

        with without_root_rights():
            assert code_of(lambda: read_once(root, VOICE)) == "unreadable"
            assert read_once(root, item("good.md")).text == "good"


def test_missing_file_is_gone(root: Path) -> None:
    with pytest.raises(ItemGone):
        read_once(root, VOICE)
    with pytest.raises(ItemGone):
        read_once(root, item("no/such/folder.md"))


@pytest.mark.parametrize("folder", ["acme/shop/brand", "acme/shop", "acme", "."])
def test_missing_database_folder_does_not_make_its_items_gone(root: Path, folder: str) -> None:
    file_of(root).write_bytes(b"x")
    root.joinpath(folder).rename(root.with_name("elsewhere"))

    assert code_of(lambda: read_once(root, VOICE)) == "folder_unlisted"


@pytest.mark.parametrize("path", ["../plans/secret.md", "a/../../secret.md", "/etc/hostname", ""])
def test_path_that_is_no_plain_path_is_refused(root: Path, path: str) -> None:
    assert code_of(lambda: read_once(root, item(path))) == "bad_partition_key"


def test_stand_in_of_a_bad_name_never_reads_a_file_of_that_name(root: Path) -> None:
    file_of(root, item("caf%E9.md")).write_bytes(b"another file")

    assert code_of(lambda: read_once(root, item("./caf%E9.md"))) == "bad_partition_key"


def test_pipe_in_place_of_a_file_is_refused_without_waiting(root: Path) -> None:
    os.mkfifo(file_of(root))
    os.mkfifo(file_of(root, item("deck.pdf")))

    assert code_of(lambda: read_once(root, VOICE)) == "not_a_regular_file"
    assert code_of(lambda: read_once(root, item("deck.pdf"))) == "not_a_regular_file"


def test_folder_in_place_of_a_file_is_refused(root: Path) -> None:
    file_of(root).mkdir()

    assert code_of(lambda: read_once(root, VOICE)) == "not_a_regular_file"


def test_link_inside_its_database_is_read_and_settles_with_its_target(root: Path) -> None:
    target = file_of(root, item("sub/target.md"))
    target.parent.mkdir()
    target.write_bytes(b"one")
    file_of(root).symlink_to("sub/target.md")

    source = read_once(root, VOICE)

    assert source.text == "one"
    assert is_settled(root, source.key, source.signature)
    target.write_bytes(b"other")
    assert not is_settled(root, source.key, source.signature)


@pytest.mark.parametrize("target", ["../plans/secret.md", "/etc/hostname", "../plans/missing.md"])
def test_link_that_leaves_its_database_is_not_read(root: Path, target: str) -> None:
    secret = file_of(root, ItemKey("acme", "shop", "plans", "secret.md"))
    secret.parent.mkdir()
    secret.write_bytes(b"secret")
    file_of(root).symlink_to(target)

    assert code_of(lambda: read_once(root, VOICE)) == "link_leaves_database"


@pytest.mark.parametrize("place", ["acme/shop/brand/sub", "acme/shop/brand", "acme/shop", "acme"])
def test_folder_link_on_the_way_to_a_file_is_not_followed(root: Path, place: str) -> None:
    key = item("sub/voice.md")
    file_of(root, key).parent.mkdir()
    file_of(root, key).write_bytes(b"x")
    assert read_once(root, key).text == "x"
    moved = root.joinpath(place).rename(root / "moved")

    root.joinpath(place).symlink_to(moved)

    assert code_of(lambda: read_once(root, key)) in {"item_gone", "folder_unlisted"}


@pytest.mark.parametrize(("swapped", "turns"), [("file", 3_000), ("folder", 500)])
def test_link_swapped_in_during_reads_never_leads_outside(
    root: Path, swapped: str, turns: int
) -> None:
    key = item("sub/voice.md")
    secrets = root / "rival/site/plans"
    secrets.mkdir(parents=True)
    (secrets / "voice.md").write_bytes(b"secret")
    file_of(root, key).parent.mkdir()
    file_of(root, key).write_bytes(b"ours")
    victim = file_of(root, key) if swapped == "file" else file_of(root, key).parent
    outside = secrets / "voice.md" if swapped == "file" else secrets
    seen: set[str] = set()

    with _swapping(victim, outside) as swaps:
        while swaps() < turns:
            try:
                seen.add(read_once(root, key).text)
            except ItemError as exc:
                seen.add(exc.code)

    assert seen <= {"ours", "item_gone", "link_leaves_database", "unsettled"}


def test_file_rewritten_in_place_during_the_read_is_unsettled(root: Path) -> None:
    file_of(root).write_bytes(b"x" * 4_000_000)
    deadline = time.monotonic() + 60

    with _writing_in_place(file_of(root)), pytest.raises(Unsettled):
        while time.monotonic() < deadline:
            read_once(root, VOICE)


@pytest.mark.parametrize("change", ["append", "same size", "replace", "touch", "delete", "link"])
def test_file_changed_in_the_second_after_the_read_is_unsettled(root: Path, change: str) -> None:
    file_of(root).write_bytes(b"one")
    spare = file_of(root, item("spare.md"))
    spare.write_bytes(b"one")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if change == "append":
            with file_of(root).open("ab") as file:
                file.write(b" more")
        elif change == "same size":
            file_of(root).write_bytes(b"two")
            os.utime(file_of(root), ns=(1, 1))  # not within the same tick of the kernel's clock
        elif change == "replace":
            spare.rename(file_of(root))
        elif change == "touch":
            os.utime(file_of(root), ns=(1, 1))
        elif change == "delete":
            file_of(root).unlink()
        else:
            file_of(root).unlink()
            file_of(root).symlink_to("spare.md")

    with pytest.raises(Unsettled) as failure:
        read_item(root, VOICE, wait=wait)

    assert waits == [SETTLE_S]
    assert failure.value.message == "acme/shop/brand/voice.md is being written."


def test_only_whole_versions_of_a_file_that_is_being_written_are_taken(root: Path) -> None:
    writer = _DrippingWriter(file_of(root), versions=30)
    taken: list[str] = []

    with writer.running():
        while not taken or taken[-1] != writer.wholes[-1]:
            try:
                taken.append(read_item(root, VOICE, wait=writer.wait_for_a_step).text)
            except (Unsettled, ItemGone):
                continue

    assert set(taken) <= set(writer.wholes)


class _DrippingWriter:
    """Rewrites one file again and again in small pieces, as a slow upload does."""

    def __init__(self, file: Path, versions: int) -> None:
        self._file = file
        # No two states in its whole life have the same size, whatever the clock's grain.
        self.wholes = [f"{n:02d}" + "y" * n + "z" * 500 for n in range(versions)]
        self._steps = 0
        self._is_done = False
        self._changed = threading.Condition()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._write)
        thread.start()
        yield
        thread.join()

    def wait_for_a_step(self, _seconds: float) -> None:
        with self._changed:
            before = self._steps
            assert self._changed.wait_for(lambda: self._steps > before or self._is_done, 30)

    def _write(self) -> None:
        for whole in self.wholes:
            first = len(whole) % 100
            with self._file.open("w") as file:
                for start, end in [(0, first), *((n, n + 100) for n in range(first, 500, 100))]:
                    file.write(whole[start:end])
                    file.flush()
                    self._step()
                file.write(whole[file.tell() :])
            self._step()
        with self._changed:
            self._is_done = True
            self._changed.notify_all()

    def _step(self) -> None:
        with self._changed:
            self._steps += 1
            self._changed.notify_all()


@contextmanager
def _writing_in_place(file: Path) -> Iterator[None]:
    """Write single bytes into *file*, never changing its size."""
    stop = threading.Event()
    fd = os.open(file, os.O_WRONLY)

    def write() -> None:
        while not stop.is_set():
            os.pwrite(fd, b"y", 0)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        os.close(fd)


@contextmanager
def _swapping(victim: Path, outside: Path) -> Iterator[Callable[[], int]]:
    """Let *victim* be itself and a link to *outside* in quick turns; yield the count of turns."""
    stop = threading.Event()
    turns = 0
    aside = victim.with_name("aside")
    link = victim.with_name("link")

    # A link is put in the file's place whole and taken away again; in between, nothing is there.
    def swap() -> None:
        nonlocal turns
        while not stop.is_set():
            link.symlink_to(outside)
            victim.rename(aside)
            link.rename(victim)
            victim.unlink()
            aside.rename(victim)
            turns += 1

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield lambda: turns
    finally:
        stop.set()
        thread.join()
