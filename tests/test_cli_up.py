"""`kshift up` as a real process: it serves, notices an edit, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine, command_line, wait_for

from kshift_knowledge.client import KshiftClient
from kshift_knowledge.postgres.embedded import EmbeddedServer

READY_S = 120.0  # the first index, three programs and their imports on a busy machine
EDIT_S = 30.0  # issue: a file edit is retrievable within 30 s without any command
STOP_S = 60.0
OPENAI_KEY = "sk-canary-0123456789"


@dataclass
class Running:
    """`kshift up`, what it said so far, and the curl it offered."""

    line: CommandLine
    process: subprocess.Popen[str]
    said: list[str]

    @property
    def curl(self) -> list[str]:
        """The words of the offered command, empty before it is offered."""
        found = re.search(r"^curl .*$", "".join(self.said), re.MULTILINE)
        return shlex.split(found[0]) if found else []

    @property
    def key(self) -> str:
        return next(word for word in self.curl if word.startswith("Authorization")).split()[-1]

    def retrieve(self, key: str = "", **changes: Any) -> Any:
        """Send the offered request, with some changes, as the offered curl would."""
        url = next(word for word in self.curl if word.startswith("http"))
        request = urllib.request.Request(
            url,
            data=json.dumps(json.loads(self.curl[-1]) | changes).encode(),
            headers={
                "Authorization": f"Bearer {key or self.key}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(scope="module")
def up() -> Iterator[Running]:
    """Up on a home that is new, with an OpenAI key that must show up nowhere."""
    ports = {"KSHIFT_API_PORT": free_port(), "KSHIFT_DAGSTER_PORT": free_port()}
    with command_line(**ports, OPENAI_API_KEY=OPENAI_KEY) as line:
        line.write("acme/shop/profile/app-profile.md", "# App\n\nWe repair bicycles.\n")
        with line.started("up") as process:
            running = Running(line, process, [])
            listener = threading.Thread(target=_listen, args=(process, running.said))
            listener.start()
            try:
                wait_for(lambda: running.curl or process.poll() is not None, within_s=READY_S)
                assert running.curl, "".join(running.said)
                yield running
            finally:
                process.terminate()
                listener.join(STOP_S)
            process.wait(STOP_S)


def _listen(process: subprocess.Popen[str], said: list[str]) -> None:
    assert process.stderr is not None
    said.extend(process.stderr)


def test_the_offered_curl_is_answered_with_what_the_sensor_indexed(up: Running) -> None:
    answer = up.retrieve()

    assert [hit["item_name"] for hit in answer["hits"]] == ["App Profile"]


def test_ask_answers_as_the_api_does(up: Running) -> None:
    over_http = up.retrieve(query="What do we repair?")
    by_command = up.line.json(
        *("ask", "What do we repair?"),
        *("--account", "acme", "--project", "shop", "--database", "profile"),
    )

    for answer in (over_http, by_command):
        del answer["receipt_id"]
    assert by_command == over_http


def test_an_edit_is_retrievable_without_any_command(up: Running) -> None:
    up.line.write("acme/shop/profile/app-profile.md", "# App\n\nWe repair unicycles.\n")

    wait_for(
        lambda: "We repair unicycles." in up.retrieve(max_chars=5000)["context"], within_s=EDIT_S
    )


def test_a_canvas_is_loaded_without_any_command(up: Running) -> None:
    up.line.write(
        "acme/shop/automations.yaml",
        "automations: [{slug: tip, prompt: Write a tip., knowledge: [profile]}]",
    )
    api_url = f"http://127.0.0.1:{up.line.settings['KSHIFT_API_PORT']}"
    with KshiftClient(api_url, up.key) as client:
        wait_for(client.automations, within_s=READY_S)

        (automation,) = client.automations()
        assert "We repair" in client.context(automation.automation_id).prompt


def test_a_handed_over_index_is_done_by_the_daemon(up: Running) -> None:
    up.line.write("acme/shop/profile/news.md", "# News\n\nTandems too.\n")

    report = up.line.json("index", "--no-wait")

    assert report["items_seen"] == 2
    wait_for(lambda: "Tandems too." in up.retrieve(max_chars=5000)["context"], within_s=READY_S)


def test_the_dagster_page_listens_on_loopback_alone(up: Running) -> None:
    port = int(up.line.settings["KSHIFT_DAGSTER_PORT"])
    assert f"Dagster  http://127.0.0.1:{port}\n" in up.said

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=30) as answer:
        assert json.load(answer)["dagster_webserver_version"]
    assert _listening_addresses(port) == {"127.0.0.1"}


def test_a_created_key_opens_the_api_until_it_is_revoked(up: Running) -> None:
    made = up.line.json(
        *("keys", "create", "--account", "acme", "--project", "shop", "--database", "profile")
    )
    assert up.retrieve(key=made["key"])["hits"]

    up.line.run("keys", "revoke", made["id"])

    wait_for(lambda: _is_refused(up, made["key"]), within_s=EDIT_S)


def test_a_program_that_is_killed_is_started_again(up: Running) -> None:
    before = _api_processes(up)

    os.kill(min(before), signal.SIGKILL)

    wait_for(lambda: (now := _api_processes(up)) and not now & before, within_s=READY_S)
    wait_for(lambda: _is_answered(up), within_s=READY_S)
    assert any(line.startswith("api ended (-9)") for line in up.said)


def test_a_second_up_is_told_that_the_port_is_taken(up: Running) -> None:
    done = up.line.run("up", exit_code=3)

    assert "KSHIFT_API_PORT" in done.stderr


def test_no_secret_is_on_a_command_line_or_in_a_log(up: Running) -> None:
    home = up.line.home
    passwords = json.loads((home / "credentials").read_text())["passwords"]
    secrets = {secret for roles in passwords.values() for secret in roles.values()}
    assert len(secrets) >= 5, "administrator, writer, reader, Dagster and the cookie"
    secrets |= {up.key, OPENAI_KEY}

    public = {str(pid): command for pid, command in up.line.processes().items()}
    for file in (*home.glob("logs/*"), home / "postgres.log", *home.glob("dagster/**/*")):
        if file.is_file() and file.name != "pgpass":
            public[str(file)] = file.read_text("utf-8", errors="replace")

    assert len(public) > 8
    assert [name for name, text in public.items() if any(one in text for one in secrets)] == []


def test_term_stops_every_process_and_revokes_the_offered_key(up: Running) -> None:
    """The last test of this module: it ends what the others use."""
    assert len(up.line.processes()) > 5

    up.process.send_signal(signal.SIGTERM)

    assert up.process.wait(STOP_S) == 0
    assert up.line.processes() == {}
    assert not EmbeddedServer(up.line.home).is_running()
    revoked = {key["id"]: key["revoked_at"] for key in up.line.json("keys", "list")["keys"]}
    assert revoked[up.key.split("_")[1]] is not None


def _is_refused(up: Running, key: str) -> bool:
    try:
        up.retrieve(key=key)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code == 401
    return False


def _api_processes(up: Running) -> set[int]:
    return {pid for pid, command in up.line.processes().items() if "kshift_api" in command}


def _is_answered(up: Running) -> bool:
    try:
        return bool(up.retrieve()["hits"])
    except OSError:
        return False


def _listening_addresses(port: int) -> set[str]:
    """The addresses on which somebody listens at *port*, of /proc/net/tcp and tcp6."""
    found = set()
    for table in ("tcp", "tcp6"):
        for row in Path("/proc/net", table).read_text().splitlines()[1:]:
            local, state = row.split()[1], row.split()[3]
            address, _, hex_port = local.rpartition(":")
            if state == "0A" and int(hex_port, 16) == port:
                packed = bytes.fromhex(address)[::-1] if table == "tcp" else bytes.fromhex(address)
                family = socket.AF_INET if table == "tcp" else socket.AF_INET6
                found.add(socket.inet_ntop(family, packed))
    return found
