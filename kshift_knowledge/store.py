"""The one interface to wherever vectors live; no driver, operator or SQL shows through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kshift_knowledge.pools import ChunkPool, PassageCosines, PassagePool
from kshift_knowledge.records import Filters, Generation, ItemVersion, Scope, StoredChunk, Vector

VectorRow = NDArray[np.float32]


class VectorStore(Protocol):
    """
    Chunks and their vectors, by generation and always inside a Scope.

    A scope without databases sees and changes nothing. pgvector and in-memory pass one contract
    test-suite (tests/test_store_contract.py).

    Every method raises StoreUnavailable when the store does not answer.
    """

    def served_generation(self, scope: Scope) -> Generation:
        """
        Return the generation that the scope's project is served from.

        Raises NotFound when the project does not exist in the account.
        """

    def replace_items(
        self, scope: Scope, generation: Generation, versions: Sequence[ItemVersion]
    ) -> set[int]:
        """
        Swap in whole versions, all or none: a reader sees the old chunks of an item or the new.

        Returns the item ids whose version was *superseded*: a newer revision or a deletion came
        first, and nothing of theirs was written. Vectors that are no longer served stay reusable.

        Raises WrongDimension before anything is written, NotFound for an item outside the scope.
        """

    def delete_items(self, scope: Scope, item_ids: Sequence[int]) -> int:
        """Take items out of every generation; returns how many chunks were served of them."""

    def nearest(
        self,
        scope: Scope,
        generation: Generation,
        vector: Vector,
        k: int,
        filters: Filters = Filters(),  # noqa: B008 (frozen)
    ) -> list[StoredChunk]:
        """
        Return the k chunks closest to *vector* that scope and filters allow, best first.

        vector: as many floats as the generation has dimensions; need not be normalised.
        Fewer than k come back only when the pool holds fewer. The list for a smaller k is a
        prefix. score: cosine similarity, 1 (same direction) to -1.

        Raises WrongDimension.
        """

    def named(
        self,
        scope: Scope,
        generation: Generation,
        names: Sequence[str],
        *,
        kind: str | None = None,
        vector: Vector | None = None,
    ) -> list[StoredChunk]:
        """
        Return every chunk of the items with exactly these names, in item and chunk order.

        score is the cosine with *vector*, None without one.
        """

    def pool(
        self,
        scope: Scope,
        generation: Generation,
        vector: Vector,
        filters: Filters = Filters(),  # noqa: B008 (frozen)
    ) -> ChunkPool:
        """
        Return every chunk that scope and filters allow, with its cosine with *vector*.

        A chunk that is swapped in gets an id that no chunk had before.

        Raises WrongDimension.
        """

    def passages(
        self, scope: Scope, generation: Generation, chunk_ids: Sequence[int]
    ) -> PassagePool:
        """
        Return the passages of those of the chunks that the scope serves now.

        A chunk whose passages are not known counts as one passage without words.
        """

    def passage_cosines(
        self, scope: Scope, generation: Generation, vector: Vector, chunk_ids: Sequence[int]
    ) -> PassageCosines:
        """
        Return the cosines with *vector* of the chunks' passages that have a vector of their own.

        Raises WrongDimension.
        """

    def chunks(
        self, scope: Scope, generation: Generation, vector: Vector, chunk_ids: Sequence[int]
    ) -> list[StoredChunk]:
        """
        Return those of the chunks that the scope serves now, in any order, with their cosines.

        Raises WrongDimension.
        """

    def whole_items(
        self,
        scope: Scope,
        generation: Generation,
        filters: Filters = Filters(),  # noqa: B008 (frozen)
        *,
        after: StoredChunk | None = None,
        limit: int,
        max_chars: int,
    ) -> list[StoredChunk]:
        """
        Return items that have text, in path order, each as one chunk without an index.

        after: the last item of an earlier call, to go on behind it. content is the beginning of
        the item's text, at most max_chars of it; char_end is the length and content_hash the
        SHA-256 of all of it.
        """

    def vectors_for(
        self, scope: Scope, generation: Generation, embed_hashes: Sequence[bytes]
    ) -> Mapping[bytes, VectorRow]:
        """
        Return the vectors this account already paid for, by hash of the embedded text.

        Served ones and kept ones of the generation's model and width; never another account's.
        A damaged entry counts as absent.
        """

    def keep_vectors(
        self, scope: Scope, generation: Generation, vectors: Mapping[bytes, VectorRow]
    ) -> None:
        """Keep vectors that are paid for and not served yet, so that no crash loses them."""
