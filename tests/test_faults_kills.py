"""kill -9 of a run's process at every moment: nothing is torn, lost or paid for twice."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from embedding_server import Fault
from indexing_worker import Work, Worker, working
from oracles import (
    Reader,
    assert_no_request_mixes_accounts,
    assert_paid_once,
    assert_true,
    kept_hashes,
)
from waiting import wait_until
from workshop import Workshop, open_workshop, sections

from kshift_knowledge.embedded_text import embed_hash
from kshift_knowledge.postgres import batches
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.roles import Connections

MOMENTS = (
    "batch_paid",
    "swap_deleted",
    "swap_committed",
    *(
        pytest.param(name, marks=pytest.mark.soak)
        for name in ("claimed", "batch_kept", "swap_copied")
    ),
)
ACCOUNTS = ("acme", "blix")
FILES = 12  # of an account


@dataclass(frozen=True)
class Watched:
    """A workshop whose runs are processes of their own, and a reader that never stops looking."""

    workshop: Workshop
    urls: Connections
    reader: Reader

    def write_all(self, word: str, files: int) -> None:
        for account in ACCOUNTS:
            for number in range(files):
                path, database = f"{number}.md", f"{account}/site/notes"
                text = f"---\nname: {account}\n---\n" + sections(
                    *(f"{word}-{account}-{number}-{part}" for part in range(3))
                )
                self._write(path, text, database)
            # More texts than one request takes, so that some are kept before any is served.
            many = sections(*(f"{word}-{account}-{part}" for part in range(80)))
            self._write("big.md", f"---\nname: {account}\n---\n{many}", f"{account}/site/notes")

    def _write(self, path: str, text: str, database: str) -> None:
        self.workshop.write(path, text, database)
        self.reader.wrote(f"{database}/{path}", text)

    def look(self) -> Work:
        report = self.workshop.look()
        return Work(
            self.urls.writer_url,
            str(self.workshop.root),
            self.workshop.server.url,
            str(report.batch_id),
        )

    def is_alive(self) -> bool:
        """Whether a run holds a batch."""
        with self.workshop.database.transaction() as conn:
            return any(batches.unfinished(conn).values())


@pytest.fixture
def watched(
    tmp_path: Path, writer: Database, reader: Database, database_urls: Connections
) -> Iterator[Watched]:
    with open_workshop(tmp_path / "tree", writer, passage_tokens=24) as workshop:
        yield Watched(workshop, database_urls, Reader(reader, workshop.generation))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_killed_at_any_moment_is_taken_up_where_it_was(watched: Watched, moment: str) -> None:
    workshop = watched.workshop
    watched.write_all("old", FILES)
    workshop.index()
    watched.write_all("new", FILES)
    work = watched.look()

    with watched.reader.reading():
        with working(work, failpoint=f"{moment}:kill9") as worker:
            assert worker.process.wait(60) == -signal.SIGKILL
            wait_until(lambda: not worker.descendants())
        wait_until(lambda: not watched.is_alive())
        kept, sent = kept_hashes(workshop.database), len(workshop.server.texts)
        workshop.index()

    assert_paid_once(workshop.server, kept, sent)
    watched.reader.assert_saw_only_whole_versions()
    assert_no_request_mixes_accounts(workshop.server, ACCOUNTS)
    assert_true(workshop)


def test_a_run_killed_in_its_fifth_request_repeats_only_what_was_in_flight(
    watched: Watched,
) -> None:
    workshop = watched.workshop
    watched.write_all("new", 60)
    work = watched.look()
    workshop.server.always(lambda request: Fault(delay_s=0.2 * request.order))

    with working(work, failpoint="batch_paid@5:kill9") as worker:
        assert worker.process.wait(60) == -signal.SIGKILL
    wait_until(lambda: not watched.is_alive())
    kept, asked = kept_hashes(workshop.database), len(workshop.server.requests)
    answered = [text for request in workshop.server.requests[:3] for text in request.texts]
    workshop.server.always(Fault())
    workshop.index()

    again = {text for request in workshop.server.requests[asked:] for text in request.texts}
    assert not again & set(answered), "served, or kept, long before the kill"
    assert not {embed_hash(text) for text in again} & kept
    assert_true(workshop)


def test_random_kills_in_a_row_end_in_a_true_index(watched: Watched) -> None:
    workshop = watched.workshop
    chance = random.Random(20)
    workshop.server.latency_s = 0.02
    with watched.reader.reading():
        for turn in range(3):
            watched.write_all(f"turn{turn}", FILES)
            work = watched.look()
            enough = len(workshop.server.requests) + chance.randrange(1, 4)
            with working(work) as worker:
                wait_until(partial(_has_asked_or_ended, workshop, enough, worker))
            wait_until(lambda: not watched.is_alive())
            kept, sent = kept_hashes(workshop.database), len(workshop.server.texts)
            workshop.index()
            assert_paid_once(workshop.server, kept, sent)
            assert_true(workshop)

    watched.reader.assert_saw_only_whole_versions()


def _has_asked_or_ended(workshop: Workshop, requests: int, worker: Worker) -> bool:
    return len(workshop.server.requests) >= requests or worker.process.poll() is not None
