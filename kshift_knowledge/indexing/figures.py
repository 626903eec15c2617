"""The figures of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Self

from kshift_knowledge.indexing.records import ItemOutcome


@dataclass(slots=True)
class Figures:
    """The sums of a run, as `kshift index --json` names them."""

    items_indexed: int = 0
    items_unchanged: int = 0
    items_failed: int = 0
    chunks_embedded: int = 0
    chunks_reused: int = 0
    passages_embedded: int = 0
    embedding_requests: int = 0
    embedding_tokens: int = 0
    seconds: float = 0.0

    def count(self, outcome: ItemOutcome) -> None:
        self.items_indexed += outcome.status == "indexed"
        self.items_unchanged += outcome.status == "unchanged"
        self.items_failed += outcome.status == "failed"
        if outcome.status == "indexed":
            self.chunks_embedded += outcome.embedded
            self.chunks_reused += outcome.reused
            self.passages_embedded += outcome.passages_embedded

    def as_dict(self) -> dict[str, int | float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def total(cls, parts: Iterable[dict[str, int | float]]) -> Self:
        total = cls()
        for part in parts:
            for field in fields(cls):
                value = getattr(total, field.name) + part.get(field.name, 0)
                setattr(total, field.name, value)
        return total
