"""The MCP server as a process, asked by the SDK's own client over stdio and HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from canvas_seeding import CANVAS, load
from command_line import KSHIFT, plain_environment
from mcp import Client, MCPError, StdioServerParameters
from served_api import FEAR, RAIN, ServedApi, make_key
from test_api_receipts import put, remove
from test_imports import loaded_by
from waiting import wait_until
from werkzeug.serving import make_server

from kshift_cli import mcp_server

T = TypeVar("T")

# Agents are steered by these words: change them on purpose, and this hash with them.
TOOLS_SHA256 = "1a95a1bd5e2a35bcb6642236d418989080b88b1b33eb5e0bab2b76b2e74a6d25"


@dataclass
class Place:
    """An API on a real port, and keys for it."""

    api: ServedApi
    url: str
    ids: dict[str, int]

    def key(self, automation: str | None = "tip") -> str:
        return make_key(
            self.api.writer,
            self.api.scope.account_id,
            project_id=self.api.scope.project_id,
            automation_id=None if automation is None else self.ids[automation],
        )

    def environment(self, key: str | None = None, **settings: str) -> dict[str, str]:
        return {
            **plain_environment(),
            "PYTHONWARNINGS": "error",
            "KSHIFT_API_URL": self.url,
            "KSHIFT_API_KEY": key or self.key(),
            **settings,
        }

    def stdio(self, key: str | None = None) -> StdioServerParameters:
        return StdioServerParameters(
            command=str(KSHIFT), args=["mcp"], env=self.environment(key), cwd=str(Path.cwd())
        )


@pytest.fixture
def place(api: ServedApi) -> Iterator[Place]:
    server = make_server("127.0.0.1", 0, api.app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield Place(
            api, f"http://127.0.0.1:{server.server_port}", load(api, "acme", "site", CANVAS)
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def http_server(place: Place, key: str | None = None) -> Iterator[tuple[str, Any]]:
    """A running `kshift mcp --http`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen(
        [KSHIFT, "mcp", "--http"],
        env=place.environment(key, KSHIFT_MCP_PORT=str(port)),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert f":{port}/mcp" in process.stderr.readline()
            wait_until(lambda: _listens(port))
            yield f"http://127.0.0.1:{port}/mcp", process
        finally:
            process.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def talk(server: Any, ask: Callable[[Client], Awaitable[T]]) -> T:
    """Connect the SDK's client, ask, and hang up."""

    async def run() -> T:
        with anyio.fail_after(60):
            async with Client(server) as client:
                return await ask(client)

    return anyio.run(run)


def call(server: Any, tool: str, **arguments: Any) -> Any:
    return talk(server, lambda client: client.call_tool(tool, arguments))


def refusal(server: Any, tool: str, **arguments: Any) -> str:
    """What an agent reads when a call is refused."""
    result = call(server, tool, **arguments)
    assert result.is_error
    return str(result.content[0].text)


# What agents are told ------------------------------------------------------------------------


def test_the_words_that_steer_agents_are_pinned() -> None:
    told = [
        [tool.name, tool.title, tool.description, parameter, schema["description"]]
        for tool in mcp_server.tools()
        for parameter, schema in tool.input_schema["properties"].items()
    ]

    assert sha256(json.dumps(told).encode()).hexdigest() == TOOLS_SHA256


def test_there_are_two_tools_with_one_parameter_each_that_only_read(place: Place) -> None:
    listed = talk(place.stdio(), lambda client: client.list_tools()).tools

    assert [(tool.name, list(tool.input_schema["properties"])) for tool in listed] == [
        ("retrieve_knowledge", ["query"]),
        ("read_passage", ["citation_id"]),
    ]
    for tool in listed:
        assert tool.input_schema["additionalProperties"] is False
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True
        assert tool.annotations.destructive_hint is False
        assert tool.annotations.idempotent_hint is True
        assert tool.output_schema is not None


def test_the_server_holds_no_driver_and_no_framework() -> None:
    loaded = loaded_by(["kshift_cli.mcp", "kshift_cli.mcp_server"])

    assert loaded.isdisjoint({"psycopg", "psycopg_pool", "pgvector", "flask", "dagster"})


# Over both transports ------------------------------------------------------------------------


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, place: Place) -> Iterator[Any]:
    if request.param == "stdio":
        yield place.stdio()
    else:
        with http_server(place) as (url, _):
            yield url


def test_a_question_is_answered_fenced_structured_and_cited(server: Any, place: Place) -> None:
    result = call(server, "retrieve_knowledge", query=FEAR)

    assert not result.is_error
    found = result.structured_content
    assert set(found) == {"receipt_id", "text", "citations", "context_chars"}
    assert result.content[0].text == found["text"]
    assert FEAR in found["text"]
    assert found["text"].startswith("<knowledge-")
    assert found["context_chars"] <= 1500
    assert found["citations"][0] == {
        "citation_id": f"{found['receipt_id']}.1",
        "name": "Audience",
        "file": "audience.md",
        "chunk_index": 0,
        "source_url": "https://example.com/riders",
    }
    line = place.api.get("/v1/receipts").json["receipts"][0]
    assert (line["receipt_id"], line["automation_id"]) == (
        found["receipt_id"],
        place.ids["tip"],
    )


