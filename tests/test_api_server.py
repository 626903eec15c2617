"""The API as a process: it starts, answers, drains on TERM, and survives its worker."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from embedding_server import Fault
from served_api import FEAR, ServedApi
from waiting import wait_until

from kshift_api.auth import COOKIE
from kshift_knowledge.postgres.roles import Connections


@dataclass
class Running:
    """A started server."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body=body, headers=named)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def is_ready(self) -> bool:
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except OSError:
            return False


@contextmanager
def running(home: Path, environment: dict[str, str], *arguments: str) -> Iterator[Running]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = home.with_suffix(".log")
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "kshift_api.server", *arguments],
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith(("KSHIFT_", "OPENAI_"))},
                **environment,
                "KSHIFT_HOME": str(home),
                "KSHIFT_API_PORT": str(port),
            },
            cwd=home.parent,
            stdout=output,
            stderr=output,
        )
    try:
        yield Running(port, process, log)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def environment(api: ServedApi, database_urls: Connections) -> dict[str, str]:
    """Only what the read side needs: the reader's login and a provider."""
    return {
        "KSHIFT_READER_URL": database_urls.reader_url,
        "OPENAI_API_KEY": "sk-provider-canary",
        "OPENAI_BASE_URL": api.embeddings.url,
    }


@pytest.fixture
def server(tmp_path: Path, environment: dict[str, str]) -> Iterator[Running]:
    with running(tmp_path / "home", environment) as started:
        wait_until(started.is_ready)
        yield started


def _json_headers(api: ServedApi) -> dict[str, str]:
    return {"Authorization": f"Bearer {api.key}", "Content_Type": "application/json"}


def test_a_started_server_is_ready_answers_and_ends_with_0_on_term(
    api: ServedApi, server: Running
) -> None:
    body = json.dumps(api.question)

    status, headers, answer = server.ask("POST", "/v1/retrieve", body, **_json_headers(api))
    _, _, ready = server.ask("GET", "/readyz")
    server.process.terminate()

    assert status == 200
    assert json.loads(answer)["hits"][0]["content"] == FEAR
    assert headers["Content-Type"] == "application/json"
    assert json.loads(ready)["checks"] == {"database": "ok", "schema": "ok", "model": "ok"}
    assert server.process.wait(timeout=30) == 0
    log = server.log.read_text("utf-8")
    assert "POST /v1/retrieve 200" in log
    for canary in (FEAR, "sk-provider-canary", api.key.split("_")[2]):
        assert canary not in log


def test_term_lets_a_request_in_flight_be_answered(api: ServedApi, server: Running) -> None:
    release = threading.Event()

    def hold(_: object) -> Fault:
        release.wait(30)
        return Fault()

    api.embeddings.always(hold)
    with ThreadPoolExecutor() as threads:
        body = json.dumps(api.question)
        held = threads.submit(server.ask, "POST", "/v1/retrieve", body, **_json_headers(api))
        wait_until(lambda: api.embeddings.counts["requests"] == 1)
        server.process.terminate()
        wait_until(lambda: "Handling signal: term" in server.log.read_text("utf-8"))
        release.set()

        assert held.result()[0] == 200
    assert server.process.wait(timeout=30) == 0


def test_a_killed_worker_is_replaced(server: Running) -> None:
    worker = _worker_of(server.process.pid)

    os.kill(worker, signal.SIGKILL)

    wait_until(lambda: _worker_of(server.process.pid) not in (0, worker))
    wait_until(server.is_ready)


def _worker_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return int(children[0]) if children else 0


def test_a_sign_in_outlives_a_restart(
    api: ServedApi, environment: dict[str, str], tmp_path: Path
) -> None:
    form = urlencode({"key": api.key})
    cookies: set[str] = set()
    for _ in range(2):
        with running(tmp_path / "home", environment) as server:
            wait_until(server.is_ready)
            if not cookies:
                _, headers, _ = server.ask(
                    "POST", "/sign-in", form, Content_Type="application/x-www-form-urlencoded"
                )
                match = re.search(rf"{COOKIE}=[^;]+", headers["Set-Cookie"])
                assert match is not None
                cookies.add(match[0])
            (cookie,) = cookies
            status, _, page = server.ask("GET", api.page(api.audience, 0), Cookie=cookie)
            assert (status, FEAR in page.decode()) == (200, True)
    assert (tmp_path / "home" / "credentials").stat().st_mode & 0o777 == 0o600


def _chunked_head(api: ServedApi) -> bytes:
    return (
        f"POST /v1/retrieve HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).encode()


def test_a_chunked_body_is_read_and_bounded_too(api: ServedApi, server: Running) -> None:
    question = json.dumps(api.question).encode()
    largest = question + b" " * (1024 * 1024 - len(question))
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n"

    for body, expected in ((question, 200), (largest, 200), (largest + b" ", 413)):
        in_chunks = iter([body])  # sent without its length
        assert server.ask("POST", "/v1/retrieve", in_chunks, **_json_headers(api))[0] == expected
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(_chunked_head(api) + piece * 17)
        answer = connection.recv(65536)
        with pytest.raises(OSError, match=r"reset|pipe"):  # it hangs up on what goes on and on
            while True:
                connection.sendall(piece)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert server.is_ready()


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"5\r\nab", b"ffffffffffffffffff\r\n", b"-1\r\n"])
def test_a_broken_chunked_body_is_no_error_of_ours(
    api: ServedApi, server: Running, chunk: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(_chunked_head(api) + chunk)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(65536)

    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert "ERROR" not in server.log.read_text("utf-8")


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    environment = {"KSHIFT_API_PORT": "nonsense", "KSHIFT_EMBEDDER": "nobody"}
    finished = subprocess.run(
        [sys.executable, "-m", "kshift_api.server"],
        env={**os.environ, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 2
    assert "KSHIFT_API_PORT" in finished.stderr
    assert "KSHIFT_EMBEDDER" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_body_that_drips_is_cut_off(api: ServedApi) -> None:
    """Over a real connection, with a deadline short enough for a test."""
    ours, theirs = socket.socketpair()
    api.app.config["BODY_TIMEOUT_S"] = 0.3
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.02):
            theirs.send(b" ")

    dripping = threading.Thread(target=drip)
    dripping.start()
    started = time.monotonic()
    with ours, theirs, ours.makefile("rb") as stream:
        response = api.client.post(
            "/v1/retrieve",
            headers={"Authorization": f"Bearer {api.key}", "Content-Type": "application/json"},
            environ_overrides={
                "gunicorn.socket": ours,
                "wsgi.input": stream,
                "CONTENT_LENGTH": "1000",
            },
        )
        stop.set()
        dripping.join()

    assert (response.status_code, json.loads(response.data)["code"]) == (408, "body_timeout")
    assert time.monotonic() - started < 10


def test_the_read_side_never_loads_dagster_or_its_siblings() -> None:
    program = (
        "import sys, kshift_api.server; print([name for name in sys.modules if name.split('.')[0]"
        " in ('dagster', 'kshift_assets', 'kshift_cli')])"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert finished.stdout == "[]\n"
