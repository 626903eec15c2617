"""A real HTTP server that speaks OpenAI's embeddings API and fails on demand; knows no client."""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import random
import signal
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Answer = dict[str, Any]


def vector_of(text: str, dimensions: int) -> NDArray[np.float32]:
    """Return the unit vector that this server has for *text*, always and everywhere the same."""
    noise = hashlib.shake_256(text.encode("utf-8", "surrogatepass")).digest(dimensions)
    vector = np.frombuffer(noise, dtype=np.int8).astype(np.float32) + np.float32(0.5)
    unit: NDArray[np.float32] = vector / np.linalg.norm(vector)
    return unit


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came in; order counts from 0."""

    order: int
    authorization: str
    texts: tuple[str, ...]
    model: str
    dimensions: int | None
    encoding_format: str | None


@dataclass(frozen=True, slots=True)
class Fault:
    """
    What is different about one answer; the default is a good one.

    alter: changes the good answer, or returns something else to be sent as JSON. body: sent
    instead. delay_s: before the first byte. bytes_per_s: how slowly bytes drip, the head's too.
    reset_after: the connection is reset when so many bytes are out.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    alter: Callable[[Answer], object] | None = None
    delay_s: float = 0.0
    bytes_per_s: float | None = None
    reset_after: int | None = None


GOOD = Fault()


def refused(
    status: int, code: str | None = None, *, message: str = "refused", **headers: str
) -> Fault:
    """Return an error in OpenAI's form; headers in Python spelling (retry_after="1")."""
    body = {"error": {"message": message, "type": code, "param": None, "code": code}}
    spelled = {name.replace("_", "-"): value for name, value in headers.items()}
    return Fault(status, spelled, json.dumps(body).encode())


def answering(change: Callable[[Answer], object]) -> Fault:
    """Return a fault that sends what *change* makes of the good answer."""
    return Fault(alter=change)


def embeddings_as(make: Callable[[list[float]], object]) -> Fault:
    """Return a fault that replaces each embedding by what *make* makes of its numbers."""

    def change(answer: Answer) -> Answer:
        for entry in answer["data"]:
            entry["embedding"] = make(_numbers(entry["embedding"]))
        return answer

    return answering(change)


def last_embedding_as(make: Callable[[list[float]], object]) -> Fault:
    """Return a fault that replaces the last embedding by what *make* makes of its numbers."""

    def change(answer: Answer) -> Answer:
        entry = answer["data"][-1]
        entry["embedding"] = make(_numbers(entry["embedding"]))
        return answer

    return answering(change)


def as_base64(numbers: NDArray[np.float32] | list[float], kind: str = "<f4") -> str:
    return base64.b64encode(np.asarray(numbers, dtype=kind).tobytes()).decode()


def shuffled(answer: Answer) -> Answer:
    """Put the vectors in another order; each keeps its index."""
    random.Random(len(answer["data"])).shuffle(answer["data"])
    answer["data"].reverse()
    return answer


