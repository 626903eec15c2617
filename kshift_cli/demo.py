"""`kshift demo`: the main job end to end on our examples, leaving nothing running behind."""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.request
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from kshift_cli.ask import show_answer
from kshift_cli.children import Child, Children, wait_until
from kshift_cli.home import open_home
from kshift_cli.output import reporting_errors, say, show
from kshift_cli.readiness import is_ready
from kshift_knowledge.errors import KshiftError, NotReady
from kshift_knowledge.home import Home
from kshift_knowledge.postgres import catalog, items, keys, status
from kshift_knowledge.settings import load_settings

PROJECT = Path(__file__).parent.parent
_READY_S = 60.0
_KEY_LIFETIME = timedelta(minutes=15)

QUESTIONS = [
    {
        "account": "velomend",
        "project": "rider-app",
        "databases": ["app-profile", "audience", "brand-styles"],
        "query": "Tip copy for a rider who thinks a repair subscription only pays off for racers.",
    },
    {
        "account": "velomend",
        "project": "rider-app",
        "databases": ["app-profile", "crawl-notes"],
        "query": "Explain to the app reviewer why the app asks for the location of the phone.",
    },
    {
        "account": "wrenpass",
        "project": "museum-tickets",
        "databases": ["app-profile", "audience"],
        "query": "Ad headline for families: what does a child's ticket cost?",
    },
]


@click.command("demo", epilog="Example: kshift demo")
@click.option(
    "--home",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=PROJECT / ".kshift" / "demo",
    hidden=True,  # for the tests: a demo is the same wherever it lives
)
@reporting_errors
def command(folder: Path) -> None:
    """Index examples/knowledge in a home of its own and ask three questions over HTTP."""
    _forget_settings()
    settings = load_settings(
        env_file=None,
        home=folder,
        knowledge_dir=PROJECT / "examples" / "knowledge",
        embedder="local",
        api_port=_free_port(),
    )
    with open_home(settings, talk=say, lingers=False) as home:
        say("Indexing examples/knowledge through Dagster.")
        _index(home)
        _ask_over_http(home)
    say("Done; nothing is left running.")


def _forget_settings() -> None:
    """The demo is the same on every machine: no key, no server and no .env of its user's."""
    for name in [name for name in os.environ if name.startswith(("KSHIFT_", "OPENAI_"))]:
        del os.environ[name]


def _index(home: Home) -> None:
    from kshift_assets import launch

    with home.open_index() as services:
        report = launch.index_once(services, home.dagster_home, talk=say)
        with services.database.transaction() as conn:
            failures = items.failures(conn)
            chunks = status.chunks_total(conn)
    figures = report.figures
    show(
        f"Indexed {figures.items_indexed} of {report.seen} items in {report.runs} runs: "
        f"{figures.chunks_embedded} chunks embedded in {figures.embedding_requests} calls, "
        f"{chunks} in the index."
    )
    if failures:
        raise KshiftError("\n".join(f"{failure.item}: {failure.message}" for failure in failures))


def _ask_over_http(home: Home) -> None:
    api = Child(
        "api",
        [sys.executable, "-m", "kshift_api.server"],
        {
            **os.environ,
            "KSHIFT_HOME": str(home.settings.home),
            "KSHIFT_EMBEDDER": "local",
            "KSHIFT_API_PORT": str(home.settings.api_port),
        },
        home.settings.home / "logs" / "api.log",
        folder=home.settings.home,  # where no .env lies
    )
    url = f"http://127.0.0.1:{home.settings.api_port}"
    children = Children([api], say)
    try:
        children.start()
        if not wait_until(lambda: is_ready(url), _READY_S):
            raise NotReady("The API does not become ready.", hint=f"Read {api.log}.")
        for question in QUESTIONS:
            _ask(home, url, question)
    finally:
        children.stop()


def _ask(home: Home, url: str, question: Mapping[str, Any]) -> None:
    with home.writer(max_connections=2) as writer, writer.transaction() as conn:
        scope = catalog.resolve(
            conn, question["account"], question["project"], question["databases"]
        )
        _, secret = keys.create_key(conn, scope.account_id, expires_in=_KEY_LIFETIME)
    body = {
        "query": question["query"],
        "project_id": scope.project_id,
        "knowledge_database_ids": scope.knowledge_database_ids,
    }
    request = urllib.request.Request(
        f"{url}/v1/retrieve",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {secret}", "Content-Type": "application/json"},
    )
    show(f"\nPOST /v1/retrieve: {question['query']}")
    show(f"  {question['account']}/{question['project']}: {', '.join(question['databases'])}\n")
    with urllib.request.urlopen(request, timeout=_READY_S) as answer:
        show_answer(json.load(answer))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
