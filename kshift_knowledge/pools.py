"""What a store hands to ranking, as columns; knows neither a driver nor a score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPool:
    """The chunks that a question may find, by ascending id: their items and their cosines."""

    chunk_ids: Ints
    item_ids: Ints
    cosines: Floats


@dataclass(frozen=True, slots=True, eq=False)
class PassagePool:
    """
    The passages of some chunks, in the order of the chunks' ids and of their text.

    chunk_ids: ascending. counts: the passages of each chunk, at least one. spans and heads, shape
    (passages, 2): ranges in the item's text; a head of 0, 0 is none. lexemes: of all passages, one
    after the other; sizes: how many each has, and own_from: how many of those stand before its
    own text.
    """

    chunk_ids: Ints
    counts: Ints
    spans: Ints
    heads: Ints
    sizes: Ints
    own_from: Ints
    lexemes: NDArray[np.uint32]

    @property
    def nbytes(self) -> int:
        """What it takes of memory, about."""
        return self.lexemes.nbytes + 8 * (7 * len(self.sizes) + 2 * len(self.chunk_ids))


@dataclass(frozen=True, slots=True, eq=False)
class PassageCosines:
    """The cosines of passages that have a vector, in any order, by chunk id and number in it."""

    chunk_ids: Ints
    indexes: Ints
    cosines: Floats
