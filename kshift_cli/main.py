"""The group of commands; each lives in a module of its own and is imported when it is called."""

from __future__ import annotations

import signal
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from kshift_cli.output import show_error

_COMMANDS = {
    "up": "Run the API, the Dagster page and the daemon until Ctrl-C.",
    "index": "Index whatever differs from the knowledge tree.",
    "plan": "Say what an index would do now and what it would cost.",
    "retry": "Index failed items again, quarantined ones too.",
    "ask": "Ask a question from the command line.",
    "status": "Show every knowledge database and every failed item.",
    "impact": "Say which receipts cite an item and whether it still says that.",
    "keys": "Create, list and revoke API keys.",
    "mcp": "Serve an automation's knowledge to agents (MCP).",
    "migrate": "Prepare the database: roles, schema, Dagster's own database.",
    "doctor": "Check what kshift needs and say what is missing.",
    "demo": "Index examples/knowledge in a home of its own and ask three questions.",
}

_WANTS_JSON = "kshift_cli.wants_json"


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"kshift_cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            near = get_close_matches(args[0], _COMMANDS, n=1) if args else []
            if not near:
                raise
            raise click.UsageError(f"{exc.message} Did you mean {near[0]!r}?", ctx) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WANTS_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as exc:
            if ctx.meta[_WANTS_JSON]:
                show_error("usage", exc.format_message(), "`--help` shows an example.")
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.command(
    cls=_Commands, epilog="Exit codes: 0 done, 1 in part, 2 usage, 3 not ready, 4 refused."
)
@click.version_option(package_name="kshift")
def cli() -> None:
    """kshift: a scoped, cited knowledge index for content automations."""
    # TERM ends a command as Ctrl-C does: what it started is stopped, its run is marked as ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
