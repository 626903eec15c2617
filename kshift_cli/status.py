"""`kshift status`: every knowledge database and every failed item."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from kshift_cli.home import open_home
from kshift_cli.index import show_failures
from kshift_cli.output import json_option, printable, reporting_errors, show_json
from kshift_knowledge.postgres import items, status
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.records import Failure
from kshift_knowledge.settings import load_settings

_WATCH_S = 1.0


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
    if as_json:
        show_json(
            {
                "databases": [one.as_dict() for one in databases],
                "failures": [failure.as_dict() for failure in failures],
            }
        )
    else:
        Console().print(_table(databases))
        show_failures(failures)


def _read(database: Database) -> tuple[list[status.DatabaseStatus], list[Failure]]:
    with database.transaction() as conn:
        return status.database_statuses(conn), items.failures(conn)


def _watch(database: Database) -> None:
    with Live(refresh_per_second=4) as live:
        try:
            while True:
                live.update(_table(_read(database)[0]))
                time.sleep(_WATCH_S)
        except KeyboardInterrupt:
            return


def _table(databases: list[status.DatabaseStatus]) -> Table:
    table = Table("account", "project", "knowledge database")
    for name in ("waiting", "indexed", "failed", "gone", "chunks", "tokens spent", "saved"):
        table.add_column(name, justify="right")
    table.add_column("last indexed")
    for one in databases:
        cells: list[Any] = [one.account, one.project, one.knowledge_database]
        cells += [one.waiting, one.indexed, one.failed, one.gone, one.chunks]
        cells += [one.tokens_spent, one.tokens_saved]
        cells.append(f"{one.last_indexed_at:%Y-%m-%d %H:%M:%S}" if one.last_indexed_at else "-")
        table.add_row(*(printable(str(cell)) for cell in cells))
    return table
