"""What a scan decides, item by item, without a file or a database."""

from __future__ import annotations

from uuid import uuid4

import pytest

from kshift_knowledge.errors import Refused
from kshift_knowledge.indexing.changes import compare, guard_mass_delete
from kshift_knowledge.indexing.records import KnownItem
from kshift_knowledge.tree import TreeEntry, TreeScan
from kshift_knowledge.tree_problems import TreeProblem

BATCH = uuid4()


def entry(path: str, signature: str = "1:1:1:1", problem: TreeProblem | None = None) -> TreeEntry:
    return TreeEntry("acme", "site", "notes", path, f"acme/site/notes/{path}", signature, problem)


def known(path: str, signature: str | None = "1:1:1:1", **changes: object) -> KnownItem:
    values: dict[str, object] = {
        "item_id": hash(path) % 1000,
        "account_id": 1,
        "project_id": 1,
        "knowledge_database_id": 1,
        "account": "acme",
        "project": "site",
        "database": "notes",
        "path": path,
        "partition_key": f"acme/site/notes/{path}",
        "state": "indexed",
        "seen_signature": signature,
        "batch_id": None,
        "failure_code": None,
        "failure_is_retryable": False,
        "is_retry_due": False,
        "is_served_whole": True,
    }
    return KnownItem(**(values | changes))  # type: ignore[arg-type]


def scan(*entries: TreeEntry, unlisted: tuple[str, ...] = ()) -> TreeScan:
    return TreeScan(entries=list(entries), unlisted=list(unlisted))


def test_an_unchanged_item_is_left_alone() -> None:
    changes = compare(scan(entry("a.md")), [known("a.md")])

    assert (changes.to_index, changes.gone, changes.unchanged) == ([], [], 1)


@pytest.mark.parametrize(
    "item",
    [
        known("a.md", "9:9:9:9"),
        known("a.md", state="gone", seen_signature=None),
        known("a.md", state="waiting"),
        known("a.md", is_served_whole=False),
    ],
    ids=["other signature", "restored", "left waiting", "rows lost"],
)
def test_an_item_that_differs_from_what_is_indexed_is_a_candidate(item: KnownItem) -> None:
    changes = compare(scan(entry("a.md")), [item])

    assert changes.changed == [entry("a.md")]


def test_a_failed_item_waits_for_another_file_or_a_retry() -> None:
    failed = known("a.md", state="failed", failure_code="not_utf8")
    passing = known("a.md", state="failed", failure_code="x", failure_is_retryable=True)

    assert compare(scan(entry("a.md")), [failed]).to_index == []
    assert compare(scan(entry("a.md")), [failed], retry_failed=True).to_index == []
    assert compare(scan(entry("a.md")), [passing]).to_index == []
    assert compare(scan(entry("a.md")), [passing], retry_failed=True).to_index == [entry("a.md")]
    assert compare(scan(entry("a.md", "2:2:2:2")), [failed]).to_index == [entry("a.md", "2:2:2:2")]


def test_items_of_a_living_batch_are_left_to_it_and_those_of_a_dead_one_are_not() -> None:
    item = known("a.md", state="waiting", batch_id=BATCH)

    alive = compare(scan(entry("a.md")), [item], live_batches={BATCH})
    dead = compare(scan(entry("a.md")), [item], live_batches=set())

    assert (alive.to_index, alive.busy) == ([], [item])
    assert (dead.to_index, dead.busy) == ([entry("a.md")], [])


def test_a_full_scan_makes_every_item_a_candidate() -> None:
    changes = compare(scan(entry("a.md"), entry("b.md")), [known("a.md")], is_full=True)

    assert {one.path for one in changes.to_index} == {"a.md", "b.md"}


def test_a_missing_item_is_gone_unless_its_folder_could_not_be_listed() -> None:
    item = known("old/a.md")

    assert compare(scan(), [item]).gone == [item]
    assert compare(scan(unlisted=("acme/site/notes/old/",)), [item]).gone == []
    assert compare(scan(), [known("old/a.md", state="gone")]).gone == []


@pytest.mark.parametrize(
    ("item", "found"),
    [
        (known("a.md", "5:7:1:9"), entry("b.md", "5:7:2:9")),
        (known("Ünter.md", "5:7:1:9"), entry("U\u0308nter.md", "6:8:2:10")),
        (known("readme.md", "5:7:1:9"), entry("README.MD", "6:8:2:10")),
    ],
    ids=["same bytes on disk", "other Unicode form", "other case"],
)
def test_a_rename_keeps_the_item(item: KnownItem, found: TreeEntry) -> None:
    changes = compare(scan(found), [item])

    assert [(one.item, one.entry) for one in changes.renamed] == [(item, found)]
    assert (changes.gone, changes.added) == ([], [])


def test_a_twin_that_appears_beside_an_item_is_a_new_item() -> None:
    changes = compare(scan(entry("a.md"), entry("A.md", "2:2:2:2")), [known("a.md")])

    assert (changes.renamed, changes.added) == ([], [entry("A.md", "2:2:2:2")])


def test_one_missing_item_takes_one_of_two_copies() -> None:
    item = known("a.md", "5:7:1:9")

    changes = compare(scan(entry("b.md", "5:7:2:9"), entry("c.md", "5:7:3:8")), [item])

    assert len(changes.renamed) == 1
    assert len(changes.added) == 1


def test_a_broken_entry_is_reported_once() -> None:
    problem = TreeProblem("x", "unreadable", "It cannot be read.", "Do something.")
    broken = entry("a.md", problem=problem)
    failed = known("a.md", state="failed", failure_code="unreadable")

    assert compare(scan(broken), []).broken == [(broken, problem)]
    assert compare(scan(broken), [known("a.md")]).broken == [(broken, problem)]
    assert compare(scan(broken), [failed]).broken == []


@pytest.mark.parametrize(
    ("living", "gone", "is_refused"),
    [(40, 19, False), (40, 20, False), (40, 21, True), (19, 19, False), (20, 20, True)],
)
def test_a_scan_never_deletes_most_of_the_items_by_itself(
    living: int, gone: int, is_refused: bool
) -> None:
    items = [known(f"{number}.md", f"1:1:1:{number}") for number in range(living)]
    kept = [entry(f"{number}.md", f"1:1:1:{number}") for number in range(gone, living)]
    changes = compare(scan(*kept), items)

    if is_refused:
        with pytest.raises(Refused, match=f"{gone} of {living}"):
            guard_mass_delete(changes, items)
    else:
        guard_mass_delete(changes, items)
        assert len(changes.gone) == gone
