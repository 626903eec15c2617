"""Fixtures for everybody: a real PostgreSQL per session, a fresh migrated database per test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgres_server import PostgresServer, running_server
from served_api import ServedApi, served_api

from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.roles import Connections


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


@pytest.fixture
def database_urls(postgres_server: PostgresServer) -> Iterator[Connections]:
    """A migrated database without rows, as each role sees it."""
    with postgres_server.fresh_database() as urls:
        yield urls


@pytest.fixture
def writer(database_urls: Connections) -> Iterator[Database]:
    with Database(database_urls.writer_url) as database:
        yield database


@pytest.fixture
def reader(database_urls: Connections) -> Iterator[Database]:
    with Database(database_urls.reader_url) as database:
        yield database


@pytest.fixture
def api(writer: Database, reader: Database) -> Iterator[ServedApi]:
    """The API over two tenants' knowledge."""
    with served_api(writer, reader) as served:
        yield served
