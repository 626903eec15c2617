"""`kshift status`: how far indexing is, every knowledge database and every failed item."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kshift_cli.home import open_home
from kshift_cli.index import show_failures, show_mistakes
from kshift_cli.output import console, json_option, printable, reporting_errors, show_json
from kshift_knowledge.postgres import canvases, items, status
from kshift_knowledge.postgres.audit import snapshot
from kshift_knowledge.postgres.canvases import AutomationProblem
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.progress import Progress, read_progress
from kshift_knowledge.records import Failure
from kshift_knowledge.settings import load_settings

_WATCH_S = 1.0


@dataclass(frozen=True, slots=True)
class _Status:
    """One moment of the index."""

    progress: Progress
    databases: list[status.DatabaseStatus]
    failures: list[Failure]
    mistakes: list[AutomationProblem]


@click.command("status", epilog="Example: kshift status --json")
@click.option("--watch", "is_watching", is_flag=True, help="Show it again every second.")
@json_option
@reporting_errors
def command(is_watching: bool, as_json: bool) -> None:
    """Show how far indexing is, every knowledge database and every failed item."""
    settings = load_settings()
    with open_home(settings) as home, home.writer() as database:
        if is_watching and not as_json:
            _watch(database, settings.prices)
        found = _read(database, settings.prices)
    if as_json:
        show_json(
            {
                "progress": found.progress.as_dict(),
                "databases": [one.as_dict() for one in found.databases],
                "failures": [failure.as_dict() for failure in found.failures],
                "automation_problems": [mistake.as_dict() for mistake in found.mistakes],
            }
        )
    else:
        console().print(_shown(found))
        show_failures(found.failures)
        show_mistakes(found.mistakes)


def _read(database: Database, prices: Mapping[str, float]) -> _Status:
    with snapshot(database) as conn:
        return _Status(
            read_progress(conn, prices).total,
            status.database_statuses(conn),
            items.failures(conn),
            canvases.problems(conn),
        )


def _watch(database: Database, prices: Mapping[str, float]) -> None:
    with Live(console=console(), refresh_per_second=4) as live:
        try:
            while True:
                live.update(_shown(_read(database, prices)))
                time.sleep(_WATCH_S)
        except KeyboardInterrupt:
            return


def _shown(found: _Status) -> Group:
    return Group(_table(found.databases), Text(progress_line(found.progress)))


def progress_line(progress: Progress) -> str:
    """The progress in one sentence."""
    counts = f"{progress.done:,} done, {progress.running:,} running, "
    counts += f"{progress.failed:,} failed, {progress.waiting:,} waiting"
    left = ""
    if progress.running and progress.eta_s is not None:
        left = f", about {timedelta(seconds=ceil(progress.eta_s))} left"
    cost = "at an unknown price"
    if progress.cost_usd is not None:
        cost = f"for ${progress.cost_usd:,.4f}"
    saved = f"{progress.tokens_saved:,} saved"
    return f"{counts}{left}; {progress.tokens_spent:,} tokens {cost}, {saved}."


def _table(databases: list[status.DatabaseStatus]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("knowledge database", overflow="fold")
    for name in ("waiting", "indexed", "failed", "gone", "chunks", "tokens", "saved"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("last indexed", no_wrap=True)
    for one in databases:
        place = f"{one.account}/{one.project}/{one.knowledge_database}"
        cells = [one.waiting, one.indexed, one.failed, one.gone, one.chunks]
        cells += [one.tokens_spent, one.tokens_saved]
        table.add_row(printable(place), *map(str, cells), _when(one.last_indexed_at))
    return table


def _when(moment: datetime | None) -> str:
    """The local time of today, the date of any other day."""
    if moment is None:
        return "-"
    local, today = moment.astimezone(), datetime.now(UTC).astimezone()
    return f"{local:%H:%M:%S}" if local.date() == today.date() else f"{local:%Y-%m-%d}"
