"""`kshift doctor`: what kshift needs, whether it is there, and what to do when it is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click

from kshift_cli.home import open_home
from kshift_cli.output import DONE, NOT_READY, json_option, leave, show, show_json
from kshift_knowledge.consistency import assert_consistent
from kshift_knowledge.errors import KshiftError
from kshift_knowledge.home import Home, missing_statements
from kshift_knowledge.postgres import generations, items
from kshift_knowledge.postgres.urls import parse_url
from kshift_knowledge.settings import Settings, knowledge_dir_of, load_settings
from kshift_knowledge.tokens import token_counter
from kshift_knowledge.tree import root_problem

REBUILT_ITEMS = 2_000  # some 15 MB of prose: a few seconds


@dataclass(slots=True)
class _Checks:
    results: list[dict[str, Any]] = field(default_factory=list)

    def run(self, name: str, check: Callable[[], str]) -> bool:
        """Note what *check* says, or why it failed and the remedy."""
        try:
            detail, hint, is_good = check(), "", True
        except KshiftError as exc:
            detail, hint, is_good = exc.message, exc.hint, False
        self.results.append({"name": name, "ok": is_good, "detail": detail, "hint": hint})
        return is_good


@click.command("doctor", epilog="Example: kshift doctor --json")
@click.option(
    "--deep",
    "is_deep",
    is_flag=True,
    help="Rebuild items and compare, embed a text: seconds, tokens.",
)
@json_option
def command(is_deep: bool, as_json: bool) -> None:
    """Check what kshift needs and say what is missing."""
    checks = _Checks()
    report: dict[str, Any] = {"database_url": None, "dagster_home": None, "api_url": None}
    checks.run("python", lambda: sys.version.split()[0])
    checks.run("tokens", _tokens)
    found: list[Settings] = []
    if checks.run("settings", lambda: _settings(found)):
        settings = found[0]
        report["dagster_home"] = str(settings.home / "dagster")
        report["api_url"] = f"http://127.0.0.1:{settings.api_port}"
        checks.run("knowledge_dir", lambda: _tree(settings))
        checks.run("database", lambda: _database(settings, checks, report, is_deep))
    report["checks"] = checks.results
    if as_json:
        show_json(report)
    else:
        for check in checks.results:
            show(f"{'ok  ' if check['ok'] else 'FAIL'} {check['name']}: {check['detail']}")
            if check["hint"]:
                show(f"       {check['hint']}")
    leave(DONE if all(check["ok"] for check in checks.results) else NOT_READY)


def _settings(found: list[Settings]) -> str:
    settings = load_settings()
    found.append(settings)
    return f"home {settings.home}"


def _tokens() -> str:
    name = token_counter().name
    return name if name == "cl100k_base" else f"{name}: about 4 characters a token"


def _tree(settings: Settings) -> str:
    folder = knowledge_dir_of(settings)
    problem = root_problem(folder)
    if problem is not None:
        raise KshiftError(problem.message, hint=problem.hint, code=problem.code)
    return str(folder)


def _database(settings: Settings, checks: _Checks, report: dict[str, Any], is_deep: bool) -> str:
    missing = missing_statements(settings)
    if missing:
        raise KshiftError(
            "The server lacks roles or rights.",
            hint="An administrator runs:\n" + "\n".join(missing),
        )
    with open_home(settings) as home:
        report["database_url"] = home.connections.admin_url or home.connections.writer_url
        checks.run("index", lambda: _index(home))
        if is_deep:
            checks.run("embedder", lambda: _embedder(home))
            checks.run("consistency", lambda: _consistency(home))
        where = parse_url(home.connections.reader_url)
        return f"{where.get('dbname')} on {where.get('host')}"


def _index(home: Home) -> str:
    with home.writer() as writer, writer.transaction() as conn:
        generation = generations.default_generation(conn)
        failures = items.failures(conn)
    if generation is None:
        return "nothing is indexed yet; run `kshift index`"
    return (
        f"generation {generation.generation_id}: {generation.model}, {generation.dimensions} "
        f"numbers, {generation.chunk_tokens}/{generation.overlap_tokens} tokens; "
        f"{len(failures)} items failed"
    )


def _embedder(home: Home) -> str:
    with home.open_index() as services:
        vectors = services.embedder.embed(["kshift doctor"]).vectors
    return f"{services.embedder.model} answers with {vectors.shape[1]} numbers"


def _consistency(home: Home) -> str:
    with home.writer() as writer:
        assert_consistent(
            writer, knowledge_dir_of(home.settings), sample=REBUILT_ITEMS, at_rest=False
        )
    return f"every row holds together, and up to {REBUILT_ITEMS:,} items equal a clean rebuild"
