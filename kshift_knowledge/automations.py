"""Automations as they are stored: what is asked for, and the knowledge edges it may be told."""

from __future__ import annotations

from dataclasses import dataclass

from kshift_knowledge.records import Scope


@dataclass(frozen=True, slots=True)
class StoredAutomation:
    """
    One automation of a project. knowledge and knowledge_database_ids: its edges, by slug.

    An automation without edges is told nothing and retrieves nothing.
    """

    automation_id: int
    account_id: int
    account: str
    project_id: int
    project: str
    slug: str
    name: str
    preset: str
    prompt: str
    preference: str | None
    pins: tuple[str, ...]
    retrieval: str
    knowledge: tuple[str, ...]
    knowledge_database_ids: tuple[int, ...]

    @property
    def scope(self) -> Scope:
        return Scope(self.account_id, self.project_id, self.knowledge_database_ids)
