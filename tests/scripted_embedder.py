"""An embedder in memory that fails as told; for tests of what stands around an embedder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from embedding_server import vector_of

from kshift_knowledge.embedders.protocol import EmbeddedBatch, Embedder

WIDTH = 8


class ScriptedEmbedder(Embedder):
    """Raises its errors one after the other, then embeds."""

    name = "openai"
    model = "scripted"
    dimensions = WIDTH
    max_input_tokens = 8192

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def embed(self, texts: Sequence[str]) -> EmbeddedBatch:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return EmbeddedBatch(np.stack([vector_of(text, WIDTH) for text in texts]), len(texts))

    def prepare(self) -> None: ...

    def close(self) -> None: ...
