"""`kshift status`: every knowledge database and every failed item."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from kshift_cli.home import open_home
from kshift_cli.index import show_failures, show_mistakes
from kshift_cli.output import json_option, printable, reporting_errors, show_json
from kshift_knowledge.postgres import canvases, items, status
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.records import Failure
from kshift_knowledge.settings import load_settings

_WATCH_S = 1.0
_PIPE_WIDTH = 160


@click.command("status", epilog="Example: kshift status --json")
@click.option("--watch", "is_watching", is_flag=True, help="Show it again every second.")
@json_option
@reporting_errors
def command(is_watching: bool, as_json: bool) -> None:
    """Show every knowledge database and every failed item."""
    with open_home(load_settings()) as home, home.writer() as database:
        if is_watching and not as_json:
            _watch(database)
        databases, failures = _read(database)
        with database.transaction() as conn:
            mistakes = canvases.problems(conn)
    if as_json:
        show_json(
            {
                "databases": [one.as_dict() for one in databases],
                "failures": [failure.as_dict() for failure in failures],
                "automation_problems": [mistake.as_dict() for mistake in mistakes],
            }
        )
    else:
        _console().print(_table(databases))
        show_failures(failures)
        show_mistakes(mistakes)


def _read(database: Database) -> tuple[list[status.DatabaseStatus], list[Failure]]:
    with database.transaction() as conn:
        return status.database_statuses(conn), items.failures(conn)


def _watch(database: Database) -> None:
    with Live(console=_console(), refresh_per_second=4) as live:
        try:
            while True:
                live.update(_table(_read(database)[0]))
                time.sleep(_WATCH_S)
        except KeyboardInterrupt:
            return


def _console() -> Console:
    """A terminal's own width; a file or pipe has none and must not cut what it is given."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


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
