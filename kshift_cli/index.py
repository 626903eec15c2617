"""`kshift index`: find what changed and run it through Dagster in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kshift_cli.home import open_home
from kshift_cli.output import (
    DONE,
    PARTLY,
    json_option,
    leave,
    printable,
    reporting_errors,
    say,
    show,
    show_json,
)
from kshift_knowledge.home import Home
from kshift_knowledge.indexing.records import ItemOutcome
from kshift_knowledge.indexing.runs import IndexServices
from kshift_knowledge.postgres import canvases, items, status
from kshift_knowledge.postgres.canvases import AutomationProblem
from kshift_knowledge.records import Failure
from kshift_knowledge.settings import load_settings
from kshift_knowledge.tree_problems import TreeProblem


@click.command("index", epilog="Example: KSHIFT_KNOWLEDGE_DIR=examples/knowledge kshift index")
@click.option("--full", "is_full", is_flag=True, help="Read and hash every file.")
@click.option("--accept-deletes", is_flag=True, help="Go on although most items are gone.")
@click.option("--no-wait", is_flag=True, help="Leave the run to a running daemon.")
@json_option
@reporting_errors
def command(is_full: bool, accept_deletes: bool, no_wait: bool, as_json: bool) -> None:
    """Index whatever differs from the knowledge tree. Needs nothing running."""
    with (
        open_home(load_settings(), talk=say) as home,
        Watch(is_quiet=no_wait) as watch,
        home.open_index(watch=watch.count) as services,
    ):
        index = _hand_over if no_wait else _index
        done = index(home, services, watch, is_full, accept_deletes)
        with services.database.transaction() as conn:
            failures = items.failures(conn)
            mistakes = canvases.problems(conn)
            done.figures["chunks_total"] = status.chunks_total(conn)
        done.figures["items_failed"] = len(failures)
        done.figures["failures"] = [failure.as_dict() for failure in failures]
        done.figures["automation_problems"] = [mistake.as_dict() for mistake in mistakes]
    if as_json:
        show_json(done.figures)
    else:
        show(done.summary.format(**done.figures))
    for problem in done.problems:
        say(f"passed over: {problem.message} {problem.hint}")
    for key in done.unsettled:
        say(f"still being written, left for the next time: {key}")
    show_failures(failures)
    show_mistakes(mistakes)
    is_partly_done = failures or any(mistake.leaves_out for mistake in mistakes)
    leave(PARTLY if is_partly_done else DONE)


@dataclass(frozen=True, slots=True)
class _Done:
    """What happened, for JSON, for people, and what was passed over."""

    figures: dict[str, Any]
    summary: str
    problems: tuple[TreeProblem, ...]
    unsettled: tuple[str, ...]


def _index(
    home: Home, services: IndexServices, watch: Watch, is_full: bool, accept_deletes: bool
) -> _Done:
    from kshift_assets import launch
    from kshift_assets.launch_automations import load_automations_once

    report = launch.index_once(
        services,
        home.dagster_home,
        is_full=is_full,
        accept_deletes=accept_deletes,
        talk=watch.talk,
    )
    load_automations_once(services, home.dagster_home, is_full=is_full)
    figures = {
        "items_seen": report.seen,
        "items_deleted": report.deleted,
        "runs": report.runs,
        **report.figures.as_dict(),
        "items_unchanged": report.unchanged + report.figures.items_unchanged,
    }
    return _Done(figures, _SUMMARY, report.problems, report.unsettled)


def _hand_over(
    home: Home, services: IndexServices, watch: Watch, is_full: bool, accept_deletes: bool
) -> _Done:
    from kshift_assets import launch

    report = launch.hand_over(
        services, home.dagster_home, is_full=is_full, accept_deletes=accept_deletes
    )
    figures: dict[str, Any] = {
        "items_seen": report.seen,
        "items_deleted": report.deleted,
        "items_unchanged": report.unchanged,
        "items_handed_over": len(report.batch_keys),
        "runs": 0,
    }
    summary = "{items_handed_over} of {items_seen} items are left to the daemon."
    return _Done(figures, summary, report.problems, report.unsettled)


_SUMMARY = """\
{items_seen} items seen: {items_indexed} indexed, {items_unchanged} unchanged, \
{items_deleted} deleted, {items_failed} failed.
{chunks_total} chunks in the index: {chunks_embedded} embedded now, {chunks_reused} reused; \
{embedding_requests} requests, {embedding_tokens} tokens, {seconds:.1f} s in {runs} runs."""


def show_failures(failures: list[Failure]) -> None:
    """Name each failed item with its reason and remedy, on stderr."""
    for failure in failures:
        say(f"failed: {failure.item} [{failure.code}, attempt {failure.attempts}]")
        say(f"  {failure.message} {failure.hint}")


def show_mistakes(mistakes: list[AutomationProblem]) -> None:
    """Name what is wrong in a project's automations.yaml, on stderr."""
    for mistake in mistakes:
        say(f"automations.yaml of {mistake.project}: [{mistake.code}]")
        say(f"  {mistake.message} {mistake.hint}")


class Watch:
    """A progress bar on a terminal's stderr; elsewhere plain talk."""

    def __init__(self, *, is_quiet: bool) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=is_quiet or not console.is_terminal,
        )
        self._task = self._progress.add_task("items", total=None)

    def __enter__(self) -> Watch:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    def talk(self, text: str) -> None:
        self._progress.console.print(printable(text), markup=False, highlight=False)

    def count(self, _: ItemOutcome) -> None:
        self._progress.advance(self._task)
