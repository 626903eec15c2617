"""Other indexing tools on the files and the stub of bench.index, each in its own environment."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from bench.commands import BenchHome, Measured, bench_home
from bench.index import bare_script, edit, write_tree

PASSES = Path(__file__).with_name("passes")
# CocoIndex reports its use and writes its log between our lines otherwise.
QUIET = {"COCOINDEX_DISABLE_USAGE_TRACKING": "1", "COCOINDEX_LOG_LEVEL": "error"}


@dataclass(frozen=True, slots=True)
class Peer:
    """
    A tool to compare with. name: of its pinned requirements and its pass in bench/passes/.

    package: whose version is shown.
    """

    name: str
    title: str
    package: str

    @property
    def requirements(self) -> Path:
        return PASSES / f"{self.name}.txt"

    @property
    def label(self) -> str:
        (version,) = [
            line.partition("==")[2]
            for line in self.requirements.read_text("utf-8").splitlines()
            if line.startswith(f"{self.package}==")
        ]
        return f"{self.title} {version}"


PEERS = {
    peer.name: peer
    for peer in (
        Peer("cocoindex", "CocoIndex", "cocoindex"),
        Peer("langchain", "LangChain index()", "langchain-core"),
        Peer("llamaindex", "LlamaIndex", "llama-index-core"),
    )
}


@dataclass(frozen=True, slots=True)
class Row:
    """A first index, one with nothing changed, one after edits, and the texts that it embedded."""

    label: str
    chunks: int
    first: Measured
    unchanged: Measured
    edited: Measured
    embedded_again: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environments", type=Path, help="folder for the peers' environments")
    parser.add_argument("--only", action="append", choices=PEERS, help="may be given again")
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--latency-ms", type=int, default=50)
    parser.add_argument("--edited", type=float, default=0.01, help="share of files edited")
    arguments = parser.parse_args()
    peers = [PEERS[name] for name in arguments.only or PEERS]
    pythons = {peer.name: environment_of(peer, arguments.environments) for peer in peers}
    rows = []
    with bench_home(arguments.latency_ms) as home:
        paths = write_tree(home.tree, arguments.files)
        bare = bare_script(home, paths)
        rows.append(kshift_row(home, paths, arguments.edited))
        for peer in peers:
            print(peer.label, file=sys.stderr)
            paths = write_tree(home.tree, arguments.files)  # unedited again
            rows.append(peer_row(home, peer, pythons[peer.name], paths, arguments.edited))
    print(f"{arguments.files} files, {arguments.latency_ms} ms a request")
    show(bare, rows)


def environment_of(peer: Peer, folder: Path) -> Path:
    """Return the python of the peer's environment, built from its pins unless it is there."""
    place = folder.absolute() / peer.name
    built_from = place / "built-from.txt"
    pins = peer.requirements.read_text("utf-8")
    python = place / "bin" / "python"
    if not built_from.exists() or built_from.read_text("utf-8") != pins:
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        pip = [str(python), "-m", "pip", *install, "-r", str(peer.requirements)]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        built_from.write_text(pins, "utf-8")
    return python


def kshift_row(home: BenchHome, paths: list[Path], share: float) -> Row:
    return _row(home, "kshift", paths, share, lambda: home.kshift("index"))


def peer_row(home: BenchHome, peer: Peer, python: Path, paths: list[Path], share: float) -> Row:
    state = home.folder / peer.name
    state.mkdir()
    database_url = _own_database(home.database_url(), f"peer_{peer.name}")
    environment = {"PEER_DATABASE_URL": database_url, **QUIET}
    argv = [str(python), str(PASSES / f"{peer.name}_pass.py"), str(home.tree), str(state)]
    return _row(home, peer.label, paths, share, lambda: home.measure(argv, environment))


def _row(
    home: BenchHome, label: str, paths: list[Path], share: float, run: Callable[[], Measured]
) -> Row:
    at_first = home.texts_embedded()
    first, unchanged = run(), run()
    before_edit = home.texts_embedded()
    edit(paths, share)
    edited = run()
    at_last = home.texts_embedded()
    return Row(label, before_edit - at_first, first, unchanged, edited, at_last - before_edit)


def _own_database(admin_url: str, name: str) -> str:
    with psycopg.connect(admin_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
    url = urlsplit(admin_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("CREATE EXTENSION vector")
    return url


def show(bare: Measured, rows: list[Row]) -> None:
    """Seconds of work, imports apart; for kshift those of the whole command stand below it."""
    print(
        f"{'':26}{'chunks':>7}{'first index':>13}{'ratio':>7}{'CPU':>9}{'unchanged':>11}"
        f"{'edited':>9}{'embedded again':>16}{'peak MB':>9}"
    )
    bare_s = bare.document["seconds"]
    print(f"{'bare script':33}{bare_s:>11.2f} s{1:>7.2f}{bare.cpu_s:>7.1f} s{bare.peak_mb:>45.0f}")
    for row in rows:
        runs = (row.first, row.unchanged, row.edited)
        first_s, unchanged_s, edited_s = (run.document["seconds"] for run in runs)
        print(
            f"{row.label:26}{row.chunks:>7}{first_s:>11.2f} s{first_s / bare_s:>7.2f}"
            f"{row.first.cpu_s:>7.1f} s{unchanged_s:>9.2f} s{edited_s:>7.2f} s"
            f"{row.embedded_again:>16}{max(run.peak_mb for run in runs):>9.0f}"
        )
        if row.label == "kshift":
            print(
                f"{'  from command to done':33}{row.first.seconds:>11.2f} s"
                f"{row.first.seconds / bare_s:>7.2f}{'':9}"
                f"{row.unchanged.seconds:>9.2f} s{row.edited.seconds:>7.2f} s"
            )


if __name__ == "__main__":
    main()
