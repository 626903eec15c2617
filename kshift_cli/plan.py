"""`kshift plan`: what `kshift index` would do now, and what it would cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from kshift_cli.output import console, json_option, printable, reporting_errors, say, show_json
from kshift_knowledge.generation_settings import check_served, wanted_generation
from kshift_knowledge.home import Home, peek_home
from kshift_knowledge.indexing.cutting import Cutters
from kshift_knowledge.indexing.planning import make_plan
from kshift_knowledge.indexing.workload import Plan, Workload
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.generations import default_generation
from kshift_knowledge.prices import cost_usd
from kshift_knowledge.records import Generation
from kshift_knowledge.settings import Settings, knowledge_dir_of, load_settings

# Tokens per minute: OpenAI's limit for its lowest paid tier, and what two cores do with the local
# model; KSHIFT_TOKENS_PER_MINUTE says otherwise.
_RATES = {"openai": 1_000_000, "local": 100_000}


@click.command("plan", epilog="Example: KSHIFT_KNOWLEDGE_DIR=examples/knowledge kshift plan")
@click.option("--full", "is_full", is_flag=True, help="As for `kshift index --full`.")
@json_option
@reporting_errors
def command(is_full: bool, as_json: bool) -> None:
    """Say what `kshift index` would do now and what it would cost; write nothing."""
    settings = load_settings()
    with peek_home(settings) as home:
        plan = _plan(settings, home, is_full)
    cost = _Cost(settings, plan.generation)
    if as_json:
        show_json(_as_dict(plan, cost))
        return
    console().print(_table(plan, cost))
    for key, error in plan.failures.items():
        say(f"would fail: {key} [{error.code}]")
        say(f"  {error.message} {error.hint}")
    if plan.refusal is not None:
        say(f"would be refused: {plan.refusal.message}")
        say(f"  {plan.refusal.hint}")


def _plan(settings: Settings, home: Home | None, is_full: bool) -> Plan:
    knowledge_dir = knowledge_dir_of(settings, remember=False)
    cutters = Cutters()
    try:
        if home is None:
            return make_plan(None, knowledge_dir, wanted_generation(settings), cutters)
        with home.writer(max_connections=2) as database:
            return make_plan(
                database,
                knowledge_dir,
                _generation(settings, database),
                cutters,
                is_full=is_full,
                budgets=settings.token_budget,
            )
    finally:
        cutters.close()


def _generation(settings: Settings, database: Database) -> Generation:
    with database.transaction() as conn:
        served = default_generation(conn)
    if served is None:
        return wanted_generation(settings)
    check_served(settings, served)
    return served


class _Cost:
    """What a workload costs with one model, in dollars and minutes."""

    def __init__(self, settings: Settings, generation: Generation) -> None:
        self._prices = settings.prices
        self._model = generation.model
        self._rate = settings.tokens_per_minute or _RATES[generation.embedder]

    def usd(self, load: Workload) -> float | None:
        return cost_usd(self._prices, self._model, load.tokens)

    def minutes(self, load: Workload) -> float:
        return round(load.tokens / self._rate, 2)

    def as_dict(self, load: Workload) -> dict[str, Any]:
        figures = asdict(load)
        chunks = {name: figures.pop(f"chunks_{name}") for name in ("kept", "new", "gone")}
        spent = {name: figures.pop(name) for name in ("requests", "tokens", "tokens_saved")}
        return {
            "items": figures,
            "chunks": chunks,
            **spent,
            "cost_usd": self.usd(load),
            "minutes": self.minutes(load),
        }


def _as_dict(plan: Plan, cost: _Cost) -> dict[str, Any]:
    accounts = dict.fromkeys(account for account, _, _ in plan.databases)
    refusal = plan.refusal
    return {
        "model": plan.generation.model,
        "dimensions": plan.generation.dimensions,
        **cost.as_dict(plan.total),
        "accounts": [
            {"account": account, **cost.as_dict(plan.of_account(account))} for account in accounts
        ],
        "databases": [
            {
                "account": account,
                "project": project,
                "knowledge_database": database,
                **cost.as_dict(load),
            }
            for (account, project, database), load in plan.databases.items()
        ],
        "failures": [
            {"item": key, "code": error.code, "message": error.message, "hint": error.hint}
            for key, error in plan.failures.items()
        ],
        "refusal": refusal
        and {"code": refusal.code, "message": refusal.message, "hint": refusal.hint},
    }


def _table(plan: Plan, cost: _Cost) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("knowledge database", overflow="fold")
    for name in ("added", "changed", "renamed", "gone", "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("kept", "new", "gone", "tokens", "requests", "cost", "minutes"):
        table.add_column(name, justify="right", no_wrap=True)
    for place, load in plan.databases.items():
        table.add_row(printable("/".join(place)), *_cells(load, cost))
    for account in dict.fromkeys(account for account, _, _ in plan.databases):
        table.add_row(printable(account), *_cells(plan.of_account(account), cost), style="bold")
    table.add_row("all", *_cells(plan.total, cost), style="bold")
    return table


def _cells(load: Workload, cost: _Cost) -> list[str]:
    counts = [load.added, load.changed, load.renamed, load.gone, load.failed]
    counts += [load.chunks_kept, load.chunks_new, load.chunks_gone, load.tokens, load.requests]
    usd = cost.usd(load)
    price = "?" if usd is None else f"${usd:,.4f}"
    return [*(f"{count:,}" for count in counts), price, f"{cost.minutes(load):,.1f}"]
