"""A plan in numbers: what would become of the items of each knowledge database, and its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from kshift_knowledge.errors import ItemError, Refused
from kshift_knowledge.records import Generation

Place = tuple[str, str, str]  # account, project, database


@dataclass(slots=True)
class Workload:
    """
    What would become of items, and what that would cost.

    unsettled: files that are being written. chunks_kept: served before and after, or made of
    texts whose vectors are there; chunks_new: to be embedded; chunks_gone: served no longer.
    tokens: of the new ones; tokens_saved: of texts that are reused.
    """

    added: int = 0
    changed: int = 0
    renamed: int = 0
    gone: int = 0
    failed: int = 0
    unchanged: int = 0
    unsettled: int = 0
    chunks_kept: int = 0
    chunks_new: int = 0
    chunks_gone: int = 0
    requests: int = 0
    tokens: int = 0
    tokens_saved: int = 0

    @classmethod
    def total(cls, parts: Iterable[Workload]) -> Workload:
        sums = Counter[str]()
        for part in parts:
            sums.update({one.name: getattr(part, one.name) for one in fields(cls)})
        return cls(**sums)


@dataclass(slots=True)
class Plan:
    """
    What `kshift index` would do now. databases: by account, project and slug.

    failures: items that could not be read or cut, with the reason. refusal: why nothing at all
    would be done without --accept-deletes.
    """

    generation: Generation
    databases: dict[Place, Workload] = field(default_factory=dict)
    failures: dict[str, ItemError] = field(default_factory=dict)
    refusal: Refused | None = None

    def of_account(self, account: str) -> Workload:
        return Workload.total(load for place, load in self.databases.items() if place[0] == account)

    @property
    def total(self) -> Workload:
        return Workload.total(self.databases.values())