def good_answer(request: Request, dimensions: int) -> Answer:
    """Return what OpenAI would answer; dimensions: the width when the request names none."""
    packed = request.encoding_format == "base64"
    rows = [vector_of(text, request.dimensions or dimensions) for text in request.texts]
    tokens = sum(len(text) // 4 + 1 for text in request.texts)
    return {
        "object": "list",
        "model": request.model,
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": as_base64(row) if packed else row.tolist(),
            }
            for index, row in enumerate(rows)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


class EmbeddingServer:
    """
    Answers on loopback with `vector_of` each text, and keeps a log.

    `with EmbeddingServer() as server:` runs it; give *server.url* to the client. It checks what
    OpenAI checks: the key where *api_key* is set, at most 2,048 inputs, no empty input.
    """

    def __init__(
        self,
        *,
        dimensions: int = 1536,
        latency_s: float = 0.0,
        api_key: str | None = None,
        port: int = 0,
        keeps_log: bool = True,
    ) -> None:
        self.dimensions = dimensions
        self.latency_s = latency_s
        self.api_key = api_key
        self.keeps_log = keeps_log
        self.requests: list[Request] = []
        self.counts = {"requests": 0, "texts": 0}
        self.most_in_flight = 0
        self.stopping = threading.Event()
        self._in_flight = 0
        self._lock = threading.Lock()
        self._script: deque[Fault] = deque()
        self._choose: Callable[[Request], Fault] = lambda request: GOOD
        self._connections: set[socket.socket] = set()
        self._http = _HttpServer(("127.0.0.1", port), _Handler)
        self._http.embeddings = self
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def url(self) -> str:
        """The base URL for a client, with its /v1."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def texts(self) -> list[str]:
        """All texts that came in, in order."""
        return [text for request in self.requests for text in request.texts]

    @property
    def open_connections(self) -> int:
        """How many connections clients hold open now."""
        return len(self._connections)

    def script(self, *faults: Fault) -> None:
        """Give the next requests these answers, one each; later ones are good again."""
        self._script.extend(faults)

    def always(self, choose: Fault | Callable[[Request], Fault]) -> None:
        """Give every request this answer, or the one that *choose* returns for it."""
        self._choose = (lambda request: choose) if isinstance(choose, Fault) else choose

    def start(self) -> EmbeddingServer:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop listening and break every connection, also those that wait."""
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):  # The client was faster.
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def __enter__(self) -> EmbeddingServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()

    def enter(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)

    def leave(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    def begin(self, authorization: str, body: Mapping[str, Any]) -> tuple[Request, Fault]:
        texts = body["input"]
        with self._lock:
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            request = Request(
                order=self.counts["requests"],
                authorization=authorization,
                texts=tuple([texts] if isinstance(texts, str) else texts),
                model=body["model"],
                dimensions=body.get("dimensions"),
                encoding_format=body.get("encoding_format"),
            )
            self.counts["requests"] += 1
            self.counts["texts"] += len(request.texts)
            if self.keeps_log:
                self.requests.append(request)
            scripted = self._script.popleft() if self._script else None
        return request, scripted or self._refusal(request) or self._choose(request)

    def end(self) -> None:
        with self._lock:
            self._in_flight -= 1

    def _refusal(self, request: Request) -> Fault | None:
        if self.api_key is not None and request.authorization != f"Bearer {self.api_key}":
            return refused(401, "invalid_api_key")
        if len(request.texts) > 2048 or not all(request.texts):
            return refused(400, "invalid_request_error", message="$.input is invalid")
        return None


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    embeddings: EmbeddingServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _HttpServer

    def handle(self) -> None:
        self.server.embeddings.enter(self.connection)
        try:
            with suppress(ConnectionError, TimeoutError):  # The client gave up, or we reset it.
                super().handle()
        finally:
            self.server.embeddings.leave(self.connection)

    def do_GET(self) -> None:
        """`GET /counts`: how much came in, for callers in another process."""
        self._write(200, {}, json.dumps(self.server.embeddings.counts).encode(), GOOD)

    def do_POST(self) -> None:
        embeddings = self.server.embeddings
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.rpartition("/")[2] != "embeddings":
            self._write(404, {}, b"<html>not found</html>", GOOD)
            return
        request, fault = embeddings.begin(self.headers.get("Authorization", ""), body)
        try:
            delay_s = embeddings.latency_s + fault.delay_s
            if delay_s and embeddings.stopping.wait(delay_s):
                self.close_connection = True
                return
            self._answer(request, fault)
        finally:
            embeddings.end()

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def _answer(self, request: Request, fault: Fault) -> None:
        content = fault.body
        if content is None:
            answer = good_answer(request, self.server.embeddings.dimensions)
            altered = answer if fault.alter is None else fault.alter(answer)
            content = json.dumps(altered).encode()
        self._write(fault.status, fault.headers, content, fault)

    def _write(self, status: int, headers: Mapping[str, str], content: bytes, fault: Fault) -> None:
        head = {
            "Date": formatdate(usegmt=True),
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            **headers,
        }
        lines = [f"HTTP/1.1 {status} {self.responses.get(status, ('Unknown',))[0]}"]
        lines += [f"{name}: {value}" for name, value in head.items()]
        message = "\r\n".join([*lines, "", ""]).encode() + content
        if fault.reset_after is not None:
            self.connection.sendall(message[: fault.reset_after])
            self._reset()
        elif fault.bytes_per_s is not None:
            self._drip(message, fault.bytes_per_s)
        else:
            self.connection.sendall(message)

    def _drip(self, message: bytes, bytes_per_s: float) -> None:
        for place in range(len(message)):
            if self.server.embeddings.stopping.wait(1 / bytes_per_s):
                return
            self.connection.sendall(message[place : place + 1])

    def _reset(self) -> None:
        """Close so that the other side gets RST: no lingering, both directions at once."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.server.embeddings.leave(self.connection)
        self.connection.close()


def _numbers(embedding: str | list[float]) -> list[float]:
    if isinstance(embedding, list):
        return embedding
    numbers: list[float] = np.frombuffer(base64.b64decode(embedding), "<f4").tolist()
    return numbers


def main() -> None:
    """Serve until TERM or Ctrl-C; the first line printed is the base URL."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--dimensions", type=int, default=1536)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    server = EmbeddingServer(
        dimensions=arguments.dimensions,
        latency_s=arguments.latency_ms / 1000,
        port=arguments.port,
        keeps_log=False,
    )
    with server:
        print(server.url, flush=True)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
