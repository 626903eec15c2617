"""The API over a real database and a real embedding server, with two tenants in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from embedding_server import EmbeddingServer
from flask import Flask
from flask.testing import FlaskClient
from seeding import DIMENSIONS, Place, add_databases, add_item, only, served_generation, version_of
from werkzeug.test import TestResponse

from kshift_api.app import create_app
from kshift_api.openapi import document
from kshift_api.services import ApiServices
from kshift_knowledge.embedders.factory import embedder_for
from kshift_knowledge.embedders.protocol import Embedder
from kshift_knowledge.embedders.retries import Patience
from kshift_knowledge.postgres import keys
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.vector_store import PgVectorStore
from kshift_knowledge.query_embedding import RetrieveByModel
from kshift_knowledge.records import Generation, Scope

FEAR = "Riders fear that the bike is stolen."
RAIN = "Half of them stay at home when it rains."
STYLE = "Bold, short, never an exclamation mark."
SECRET = "The secret launch is in May."
# Tests script one fault at a time and do not wait for the next question.
PATIENCE = Patience(attempts=1, malformed_attempts=1, first_wait_s=0.01, longest_wait_s=0.01)


class Reply(TestResponse):
    """A response whose body is JSON where it is read as such."""

    json: Any


@dataclass
class ServedApi:
    """acme has notes (audience, brand) and blog (empty); globex has a secret."""

    app: Flask
    services: ApiServices
    embeddings: EmbeddingServer
    writer: Database
    scope: Scope
    foreign: Scope
    audience: Place
    secret: Place
    key: str
    foreign_key: str

    @property
    def client(self) -> FlaskClient:
        """A client without cookies of earlier calls."""
        return self.app.test_client()

    @property
    def question(self) -> dict[str, Any]:
        """A request that is answered."""
        return {
            "query": FEAR,
            "project_id": self.scope.project_id,
            "knowledge_database_ids": list(self.scope.knowledge_database_ids),
        }

    def retrieve(self, *, key: Any = None, **changes: Any) -> Reply:
        """Ask the question with *changes*; ... leaves a field out."""
        body = {name: value for name, value in {**self.question, **changes}.items() if value != ...}
        return self.send(json.dumps(body).encode(), Authorization=f"Bearer {key or self.key}")

    def send(self, data: bytes, **headers: str) -> Reply:
        """Send raw bytes as the body of a retrieve."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        response = self.client.post(
            "/v1/retrieve",
            data=data,
            headers={"Content-Type": "application/json", **bearer(self.key), **given},
        )
        return cast("Reply", response)

    def get(self, path: str, *, key: str | None = None, **headers: str) -> Reply:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        headers = {**bearer(key or self.key), **given}
        return cast("Reply", self.client.get(path, headers=headers, buffered=True))

    def page(self, place: Place, chunk: int | None = None) -> str:
        query = "" if chunk is None else f"?chunk={chunk}"
        scope = place.scope
        return (
            f"/accounts/{scope.account_id}/projects/{scope.project_id}/files/{place.file_id}{query}"
        )


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def make_key(database: Database, account_id: int, **narrowing: Any) -> str:
    with database.transaction() as conn:
        return keys.create_key(conn, account_id, **narrowing)[1]


@contextmanager
def served_api(writer: Database, reader: Database, **services: Any) -> Iterator[ServedApi]:
    """Fill the database and build the application over the reader's pool."""
    scope = add_databases(writer, "acme", "site", "notes", "blog")
    notes = only(scope, scope.knowledge_database_ids[0])
    audience, brand = add_item(writer, notes, "audience.md"), add_item(writer, notes, "brand.md")
    foreign = add_databases(writer, "globex", "shop", "plans")
    secret = add_item(writer, foreign, "launch.md")
    generation = served_generation(writer)
    store = PgVectorStore(writer)
    store.replace_items(
        notes,
        generation,
        [
            version_of(
                audience,
                [FEAR, RAIN],
                name="Audience",
                origin="scraped",
                source_url="https://example.com/riders",
                labels=["persona"],
            ),
            version_of(brand, [STYLE], name="Brand Styles"),
        ],
    )
    store.replace_items(foreign, generation, [version_of(secret, [SECRET], name="Launch")])
    with EmbeddingServer(dimensions=DIMENSIONS) as embeddings:
        retrieve_for = RetrieveByModel(
            PgVectorStore(reader), lambda generation: _embedder(generation, embeddings.url)
        )
        made = ApiServices(
            **{
                "database": reader,
                "retrieve_for": retrieve_for,
                "checks": {},
                "cookie_secret": b"s" * 32,
                **services,
            }
        )
        yield ServedApi(
            create_app(made),
            made,
            embeddings,
            writer,
            scope,
            foreign,
            audience,
            secret,
            make_key(writer, scope.account_id),
            make_key(writer, foreign.account_id),
        )
        retrieve_for.close()
        _assert_documented(made.metrics.render())


def _embedder(generation: Generation, url: str) -> Embedder:
    return embedder_for(
        generation.embedder,
        model=generation.model,
        dimensions=generation.dimensions,
        api_key="sk-provider-canary",
        base_url=url,
        patience=PATIENCE,
    )


def _assert_documented(metrics: str) -> None:
    """Whatever any test saw, the OpenAPI document must know."""
    paths = document()["paths"]
    counted = r'requests_total\{route="(/[^"]*)",method="(\w+)",status="(\d+)"\}'
    for rule, method, status in re.findall(counted, metrics):
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule)
        if not path.startswith("/static/") and status != "405":
            assert status in paths[path][method.lower()]["responses"], (path, method, status)
