"""A knowledge tree, a real database and a real embedding server together, for indexing tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from embedding_server import EmbeddingServer

from kshift_knowledge.chunker import PIPELINE_VERSION
from kshift_knowledge.embedded_text import TEXT_FORMAT
from kshift_knowledge.embedders.factory import embedder_for
from kshift_knowledge.embedders.retries import Patience
from kshift_knowledge.indexing.figures import Figures
from kshift_knowledge.indexing.records import ItemOutcome
from kshift_knowledge.indexing.runs import IndexServices, index_batch, index_keys
from kshift_knowledge.indexing.scan import ScanReport, look
from kshift_knowledge.postgres import generations
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.patience import PatientStore
from kshift_knowledge.records import Generation

MODEL = "text-embedding-3-small"
DIMENSIONS = 16
DATABASE = "acme/site/notes"
# Real waits would only make the tests slow: what is retried is tested with the embedders.
HASTY = Patience(attempts=2, malformed_attempts=2, total_s=20.0, first_wait_s=0.01)


def generation(dimensions: int = DIMENSIONS, passage_tokens: int = 0) -> Generation:
    return Generation(
        generation_id=0,
        embedder="openai",
        model=MODEL,
        dimensions=dimensions,
        chunk_tokens=64,
        overlap_tokens=8,
        passage_tokens=passage_tokens,
        token_counter="cl100k_base",
        text_format=TEXT_FORMAT,
        pipeline_version=PIPELINE_VERSION,
    )


@dataclass
class Indexed:
    """What one look and its run did; a look that finds nothing has no figures."""

    report: ScanReport
    figures: Figures
    outcomes: list[ItemOutcome] = field(default_factory=list)

    @property
    def statuses(self) -> dict[str, str]:
        return {outcome.item.path: outcome.status for outcome in self.outcomes}


class Workshop:
    """Everything that indexing needs; nothing in it is a fake."""

    def __init__(
        self, root: Path, database: Database, server: EmbeddingServer, *, passage_tokens: int = 0
    ) -> None:
        self.root = root
        self.database = database
        self.server = server
        self.store = PatientStore(database)
        with database.transaction() as conn:
            self.generation = generations.ensure_default_generation(
                conn, generation(passage_tokens=passage_tokens)
            )
        self.services = IndexServices(
            database,
            self.store,
            embedder_for(
                "openai",
                model=MODEL,
                dimensions=DIMENSIONS,
                api_key="sk-test",
                base_url=server.url,
                patience=HASTY,
            ),
            self.generation,
            root,
            wait=lambda seconds: None,  # the second that settles files passes at once
        )

    def write(self, path: str, text: str | bytes, database: str = DATABASE) -> Path:
        target = self.root / database / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())
        return target

    def path(self, path: str, database: str = DATABASE) -> Path:
        return self.root / database / path

    def look(self, **options: Any) -> ScanReport:
        """One look at the tree; the second that settles files passes at once."""
        options.setdefault("wait", lambda seconds: None)
        options.setdefault("is_queued", lambda batch: False)
        report = look(self.database, self.root, self.generation, **options)
        assert report is not None, "nobody else looks"
        return report

    def run(self, batch_id: UUID | None) -> tuple[Figures, list[ItemOutcome]]:
        outcomes: list[ItemOutcome] = []
        if batch_id is None:
            return Figures(), outcomes
        figures = index_batch(self.services, batch_id, on_outcome=outcomes.append)
        return figures, outcomes

    def index(self, **options: Any) -> Indexed:
        report = self.look(**options)
        return Indexed(report, *self.run(report.batch_id))

    def index_by_hand(self, *paths: str) -> list[ItemOutcome]:
        outcomes: list[ItemOutcome] = []
        keys = [f"{DATABASE}/{path}" for path in paths]
        index_keys(self.services, keys, on_outcome=outcomes.append)
        return outcomes

    def served(self, path: str, database: str = DATABASE) -> list[str]:
        """The contents of an item's served chunks, in order."""
        return [
            row[0]
            for row in self.query(
                "SELECT c.content FROM knowledge_chunks c JOIN knowledge_database_items i"
                " USING (knowledge_database_item_id)"
                " WHERE i.partition_key = %s ORDER BY c.chunk_index",
                f"{database}/{path}",
            )
        ]

    def item(self, path: str, database: str = DATABASE) -> dict[str, Any]:
        """The item's row."""
        with self.database.transaction() as conn:
            cursor = conn.execute(
                "SELECT * FROM knowledge_database_items WHERE partition_key = %s",
                (f"{database}/{path}",),
            )
            row = cursor.fetchone()
            assert row is not None, f"no item {path}"
            assert cursor.description is not None
            return dict(zip((column.name for column in cursor.description), row, strict=True))

    def query(self, statement: str, *values: object) -> list[Any]:
        with self.database.transaction() as conn:
            return conn.execute(statement, values).fetchall()  # type: ignore[arg-type]

    def forget_requests(self) -> None:
        self.server.requests.clear()


@contextmanager
def open_workshop(root: Path, database: Database, *, passage_tokens: int = 0) -> Iterator[Workshop]:
    with EmbeddingServer(dimensions=DIMENSIONS) as server:
        workshop = Workshop(root, database, server, passage_tokens=passage_tokens)
        try:
            yield workshop
        finally:
            workshop.services.cutters.close()
            workshop.services.embedder.close()


def sections(*names: str, words: int = 12) -> str:
    """A note with a title, a word about it, and a section of one chunk for each name."""
    parts = ["# Note\n\nWhat this is about.\n"]
    for name in names:
        body = " ".join(f"{name}{number}" for number in range(words))
        parts.append(f"## {name}\n\n{body}\n")
    return "\n".join(parts)
