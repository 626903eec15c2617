"""Any order of edits, crashes and restarts ends in a true index; Hypothesis looks for another."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from crashes import crash_postgres
from embedding_server import GOOD, Fault, refused
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from oracles import (
    Reader,
    assert_no_request_mixes_accounts,
    assert_true,
    is_kept,
    kept_hashes,
)
from postgres_server import PostgresServer, running_server
from workshop import open_workshop

from kshift_knowledge.errors import Refused
from kshift_knowledge.failpoints import FailpointReached, armed
from kshift_knowledge.generation_settings import check_served
from kshift_knowledge.indexing.bookmarks import Bookmark
from kshift_knowledge.indexing.pace import Pace
from kshift_knowledge.indexing.runs import index_keys, stage_keys
from kshift_knowledge.indexing.scan import ScanReport
from kshift_knowledge.item_keys import partition_key
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.records import Scope
from kshift_knowledge.settings import load_settings

ACCOUNTS = ("acme", "blix")
PASSAGE_TOKENS = 24  # so that a section has several
# Twins by case and by Unicode form, a folder, and a kind that is only registered.
PATHS = ("a.md", "A.md", "caf\u00e9.md", "cafe\u0301.md", "sub/b.md", "plan.pdf")
WORDS = ("alpha", "beta", "gamma", "delta")
CRASHES = ("claimed", "batch_paid", "batch_kept", "swap_deleted", "swap_copied", "swap_committed")

databases = st.sampled_from([f"{account}/site/notes" for account in ACCOUNTS])
paths = st.sampled_from(PATHS)
words = st.lists(st.sampled_from(WORDS), max_size=4)
moments = st.sampled_from(CRASHES)
swaps = st.sampled_from(["claimed", "batch_paid", "batch_kept"])
times = st.integers(1, 3)
deaths = st.sampled_from([signal.SIGQUIT, signal.SIGKILL])
faults = st.sampled_from(
    [refused(401, "invalid_api_key"), Fault(status=503), refused(429, retry_after="0")]
)


def note(account: str, words: list[str]) -> str:
    """A note whose every embedded text carries its account's name."""
    bodies = (" ".join(f"{account}-{word}{number}" for number in range(12)) for word in words)
    parts = [f"## {word}\n\n{body}\n" for word, body in zip(words, bodies, strict=True)]
    return "\n".join([f"---\nname: {account}-note\n---\n# Note\n\nAbout {account}.\n", *parts])


