"""`kshift up`: everything that serves and watches, in one terminal, until Ctrl-C or TERM."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType

import click

from kshift_cli.children import Child, Children
from kshift_cli.home import open_home
from kshift_cli.output import reporting_errors, say
from kshift_cli.readiness import is_ready
from kshift_knowledge.errors import NotReady, StoreUnavailable
from kshift_knowledge.home import Home
from kshift_knowledge.postgres import keys, status
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.keeper import dismiss
from kshift_knowledge.settings import Settings, knowledge_dir_of, load_settings

_TEND_S = 0.5
_KEY_LIFETIME = timedelta(hours=24)


@click.command("up", epilog="Example: KSHIFT_KNOWLEDGE_DIR=examples/knowledge kshift up")
@reporting_errors
def command() -> None:
    """Run the API, the Dagster page and the daemon until Ctrl-C or TERM."""
    settings = load_settings()
    knowledge_dir_of(settings)  # fails now rather than at every tick
    _require_free_ports(settings)
    with _signals() as stopping, open_home(settings, talk=say, lingers=False) as home:
        children = Children(programs(home), say)
        try:
            children.start()
            _serve(home, children, stopping)
        finally:
            say("Stopping.")
            children.stop()
            dismiss(settings.home)


def _require_free_ports(settings: Settings) -> None:
    for name, port in (("API", settings.api_port), ("DAGSTER", settings.dagster_port)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as exc:
                raise NotReady(
                    f"Port {port} cannot be had: {exc.strerror}.",
                    hint=f"Stop what listens there, perhaps another `kshift up`, or set "
                    f"KSHIFT_{name}_PORT.",
                ) from exc


def programs(home: Home) -> list[Child]:
    """The API, the Dagster page and the daemon; each logs into `$KSHIFT_HOME/logs`."""
    from kshift_assets.instance import WORKSPACE

    settings = home.settings
    environment = {
        **os.environ,
        "KSHIFT_HOME": str(settings.home),
        "DAGSTER_HOME": str(home.dagster_home),
    }
    scripts = Path(sys.executable).parent
    logs = settings.home / "logs"

    def child(name: str, *argv: str) -> Child:
        return Child(name, argv, environment, logs / f"{name}.log")

    return [
        child("api", sys.executable, "-m", "kshift_api.server"),
        child(
            "dagster-webserver",
            str(scripts / "dagster-webserver"),
            *("-h", "127.0.0.1", "-p", str(settings.dagster_port), "-w", str(WORKSPACE)),
        ),
        child("dagster-daemon", str(scripts / "dagster-daemon"), "run", "-w", str(WORKSPACE)),
    ]


def _serve(home: Home, children: Children, stopping: list[int]) -> None:
    api_url = f"http://127.0.0.1:{home.settings.api_port}"
    say(f"API      {api_url}")
    say(f"Dagster  http://127.0.0.1:{home.settings.dagster_port}")
    say(f"Logs     {home.settings.home / 'logs'}")
    made_key: str | None = None
    with home.writer(max_connections=2) as writer:
        try:
            while not stopping:
                home.revive()
                children.tend()
                if made_key is None and is_ready(api_url):
                    with suppress(StoreUnavailable):  # it is revived at the next turn
                        made_key = _offer_key(writer, api_url)
                time.sleep(_TEND_S)
        finally:
            if made_key is not None:
                home.revive()
                with writer.transaction() as conn:
                    keys.revoke_key(conn, made_key)


def _offer_key(writer: Database, api_url: str) -> str | None:
    """Once there is something to ask: a key for the first account, and how to use it."""
    with writer.transaction() as conn:
        first = next((one for one in status.database_statuses(conn) if one.indexed), None)
        if first is None:
            return None
        key, secret = keys.create_key(conn, first.account_id, expires_in=_KEY_LIFETIME)
    say("\nAsk (the key expires when this stops):")
    say(
        f"curl -s {api_url}/v1/retrieve -H 'Authorization: Bearer {secret}' "
        "-H 'Content-Type: application/json' "
        f'-d \'{{"query": "What do we offer?", "project_id": {first.project_id}, '
        f'"knowledge_database_ids": [{first.knowledge_database_id}]}}\''
    )
    return key.key_id


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Turn INT and TERM into an entry of the list."""
    received: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
