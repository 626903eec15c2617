"""The knowledge tree: what is an item, what is passed over and said so, what was not seen."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from unprivileged import public_folder, without_root_rights

from kshift_knowledge.errors import Refused
from kshift_knowledge.item_keys import MAX_KEY_BYTES
from kshift_knowledge.tree import (
    AutomationsFile,
    TreeScan,
    kind_of,
    root_problem,
    scan_tree,
    signature_of,
)
from kshift_knowledge.tree_problems import TreeProblem


@pytest.fixture
def open_root() -> Iterator[Path]:
    with public_folder() as folder:
        yield folder


def write(root: Path, *paths: str, content: bytes = b"x") -> None:
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def keys_of(scan: TreeScan) -> list[str]:
    return [entry.partition_key for entry in scan.entries]


def codes_of(scan: TreeScan) -> dict[str, str]:
    return {problem.where: problem.code for problem in scan.problems}


def test_items_are_the_files_below_three_levels(tmp_path: Path) -> None:
    write(
        tmp_path,
        "README.md",
        "acme/LICENSE.txt",
        "acme/shop/notes.md",
        "acme/shop/brand/voice.md",
        "acme/shop/brand/a/b/c/deep.md",
        "18f/App/content-guide/no-extension",
    )

    scan = scan_tree(tmp_path)

    assert keys_of(scan) == [
        "18f/App/content-guide/no-extension",
        "acme/shop/brand/voice.md",
        "acme/shop/brand/a/b/c/deep.md",
    ]
    assert scan.problems == []
    entry = scan.entries[1]
    assert (entry.account, entry.project, entry.database, entry.path, entry.problem) == (
        "acme",
        "shop",
        "brand",
        "voice.md",
        None,
    )
    assert entry.signature == signature_of((tmp_path / "acme/shop/brand/voice.md").stat())


def test_empty_databases_are_known(tmp_path: Path) -> None:
    (tmp_path / "acme/shop/persona").mkdir(parents=True)
    write(tmp_path, "acme/shop/brand/voice.md")

    scan = scan_tree(tmp_path)

    assert scan.databases == [("acme", "shop", "brand"), ("acme", "shop", "persona")]


def test_automations_file_of_a_project_is_no_item(tmp_path: Path) -> None:
    write(tmp_path, "acme/automations.yaml", "acme/shop/automations.yaml")
    write(tmp_path, "acme/shop/brand/automations.yaml")

    scan = scan_tree(tmp_path)

    signature = signature_of((tmp_path / "acme/shop/automations.yaml").stat())
    assert scan.automations_files == [AutomationsFile("acme", "shop", signature)]
    assert keys_of(scan) == ["acme/shop/brand/automations.yaml"]


@pytest.mark.parametrize(
    "name",
    [
        ".hidden.md",
        ".git/config",
        ".obsidian/a/b.md",
        ".#draft.md",
        "#draft.md#",
        "draft.md~",
        "~$Profile.docx",
        "draft.md.tmp",
        "draft.md.part",
        "draft.md.crdownload",
        "draft.md.SWP",
        "draft.md___jb_tmp___",
        "two\nlines.tmp",
    ],
)
def test_hidden_and_temporary_files_are_passed_over_in_silence(tmp_path: Path, name: str) -> None:
    write(tmp_path, "acme/shop/brand/voice.md", f"acme/shop/brand/{name}")

    scan = scan_tree(tmp_path)

    assert keys_of(scan) == ["acme/shop/brand/voice.md"]
    assert scan.problems == []


def test_temporary_file_becomes_an_item_when_it_is_renamed(tmp_path: Path) -> None:
    write(tmp_path, "acme/shop/brand/voice.md.tmp")
    before = scan_tree(tmp_path)
    draft = tmp_path / "acme/shop/brand/voice.md.tmp"

    draft.rename(draft.with_suffix(""))

    assert before.entries == []
    assert keys_of(scan_tree(tmp_path)) == ["acme/shop/brand/voice.md"]


def test_names_alike_but_not_equal_are_two_items(tmp_path: Path) -> None:
    names = [
        "UPPER.MD",
        "upper.md",
        "caf\u00e9.md",
        "cafe\u0301.md",
        "a b.md",
        "a_b.md",
        "a%20b.md",
    ]
    write(tmp_path, *(f"acme/shop/brand/{name}" for name in names))
    on_disk = os.listdir(tmp_path / "acme/shop/brand")  # a file system may merge some of them

    keys = keys_of(scan_tree(tmp_path))

    assert len(set(keys)) == len(keys) == len(on_disk)


def test_nasty_names_are_items_beside_good_ones(tmp_path: Path) -> None:
    names = [" leading .md", "-rf.md", "back\\slash.md", "dots...md", "new\nline.md", "語🎯.md"]
    write(tmp_path, *(f"acme/shop/brand/{name}" for name in names))

    scan = scan_tree(tmp_path)

    assert [entry.path for entry in scan.entries] == sorted(names)
    assert [entry.problem for entry in scan.entries] == [None] * len(names)


def test_name_that_is_not_utf8_fails_alone_under_a_name_that_can_be_stored(tmp_path: Path) -> None:
    write(tmp_path, "acme/shop/brand/good.md", "acme/shop/brand/caf%E9.md")
    folder = os.fsencode(tmp_path / "acme/shop/brand")
    with open(os.path.join(folder, b"caf\xe9.md"), "wb") as file:
        file.write(b"x")

    scan = scan_tree(tmp_path)

    assert keys_of(scan) == [
        "acme/shop/brand/caf%25E9.md",
        "acme/shop/brand/./caf%E9.md",
        "acme/shop/brand/good.md",
    ]
    failed = scan.entries[1]
    assert failed.path == "./caf%E9.md"
    assert failed.problem == TreeProblem(
        where="acme/shop/brand/./caf%E9.md",
        code="name_not_utf8",
        message="The name of acme/shop/brand/./caf%E9.md is not UTF-8.",
        hint="Rename the file; the %-codes show the bytes that are no UTF-8.",
    )


def test_name_too_long_for_a_key_fails_alone(tmp_path: Path) -> None:
    folder = "/".join(["語" * 80] * 5)
    write(tmp_path, f"acme/shop/brand/{folder}/one.md", f"acme/shop/brand/{folder}/two.md")
    write(tmp_path, "acme/shop/brand/good.md")

    scan = scan_tree(tmp_path)

    assert [entry.problem and entry.problem.code for entry in scan.entries] == [
        None,
        "name_too_long",
        "name_too_long",
    ]
    assert len(set(keys_of(scan))) == 3
    assert all(len(key.encode()) <= MAX_KEY_BYTES for key in keys_of(scan))


def test_folders_that_are_no_slugs_are_named_not_lost(tmp_path: Path) -> None:
    write(tmp_path, "Acme Inc/shop/brand/a.md", "acme/my shop/brand/b.md")
    write(tmp_path, "acme/shop/Brand Styles/c.md", "acme/shop/brand/my folder/d.md")

    scan = scan_tree(tmp_path)

    assert keys_of(scan) == ["acme/shop/brand/my%20folder/d.md"]
    assert codes_of(scan) == {
        "Acme%20Inc": "not_a_slug",
        "acme/my%20shop": "not_a_slug",
        "acme/shop/Brand%20Styles": "not_a_slug",
    }


def test_file_link_inside_its_database_is_an_item_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "acme/shop/brand/sub/voice.md")
    database = tmp_path / "acme/shop/brand"
    (database / "relative.md").symlink_to("sub/voice.md")
    (database / "absolute.md").symlink_to(database / "sub/voice.md")
    (database / "chain.md").symlink_to("relative.md")

    scan = scan_tree(tmp_path)

    assert [entry.path for entry in scan.entries] == [
        "absolute.md",
        "chain.md",
        "relative.md",
        "sub/voice.md",
    ]
    assert len({entry.signature for entry in scan.entries}) == 1
    assert scan.problems == []


def test_links_that_leave_their_database_are_never_items(tmp_path: Path) -> None:
    write(tmp_path, "tree/acme/shop/brand/good.md", "tree/acme/shop/brand2/near.md")
    write(tmp_path, "tree/rival/site/plans/secret.md", "outside.md")
    database = tmp_path / "tree/acme/shop/brand"
    (database / "etc.md").symlink_to("/etc/hostname")
    (database / "tenant.md").symlink_to("../../../rival/site/plans/secret.md")
    (database / "sibling.md").symlink_to("../brand2/near.md")
    (database / "root.md").symlink_to(tmp_path / "outside.md")
    (database / "folder").symlink_to("../../../rival/site")
    (database / "guess.md").symlink_to("../../../rival/site/plans/no-such-file.md")

    scan = scan_tree(tmp_path / "tree")

    assert [key for key in keys_of(scan) if key.startswith("acme/shop/brand/")] == [
        "acme/shop/brand/good.md"
    ]
    assert codes_of(scan) == {
        f"acme/shop/brand/{name}": "link_leaves_database"
        for name in ("etc.md", "folder", "guess.md", "root.md", "sibling.md", "tenant.md")
    }


def test_dangling_links_loops_and_folder_links_end_the_scan_with_a_warning(tmp_path: Path) -> None:
    write(tmp_path, "acme/shop/brand/good.md")
    database = tmp_path / "acme/shop/brand"
    (database / "dangling.md").symlink_to("no-such-file.md")
    (database / "loop-a.md").symlink_to("loop-b.md")
    (database / "loop-b.md").symlink_to("loop-a.md")
    (database / "self").symlink_to(".")
    (database / "below").mkdir()
    (database / "below/up").symlink_to("../below")

    scan = scan_tree(tmp_path)

    assert keys_of(scan) == ["acme/shop/brand/good.md"]
    assert codes_of(scan) == {
        "acme/shop/brand/dangling.md": "link_dangling",
        "acme/shop/brand/loop-a.md": "link_dangling",
        "acme/shop/brand/loop-b.md": "link_dangling",
        "acme/shop/brand/self": "link_not_to_a_file",
        "acme/shop/brand/below/up": "link_not_to_a_file",
    }


def test_links_in_place_of_accounts_projects_and_databases_are_not_followed(
    tmp_path: Path,
) -> None:
    write(tmp_path, "tree/acme/shop/brand/good.md", "elsewhere/shop/brand/secret.md")
    tree = tmp_path / "tree"
    (tree / "linked").symlink_to("../elsewhere")
    (tree / "acme/linked").symlink_to("../../elsewhere/shop")
    (tree / "acme/shop/linked").symlink_to("brand")
    (tree / "loop").symlink_to("loop")

    scan = scan_tree(tree)

    assert keys_of(scan) == ["acme/shop/brand/good.md"]
    assert codes_of(scan) == {
        "linked": "link_above_database",
        "acme/linked": "link_above_database",
        "acme/shop/linked": "link_above_database",
    }


def test_root_itself_may_be_a_link(tmp_path: Path) -> None:
    write(tmp_path, "real/acme/shop/brand/voice.md")
    (tmp_path / "real/acme/shop/brand/link.md").symlink_to("voice.md")
    (tmp_path / "root").symlink_to("real")

    scan = scan_tree(tmp_path / "root")

    assert keys_of(scan) == ["acme/shop/brand/link.md", "acme/shop/brand/voice.md"]


def test_pipes_and_sockets_are_never_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "acme/shop/brand/good.md")
    database = tmp_path / "acme/shop/brand"
    os.mkfifo(database / "fifo.md")
    os.mkfifo(tmp_path / "acme/shop/automations.yaml")
    (database / "link.md").symlink_to("fifo.md")
    monkeypatch.chdir(database)  # the address of a socket has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.md")

        scan = scan_tree(tmp_path)

    assert keys_of(scan) == ["acme/shop/brand/good.md"]
    assert scan.automations_files == []
    assert codes_of(scan) == {
        "acme/shop/automations.yaml": "not_a_regular_file",
        "acme/shop/brand/fifo.md": "not_a_regular_file",
        "acme/shop/brand/link.md": "link_not_to_a_file",
        "acme/shop/brand/socket.md": "not_a_regular_file",
    }


@pytest.mark.parametrize(
    ("folder", "unlisted"),
    [
        ("acme", "acme/"),
        ("acme/shop", "acme/shop/"),
        ("acme/shop/brand", "acme/shop/brand/"),
        ("acme/shop/brand/old", "acme/shop/brand/old/"),
    ],
)
def test_items_of_an_unreadable_folder_do_not_look_deleted(
    open_root: Path, folder: str, unlisted: str
) -> None:
    write(open_root, "acme/shop/brand/old/a.md", "rival/site/plans/b.md")
    (open_root / folder).chmod(0)

    with without_root_rights():
        scan = scan_tree(open_root)

    assert scan.unlisted == [unlisted]
    assert codes_of(scan) == {unlisted.rstrip("/"): "folder_unlisted"}
    assert keys_of(scan) == ["rival/site/plans/b.md"]
    assert not scan.was_listed("acme", "shop", "brand", "old/a.md")
    assert scan.was_listed("acme", "shop", "brand2", "old/a.md") is (folder.count("/") > 1)
    assert scan.was_listed("rival", "site", "plans", "gone.md")


def test_file_that_cannot_be_looked_at_is_an_item_that_fails(open_root: Path) -> None:
    write(open_root, "acme/shop/brand/shut/a.md", "acme/shop/brand/b.md")
    (open_root / "acme/shop/brand/link.md").symlink_to("shut/a.md")
    (open_root / "acme/shop/brand/shut").chmod(0o644)  # may be listed, not entered

    with without_root_rights():
        scan = scan_tree(open_root)

    assert [(entry.path, entry.signature == "", entry.problem) for entry in scan.entries] == [
        ("b.md", False, None),
        ("link.md", True, _cannot_be_looked_at("acme/shop/brand/link.md")),
        ("shut/a.md", True, _cannot_be_looked_at("acme/shop/brand/shut/a.md")),
    ]
    assert scan.unlisted == []


def test_file_deleted_during_the_scan_is_no_problem(tmp_path: Path) -> None:
    names = [f"acme/shop/brand/{n}.md" for n in range(300)]
    write(tmp_path, *names)
    stop = threading.Event()

    def delete_and_restore() -> None:
        while not stop.is_set():
            for name in names:
                (tmp_path / name).unlink()
            write(tmp_path, *names)

    thread = threading.Thread(target=delete_and_restore)
    thread.start()
    try:
        scans = [scan_tree(tmp_path) for _ in range(30)]
    finally:
        stop.set()
        thread.join()

    assert [entry for scan in scans for entry in scan.entries if entry.problem] == []
    assert [scan.unlisted or scan.problems for scan in scans if scan.problems] == []
    assert len(scan_tree(tmp_path).entries) == len(names)


@pytest.mark.parametrize("name", ["missing", "file"])
def test_scan_of_a_root_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, "file")
    expected = {"missing": "knowledge_dir_missing", "file": "knowledge_dir_unreadable"}[name]

    with pytest.raises(Refused) as refusal:
        scan_tree(tmp_path / name)

    assert refusal.value.code == expected
    assert str(tmp_path / name) in refusal.value.message


def test_scan_of_an_unreadable_root_is_refused(open_root: Path) -> None:
    write(open_root, "acme/shop/brand/a.md")
    open_root.chmod(0)

    with without_root_rights(), pytest.raises(Refused) as refusal:
        scan_tree(open_root)

    assert refusal.value.code == "knowledge_dir_unreadable"


def test_root_without_an_account_is_a_problem_but_can_be_scanned(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    write(tmp_path, "README.md", ".git/config")

    problem = root_problem(tmp_path)

    assert problem is not None
    assert problem.code == "knowledge_dir_empty"
    assert scan_tree(tmp_path).entries == []


def test_root_with_an_account_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()

    assert root_problem(tmp_path) is None


def test_every_problem_says_where_why_and_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, "Acme Inc/shop/brand/a.md", "acme/shop/brand/b.md")
    (tmp_path / "acme/shop/brand/dangling.md").symlink_to("no-such-file.md")

    problems = scan_tree(tmp_path).problems

    assert problems == [
        TreeProblem(
            where="Acme%20Inc",
            code="not_a_slug",
            message="Acme%20Inc cannot be an account, a project or a database: its name is not "
            "letters and digits joined by dots, hyphens or underscores.",
            hint="Rename the folder, for example to `brand-styles`.",
        ),
        TreeProblem(
            where="acme/shop/brand/dangling.md",
            code="link_dangling",
            message="acme/shop/brand/dangling.md is a link that leads to no file "
            "(No such file or directory).",
            hint="Remove the link or restore its target.",
        ),
    ]


@pytest.mark.parametrize("change", ["content", "touch", "replace", "rights"])
def test_any_change_of_a_file_changes_its_signature(tmp_path: Path, change: str) -> None:
    write(tmp_path, "acme/shop/brand/a.md")
    file = tmp_path / "acme/shop/brand/a.md"
    before = scan_tree(tmp_path).entries[0].signature

    if change == "content":
        file.write_bytes(b"xy")
    elif change == "touch":
        os.utime(file, ns=(0, -1_000_000_000))  # the clock is not asked; 1969 is a change too
    elif change == "replace":
        stamp = file.stat().st_mtime_ns
        write(tmp_path, "acme/shop/brand/b.tmp")
        os.utime(file.with_name("b.tmp"), ns=(stamp, stamp))
        file.with_name("b.tmp").rename(file)
    else:
        file.chmod(0o600 if file.stat().st_mode & 0o777 != 0o600 else 0o644)
        os.utime(file, ns=(1, 1))

    assert scan_tree(tmp_path).entries[0].signature != before


def test_folders_deeper_than_any_path_can_name_are_scanned(tmp_path: Path) -> None:
    write(tmp_path, "acme/shop/brand/good.md")
    fd = os.open(tmp_path / "acme/shop/brand", os.O_RDONLY)
    for _ in range(25):  # 5,000 bytes; the system takes paths of 4,096
        os.mkdir("d" * 200, dir_fd=fd)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("leaf.md", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)

    scan = scan_tree(tmp_path)

    assert [entry.problem and entry.problem.code for entry in scan.entries] == [
        None,
        "name_too_long",
    ]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a.md", "text"),
        ("a.MD", "text"),
        ("a.markdown", "text"),
        ("a.Mdx", "text"),
        ("sub.folder/a.txt", "text"),
        ("a.PDF", "pdf"),
        ("a.tar.gz", "gz"),
        ("trailing-dots...md", "text"),
        ("README", "file"),
        ("sub.md/README", "file"),
        ("a.", "file"),
        ("1. a long title", "file"),
    ],
)
def test_kind_comes_from_the_extension(path: str, kind: str) -> None:
    assert kind_of(path) == kind


def _cannot_be_looked_at(where: str) -> TreeProblem:
    return TreeProblem(
        where=where,
        code="unreadable",
        message=f"{where} cannot be looked at (Permission denied).",
        hint="Give the user that runs kshift the right to enter its folder.",
    )
