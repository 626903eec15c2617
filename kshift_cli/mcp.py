"""`kshift mcp`: the knowledge of one automation for agents, over stdio or on a local port."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from kshift_cli.output import reporting_errors, say
from kshift_knowledge.client import KshiftClient
from kshift_knowledge.errors import NotReady, Refused, SettingsError
from kshift_knowledge.settings import Settings, load_settings

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

# An agent waits for a tool call and asks again by itself.
_ATTEMPTS, _PATIENCE_S = 3, 15.0
_HOST = "127.0.0.1"


@click.command("mcp", epilog="Example: KSHIFT_API_KEY=ks_... kshift mcp --http")
@click.option("--http", "is_http", is_flag=True, help="Serve on KSHIFT_MCP_PORT instead of stdio.")
@reporting_errors
def command(is_http: bool) -> None:
    """
    Serve retrieve_knowledge and read_passage to agents (Model Context Protocol).

    KSHIFT_API_KEY is a key made for one automation, KSHIFT_API_URL where the API is.
    """
    settings = load_settings()
    with _client(settings) as client:
        server = _server(client)
        with suppress(KeyboardInterrupt):
            if is_http:
                _serve_http(server, settings.mcp_port)
            else:
                _serve_stdio(server)


def _client(settings: Settings) -> KshiftClient:
    if settings.api_key is None:
        raise SettingsError(
            "There is no key to ask the API with.",
            hint="Set KSHIFT_API_KEY to one that `kshift keys create --automation` made.",
        )
    return KshiftClient(
        settings.api_url or f"http://{_HOST}:{settings.api_port}",
        settings.api_key.get_secret_value(),
        attempts=_ATTEMPTS,
        patience_s=_PATIENCE_S,
    )


def _server(client: KshiftClient) -> Server[Any]:
    try:
        from kshift_cli.mcp_server import build_server
    except ModuleNotFoundError as exc:
        raise NotReady(
            f"{exc.name} is not installed.", hint="Install kshift with its extra `mcp`."
        ) from exc
    automations = client.automations()
    if len(automations) != 1:
        raise Refused(
            f"This key sees {len(automations)} automations; the server is for exactly one.",
            hint="Use a key that `kshift keys create --automation` made.",
        )
    return build_server(client, automations[0].automation_id)


def _serve_stdio(server: Server[Any]) -> None:
    import anyio
    from mcp.server.stdio import stdio_server

    async def serve() -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    anyio.run(serve)


def _serve_http(server: Server[Any], port: int) -> None:
    """On loopback alone: whoever reaches the port asks with this server's key."""
    import uvicorn

    app = server.streamable_http_app(host=_HOST, stateless_http=True, json_response=True)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, port))
        except OSError as exc:
            raise NotReady(
                f"Port {port} cannot be had: {exc.strerror}.",
                hint="Stop what listens there, or set KSHIFT_MCP_PORT.",
            ) from exc
        say(f"MCP      http://{_HOST}:{port}/mcp")
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