class Indexing(RuleBasedStateMachine):
    """A tree, its index, and everything that may befall them."""

    server: PostgresServer

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.top = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        urls = self.stack.enter_context(self.server.fresh_database())
        writer = self.stack.enter_context(Database(urls.writer_url, max_connections=20))
        reader = self.stack.enter_context(Database(urls.reader_url, timeout_s=1))
        self.workshop = self.stack.enter_context(
            open_workshop(self.top / "tree", writer, passage_tokens=PASSAGE_TOKENS)
        )
        self.reader = Reader(reader, self.workshop.generation, may_vanish=True)
        self.reading = ExitStack()
        self.reading.enter_context(self.reader.reading())
        self.bookmark: Bookmark | None = None
        self.lost: dict[str, bytes] = {}
        self.paid: set[str] = set()
        self.is_provider_up = True

    @initialize()
    def begin(self) -> None:
        """A tree that never is empty, which would be refused."""
        for account in ACCOUNTS:
            self.write(f"{account}/site/notes", "always.md", ["alpha"])

    # The tree -----------------------------------------------------------------------------------

    @rule(database=databases, path=paths, words=words)
    def write(self, database: str, path: str, words: list[str]) -> None:
        self._put(database, path, note(database.split("/", maxsplit=1)[0], words).encode())

    @rule(database=databases, path=paths)
    def write_nonsense(self, database: str, path: str) -> None:
        self._put(database, path, b"caf\xe9 in latin-1")

    @rule(database=databases, path=paths, words=words)
    def write_behind_an_old_mtime(self, database: str, path: str, words: list[str]) -> None:
        target = self.workshop.path(path, database)
        times = (
            (target.stat().st_atime_ns, target.stat().st_mtime_ns) if target.exists() else (1, 1)
        )
        self.write(database, path, words)
        os.utime(target, ns=times)

    @rule(database=databases, path=paths)
    def delete(self, database: str, path: str) -> None:
        target = self.workshop.path(path, database)
        if target.exists():
            self.lost[partition_key(*database.split("/"), path)] = target.read_bytes()
            target.unlink()

    @rule(database=databases)
    def delete_folder(self, database: str) -> None:
        shutil.rmtree(self.workshop.path("sub", database), ignore_errors=True)

    @rule(database=databases, path=paths)
    def restore(self, database: str, path: str) -> None:
        content = self.lost.get(partition_key(*database.split("/"), path))
        if content is not None:
            self._put(database, path, content)

    @rule(database=databases, old=paths, new=paths)
    def rename(self, database: str, old: str, new: str) -> None:
        source = self.workshop.path(old, database)
        if source.exists() and old != new:
            content = source.read_bytes()
            target = self.workshop.path(new, database)
            target.parent.mkdir(exist_ok=True)
            source.rename(target)
            self._may_be_seen(database, new, content)

    # Indexing -----------------------------------------------------------------------------------

    @rule()
    def tick(self) -> None:
        """A look whose run never comes."""
        self._look()

    @rule()
    def index(self) -> None:
        self._watch_and_index()

    @rule(looks=st.integers(2, 40))
    def index_in_a_hurry(self, looks: int) -> None:
        """The time is up after a few looks at the clock, so that a part of the tree is left."""
        clock = count()
        self._watch_and_index(pace=Pace(looks, 0, lambda: float(next(clock))))

    @rule(is_garbage=st.booleans())
    def lose_the_bookmark(self, is_garbage: bool) -> None:
        self.bookmark = Bookmark.parse("{") if is_garbage else None

    @rule(database=databases, path=paths, words=words)
    def index_while_a_file_is_being_written(
        self, database: str, path: str, words: list[str]
    ) -> None:
        """What is seen before it is at rest is never served: half of it is no version."""
        self.workshop.write(path, f"half of a {database}", database)
        self._watch_and_index(wait=lambda seconds: self.write(database, path, words))

    @rule(database=databases, path=paths, words=words)
    def write_in_parts_between_look_and_run(
        self, database: str, path: str, words: list[str]
    ) -> None:
        """What is written after the look waits for the next one: half of it is no version."""
        report = self._look()
        self.workshop.write(path, f"half of a {database}", database)
        self._indexing(report.batch_id)
        self.write(database, path, words)

    @rule(database=databases, path=paths)
    def delete_between_look_and_run(self, database: str, path: str) -> None:
        report = self._look()
        self.delete(database, path)
        self._indexing(report.batch_id)

    @rule(database=databases, path=paths, work=st.sampled_from([index_keys, stage_keys]))
    def index_or_stage_by_hand(self, database: str, path: str, work: Callable[..., object]) -> None:
        self._paying_once(lambda: self._by_hand(work, database, path))

    @rule(database=databases, path=paths)
    def index_by_hand_in_the_middle_of_a_run(self, database: str, path: str) -> None:
        with armed("claimed", lambda: self._by_hand(index_keys, database, path)):
            self._watch_and_index()

    @rule(database=databases, words=words, moment=swaps)
    def delete_and_look_in_the_middle_of_a_run(
        self, database: str, words: list[str], moment: str
    ) -> None:
        """The deletion wins at once, though the run ends after it."""
        self.write(database, "b.md", words)
        deleted: list[str] = []

        def delete_and_look() -> None:
            self.delete(database, "b.md")
            self._look(is_queued=lambda batch: True)
            deleted.append("b.md")

        with armed(moment, delete_and_look):
            self._watch_and_index()
        if deleted:
            assert self.workshop.served("b.md", database) == []

    @rule(database=databases, words=words, moment=swaps)
    def edit_and_index_by_hand_in_the_middle_of_a_run(
        self, database: str, words: list[str], moment: str
    ) -> None:
        """The newer claim wins at once, though the run ends after it."""
        self.write(database, "b.md", ["alpha", *words])
        edited: list[str] = []

        def edit_and_index() -> None:
            self.write(database, "b.md", ["delta"])
            self._by_hand(index_keys, database, "b.md")
            edited.append("b.md")

        with armed(moment, edit_and_index):
            report = self._look()
            # Two runs at once may both ask for a text that neither has been answered yet.
            self._indexing(report.batch_id, is_alone=False)
        if edited:
            assert "-alpha" not in "".join(self.workshop.served("b.md", database))

    # Faults -------------------------------------------------------------------------------------

    @rule(moment=moments, hit=times)
    def crash_while_indexing(self, moment: str, hit: int) -> None:
        with armed(moment, hit=hit), suppress(FailpointReached):
            self._watch_and_index()

    @rule(moment=st.sampled_from(["scan_looked", "batch_written"]))
    def crash_while_looking(self, moment: str) -> None:
        with armed(moment), suppress(FailpointReached):
            self._look()

    @rule(how=deaths)
    def restart_the_database(self, how: signal.Signals) -> None:
        crash_postgres(self.server.home, how)
        self.server.embedded.ensure_running()

    @rule(moment=moments, how=deaths)
    def restart_the_database_while_indexing(self, moment: str, how: signal.Signals) -> None:
        with armed(moment, lambda: self.restart_the_database(how)):
            self._watch_and_index()

    @rule(fault=faults)
    def index_with_a_failing_provider(self, fault: Fault) -> None:
        self.is_provider_up = False
        self.workshop.server.always(fault)
        self._watch_and_index()
        self.workshop.server.always(GOOD)
        self.is_provider_up = True

    @rule(tokens=st.integers(200, 400))
    def change_settings(self, tokens: int) -> None:
        other = load_settings(env_file=None, chunk_tokens=tokens, home=self.top)
        with pytest.raises(Refused):
            check_served(other, self.workshop.generation)

    @rule(account=st.sampled_from(ACCOUNTS), word=st.sampled_from(WORDS))
    def retrieve(self, account: str, word: str) -> None:
        """Whatever is found belongs to the account, and is a slice of its item's text."""
        found = self.workshop.query(
            "SELECT account_id, project_id, knowledge_database_id FROM knowledge_databases"
            " JOIN accounts USING (account_id) WHERE accounts.slug = %s",
            account,
        )
        for account_id, project_id, database_id in found:
            vector = self.workshop.services.embedder.embed([f"{account} asks for {word}"])
            hits = self.workshop.store.nearest(
                Scope(account_id, project_id, (database_id,)),
                self.workshop.generation,
                vector.vectors[0],
                6,
            )
            assert {hit.account_id for hit in hits} <= {account_id}
            for hit in hits:
                ((text,),) = self.workshop.query(
                    "SELECT text FROM item_texts WHERE knowledge_database_item_id = %s",
                    hit.knowledge_database_item_id,
                )
                assert text[hit.char_start : hit.char_end] == hit.content

    @rule()
    def settle(self) -> None:
        """Let everything come to rest; then the index is what the tree gives."""
        for _ in range(10):
            report = self._watch_and_index(retry_failed=True)
            if report.batch_id is None and not report.unsettled:
                break
        else:
            raise AssertionError("indexing does not come to rest")
        assert_true(self.workshop)
        failed = self.workshop.query(
            "SELECT partition_key, failure_code FROM knowledge_database_items"
            " WHERE state = 'failed'"
        )
        assert dict(failed) == dict.fromkeys(self._unreadable(), "not_utf8")
        assert_no_request_mixes_accounts(self.workshop.server, ACCOUNTS)

    def teardown(self) -> None:
        with self.stack:
            with self.reading:
                self.settle()
            self.reader.assert_saw_only_whole_versions()

    # How ----------------------------------------------------------------------------------------

    def _put(self, database: str, path: str, content: bytes) -> None:
        self.workshop.write(path, content, database)
        self._may_be_seen(database, path, content)

    def _may_be_seen(self, database: str, path: str, content: bytes) -> None:
        with suppress(UnicodeDecodeError):
            self.reader.wrote(partition_key(*database.split("/"), path), content.decode())

    def _look(self, **options: Any) -> ScanReport:
        """What the sensor does: it goes on where its last look ended."""
        report = self.workshop.look(bookmark=self.bookmark, **options)
        self.bookmark = report.bookmark
        return report

    def _watch_and_index(self, **options: Any) -> ScanReport:
        report = self._look(**options)
        self._indexing(report.batch_id)
        return report

    def _indexing(self, batch_id: UUID | None, *, is_alone: bool = True) -> None:
        self._paying_once(lambda: self.workshop.run(batch_id), is_alone=is_alone)

    def _paying_once(self, work: Callable[[], object], *, is_alone: bool = True) -> None:
        """I7: ask for no text whose vector was paid for; a crash may lose what was in flight."""
        before, is_whole = len(self.workshop.server.texts), False
        try:
            work()
            is_whole = self.is_provider_up
        finally:
            asked = self.workshop.server.texts[before:]
            again = self.paid.intersection(asked)
            assert not again, f"paid for twice: {again}"
            assert len(asked) == len(set(asked)) or not (is_whole and is_alone)
            kept = kept_hashes(self.workshop.database)
            self.paid |= {text for text in asked if is_whole or is_kept(text, kept)}

    def _by_hand(self, work: Callable[..., object], database: str, path: str) -> None:
        key = partition_key(*database.split("/"), path)
        work(self.workshop.services, [key], on_outcome=lambda outcome: None)

    def _unreadable(self) -> set[str]:
        return {
            partition_key(*database.split("/"), path)
            for account in ACCOUNTS
            for database in [f"{account}/site/notes"]
            for path in PATHS
            if path.endswith(".md")
            and (file := self.workshop.path(path, database)).exists()
            and b"\xe9 in latin" in file.read_bytes()
        }


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that the machine may crash."""
    with running_server() as running:
        yield running


def run(server: PostgresServer, *, examples: int, steps: int, is_same: bool) -> None:
    Indexing.server = server
    run_state_machine_as_test(
        Indexing,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=is_same,
            phases=set(Phase) - {Phase.explain},
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


ACME = "acme/site/notes"

# Orders of events that once ended in a wrong index, or come close to doing so.
FOUND: dict[str, list[Callable[[Indexing], object]]] = {
    "a refused key, then a tree that stays quiet": [
        lambda machine: machine.index_with_a_failing_provider(refused(401, "invalid_api_key")),
        lambda machine: machine.settle(),
    ],
    "a rename onto the place of an item that is gone": [
        lambda machine: machine.write(ACME, "a.md", ["alpha"]),
        lambda machine: machine.write(ACME, "A.md", ["beta"]),
        lambda machine: machine.index(),
        lambda machine: machine.delete(ACME, "A.md"),
        lambda machine: machine.index(),
        lambda machine: machine.rename(ACME, "a.md", "A.md"),
        lambda machine: machine.crash_while_indexing("swap_deleted", 1),
    ],
    "vectors that a deletion made useless, wanted again": [
        lambda machine: machine.delete_and_look_in_the_middle_of_a_run(
            ACME, ["gamma"], "batch_paid"
        ),
        lambda machine: machine.restore(ACME, "b.md"),
        lambda machine: machine.index(),
    ],
    "a file edited by hand under a run that has read the old one": [
        lambda machine: machine.edit_and_index_by_hand_in_the_middle_of_a_run(
            ACME, ["beta"], "batch_paid"
        ),
    ],
    "a note that becomes a file which is only registered": [
        lambda machine: machine.write(ACME, "a.md", ["alpha", "beta"]),
        lambda machine: machine.index(),
        lambda machine: machine.rename(ACME, "a.md", "plan.pdf"),
        lambda machine: machine.restart_the_database_while_indexing("claimed", signal.SIGKILL),
        lambda machine: machine.rename(ACME, "plan.pdf", "a.md"),
    ],
}


@pytest.mark.parametrize("steps", FOUND.values(), ids=FOUND)
def test_orders_of_events_that_were_found_stay_right(
    server: PostgresServer, steps: list[Callable[[Indexing], object]]
) -> None:
    Indexing.server = server
    machine = Indexing()
    try:
        machine.begin()
        for step in steps:
            step(machine)
    finally:
        machine.teardown()


def test_any_order_of_events_ends_in_a_true_index(server: PostgresServer) -> None:
    run(server, examples=6, steps=50, is_same=True)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_five_thousand_steps_end_in_a_true_index(server: PostgresServer) -> None:
    run(server, examples=100, steps=50, is_same=False)
