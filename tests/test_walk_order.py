"""A scan that stops anywhere and goes on finds, in all its parts together, what one scan finds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kshift_knowledge.tree import TreeScan, scan_tree

NAMES = st.sampled_from(["a", "a.md", "b", "b-1", "b.md", "Z.md", "é.md", "a b.txt", "~", "z.part"])
FOLDERS = st.lists(st.sampled_from(["a", "b", "b-1", "Z", "é", "a.md"]), max_size=3)
PLACES = st.tuples(st.sampled_from(["x/p/d", "x/p/d-1", "x/q/d", "x.y/p/d"]), FOLDERS, NAMES)
# hypothesis repeats a test inside one tmp_path, so that each example needs a folder of its own
FOLDER_NUMBERS = itertools.count()


def stopping_after(files: int) -> Callable[[], bool]:
    looked = itertools.count(1)
    return lambda: next(looked) >= files


def scans(root: Path, files: int) -> list[TreeScan]:
    """Scan in parts of so many looks at the clock, which is asked for each folder and file."""
    found: list[TreeScan] = []
    after = None
    for _ in range(200):
        found.append(scan_tree(root, after=after, is_time_up=stopping_after(files)))
        after = found[-1].up_to
        if after is None:
            return found
    raise AssertionError("the walk does not come to its end")


def write(root: Path, places: list[tuple[str, list[str], str]]) -> None:
    for database, folders, name in places:
        folder = root / database
        for part in folders:
            folder = folder / part
            if folder.is_file():
                break
        else:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / name).is_dir():
                (folder / name).touch()


@settings(max_examples=60, deadline=None)
@given(places=st.lists(PLACES, max_size=25), files=st.integers(1, 6))
def test_the_parts_of_a_scan_are_the_whole(
    tmp_path_factory: object, places: list[tuple[str, list[str], str]], files: int
) -> None:
    root = Path(tmp_path_factory.mktemp(f"tree{next(FOLDER_NUMBERS)}"))  # type: ignore[attr-defined]
    write(root, places)
    whole = scan_tree(root)

    parts = scans(root, files)

    assert [entry for part in parts for entry in part.entries] == whole.entries
    assert sorted({place for part in parts for place in part.databases}) == whole.databases
    for entry in whole.entries:
        where = (entry.account, entry.project, entry.database, entry.path)
        assert sum(part.was_listed(*where) for part in parts) == 1


def test_a_part_says_nothing_of_what_lies_outside_it(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / "x/p/d").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"x/p/d/{name}.md").touch()

    part = scan_tree(tmp_path, after="x/p/d/a.md", is_time_up=stopping_after(3))

    assert [entry.path for entry in part.entries] == ["b.md", "c.md"]
    assert (part.after, part.up_to, part.is_whole) == ("x/p/d/a.md", "x/p/d/c.md", False)
    assert not part.was_listed("x", "p", "d", "a.md")
    assert part.was_listed("x", "p", "d", "bb.md")
    assert not part.was_listed("x", "p", "d", "d.md")
    assert not part.was_listed("x", "p", "d", "sub/b.md")


def test_a_fingerprint_changes_with_any_file_and_with_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "x/p/d/a.md"
    file.parent.mkdir(parents=True)
    file.write_text("one")
    first = scan_tree(tmp_path).fingerprint()
    again = scan_tree(tmp_path).fingerprint()
    file.write_text("two!")
    edited = scan_tree(tmp_path).fingerprint()
    (tmp_path / "x/p/empty").mkdir()
    with_folder = scan_tree(tmp_path).fingerprint()

    assert first == again
    assert len({first, edited, with_folder}) == 3
