"""DAGSTER_HOME: the instance settings of the project with this home's storage filled in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from kshift_knowledge.postgres.urls import build_url, for_sqlalchemy, parse_url

PROJECT = Path(__file__).parent.parent
TEMPLATE = PROJECT / "dagster.yaml"
WORKSPACE = PROJECT / "workspace.yaml"


def prepare_dagster_home(folder: Path, storage_url: str) -> Path:
    """
    Write `dagster.yaml` and the file with its password, and return the folder.

    Dagster hands its settings to its processes on their command lines, which every user of the
    machine can read: the password stands in a file of libpq's instead.
    """
    folder.mkdir(parents=True, exist_ok=True)
    where = parse_url(storage_url)
    password = where.pop("password", None)
    if password is not None:
        passwords = folder / "pgpass"
        fields = (where.get("host", "localhost"), where.get("port", "5432"), "*")
        _write(passwords, ":".join(map(_escape, (*fields, where["user"], password))) + "\n")
        where["passfile"] = str(passwords)
    settings: dict[str, Any] = yaml.safe_load(TEMPLATE.read_text("utf-8"))
    settings["storage"]["postgres"]["postgres_url"] = for_sqlalchemy(build_url(where))
    _write(folder / "dagster.yaml", yaml.safe_dump(settings, sort_keys=False))
    return folder


def _escape(field: str) -> str:
    return field.replace("\\", "\\\\").replace(":", "\\:")


def _write(target: Path, content: str) -> None:
    if target.exists() and target.read_text("utf-8") == content:
        return
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(content)
    draft.replace(target)
