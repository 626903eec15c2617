"""Cutting in real child processes that are killed, hang and run out of memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from kshift_knowledge.errors import SettingsError
from kshift_knowledge.indexing.cutting import CutJob, CutterDied, Cutters, cut


@pytest.fixture
def cutters() -> Iterator[Cutters]:
    opened = Cutters(1)
    yield opened
    opened.close()


def job(text: str, where: str = "acme/site/notes/a.md") -> CutJob:
    return CutJob(where, text, "A name", "A title", 64, 8, 16)


def children() -> set[int]:
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
        if b"cutter_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }


def test_a_worker_cuts_as_this_process_would(cutters: Cutters) -> None:
    wanted = job("# One\n\nText of it.\n\n## Two\n\n" + "word " * 300)

    assert cutters.submit(wanted).result() == cut(wanted)


def test_a_killed_worker_costs_its_item_and_no_other(cutters: Cutters) -> None:
    cutters.submit(job("warm")).result()
    (worker,) = children()
    os.kill(worker, signal.SIGSTOP)
    lost = cutters.submit(job("lost", "acme/site/notes/lost.md"))
    os.kill(worker, signal.SIGKILL)

    with pytest.raises(CutterDied, match=r"lost\.md.*killed by signal 9"):
        lost.result()
    assert cutters.submit(job("next")).result().chunks[0].content == "next"


def test_a_worker_that_runs_out_of_memory_costs_its_item(
    cutters: Cutters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSHIFT_CUTTER_MEMORY_MB", "700")
    too_big = cutters.submit(job("word " * 40_000_000))

    with pytest.raises(CutterDied, match=r"a\.md"):
        too_big.result()
    monkeypatch.delenv("KSHIFT_CUTTER_MEMORY_MB")
    assert cutters.submit(job("next")).result().chunks[0].content == "next"


def test_a_worker_that_hangs_is_stopped_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSHIFT_FAILPOINT", "cutting:sleep:60")
    hasty = Cutters(1, base_s=0.5)
    try:
        with pytest.raises(CutterDied, match="did not end in time"):
            hasty.submit(job("slow")).result()
    finally:
        hasty.close()
    wait_until(lambda: not children())


def test_an_error_of_the_chunker_comes_back_as_itself(cutters: Cutters) -> None:
    with pytest.raises(SettingsError):
        cutters.submit(CutJob("x", "text", "X", None, 1, 0, 0)).result()


def test_closing_leaves_no_worker(cutters: Cutters) -> None:
    cutters.submit(job("text")).result()
    assert children()

    cutters.close()

    wait_until(lambda: not children())
