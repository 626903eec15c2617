"""DAGSTER_HOME: the instance settings of the project with this home's storage filled in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from kshift_knowledge.postgres.urls import for_sqlalchemy

PROJECT = Path(__file__).parent.parent
TEMPLATE = PROJECT / "dagster.yaml"
WORKSPACE = PROJECT / "workspace.yaml"


def prepare_dagster_home(folder: Path, storage_url: str) -> Path:
    """Write `dagster.yaml` (mode 0600: it holds a password) and return the folder."""
    settings: dict[str, Any] = yaml.safe_load(TEMPLATE.read_text("utf-8"))
    settings["storage"]["postgres"]["postgres_url"] = for_sqlalchemy(storage_url)
    content = yaml.safe_dump(settings, sort_keys=False)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "dagster.yaml"
    if target.exists() and target.read_text("utf-8") == content:
        return folder
    draft = folder / f".dagster.yaml.{os.getpid()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(content)
    draft.replace(target)
    return folder
