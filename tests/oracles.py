"""The oracles of faults: what must hold of index, readers and requests whatever happened."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from embedding_server import vector_of
from numpy.typing import ArrayLike
from workshop import DIMENSIONS, Workshop

from kshift_knowledge.consistency import assert_consistent


def embed(texts: Sequence[str]) -> ArrayLike:
    """What the embedding server of the tests answers."""
    return np.stack([vector_of(text, DIMENSIONS) for text in texts])


def assert_true(workshop: Workshop) -> None:
    """I1, I3, I4, I5 and I9: the index is what the tree gives, and nothing waits."""
    assert_consistent(workshop.database, workshop.root, embed=embed)
