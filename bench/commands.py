"""Runs `kshift` in a home of its own beside an embedding stub: seconds, processor time, memory."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kshift_knowledge.postgres.keeper import dismiss
from kshift_knowledge.tokens import token_counter

PROJECT = Path(__file__).parent.parent
KSHIFT = Path(sys.executable).parent / "kshift"
_SAMPLE_S = 0.1
_OURS = ("KSHIFT_", "OPENAI_", "DAGSTER_")


@dataclass(frozen=True, slots=True)
class Measured:
    """
    A command that printed one JSON document, and what it cost.

    cpu_s: of the process and the children it waited for; it says more than seconds where others
    use the machine, too. peak_mb: of the process and its children, without the database server.
    """

    document: dict[str, Any]
    seconds: float
    cpu_s: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class BenchHome:
    """A folder with a tree, a home for its index and a stub that makes its vectors."""

    folder: Path
    embedding_url: str
    environment: Mapping[str, str]

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    def kshift(self, *arguments: str) -> Measured:
        return self.measure([str(KSHIFT), *arguments, "--json"])

    def measure(self, argv: Sequence[str], environment: Mapping[str, str] = {}) -> Measured:
        """Run a program in the project's folder; *environment* comes on top."""
        cpu_before = _cpu_s()
        began = time.perf_counter()
        process = subprocess.Popen(
            argv,
            env={**self.environment, **environment},
            cwd=PROJECT,
            stdout=subprocess.PIPE,
        )
        peak = _Peak(process.pid)
        peak.start()
        output, _ = process.communicate()
        seconds = time.perf_counter() - began
        peak.stop()
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(argv[:3])} ended with {process.returncode}: {output!r}")
        return Measured(json.loads(output), seconds, _cpu_s() - cpu_before, peak.megabytes)

    def database_url(self) -> str:
        """An administrator's URL; starts and migrates the embedded server."""
        url: str = self.kshift("doctor").document["database_url"]
        return url

    def texts_embedded(self) -> int:
        """How many texts the stub was asked for so far."""
        address = self.embedding_url.removesuffix("/v1") + "/counts"
        with urllib.request.urlopen(address) as answer:
            count: int = json.load(answer)["texts"]
        return count


@contextmanager
def bench_home(latency_ms: float = 0, dimensions: int = 1536) -> Iterator[BenchHome]:
    """Yield a home that indexes through a stub of OpenAI; nothing of it is left behind."""
    token_counter()  # points tiktoken to our vocabulary, for programs that are not ours too
    plain = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    with (
        tempfile.TemporaryDirectory(prefix="kshift-bench-") as name,
        _stub(latency_ms, dimensions) as embedding_url,
    ):
        folder = Path(name)
        environment = {
            **plain,
            "KSHIFT_HOME": str(folder / "home"),
            "KSHIFT_KNOWLEDGE_DIR": str(folder / "tree"),
            "KSHIFT_EMBEDDER": "openai",
            "KSHIFT_EMBEDDING_DIMENSIONS": str(dimensions),
            "OPENAI_API_KEY": "sk-bench",
            "OPENAI_BASE_URL": embedding_url,
        }
        try:
            yield BenchHome(folder, embedding_url, environment)
        finally:
            dismiss(folder / "home")


@contextmanager
def _stub(latency_ms: float, dimensions: int) -> Iterator[str]:
    options = ("--latency-ms", str(latency_ms), "--dimensions", str(dimensions))
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.embedding_server", *options],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    with server.stdout:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
            server.wait()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Peak(threading.Thread):
    """Watches the proportional memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._stopping = threading.Event()
        self.megabytes = 0.0

    def run(self) -> None:
        while not self._stopping.wait(_SAMPLE_S):
            self.megabytes = max(self.megabytes, sum(map(_pss_mb, self._family())))

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _family(self) -> list[int]:
        parents: dict[int, int] = {}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    stat = Path(entry.path, "stat").read_text("ascii", "replace")
                except OSError:
                    continue
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
        family, frontier = [self._pid], {self._pid}
        while frontier:
            frontier = {pid for pid, parent in parents.items() if parent in frontier}
            family.extend(frontier)
        return [pid for pid in family if not _is_server(pid)]


def _is_server(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
    # A database's URL is an argument of other programs, too.
    return b"postgres" in command.split(b"\0", 1)[0] or b"postgres.keeper" in command


def _pss_mb(pid: int) -> float:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    except OSError:
        return 0.0
    (line,) = [line for line in rollup.splitlines() if line.startswith("Pss:")]
    return int(line.split()[1]) / 1024
