"""What every embedder promises; knows no provider and no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kshift_knowledge.errors import EmbeddingError


@dataclass(frozen=True, slots=True)
class EmbeddedBatch:
    """
    One vector per text, in the order of the texts.

    vectors: float32, shape (texts, dimensions); every row finite and not zero.
    tokens: what the embedder charged or read for all texts together, in its own tokens.
    """

    vectors: NDArray[np.float32]
    tokens: int


class Embedder(Protocol):
    """
    Turns texts into vectors of one model; safe for several threads.

    name: "openai" or "local"; model and dimensions identify the vector space.
    max_input_tokens: the longest text it reads to the end, in tokens of cl100k.
    """

    name: str
    model: str
    dimensions: int
    max_input_tokens: int

    def embed(self, texts: Sequence[str]) -> EmbeddedBatch:
        """
        Embed *texts*, all of one account, in one request where there is a network.

        No texts give an empty batch and cost nothing. Raises EmbeddingError, whose
        is_retryable says whether the same call may succeed later, and WrongDimension.
        """
        ...

    def embed_batch(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed *texts* into plain lists, one per text in their order; raises as `embed`."""
        rows: list[list[float]] = self.embed(texts).vectors.tolist()
        return rows

    def prepare(self) -> None:
        """Load now what the first text would load. Raises NotReady when it is missing."""
        ...

    def close(self) -> None:
        """Give back connections; the embedder may be used again."""
        ...


def check_texts(texts: Sequence[str]) -> None:
    """Raise EmbeddingError when a text is blank or cannot be written as UTF-8."""
    for place, text in enumerate(texts, start=1):
        if not text or text.isspace():
            raise EmbeddingError(
                f"Text {place} of {len(texts)} is blank, and nothing can be embedded from it.",
                hint="Leave blank texts out before embedding.",
                code="embedding_blank_text",
            )
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise EmbeddingError(
                f"Text {place} of {len(texts)} holds a lone surrogate, which UTF-8 cannot write.",
                hint="Decode the text again from its bytes.",
                code="embedding_undecodable_text",
            )


def no_vectors(dimensions: int) -> EmbeddedBatch:
    """Return the batch of no texts."""
    return EmbeddedBatch(np.empty((0, dimensions), dtype=np.float32), tokens=0)
