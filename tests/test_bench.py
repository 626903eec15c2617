"""The benches run: each with tiny sizes, as a command, prints its table. Nothing is timed here."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import plain_environment

from bench.commands import Measured
from bench.items import Cost, show
from bench.peers import PASSES, PEERS, Peer

PROJECT = Path(__file__).parent.parent


def bench(*arguments: str, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `python -m bench` to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=PROJECT,
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == exit_code, f"{done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


def rows(table: str) -> list[str]:
    """What each line starts with: the words before the first wide gap."""
    return [re.split(r"  |: ", line)[0] for line in table.splitlines() if line]


def test_the_chunker_is_measured_beside_mere_encoding() -> None:
    printed = bench("chunker", "examples/knowledge", "--rounds", "1").stdout

    assert rows(printed)[-3:] == ["encode_ordinary", "Chunker.cut", "ratio"]


def test_indexing_is_measured_beside_a_bare_script() -> None:
    printed = bench("index", "--files", "8", "--latency-ms", "0").stdout

    assert rows(printed.partition("peak MB")[2])[:4] == [
        "bare script",
        "first index",
        "nothing changed",
        "1 files edited",
    ]
    assert "chunks embedded per edited file: 1.00" in printed
    assert "runs: 1" in printed


def test_growing_numbers_of_items_are_measured() -> None:
    printed = bench("items", "8", "--ticks", "1").stdout

    (row,) = [line for line in printed.partition("page\n")[2].splitlines() if line[:1].isdigit()]
    first_runs, edited_runs = row.split()[8], row.split()[-3]
    assert (row.split()[0], first_runs, edited_runs) == ("8", "1", "1")


def test_growth_from_size_to_size_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    done = {"seconds": 1.0, "runs": 1}
    few = Cost(10, Measured(done, 2.0, 1.0, 100.0), 1.0, 0.5, Measured(done, 3.0, 1.0, 100.0), 0.1)
    many = replace(few, items=100, first=Measured(done, 8.0, 6.0, 150.0), page=0.4)

    show([few, many])

    assert capsys.readouterr().out.splitlines()[-1] == (
        "10 times the items: first index 4.0 times the seconds, 6.0 times the CPU,"
        " 1.50 times the memory; idle tick 1.0, compare 1.0, page 4.0"
    )


def test_a_bench_that_does_not_exist_is_named() -> None:
    assert "no bench is called nothing" in bench("nothing", exit_code=2).stderr


def test_help_names_the_long_benches() -> None:
    printed = bench("--help").stdout

    assert "peers FOLDER" in printed
    assert "items --full" in printed


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_a_peer_is_pinned_down_to_its_last_dependency(peer: Peer) -> None:
    pins = peer.requirements.read_text("utf-8").splitlines()

    assert [pin for pin in pins if not re.fullmatch(r"[\w.\-]+==[\w.]+", pin)] == []
    assert re.search(r"\d+\.\d+", peer.label)
    compile((PASSES / f"{peer.name}_pass.py").read_text("utf-8"), peer.name, "exec")


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_peers_are_measured_beside_a_bare_script(tmp_path: Path) -> None:
    printed = bench("peers", str(tmp_path), "--files", "8", "--latency-ms", "0").stdout

    table = rows(printed.partition("peak MB")[2])
    assert {"bare script", "kshift", *(peer.label for peer in PEERS.values())} <= set(table)
