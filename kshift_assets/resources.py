"""Resources: the knowledge index as assets and sensors open it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kshift_knowledge.home import open_home
from kshift_knowledge.indexing.runs import IndexServices
from kshift_knowledge.settings import Settings, load_settings


class KnowledgeIndex:
    """The index of the home that the environment names (`KSHIFT_HOME` and the other settings)."""

    @contextmanager
    def open(self) -> Iterator[IndexServices]:
        with open_home(load_settings()) as home, home.open_index() as services:
            yield services


class OpenIndex(KnowledgeIndex):
    """An index that this process has open already."""

    def __init__(self, services: IndexServices) -> None:
        self._services = services

    @contextmanager
    def open(self) -> Iterator[IndexServices]:
        yield self._services


class OperatorSettings:
    """The settings of the environment, for what runs beside indexing."""

    def load(self) -> Settings:
        return load_settings()


class FixedSettings(OperatorSettings):
    """Settings that the caller knows."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def load(self) -> Settings:
        return self._settings
