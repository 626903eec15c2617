"""Indexing speed and memory beside a bare script, on the same files and stub, in one run."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.chunker import NoteWriter
from bench.commands import BenchHome, Measured, bench_home
from kshift_knowledge.chunker import Chunker
from kshift_knowledge.embedded_text import embedded_text
from kshift_knowledge.front_matter import parse_front_matter
from kshift_knowledge.tokens import Cl100kCounter, token_counter

ACCOUNTS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--latency-ms", type=int, default=50)
    parser.add_argument("--edited", type=float, default=0.01, help="share of files edited")
    arguments = parser.parse_args()
    with bench_home(arguments.latency_ms) as home:
        paths = write_tree(home.tree, arguments.files)
        megabytes = sum(path.stat().st_size for path in paths) / 1e6
        bare = bare_script(home, paths)
        first = home.kshift("index")
        nothing = home.kshift("index")
        edited = edit(paths, arguments.edited)
        after_edit = home.kshift("index")
    print(f"{arguments.files} files, {megabytes:.1f} MB, {arguments.latency_ms} ms a request")
    print(
        f"{'':20}{'in the run':>12}{'ratio':>8}{'command':>10}{'ratio':>8}{'CPU':>9}{'ratio':>8}"
        f"{'peak MB':>9}"
    )
    bare_s = bare.document["seconds"]
    print(f"{'bare script':20}{bare_s:>10.2f} s{'':26}{bare.cpu_s:>7.2f} s{bare.peak_mb:>17.0f}")
    for label, run in (
        ("first index", first),
        ("nothing changed", nothing),
        (f"{edited} files edited", after_edit),
    ):
        inside = run.document["seconds"]
        print(
            f"{label:20}{inside:>10.2f} s{inside / bare_s:>8.2f}"
            f"{run.seconds:>8.2f} s{run.seconds / bare_s:>8.2f}"
            f"{run.cpu_s:>7.2f} s{run.cpu_s / bare.cpu_s:>8.2f}{run.peak_mb:>9.0f}"
        )
    embedded = after_edit.document["chunks_embedded"]
    print(f"chunks embedded per edited file: {embedded / edited:.2f}")
    print(f"chunks: {first.document['chunks_total']}, runs: {first.document['runs']}")


def bare_script(home: BenchHome, paths: Sequence[Path]) -> Measured:
    """The least that can be done for these files; its document has seconds without the imports."""
    texts = home.folder / "texts.json"
    texts.write_text(json.dumps(embedded_texts(paths)), "utf-8")
    script = [sys.executable, "-m", "bench.bare_script"]
    places = [str(home.tree), str(texts), home.embedding_url, home.database_url()]
    return home.measure([*script, *places])


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


def embedded_texts(paths: Sequence[Path]) -> list[str]:
    """What kshift will send for these files."""
    counter, chunker = token_counter(), Chunker()
    texts = []
    for path in paths:
        text = path.read_text("utf-8")
        title = parse_front_matter(text).name
        texts += [embedded_text(chunk, title, counter) for chunk in chunker.cut(text)]
    return texts


def edit(paths: Sequence[Path], share: float) -> int:
    """Change one word in the middle of some files."""
    chosen = random.Random(3).sample(paths, max(1, int(len(paths) * share)))
    for path in chosen:
        text = path.read_text("utf-8")
        middle = text.index(" ", len(text) // 2)
        path.write_text(f"{text[:middle]} edited{text[middle:]}", "utf-8")
    return len(chosen)


if __name__ == "__main__":
    main()
