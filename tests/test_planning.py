"""A plan says beforehand what the index then does, to the token, and writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from workshop import DATABASE, Workshop, open_workshop, sections

from kshift_knowledge.budgets import Budget
from kshift_knowledge.errors import Refused
from kshift_knowledge.indexing.cutting import Cutters
from kshift_knowledge.indexing.planning import make_plan
from kshift_knowledge.indexing.workload import Plan, Workload
from kshift_knowledge.postgres.database import Database

PLACE = ("acme", "site", "notes")


@pytest.fixture(scope="module")
def cutters() -> Iterator[Cutters]:
    cutters = Cutters()
    yield cutters
    cutters.close()


@pytest.fixture
def workshop(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Workshop]:
    with (
        postgres_server.fresh_database() as urls,
        Database(urls.writer_url, max_connections=20) as database,
        open_workshop(tmp_path / "tree", database) as workshop,
    ):
        yield workshop


def plan_of(workshop: Workshop, cutters: Cutters, **options: object) -> Plan:
    return make_plan(
        workshop.database,
        workshop.root,
        workshop.generation,
        cutters,
        **options,  # type: ignore[arg-type]
    )


def rows(workshop: Workshop) -> list[tuple[str, int, int]]:
    """How many rows each table holds, and the newest transaction that wrote one."""
    tables = workshop.query(
        "SELECT relname FROM pg_stat_user_tables WHERE schemaname = 'public' ORDER BY 1"
    )
    return [
        (
            table,
            *workshop.query(f"SELECT count(*), coalesce(max(xmin::text::bigint), 0) FROM {table}")[
                0
            ],
        )
        for (table,) in tables
    ]


def served_chunks(workshop: Workshop) -> Counter[tuple[int, str]]:
    """Item and content of every served chunk."""
    return Counter(
        (item, content_hash)
        for item, content_hash in workshop.query(
            "SELECT knowledge_database_item_id, content_hash FROM knowledge_chunks"
        )
    )


def spent(workshop: Workshop) -> tuple[int, int]:
    return tuple(
        workshop.query("SELECT sum(tokens_spent)::int, sum(tokens_saved)::int FROM token_ledger")[0]
    )


def test_the_plan_of_a_first_index_is_what_it_then_costs(
    workshop: Workshop, cutters: Cutters
) -> None:
    for number in range(40):
        workshop.write(f"{number}.md", sections(f"n{number}", "shared", "more"))
        workshop.write(f"{number}.md", sections(f"m{number}", "shared"), "globex/site/notes")
    workshop.write("bad.md", b"\xff\xfe\x00")
    workshop.write("logo.png", b"\x89PNG")
    before = rows(workshop)

    plan = plan_of(workshop, cutters)

    assert rows(workshop) == before
    assert workshop.server.requests == []
    figures = workshop.index().figures
    total = plan.total
    assert (total.added, total.failed) == (figures.items_indexed, 1)
    assert total.chunks_new == figures.chunks_embedded
    assert total.chunks_kept == figures.chunks_reused
    assert total.requests == figures.embedding_requests
    assert (total.tokens, total.tokens_saved) == spent(workshop)
    assert list(plan.databases) == [PLACE, ("globex", "site", "notes")]
    assert plan.of_account("globex").added == 40
    assert [error.code for error in plan.failures.values()] == ["not_utf8"]


def test_the_plan_of_a_change_set_tells_kept_new_and_gone_chunks(
    workshop: Workshop, cutters: Cutters
) -> None:
    workshop.write("edited.md", sections("alpha", "beta", "gamma"))
    workshop.write("deleted.md", sections("delta"))
    workshop.write("old.md", sections("epsilon"))
    workshop.write("same.md", sections("zeta"))
    workshop.write("touched.md", sections("eta"))
    workshop.index()
    before = served_chunks(workshop)
    workshop.write("edited.md", sections("alpha", "new", "gamma"))
    workshop.path("deleted.md").unlink()
    workshop.path("old.md").rename(workshop.path("new.md"))
    workshop.write("touched.md", sections("eta"))
    workshop.write("added.md", sections("zeta", "theta"))

    load = plan_of(workshop, cutters).databases[PLACE]

    assert (load.added, load.changed, load.renamed, load.gone, load.unchanged) == (1, 1, 1, 1, 2)
    spent_before = spent(workshop)[0]
    figures = workshop.index().figures
    after = served_chunks(workshop)
    assert load.chunks_new == figures.chunks_embedded > 0
    assert load.tokens == spent(workshop)[0] - spent_before
    assert load.chunks_kept + load.chunks_new == after.total()
    assert load.chunks_gone == (before - after).total() > 1


def test_an_unchanged_tree_costs_nothing_and_nothing_is_read(
    workshop: Workshop, cutters: Cutters
) -> None:
    workshop.write("a.md", sections("alpha", "beta"))
    workshop.write("bad.md", b"\xff\xfe\x00")
    workshop.index()

    load = plan_of(workshop, cutters).total

    assert load == Workload(unchanged=1, failed=1, chunks_kept=served_chunks(workshop).total())


def test_a_full_plan_reads_every_file_and_finds_silent_changes(
    workshop: Workshop, cutters: Cutters
) -> None:
    workshop.write("a.md", sections("alpha"))
    workshop.write("b.md", sections("beta"))
    workshop.index()
    workshop.write("b.md", sections("gamma"))
    signature = workshop.look(is_queued=lambda batch: True)
    assert signature.batch_id is not None
    workshop.query(
        "UPDATE knowledge_database_items SET state = 'indexed', waiting_since = NULL,"
        " batch_id = NULL, seen_signature = settled_signature WHERE path = 'b.md' RETURNING 1"
    )

    assert plan_of(workshop, cutters).total.changed == 0
    assert plan_of(workshop, cutters, is_full=True).total.changed == 1


def test_a_mass_deletion_is_planned_and_said_to_be_refused(
    workshop: Workshop, cutters: Cutters
) -> None:
    for number in range(21):
        workshop.write(f"{number}.md", sections(f"n{number}"))
    workshop.write("stays.md", sections("stays"))
    workshop.index()
    for number in range(21):
        workshop.path(f"{number}.md").unlink()

    plan = plan_of(workshop, cutters)

    assert plan.refusal is not None and plan.refusal.code == "mass_delete"
    assert (plan.total.gone, plan.total.unchanged) == (21, 1)


def test_a_missing_tree_is_refused(workshop: Workshop, cutters: Cutters) -> None:
    with pytest.raises(Refused, match="does not exist"):
        plan_of(workshop, cutters)


def test_items_of_a_closed_account_are_not_planned(workshop: Workshop, cutters: Cutters) -> None:
    workshop.write("a.md", sections("alpha"))
    workshop.index()
    workshop.query(
        "UPDATE knowledge_database_items SET state = 'failed', failure_code = 'budget_exhausted',"
        " failure_is_retryable = true RETURNING 1"
    )
    workshop.query(
        "INSERT INTO token_budget_use SELECT account_id, 'day', current_date, 10, 10"
        " FROM accounts RETURNING 1"
    )

    closed = plan_of(workshop, cutters, budgets={"acme": Budget(10, "day")})
    raised = plan_of(workshop, cutters, budgets={"acme": Budget(11, "day")})

    assert (closed.total.failed, closed.total.unchanged) == (1, 0)
    assert (raised.total.failed, raised.total.unchanged) == (0, 1)


def test_an_index_that_was_never_made_is_planned_without_a_database(
    workshop: Workshop, cutters: Cutters
) -> None:
    workshop.write("a.md", sections("alpha"))

    plan = make_plan(None, workshop.root, workshop.generation, cutters)

    assert plan == plan_of(workshop, cutters)
    assert f"{'/'.join(PLACE)}" == DATABASE