def test_a_citation_is_read_also_after_the_item_changed(server: Any, place: Place) -> None:
    citation_id = call(server, "retrieve_knowledge", query=FEAR).structured_content["citations"][0][
        "citation_id"
    ]

    fresh = call(server, "read_passage", citation_id=citation_id).structured_content
    put(place.api, [RAIN])
    changed = call(server, "read_passage", citation_id=citation_id).structured_content
    remove(place.api)
    gone = call(server, "read_passage", citation_id=citation_id).structured_content

    assert (fresh["state"], fresh["is_whole_chunk"], fresh["origin"]) == (
        "unchanged",
        True,
        "scraped",
    )
    assert (changed["state"], changed["is_whole_chunk"]) == ("changed since", False)
    assert gone["state"] == "gone"
    for passage in (fresh, changed, gone):
        assert FEAR in passage["text"]
        assert passage["text"].startswith("<knowledge-")


# What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "query: Field required"),
        ({"query": ""}, "query: String should have at least 1 character"),
        ({"query": 1}, "query: Input should be a valid string"),
        ({"query": "q", "account_id": 1}, "account_id: Extra inputs are not permitted"),
        ({"query": "q", "knowledge_database_ids": [1]}, "knowledge_database_ids: Extra"),
        ({"query": "q", "top_k": 10**9}, "top_k: Extra inputs are not permitted"),
        ({"query": " "}, "The request is well-formed, but"),
    ],
)
def test_a_call_with_anything_but_a_question_is_refused_in_words(
    place: Place, arguments: dict[str, Any], said: str
) -> None:
    assert said in refusal(place.stdio(), "retrieve_knowledge", **arguments)
    assert place.api.embeddings.texts == []


@pytest.mark.parametrize("citation_id", ["1", "x.1", "", "../../etc", "a" * 10_000])
def test_what_is_no_citation_is_refused(place: Place, citation_id: str) -> None:
    said = refusal(place.stdio(), "read_passage", citation_id=citation_id)

    assert said.startswith("read_passage: citation_id: String should match pattern")


def test_a_citation_outside_the_automation_is_not_found(place: Place) -> None:
    other = place.api.retrieve().json["receipt_id"]
    own = call(place.stdio(), "retrieve_knowledge", query=FEAR).structured_content["receipt_id"]

    assert "not exist" in refusal(place.stdio(), "read_passage", citation_id=f"{other}.1")
    assert "no such citation" in refusal(place.stdio(), "read_passage", citation_id=f"{own}.99")


def test_a_tool_that_is_not_there_is_a_protocol_error(place: Place) -> None:
    async def ask(client: Client) -> None:
        with pytest.raises(MCPError, match="no such tool"):
            await client.call_tool("drop_tables", {})

    talk(place.stdio(), ask)


def test_an_api_that_goes_away_is_told_to_the_agent(place: Place) -> None:
    with http_server(place) as (url, _):
        place.api.services.database.close()

        said = refusal(url, "retrieve_knowledge", query=FEAR)

    assert "database" in said
    assert "ks_" not in said


def test_a_thousand_calls_leave_the_server_as_it_was(place: Place) -> None:
    async def ask(client: Client) -> set[bool]:
        return {
            (await client.call_tool("read_passage", {"citation_id": str(number)})).is_error
            for number in range(1000)
        }

    assert talk(place.stdio(), ask) == {True}


def test_a_page_of_another_site_cannot_ask(place: Place) -> None:
    import httpx2

    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"Accept": "application/json, text/event-stream"}
    with http_server(place) as (url, _), httpx2.Client() as browser:
        foreign = browser.post(url, json=body, headers={**headers, "Origin": "http://evil.test"})
        rebound = browser.post(url, json=body, headers={**headers, "Host": "evil.test"})

    assert (foreign.status_code, rebound.status_code) == (403, 421)


# Starting and stopping -----------------------------------------------------------------------


def start(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KSHIFT, "mcp", *arguments],
        env=environment,
        input="",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_key_that_is_not_of_one_automation_is_refused(place: Place) -> None:
    done = start(place.environment(place.key(automation=None)))

    assert done.returncode == 4
    assert "sees 5 automations" in done.stderr
    assert done.stdout == ""


def test_no_key_a_wrong_key_and_no_api_each_have_their_exit_code(place: Place) -> None:
    without = place.environment()
    del without["KSHIFT_API_KEY"]
    dead = place.environment(KSHIFT_API_URL="http://127.0.0.1:9")

    assert start(without).returncode == 2
    assert start(place.environment("ks_nobody")).returncode == 1
    unreachable = start(dead)
    assert unreachable.returncode == 3
    assert "does not answer" in unreachable.stderr


def test_a_port_that_is_taken_is_named(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = start(place.environment(KSHIFT_MCP_PORT=port), "--http")

    assert done.returncode == 3
    assert f"Port {port} cannot be had" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_cleanly(place: Place, number: int) -> None:
    with http_server(place) as (_, process):
        os.kill(process.pid, number)

        assert process.wait(timeout=30) == 0


def test_stdio_ends_when_its_client_hangs_up(place: Place) -> None:
    assert start(place.environment()).returncode == 0
