"""The API as a process: gunicorn with one worker of many threads, which TERM drains and stops."""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication

from kshift_api.app import create_app
from kshift_api.services import ApiServices, Check
from kshift_knowledge.errors import KshiftError
from kshift_knowledge.home import Home, open_home
from kshift_knowledge.postgres.credentials import Credentials
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.generations import default_generation
from kshift_knowledge.postgres.migrations import check_schema
from kshift_knowledge.postgres.roles import Connections
from kshift_knowledge.query_embedding import RetrieveByModel
from kshift_knowledge.settings import Settings, load_settings

log = logging.getLogger("kshift_api")

LOOPBACK = "127.0.0.1"
THREADS = 64
MAX_CONNECTIONS = 16
POOL_TIMEOUT_S = 3.0
GRACEFUL_TIMEOUT_S = 20  # a stop takes less than 30 s: faults.md F25 wants no request lost
SCHEMA_CHECK_S = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m kshift_api.server`: serve until TERM. Returns an exit code as `kshift` does."""
    parser = argparse.ArgumentParser(prog="kshift_api.server", description=__doc__)
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on")
    parser.add_argument("--port", type=int, help="default: KSHIFT_API_PORT")
    arguments = parser.parse_args(argv)
    try:
        settings = load_settings()
        serve(settings, host=arguments.host, port=arguments.port or settings.api_port)
    except KshiftError as exc:
        sys.stderr.write(f"{exc}\n")
        return exc.exit_code
    return 0


def serve(settings: Settings, *, host: str, port: int) -> None:
    """
    Serve until a signal stops it, then leave the process with exit code 0.

    With KSHIFT_READER_URL set, no other login is needed or looked for. Raises NotReady,
    StoreUnavailable, SettingsError.
    """
    with _open_reader(settings) as home:
        cookie_secret = _cookie_secret(settings)
        options = {
            "bind": f"{host}:{port}",
            # One process, since caches and limits are per process; the work waits for others.
            "workers": 1,
            "worker_class": "gthread",
            "threads": THREADS,
            "graceful_timeout": GRACEFUL_TIMEOUT_S,
            "limit_request_fields": 64,
            "control_socket_disable": True,
            "proc_name": "kshift-api",
        }
        _Gunicorn(lambda: _build(home, cookie_secret), options).run()


class _Gunicorn(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    """Builds the application in the worker, after the fork: pools do not survive one."""

    def __init__(self, build: Callable[[], Flask], options: Mapping[str, Any]) -> None:
        self._build = build
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        return self._build()


def _build(home: Home, cookie_secret: bytes) -> Flask:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    reader_url = home.connections.reader_url
    database = Database(reader_url, max_connections=MAX_CONNECTIONS, timeout_s=POOL_TIMEOUT_S)
    database.open()
    retrieve_for = home.answering(database)
    services = ApiServices(
        database=database,
        retrieve_for=retrieve_for,
        checks={
            "database": lambda: _check_database(database),
            "schema": remembered(lambda: check_schema(reader_url), SCHEMA_CHECK_S),
            "model": lambda: _check_model(database, retrieve_for),
        },
        cookie_secret=cookie_secret,
        top_k=home.settings.top_k,
        max_chars=home.settings.max_chars,
        max_in_flight=THREADS - 8,
        keeps_query=home.settings.receipt_query == "text",
        prices=home.settings.prices,
    )
    return create_app(services)


@contextmanager
def _open_reader(settings: Settings) -> Iterator[Home]:
    """The home, or what there is of it on a machine that only has the reader's URL."""
    if settings.reader_url is None:
        with open_home(settings) as home:
            yield home
    else:
        reader_url = settings.reader_url.get_secret_value()
        yield Home(settings, Connections(writer_url="", reader_url=reader_url, dagster_url=""))


def _cookie_secret(settings: Settings) -> bytes:
    try:
        return Credentials(settings.home).obtain("kshift_api", "cookie")[0].encode()
    except (OSError, KshiftError):
        log.warning("%s cannot be written: a restart signs everybody out.", settings.home)
        return secrets.token_bytes(32)


def remembered(check: Check, seconds: float) -> Check:
    """The check, which after a success rests for *seconds*."""
    good_until = 0.0

    def check_again() -> None:
        nonlocal good_until
        if time.monotonic() >= good_until:
            check()
            good_until = time.monotonic() + seconds

    return check_again


def _check_database(database: Database) -> None:
    with database.transaction():  # the pool tries each connection before it hands it out
        pass


def _check_model(database: Database, retrieve_for: RetrieveByModel) -> None:
    """Load the model of the index; an index that is not there yet needs none."""
    with database.transaction() as conn:
        generation = default_generation(conn)
    if generation is not None:
        retrieve_for.prepare(generation)


if __name__ == "__main__":
    sys.exit(main())
