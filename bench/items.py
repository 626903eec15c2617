"""How the cost of an index grows with the number of its items: small files and an instant stub."""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import statistics
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.commands import BenchHome, Measured, bench_home
from kshift_assets.instance import WORKSPACE
from kshift_cli.children import Child, Children

SIZES = (1_000, 10_000)
FULL = (*SIZES, 100_000)
DIMENSIONS = 64  # the vectors are not what is measured
EDITED = 100
ACCOUNTS, DATABASES, FOLDER_ITEMS = 4, 2, 100
WEBSERVER_S = 300.0

# What the page of a partitioned asset asks for, dagster-webserver 1.13.
PAGE_QUERY = """
query PartitionHealthQuery($assetKey: AssetKeyInput!) {
  assetNodeOrError(assetKey: $assetKey) {
    __typename
    ... on AssetNode {
      id
      partitionKeysByDimension { name type partitionKeys }
      assetPartitionStatuses {
        ... on DefaultPartitionStatuses {
          materializedPartitions materializingPartitions failedPartitions
        }
      }
    }
  }
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, metavar="ITEMS")
    parser.add_argument("--ticks", type=int, default=3, help="the median counts (default 3)")
    parser.add_argument("--full", action="store_true", help=f"up to {FULL[-1]:,} items")
    arguments = parser.parse_args()
    costs = []
    for size in arguments.sizes or (FULL if arguments.full else SIZES):
        costs.append(cost_of(size, arguments.ticks))
        print(f"{size:,} items are done", file=sys.stderr)
    show(costs)


@dataclass(frozen=True, slots=True)
class Cost:
    """
    What one size costs; seconds unless said otherwise.

    compared: the first tick of a process, which compares tree and index. passed_over: the next
    one, in which nothing moved. page: until the asset page has all partitions and their status.
    """

    items: int
    first: Measured
    compared: float
    passed_over: float
    edited: Measured
    page: float


def cost_of(items: int, ticks: int) -> Cost:
    """Index that many items in a new home, edit some, and look at them in Dagster."""
    with bench_home(dimensions=DIMENSIONS) as home:
        paths = write_items(home.tree, items)
        home.kshift("doctor")  # starts and migrates the server, which is not what is measured
        first = home.kshift("index")
        assert first.document["items_indexed"] == items, first.document
        idle = [
            home.measure([sys.executable, "-m", "bench.idle_tick"]).document for _ in range(ticks)
        ]
        edited = paths[:: max(1, items // EDITED)][:EDITED]
        for path in edited:
            path.write_text(path.read_text("utf-8") + "One more line.\n", "utf-8")
        after_edit = home.kshift("index")
        assert after_edit.document["items_indexed"] == len(edited), after_edit.document
        page_s = _page_s(home, items)
    return Cost(
        items,
        first,
        statistics.median(tick["compared"]["seconds"] for tick in idle),
        statistics.median(tick["passed_over"]["seconds"] for tick in idle),
        after_edit,
        page_s,
    )


def write_items(tree: Path, items: int) -> list[Path]:
    """Notes of a few lines over four accounts with two databases each, 100 to a folder."""
    paths = []
    for number in range(items):
        database = tree / f"account-{number % ACCOUNTS}/site/notes-{number // ACCOUNTS % DATABASES}"
        folder = database / f"part-{number // (ACCOUNTS * DATABASES * FOLDER_ITEMS)}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"note-{number}.md"
        path.write_text(
            f"# Note {number}\n\nWhat customer {number} asked for, and what became of it.\n"
            f"\nOrder {number * 7} was sent on day {number % 365}.\n",
            "utf-8",
        )
        paths.append(path)
    return paths


def _page_s(home: BenchHome, items: int) -> float:
    with _webserver(home) as url:
        seconds, node = _open_page(url)
    (dimension,) = node["partitionKeysByDimension"]
    assert len(dimension["partitionKeys"]) == items
    assert len(node["assetPartitionStatuses"]["materializedPartitions"]) == items
    return seconds


def _open_page(url: str) -> tuple[float, dict[str, Any]]:
    """Ask until the code location is loaded; the seconds are of the first answer with data."""
    variables = {"assetKey": {"path": ["embeddings"]}}
    request = urllib.request.Request(
        f"{url}/graphql",
        json.dumps({"query": PAGE_QUERY, "variables": variables}).encode(),
        {"Content-Type": "application/json"},
    )
    give_up_at = time.monotonic() + WEBSERVER_S
    while time.monotonic() < give_up_at:
        began = time.perf_counter()
        with (
            suppress(urllib.error.URLError, ConnectionError),
            urllib.request.urlopen(request, timeout=WEBSERVER_S) as answer,
        ):
            node: dict[str, Any] = json.load(answer)["data"]["assetNodeOrError"]
            if node["__typename"] == "AssetNode":
                return time.perf_counter() - began, node
        time.sleep(0.2)
    raise SystemExit(f"The Dagster page at {url} did not answer within {WEBSERVER_S:g} s")


@contextmanager
def _webserver(home: BenchHome) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Child(
        "dagster-webserver",
        (
            str(Path(sys.executable).parent / "dagster-webserver"),
            *("-h", "127.0.0.1", "-p", str(port), "-w", str(WORKSPACE)),
        ),
        {**home.environment, "DAGSTER_HOME": f"{home.environment['KSHIFT_HOME']}/dagster"},
        home.folder / "webserver.log",
    )
    children = Children([program], lambda line: print(line, file=sys.stderr))
    children.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        children.stop()


def show(costs: Sequence[Cost]) -> None:
    """Print a row for each size, then what one row is of the row above."""
    print(f"small files, an instant stub, at most {EDITED} files edited")
    print(
        f"{'':10}{'first':>9}{'in run':>9}{'CPU':>9}{'peak MB':>9}{'runs':>6}"
        f"{'idle tick':>11}{'compare':>9}{'edited':>9}{'in run':>9}{'runs':>6}{'page':>8}"
    )
    for cost in costs:
        first, edited = cost.first, cost.edited
        print(
            f"{cost.items:<10,}{first.seconds:>7.1f} s{first.document['seconds']:>7.1f} s"
            f"{first.cpu_s:>7.1f} s{first.peak_mb:>9.0f}{first.document['runs']:>6}"
            f"{cost.passed_over:>9.2f} s{cost.compared:>7.2f} s{edited.seconds:>7.1f} s"
            f"{edited.document['seconds']:>7.2f} s{edited.document['runs']:>6}{cost.page:>6.2f} s"
        )
    for fewer, more in itertools.pairwise(costs):
        print(
            f"{more.items / fewer.items:.0f} times the items:"
            f" first index {more.first.seconds / fewer.first.seconds:.1f} times the seconds,"
            f" {more.first.cpu_s / fewer.first.cpu_s:.1f} times the CPU,"
            f" {more.first.peak_mb / fewer.first.peak_mb:.2f} times the memory;"
            f" idle tick {more.passed_over / fewer.passed_over:.1f},"
            f" compare {more.compared / fewer.compared:.1f}, page {more.page / fewer.page:.1f}"
        )


if __name__ == "__main__":
    main()
