"""The oracles of faults: what must hold of index, readers and requests whatever happened."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from embedding_server import EmbeddingServer, vector_of
from numpy.typing import ArrayLike
from workshop import DIMENSIONS, Workshop

from kshift_knowledge.chunker import Chunker
from kshift_knowledge.consistency import assert_consistent
from kshift_knowledge.embedded_text import embed_hash, passage_hash
from kshift_knowledge.errors import StoreUnavailable
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.generations import passage_table
from kshift_knowledge.records import Generation

_SEEN = """
SELECT partition_key, array_agg(content_hash ORDER BY chunk_index),
       array_agg(chunk_index ORDER BY chunk_index), count(DISTINCT knowledge_chunks.revision)
  FROM knowledge_chunks JOIN knowledge_database_items i USING (knowledge_database_item_id)
 GROUP BY 1, i.knowledge_database_item_id
"""


def embed(texts: Sequence[str]) -> ArrayLike:
    """What the embedding server of the tests answers."""
    return np.stack([vector_of(text, DIMENSIONS) for text in texts])


def assert_true(workshop: Workshop) -> None:
    """I1, I3, I4, I5 and I9: the index is what the tree gives, and nothing waits."""
    assert_consistent(workshop.database, workshop.root, embed=embed)


class Reader:
    """I2: looks at everything that is served, over and over, and remembers each item's versions."""

    def __init__(
        self,
        reader: Database,
        generation: Generation,
        *,
        may_vanish: bool = False,
        pause_s: float = 0.005,
    ) -> None:
        """may_vanish: items are deleted meanwhile, so that one that is missing says nothing."""
        self._reader = reader
        self._pause_s = pause_s
        self._may_vanish = may_vanish
        self._chunker = Chunker(generation.chunk_tokens, generation.overlap_tokens)
        self._written: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
        self._seen: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
        self._torn: set[str] = set()
        self._vanished: set[str] = set()
        self._stopping = threading.Event()
        self._failed: list[BaseException] = []
        self.looks = 0

    def wrote(self, key: str, text: str) -> None:
        """Take note of a version that may be seen of an item."""
        self._written[key].add(tuple(chunk.content_hash for chunk in self._chunker.cut(text)))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read all the while; what was served once may never be missing."""
        thread = threading.Thread(target=self._read, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()
        assert not self._failed, self._failed

    def assert_saw_only_whole_versions(self) -> None:
        assert self.looks > 0
        assert (self._torn, self._vanished) == (set(), set())
        foreign = {key for key in self._seen if not self._seen[key] <= self._written[key]}
        assert not foreign, f"chunks that no version of these has: {foreign}"

    def _read(self) -> None:
        try:
            while not self._stopping.wait(self._pause_s):
                self._look()
        except BaseException as exc:  # noqa: BLE001 (told to the test)
            self._failed.append(exc)

    def _look(self) -> None:
        try:
            with self._reader.transaction() as conn:
                rows = conn.execute(_SEEN).fetchall()
        except StoreUnavailable:
            return  # the server is away; what it says when it is back counts
        self.looks += 1
        for key, hashes, indexes, revisions in rows:
            self._seen[key].add(tuple(hashes))
            if revisions != 1 or indexes != list(range(len(indexes))):
                self._torn.add(key)
        if not self._may_vanish:
            self._vanished |= self._seen.keys() - {row[0] for row in rows}


def kept_hashes(database: Database) -> set[bytes]:
    """Hashes of all texts whose vector is in the database, served or kept."""
    with database.transaction() as conn:
        rows = conn.execute(
            "SELECT embed_hash FROM reusable_vectors UNION SELECT embed_hash FROM chunk_vectors_g1"
            f" UNION SELECT embed_hash FROM {passage_table(1)}"
        ).fetchall()
    return {row[0] for row in rows}


def is_kept(text: str, kept: Collection[bytes]) -> bool:
    """Whether the vector of a text, of a chunk or of a passage, is among those."""
    return embed_hash(text) in kept or passage_hash(text) in kept


def assert_paid_once(
    server: EmbeddingServer, kept_at_crash: Collection[bytes], before: int
) -> None:
    """I7: no text was sent again whose vector was kept when the crash came, after so many."""
    again = [text for text in server.texts[before:] if is_kept(text, kept_at_crash)]
    assert not again, f"{len(again)} texts were paid for twice"


def assert_no_request_mixes_accounts(server: EmbeddingServer, markers: Collection[str]) -> None:
    """I6: each request holds texts with one account's marker alone."""
    for request in server.requests:
        found = {marker for marker in markers for text in request.texts if marker in text}
        assert len(found) == 1, found
