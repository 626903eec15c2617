"""kill -9 of real processes under `kshift up`: everything comes back without a hand being moved."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from command_line import CommandLine, command_line
from embedding_server import Fault
from oracles import (
    Reader,
    assert_no_request_mixes_accounts,
    assert_paid_once,
    embed,
    kept_hashes,
)
from waiting import wait_until
from workshop import sections

from kshift_assets.partitions import PARTITION_SET, knowledge_items
from kshift_knowledge.consistency import find_inconsistencies
from kshift_knowledge.embedders.limiter import MAX_IN_FLIGHT
from kshift_knowledge.errors import StoreUnavailable
from kshift_knowledge.postgres.credentials import Credentials
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.embedded import SERVER
from kshift_knowledge.postgres.generations import require_default_generation
from kshift_knowledge.postgres.keeper import dismiss
from kshift_knowledge.postgres.roles import Connections, connections

ACCOUNTS = ("acme", "blix")
START_S = 120.0
RECOVERY_S = 240.0  # a run that was killed before it began is given up after 180 s
LOOK_S = 1.0  # a look rebuilds the index in memory, and the processes need the cores

WORKER = ("multiprocessing.spawn",)
CODE_SERVER = ("dagster api grpc",)
DAEMON = ("dagster-daemon",)
POSTGRES = ("bin/postgres",)
EVERYTHING = ("",)
ALL_BUT_UP = (*WORKER, *CODE_SERVER, *DAEMON, "dagster-webserver", "kshift_api", *POSTGRES)

_BACKFILL = """
mutation Backfill($keys: [String!]) {
  launchPartitionBackfill(backfillParams: {
    assetSelection: [{path: ["chunks"]}, {path: ["embeddings"]}], partitionNames: $keys
  }) { __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } }
}
"""


@dataclass
class Running:
    """`kshift up` on a home of its own, which may be killed and started again."""

    line: CommandLine
    stack: ExitStack
    process: subprocess.Popen[str]

    def restart(self) -> None:
        self.process = self.stack.enter_context(self.line.started("up"))

    def kill(self, victims: Collection[str]) -> set[str]:
        """
        Kill -9 whatever carries one of the victims' words, all of it in one go.

        Returns the words that were found: some process may not have been there. All that was
        killed is gone by then, so that its ports are free.
        """
        found, killed = set(), set()
        for pid, command in self.line.processes().items():
            words = {word for word in victims if word in command}
            if words:
                found |= words
                killed.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not killed & set(self.line.processes()))
        return found

    def launch_backfill(self, keys: Sequence[str]) -> str:
        """What the button on the asset's page does."""
        variables = {"keys": list(keys)}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.line.settings['KSHIFT_DAGSTER_PORT']}/graphql",
            data=json.dumps({"query": _BACKFILL, "variables": variables}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            launched = json.load(answer)["data"]["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        backfill_id: str = launched["backfillId"]
        return backfill_id

    def urls(self) -> Connections:
        """How the roles reach the server; the keeper that asking leaves behind is let go."""
        admin_url = self.line.json("doctor")["database_url"]
        dismiss(self.line.home)
        return connections(admin_url, Credentials(self.line.home), server=SERVER)


@contextmanager
def running() -> Iterator[Running]:
    ports = {"KSHIFT_API_PORT": _free_port(), "KSHIFT_DAGSTER_PORT": _free_port()}
    with command_line(**ports) as line, ExitStack() as stack:
        line.write("acme/site/notes/first.md", "---\nname: acme\n---\nacme is here.\n")
        line.write("blix/site/notes/first.md", "---\nname: blix\n---\nblix is here.\n")
        up = Running(line, stack, stack.enter_context(line.started("up")))
        try:
            wait_until(lambda: line.embedding_server.counts["requests"] >= 2, START_S)
            yield up
        finally:
            up.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                up.process.wait(60)


class Witness:
    """Writes into the tree, reads what is served, and says what is wrong in the end."""

    def __init__(self, up: Running, writer: Database, reader: Database, dagster_home: Path) -> None:
        with writer.transaction() as conn:
            generation = require_default_generation(conn)
        self.up = up
        self.writer = writer
        self.reader = Reader(reader, generation, pause_s=0.05)
        self.dagster_home = dagster_home
        for account in ACCOUNTS:
            key = f"{account}/site/notes/first.md"
            self.reader.wrote(key, (up.line.tree / key).read_text())

    def write(self, word: str, files: int) -> None:
        for account in ACCOUNTS:
            for number in range(files // len(ACCOUNTS)):
                parts = (f"{word}-{account}-{number}-{part}" for part in range(4))
                text = f"---\nname: {account}\n---\n" + sections(*parts)
                key = f"{account}/site/notes/{number}.md"
                self.reader.wrote(key, text)
                self.up.line.write(key, text)

    def kill_in_the_middle(self, word: str, files: int, victims: Collection[str], at: int) -> None:
        """Change files, kill when so many requests came for them, and wait for a true index."""
        server = self.up.line.embedding_server
        begun = len(server.requests)
        server.always(lambda request: Fault(delay_s=0.05 * (request.order - begun)))
        self.write(word, files)
        wait_until(lambda: len(server.requests) >= begun + at, START_S)
        kept = kept_hashes(self.writer)
        killed = self.up.kill(victims)
        asked, sent = len(server.requests), len(server.texts)
        assert killed == set(victims)
        if "" in victims:
            self.up.restart()
        server.always(Fault())
        wait_until(self.is_true, RECOVERY_S, poll_s=LOOK_S)

        assert_paid_once(server, kept, sent)
        again = set(server.texts[:sent]) & set(server.texts[sent:])
        in_flight = server.requests[max(0, asked - MAX_IN_FLIGHT) : asked]
        assert again <= {text for request in in_flight for text in request.texts}

    def revisions(self) -> dict[str, int]:
        """The revision that is served of each item."""
        with self.writer.transaction() as conn:
            return dict(
                conn.execute(
                    "SELECT i.partition_key, x.revision FROM indexed_items x"
                    " JOIN knowledge_database_items i USING (knowledge_database_item_id)"
                ).fetchall()
            )

    def backfill_status(self, backfill_id: str) -> str:
        with dg.DagsterInstance.from_config(str(self.dagster_home)) as instance:
            backfill = instance.get_backfill(backfill_id)
        return backfill.status.value if backfill else ""

    def is_true(self) -> bool:
        """Whether the index is what the tree gives, and no run is left."""
        assert self.up.process.poll() is None, self.up.process.communicate()
        try:
            return not find_inconsistencies(self.writer, self.up.line.tree, embed=embed) and (
                not self._open_runs()
            )
        except StoreUnavailable:
            return False

    def assert_saw_only_truth(self) -> None:
        self.reader.assert_saw_only_whole_versions()
        assert_no_request_mixes_accounts(self.up.line.embedding_server, ACCOUNTS)
        with dg.DagsterInstance.from_config(str(self.dagster_home)) as instance:
            for asset in ("chunks", "embeddings"):
                keys = instance.get_dynamic_partitions(PARTITION_SET)
                found = instance.get_status_by_partition(dg.AssetKey(asset), keys, knowledge_items)
                assert found is not None
                assert {status and status.value for status in found.values()} == {"MATERIALIZED"}

    def _open_runs(self) -> int:
        with dg.DagsterInstance.from_config(str(self.dagster_home)) as instance:
            open_statuses = [
                dg.DagsterRunStatus.QUEUED,
                dg.DagsterRunStatus.STARTING,
                dg.DagsterRunStatus.STARTED,
            ]
            return instance.get_runs_count(dg.RunsFilter(statuses=open_statuses))


@contextmanager
def witness(up: Running) -> Iterator[Witness]:
    urls = up.urls()
    with (
        Database(urls.writer_url, max_connections=2) as writer,
        Database(urls.reader_url, max_connections=2, timeout_s=1) as reader,
    ):
        seen = Witness(up, writer, reader, up.line.home / "dagster")
        with seen.reader.reading():
            yield seen


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(scope="module")
def seen() -> Iterator[Witness]:
    with running() as up, witness(up) as ready:
        wait_until(ready.is_true, START_S, poll_s=LOOK_S)
        yield ready


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_backfill_over_a_selection_does_every_item_of_it(seen: Witness) -> None:
    seen.write("chosen", 12)
    wait_until(seen.is_true, START_S, poll_s=LOOK_S)
    chosen = [f"acme/site/notes/{name}.md" for name in ("1", "4", "first")]
    before = seen.revisions()

    backfill_id = seen.up.launch_backfill(chosen)
    wait_until(lambda: seen.backfill_status(backfill_id) == "COMPLETED_SUCCESS", START_S)

    after = seen.revisions()
    assert {key for key in after if after[key] > before[key]} == set(chosen)
    assert seen.is_true()


@pytest.mark.timeout(900)
def test_killed_processes_leave_a_true_index_without_a_manual_step(seen: Witness) -> None:
    seen.kill_in_the_middle("worker", 40, WORKER, at=2)
    seen.kill_in_the_middle("dagster", 40, (*WORKER, *CODE_SERVER, *DAEMON), at=3)
    seen.kill_in_the_middle("all", 40, EVERYTHING, at=1)

    seen.assert_saw_only_truth()


def test_a_command_outlives_the_kill_of_the_server_that_it_started() -> None:
    with command_line() as line, ExitStack() as stack:
        for number in range(40):
            line.write(f"acme/site/notes/{number}.md", sections(f"n{number}", f"m{number}"))
        line.embedding_server.always(lambda request: Fault(delay_s=0.2 * request.order))
        up = Running(line, stack, stack.enter_context(line.started("index", "--json")))
        wait_until(lambda: line.embedding_server.requests, START_S)
        killed = up.kill(POSTGRES)
        stdout, stderr = up.process.communicate(timeout=START_S)

    assert (killed, up.process.returncode) == (set(POSTGRES), 0), stderr
    assert json.loads(stdout)["items_indexed"] == 40
    assert len(line.embedding_server.texts) == len(set(line.embedding_server.texts))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_twenty_rounds_of_random_kills_leave_a_true_index(seen: Witness) -> None:
    chance = random.Random(3)
    choices = (WORKER, CODE_SERVER, DAEMON, POSTGRES, (*WORKER, *POSTGRES), ALL_BUT_UP, EVERYTHING)
    for turn in range(20):
        seen.kill_in_the_middle(
            f"turn{turn}", 500, chance.choice(choices), at=chance.randrange(1, 30)
        )

    seen.assert_saw_only_truth()
