"""Looks that stop in time and go on: all is covered, nothing is lost or done twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer
from workshop import DATABASE, Workshop, open_workshop, sections

from kshift_knowledge.errors import Refused
from kshift_knowledge.failpoints import armed
from kshift_knowledge.indexing.bookmarks import TRUSTED_S, Bookmark
from kshift_knowledge.indexing.pace import Pace
from kshift_knowledge.indexing.scan import ScanReport
from kshift_knowledge.postgres.database import Database

LIMIT_S = 1.0
FILE_S = 0.05  # of the slow disk: 8 files fill the walk's share of a tick


class SlowDisk:
    """A clock on which each question takes as long as a slow disk takes for one file."""

    def __init__(self, file_s: float = FILE_S) -> None:
        self.now = 1000.0
        self.file_s = file_s

    def __call__(self) -> float:
        self.now += self.file_s
        return self.now


class Watcher:
    """The sensor without Dagster: a bookmark that goes from look to look."""

    def __init__(self, workshop: Workshop, clock: SlowDisk) -> None:
        self.workshop = workshop
        self.clock = clock
        self.bookmark = Bookmark()
        self.seconds: list[float] = []

    def tick(self, **options: Any) -> ScanReport:
        """One look, whose bookmark travels as text, and the run it asks for."""
        pace = Pace.starting_now(LIMIT_S, self.clock)
        report = self.workshop.look(
            bookmark=Bookmark.parse(self.bookmark.dump()), pace=pace, **options
        )
        self.seconds.append(self.clock.now - pace.started_at)
        self.bookmark = report.bookmark
        self.workshop.run(report.batch_id)
        return report

    def sweep(self, **options: Any) -> list[ScanReport]:
        """Tick until the sweep is at its start again."""
        reports = [self.tick(**options)]
        while self.bookmark.after is not None:
            reports.append(self.tick(**options))
            assert len(reports) < 100, "the sweep does not come to its end"
        return reports


@pytest.fixture
def workshop(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Workshop]:
    with (
        postgres_server.fresh_database() as urls,
        Database(urls.writer_url, max_connections=20) as database,
        open_workshop(tmp_path / "tree", database) as workshop,
    ):
        yield workshop


@pytest.fixture
def watcher(workshop: Workshop) -> Watcher:
    return Watcher(workshop, SlowDisk())


def states(workshop: Workshop) -> dict[str, int]:
    rows = workshop.query("SELECT state, count(*) FROM knowledge_database_items GROUP BY 1")
    return dict(rows)


def test_every_look_at_a_slow_disk_ends_in_time_and_all_is_covered(watcher: Watcher) -> None:
    for number in range(60):
        watcher.workshop.write(f"{number % 3}/{number}.md", f"# Note {number}\n")

    first = watcher.sweep()
    second = watcher.sweep()

    assert states(watcher.workshop) == {"indexed": 60}
    assert len(first) > 5
    assert max(watcher.seconds) < LIMIT_S
    assert sum(len(report.batch_keys) for report in first) == 60, "nothing was indexed twice"
    assert [report.batch_id for report in second] == [None] * len(second)


def test_candidates_for_which_no_time_is_left_come_next(watcher: Watcher) -> None:
    for number in range(30):
        watcher.workshop.write(f"{number}.md", f"# Note {number}\n")
    watcher.clock.file_s = 0.0
    slow = watcher.clock

    def wait(_: float) -> None:
        slow.file_s = FILE_S  # the walk was quick, looking again is not

    first = watcher.tick(wait=wait)
    stopped_at = watcher.bookmark.after
    slow.file_s = 0.0
    second = watcher.tick()

    assert 0 < len(first.batch_keys) < 30
    assert stopped_at == first.batch_keys[-1]
    assert second.seen == 30 - len(first.batch_keys)
    assert len(first.batch_keys) + len(second.batch_keys) == 30
    assert states(watcher.workshop) == {"indexed": 30}


def test_deletions_are_decided_together_at_the_end_of_a_sweep(watcher: Watcher) -> None:
    workshop = watcher.workshop
    for number in range(30):
        workshop.write(f"{number:02}.md", f"# Note {number}\n")
    watcher.sweep()
    for number in (0, 29):
        workshop.path(f"{number:02}.md").unlink()

    reports = watcher.sweep()

    assert [report.deleted for report in reports] == [0] * (len(reports) - 1) + [2]
    assert reports[-1].gone_keys == {f"{DATABASE}/00.md", f"{DATABASE}/29.md"}
    assert states(workshop) == {"indexed": 28, "gone": 2}


def test_a_file_that_is_back_at_the_end_of_the_sweep_stays(watcher: Watcher) -> None:
    workshop = watcher.workshop
    for number in range(30):
        workshop.write(f"{number:02}.md", f"# Note {number}\n")
    watcher.sweep()
    away = workshop.path("00.md").rename(workshop.root / "away.md")

    watcher.tick()
    away.rename(workshop.path("00.md"))
    while watcher.bookmark.after is not None:
        watcher.tick()

    assert states(workshop) == {"indexed": 30}


def test_a_mass_deletion_is_refused_however_small_the_parts_are(watcher: Watcher) -> None:
    workshop = watcher.workshop
    for number in range(60):
        workshop.write(f"{number:02}.md", f"# Note {number}\n")
    watcher.sweep()
    for number in range(0, 60, 3):
        workshop.path(f"{number:02}.md").unlink()
        workshop.path(f"{number + 1:02}.md").unlink()

    with pytest.raises(Refused, match="nothing was changed"):
        watcher.sweep()

    assert states(workshop) == {"indexed": 60}


@pytest.mark.parametrize(("old", "new"), [("a.md", "z.md"), ("z.md", "a.md")])
def test_a_rename_across_two_parts_keeps_the_item(watcher: Watcher, old: str, new: str) -> None:
    workshop = watcher.workshop
    workshop.write(old, sections("alpha"))
    for number in range(20):
        workshop.write(f"m{number:02}.md", f"# Note {number}\n")
    watcher.sweep()
    item = workshop.item(old)
    workshop.path(old).rename(workshop.path(new))
    workshop.forget_requests()

    reports = watcher.sweep()

    renamed = workshop.item(new)
    assert len(reports) > 1
    assert renamed["knowledge_database_item_id"] == item["knowledge_database_item_id"]
    assert states(workshop) == {"indexed": 21}
    assert workshop.server.requests == []


@pytest.mark.parametrize(
    "cursor",
    [
        None,
        "",
        "not json",
        "[]",
        '{"version": 0, "after": "x", "missing": [], "quiet": null, "compared_at": 0}',
        '{"version": 1, "after": 7, "missing": [], "quiet": null, "compared_at": 0}',
        '{"version": 1, "after": null, "missing": ["x"], "quiet": null, "compared_at": 0}',
        '{"version": 1, "after": null}',
    ],
)
def test_a_lost_or_corrupt_cursor_is_the_start(cursor: str | None) -> None:
    assert Bookmark.parse(cursor) == Bookmark()


def test_a_lost_cursor_costs_a_full_compare_and_no_work_twice(watcher: Watcher) -> None:
    workshop = watcher.workshop
    for number in range(30):
        workshop.write(f"{number:02}.md", f"# Note {number}\n")
    watcher.sweep()
    workshop.write("07.md", "# Changed\n")
    watcher.tick()
    watcher.bookmark = Bookmark()

    reports = watcher.sweep()

    keys = [key for report in reports for key in report.batch_keys]
    assert keys in ([], [f"{DATABASE}/07.md"])  # the tick before may have come to it
    assert workshop.served("07.md") == ["# Changed"]
    assert states(workshop) == {"indexed": 30}


def test_a_file_name_of_any_bytes_can_be_the_place_to_go_on(watcher: Watcher) -> None:
    folder = watcher.workshop.write("a.md", "# A\n").parent
    for number in range(20):
        with open(os.fsencode(folder) + b"/b\xff%d.md" % number, "wb") as file:
            file.write(b"# B\n")

    watcher.sweep()
    attempts = watcher.workshop.query("SELECT sum(failure_attempts) FROM knowledge_database_items")
    again = watcher.sweep()

    assert attempts == [(20,)]
    assert len(again) > 1
    assert states(watcher.workshop) == {"indexed": 1, "failed": 20}


class TestQuietTree:
    """On a quick disk a look takes in the whole tree, and one without news loads no row."""

    @pytest.fixture
    def watcher(self, workshop: Workshop) -> Watcher:
        watcher = Watcher(workshop, SlowDisk(file_s=0.0))
        for number in range(5):
            workshop.write(f"{number}.md", f"# Note {number}\n")
        watcher.tick()
        return watcher

    def test_an_equal_tree_is_passed_over(self, watcher: Watcher) -> None:
        report = watcher.tick()

        assert (report.seen, report.unchanged, report.living_keys) == (5, 5, None)
        assert report.bookmark == watcher.bookmark

    def test_now_and_then_the_rows_are_compared_all_the_same(self, watcher: Watcher) -> None:
        watcher.workshop.query("DELETE FROM chunks RETURNING chunk_id")
        passed_over = watcher.tick()
        watcher.clock.now += TRUSTED_S

        compared = watcher.tick()

        assert passed_over.batch_id is None
        assert len(compared.batch_keys) == 5
        assert watcher.workshop.served("3.md") == ["# Note 3"]

    @pytest.mark.parametrize("change", ["write", "edit", "delete", "rename"])
    def test_any_change_of_the_tree_is_noticed(self, watcher: Watcher, change: str) -> None:
        workshop = watcher.workshop
        if change == "write":
            workshop.write("new.md", "# New\n")
        elif change == "edit":
            workshop.write("3.md", "# Edited\n")
        elif change == "delete":
            workshop.path("3.md").unlink()
        else:
            workshop.path("3.md").rename(workshop.path("moved.md"))

        report = watcher.tick()

        assert report.living_keys is not None
        assert report.batch_id is not None or report.deleted == 1

    def test_an_item_whose_batch_died_is_noticed(self, watcher: Watcher) -> None:
        workshop = watcher.workshop
        workshop.write("3.md", "# Edited\n")
        lost = workshop.look(bookmark=watcher.bookmark, pace=Pace.starting_now(1.0, watcher.clock))
        watcher.bookmark = lost.bookmark

        on_its_way = watcher.tick(is_queued=lambda batch: True)
        dead = watcher.tick(is_queued=lambda batch: False)

        assert on_its_way.batch_id is None
        assert dead.batch_keys == lost.batch_keys == (f"{DATABASE}/3.md",)

    def test_an_edit_while_a_run_has_the_item_is_not_forgotten(self, watcher: Watcher) -> None:
        workshop = watcher.workshop
        busy: list[ScanReport] = []

        def edit_and_look() -> None:
            """The run has read the file and not yet served it."""
            workshop.write("3.md", "# Edited again")
            pace = Pace.starting_now(1.0, watcher.clock)
            busy.append(workshop.look(bookmark=watcher.bookmark, pace=pace))
            watcher.bookmark = busy[0].bookmark

        workshop.write("3.md", "# Edited")
        taken = workshop.look(bookmark=watcher.bookmark, pace=Pace.starting_now(1.0, watcher.clock))
        with armed("batch_paid", edit_and_look):
            workshop.run(taken.batch_id)
        served = workshop.served("3.md")

        after = watcher.tick()

        assert (busy[0].batch_id, busy[0].busy_batches) == (None, {taken.batch_id})
        assert served == ["# Edited"]
        assert after.batch_keys == (f"{DATABASE}/3.md",)
        assert workshop.served("3.md") == ["# Edited again"]

    def test_a_failure_whose_time_has_come_is_noticed(self, watcher: Watcher) -> None:
        workshop = watcher.workshop
        workshop.query(
            "UPDATE knowledge_database_items SET state = 'failed', failure_code = 'x',"
            " failure_is_retryable = true, failure_attempts = 1, failed_at = now()"
            " WHERE path = '3.md' RETURNING 1"
        )
        not_yet = watcher.tick()
        workshop.query(
            "UPDATE knowledge_database_items SET failed_at = now() - interval '2 minutes'"
            " WHERE path = '3.md' RETURNING 1"
        )

        due = watcher.tick()

        assert not_yet.batch_id is None
        assert due.batch_keys == (f"{DATABASE}/3.md",)
