"""Indexing speed and memory beside a bare script, on the same files and stub, in one run."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.chunker import NoteWriter
from kshift_knowledge.chunker import Chunker
from kshift_knowledge.embedded_text import embedded_text
from kshift_knowledge.front_matter import parse_front_matter
from kshift_knowledge.tokens import Cl100kCounter, token_counter

PROJECT = Path(__file__).parent.parent
KSHIFT = Path(sys.executable).parent / "kshift"
ACCOUNTS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--latency-ms", type=int, default=50)
    parser.add_argument("--edited", type=float, default=0.01, help="share of files edited")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="kshift-bench-") as folder,
        _stub(arguments.latency_ms) as embedding_url,
    ):
        tree, home = Path(folder, "tree"), Path(folder, "home")
        paths = write_tree(tree, arguments.files)
        megabytes = sum(path.stat().st_size for path in paths) / 1e6
        texts = Path(folder, "texts.json")
        texts.write_text(json.dumps(embedded_texts(paths)), "utf-8")
        environment = {
            **os.environ,
            "KSHIFT_HOME": str(home),
            "KSHIFT_KNOWLEDGE_DIR": str(tree),
            "KSHIFT_EMBEDDER": "openai",
            "OPENAI_API_KEY": "sk-bench",
            "OPENAI_BASE_URL": embedding_url,
        }
        doctor = kshift(environment, "doctor").document  # starts and migrates the server
        bare = json.loads(
            subprocess.run(
                [
                    sys.executable,
                    *("-m", "bench.bare_script"),
                    *(str(tree), str(texts), embedding_url, doctor["database_url"]),
                ],
                cwd=PROJECT,
                stdout=subprocess.PIPE,
                check=True,
            ).stdout
        )
        first = kshift(environment, "index")
        nothing = kshift(environment, "index")
        edited = edit(paths, arguments.edited)
        after_edit = kshift(environment, "index")
        kshift(environment, "doctor")
    print(f"{arguments.files} files, {megabytes:.1f} MB, {arguments.latency_ms} ms a request")
    print(f"{'':24}{'in the run':>12}{'ratio':>8}{'command':>10}{'ratio':>8}{'peak MB':>9}")
    print(f"{'bare script':24}{bare['seconds']:>10.2f} s{'':26}{bare['peak_mb']:>9.0f}")
    for label, run in (
        ("first index", first),
        ("nothing changed", nothing),
        (f"{edited} files edited", after_edit),
    ):
        inside = run.document["seconds"]
        print(
            f"{label:24}{inside:>10.2f} s{inside / bare['seconds']:>8.2f}"
            f"{run.seconds:>8.2f} s{run.seconds / bare['seconds']:>8.2f}{run.peak_mb:>9.0f}"
        )
    embedded = after_edit.document["chunks_embedded"]
    print(f"chunks embedded per edited file: {embedded / edited:.2f}")
    print(f"chunks: {first.document['chunks_total']}, runs: {first.document['runs']}")


@dataclass(frozen=True, slots=True)
class Measured:
    document: dict[str, Any]
    seconds: float
    peak_mb: float


def kshift(environment: dict[str, str], *arguments: str) -> Measured:
    """Run a command; peak memory is of the process and its children, without the server."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [KSHIFT, *arguments, "--json"], env=environment, stdout=subprocess.PIPE, stderr=sys.stderr
    )
    peak = _Peak(process.pid)
    peak.start()
    output, _ = process.communicate()
    seconds = time.perf_counter() - began
    peak.stopping.set()
    peak.join()
    return Measured(json.loads(output), seconds, peak.megabytes)


class _Peak(threading.Thread):
    """Watches the proportional memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self.stopping = threading.Event()
        self.megabytes = 0.0

    def run(self) -> None:
        while not self.stopping.wait(0.05):
            self.megabytes = max(self.megabytes, sum(map(_pss_mb, self._family())))

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
    return b"postgres" in command


def _pss_mb(pid: int) -> float:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    except OSError:
        return 0.0
    (line,) = [line for line in rollup.splitlines() if line.startswith("Pss:")]
    return int(line.split()[1]) / 1024


def write_tree(tree: Path, files: int) -> list[Path]:
    """Notes over four accounts with two databases each."""
    counter = token_counter()
    assert isinstance(counter, Cl100kCounter)
    paths = []
    for number, text in enumerate(NoteWriter(counter, seed=7).notes(files)):
        place = tree / f"account-{number % ACCOUNTS}" / "site" / f"notes-{number // ACCOUNTS % 2}"
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"note-{number}.md"
        path.write_text(text, "utf-8")
        paths.append(path)
    return paths


def embedded_texts(paths: list[Path]) -> list[str]:
    """What kshift will send for these files."""
    counter, chunker = token_counter(), Chunker()
    texts = []
    for path in paths:
        text = path.read_text("utf-8")
        title = parse_front_matter(text).name
        texts += [embedded_text(chunk, title, counter) for chunk in chunker.cut(text)]
    return texts


def edit(paths: list[Path], share: float) -> int:
    """Change one word in the middle of some files."""
    chosen = random.Random(3).sample(paths, max(1, int(len(paths) * share)))
    for path in chosen:
        text = path.read_text("utf-8")
        middle = text.index(" ", len(text) // 2)
        path.write_text(f"{text[:middle]} edited{text[middle:]}", "utf-8")
    return len(chosen)


@contextmanager
def _stub(latency_ms: int) -> Iterator[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.embedding_server", "--latency-ms", str(latency_ms)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
