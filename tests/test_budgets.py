"""A token budget stops one account's embedding with a clear state, and lets go by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from embedding_server import Fault
from postgres_server import PostgresServer
from workshop import Workshop, open_workshop

from kshift_knowledge.budgets import Budget, budget_of, parse_budgets
from kshift_knowledge.errors import SettingsError
from kshift_knowledge.indexing.spending import Spending
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.prices import cost_usd, parse_prices
from kshift_knowledge.settings import load_settings

NOTE = "# Note {}\n\nTen words or so about the matter at hand, {}.\n"


@pytest.fixture
def workshop(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Workshop]:
    with (
        postgres_server.fresh_database() as urls,
        Database(urls.writer_url, max_connections=20) as database,
        open_workshop(tmp_path / "tree", database) as workshop,
    ):
        yield workshop


def with_budgets(workshop: Workshop, budgets: Mapping[str, Budget]) -> None:
    workshop.services = replace(workshop.services, budgets=budgets)


def index(workshop: Workshop, **budgets: Budget) -> dict[str, str]:
    with_budgets(workshop, budgets)
    return workshop.index(budgets=budgets, retry_failed=True).statuses


def write_notes(workshop: Workshop, count: int, account: str = "acme") -> None:
    for number in range(count):
        workshop.write(f"{number}.md", NOTE.format(number, number), f"{account}/site/notes")


def tokens_of_one_note(workshop: Workshop) -> int:
    workshop.write("probe.md", NOTE.format("0", "0"), "probe/site/notes")
    workshop.index()
    ((tokens,),) = workshop.query("SELECT sum(tokens_spent)::int FROM token_ledger")
    return int(tokens)


def states(workshop: Workshop, account: str) -> list[tuple[str, str | None, int]]:
    rows = workshop.query(
        "SELECT i.state, i.failure_code, count(*) FROM knowledge_database_items i"
        " JOIN accounts a USING (account_id) WHERE a.slug = %s GROUP BY 1, 2 ORDER BY 1",
        account,
    )
    return [tuple(row) for row in rows]


def test_what_fits_is_embedded_and_the_rest_waits_for_its_account_alone(workshop: Workshop) -> None:
    one = tokens_of_one_note(workshop)
    write_notes(workshop, 6)
    write_notes(workshop, 6, "globex")
    workshop.forget_requests()

    index(workshop, acme=Budget(one * 4, "day"))

    assert states(workshop, "acme") == [
        ("failed", "budget_exhausted", 2),
        ("indexed", None, 4),
    ]
    assert states(workshop, "globex") == [("indexed", None, 6)]
    (failure,) = workshop.query(
        "SELECT DISTINCT failure_message, failure_hint FROM knowledge_database_items"
        " WHERE state = 'failed'"
    )
    assert failure == (
        f"The account's budget of {one * 4} tokens a day is used up.",
        "It goes on by itself in the next day, or once KSHIFT_TOKEN_BUDGET is raised.",
    )


def test_a_closed_account_is_left_alone_until_its_budget_is_raised(workshop: Workshop) -> None:
    one = tokens_of_one_note(workshop)
    write_notes(workshop, 3)
    index(workshop, acme=Budget(one, "day"))
    attempts = workshop.query("SELECT sum(failure_attempts) FROM knowledge_database_items")

    again = index(workshop, acme=Budget(one, "day"))
    raised = index(workshop, acme=Budget(one * 3, "day"))

    assert again == {}
    assert attempts == [(2,)]
    assert sorted(raised.values()) == ["indexed", "indexed"]
    assert states(workshop, "acme") == [("indexed", None, 3)]


def test_a_closed_account_goes_on_when_the_period_turns(workshop: Workshop) -> None:
    one = tokens_of_one_note(workshop)
    write_notes(workshop, 2)
    budget = Budget(one, "month")
    index(workshop, acme=budget)
    assert index(workshop, acme=budget) == {}

    for table, column in (("token_budget_use", "starts_on"), ("token_ledger", "day")):
        workshop.query(f"UPDATE {table} SET {column} = {column} - 32 RETURNING 1")

    assert list(index(workshop, acme=budget).values()) == ["indexed"]


def test_a_budget_set_in_the_middle_of_a_period_counts_what_was_spent(workshop: Workshop) -> None:
    one = tokens_of_one_note(workshop)
    write_notes(workshop, 3)
    index(workshop)
    workshop.write("new.md", NOTE.format("new", "new"))

    index(workshop, acme=Budget(one * 3, "day"))

    assert states(workshop, "acme") == [("failed", "budget_exhausted", 1), ("indexed", None, 3)]


def test_a_closed_account_still_reuses_what_it_paid_for(workshop: Workshop) -> None:
    one = tokens_of_one_note(workshop)
    write_notes(workshop, 2)
    index(workshop, acme=Budget(one, "day"))
    workshop.write("copy.md", workshop.path("0.md").read_bytes())

    assert index(workshop, acme=Budget(one, "day")) == {"copy.md": "indexed"}


def test_tokens_that_the_provider_refused_are_given_back(workshop: Workshop) -> None:
    one = tokens_of_one_note(workshop)
    write_notes(workshop, 1)
    workshop.server.script(Fault(status=500), Fault(status=500))
    assert list(index(workshop, acme=Budget(one, "day")).values()) == ["failed"]

    assert list(index(workshop, acme=Budget(one, "day")).values()) == ["indexed"]


def test_runs_that_spend_at_the_same_time_stay_within_the_budget(workshop: Workshop) -> None:
    write_notes(workshop, 1)
    workshop.index()
    ((account_id,),) = workshop.query("SELECT account_id FROM accounts WHERE slug = 'acme'")
    workshop.query("DELETE FROM token_ledger RETURNING 1")
    taken: list[int] = []

    def spend() -> None:
        spending = Spending(workshop.database, {"acme": Budget(100, "day")})
        taken.extend(spending.take(account_id, [10]) for _ in range(10))

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(taken) == 10
    assert workshop.query("SELECT tokens FROM token_budget_use") == [(100,)]


def test_an_account_without_a_budget_leaves_no_trace(workshop: Workshop) -> None:
    write_notes(workshop, 1)
    index(workshop, globex=Budget(1, "day"))

    assert workshop.query("SELECT count(*) FROM token_budget_use") == [(0,)]


@pytest.mark.parametrize(
    ("spelled", "budgets"),
    [
        ("", {}),
        ("acme=1000", {"acme": Budget(1000, "day")}),
        ("acme = 2_000_000 / month,", {"acme": Budget(2_000_000, "month")}),
        ("acme=5/day, *=7", {"acme": Budget(5, "day"), "*": Budget(7, "day")}),
    ],
)
def test_budgets_are_read_as_people_write_them(spelled: str, budgets: dict[str, Budget]) -> None:
    assert parse_budgets(spelled) == budgets


@pytest.mark.parametrize(
    "spelled", ["acme", "acme=", "acme=-1", "acme=1/year", "=5", "acme=1,acme=2", "acme=1.5"]
)
def test_what_is_no_budget_is_refused(spelled: str) -> None:
    with pytest.raises(ValueError, match=r"is not `account=tokens`|has two budgets"):
        parse_budgets(spelled)


def test_a_star_stands_for_everybody_else() -> None:
    budgets = parse_budgets("acme=5, *=7")

    assert budget_of(budgets, "acme") == Budget(5, "day")
    assert budget_of(budgets, "globex") == Budget(7, "day")
    assert budget_of({}, "globex") is None


def test_prices_stand_on_the_known_ones() -> None:
    prices = parse_prices("my-model=1.5, text-embedding-3-small = 0.01")

    assert cost_usd(prices, "my-model", 2_000_000) == 3.0
    assert cost_usd(prices, "text-embedding-3-small", 1_000_000) == 0.01
    assert cost_usd(prices, "text-embedding-3-large", 1_000_000) == 0.13
    assert cost_usd(prices, "all-MiniLM-L6-v2", 10**9) == 0.0
    assert cost_usd(prices, "nobody-knows", 1) is None


@pytest.mark.parametrize("spelled", ["model", "model=", "=1", "model=-1", "model=nan", "m=inf"])
def test_what_is_no_price_is_refused(spelled: str) -> None:
    with pytest.raises(ValueError, match="dollars per million tokens"):
        parse_prices(spelled)


def test_wrong_budgets_and_prices_fail_at_start_and_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KSHIFT_TOKEN_BUDGET", "acme")
    monkeypatch.setenv("KSHIFT_PRICES", "x=y")

    with pytest.raises(SettingsError) as caught:
        load_settings(env_file=None)

    assert caught.value.message == (
        "Wrong settings:\n"
        "  KSHIFT_PRICES: 'x=y' is not `model=dollars per million tokens`.\n"
        "  KSHIFT_TOKEN_BUDGET: 'acme' is not `account=tokens`, `.../day` or `.../month`."
    )
