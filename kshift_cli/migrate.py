"""`kshift migrate`: roles, schema and Dagster's own database, on the embedded or another server."""

from __future__ import annotations

import click

from kshift_cli.home import open_home
from kshift_cli.output import json_option, reporting_errors, say, show, show_json
from kshift_knowledge.home import migrate_home
from kshift_knowledge.settings import load_settings


@click.command("migrate", epilog="Example: KSHIFT_DATABASE_URL=postgresql://... kshift migrate")
@json_option
@reporting_errors
def command(as_json: bool) -> None:
    """Prepare the database; safe to run again. Uses KSHIFT_DATABASE_URL when it is set."""
    settings = load_settings()
    applied = migrate_home(settings, talk=say)
    with open_home(settings):
        pass  # proves that every login works
    if as_json:
        show_json({"applied": applied})
    else:
        show(f"Applied {', '.join(applied)}." if applied else "The schema is up to date.")
