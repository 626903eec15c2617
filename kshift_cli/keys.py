"""`kshift keys`: create, list and revoke API keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from kshift_cli.home import open_home
from kshift_cli.output import json_option, reporting_errors, say, show, show_json
from kshift_knowledge.postgres import catalog, keys
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.records import ApiKey
from kshift_knowledge.settings import load_settings


@contextmanager
def _writing() -> Iterator[Conn]:
    with (
        open_home(load_settings()) as home,
        home.writer(max_connections=2) as writer,
        writer.transaction() as conn,
    ):
        yield conn


@click.group("keys")
def command() -> None:
    """Create, list and revoke API keys."""


@command.command("create", epilog="Example: kshift keys create --account velomend --expires 30d")
@click.option("--account", required=True, help="Slug or id; the key sees nothing else.")
@click.option("--project", help="Slug or id of a project, to narrow the key.")
@click.option("--database", "databases", multiple=True, help="Slug or id; may be repeated.")
@click.option("--automation", help="Slug of an automation of the project.")
@click.option("--expires", help="15m, 12h or 30d; without it the key stays until it is revoked.")
@json_option
@reporting_errors
def create(
    account: str,
    project: str | None,
    databases: tuple[str, ...],
    automation: str | None,
    expires: str | None,
    as_json: bool,
) -> None:
    """Create a key and print it, once."""
    if project is None and (databases or automation):
        raise click.UsageError("--database and --automation need --project.")
    expires_in = keys.parse_lifetime(expires) if expires else None
    with _writing() as conn:
        account_id = catalog.find_account(conn, account)
        project_id = catalog.find_project(conn, account_id, project) if project else None
        database_ids = automation_id = None
        if project_id is not None:
            if databases:
                database_ids = [catalog.find_database(conn, project_id, name) for name in databases]
            if automation:
                automation_id = catalog.find_automation(conn, project_id, automation)
        key, secret = keys.create_key(
            conn,
            account_id,
            project_id=project_id,
            knowledge_database_ids=database_ids,
            automation_id=automation_id,
            expires_in=expires_in,
        )
    if as_json:
        show_json({"id": key.key_id, "key": secret, "expires_at": _iso(key.expires_at)})
    else:
        say("Keep it now: it is not shown again.")
        show(secret)


@command.command("list", epilog="Example: kshift keys list --json")
@json_option
@reporting_errors
def list_(as_json: bool) -> None:
    """List every key, dead ones too; never the secret."""
    with _writing() as conn:
        found = keys.list_keys(conn)
    if as_json:
        show_json({"keys": [_as_dict(key) for key in found]})
        return
    for key in found:
        state = "revoked" if key.revoked_at else f"expires {_iso(key.expires_at) or 'never'}"
        show(f"{key.key_id}  account {key.account_id}  {state}")


@command.command("revoke", epilog="Example: kshift keys revoke 1f2e3d4c5b6a")
@click.argument("key_id", metavar="ID")
@json_option
@reporting_errors
def revoke(key_id: str, as_json: bool) -> None:
    """Revoke a key; it stops working within seconds."""
    with _writing() as conn:
        key = keys.revoke_key(conn, key_id)
    if as_json:
        show_json(_as_dict(key))
    else:
        show(f"{key.key_id} is revoked.")


def _as_dict(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.key_id,
        "account_id": key.account_id,
        "project_id": key.project_id,
        "knowledge_database_ids": key.knowledge_database_ids,
        "automation_id": key.automation_id,
        "created_at": _iso(key.created_at),
        "expires_at": _iso(key.expires_at),
        "revoked_at": _iso(key.revoked_at),
        "last_used_at": _iso(key.last_used_at),
    }


def _iso(moment: Any) -> str | None:
    return moment.isoformat() if moment else None
