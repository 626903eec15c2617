"""The Dagster page in a real browser: what a person sees of items, and what they can start."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import CommandLine, command_line, wait_for
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from test_cli_up import free_port

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
PLACE = "acme/shop/notes"
BAD = f"{PLACE}/bad%2C%20%5Bv2%5D.md"
INDEX_JOB = "index_knowledge"
INDEX_FAILED = "FAILURE"  # of the run with the bad note
INDEXED_S = 180.0  # three programs start, and the daemon runs the first batch
RUN_S = 120.0
PATIENCE_MS = 60_000  # the page loads megabytes, and the machine has other things to do

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium"),
]


@dataclass
class Site:
    """`kshift up` over six good notes and a bad one, and the address of its Dagster page."""

    line: CommandLine
    url: str

    @property
    def items(self) -> dict[str, int]:
        (database,) = self.line.json("status")["databases"]
        return dict(database["items"])

    @property
    def requests(self) -> int:
        return self.line.embedding_server.counts["requests"]

    def runs(self, of_a_person: bool = False) -> list[str]:
        """The status of every run of items, newest first, as Dagster's own API says."""
        query = "{runsOrError {... on Runs {results {status jobName tags {key}}}}}"
        request = urllib.request.Request(
            f"{self.url}/graphql",
            data=json.dumps({"query": query}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = json.load(answer)["data"]["runsOrError"]["results"]
        return [
            run["status"]
            for run in found
            if run["jobName"] in (INDEX_JOB, "__ASSET_JOB")
            and of_a_person is all(tag["key"] != "kshift/batch" for tag in run["tags"])
        ]


@contextmanager
def up() -> Iterator[Site]:
    ports = {"KSHIFT_API_PORT": free_port(), "KSHIFT_DAGSTER_PORT": free_port()}
    with command_line(**ports) as line:
        for number in range(6):
            line.write(f"{PLACE}/note-{number}.md", f"# Note {number}\n\nWords about {number}.\n")
        line.write(f"{PLACE}/bad, [v2].md", b"caf\xe9")
        with line.started("up") as process:
            assert process.stderr is not None
            said: list[str] = []
            listener = threading.Thread(target=said.extend, args=(process.stderr,))
            listener.start()
            try:
                wait_for(lambda: any("curl " in word for word in said), within_s=INDEXED_S)
                site = Site(line, f"http://127.0.0.1:{ports['KSHIFT_DAGSTER_PORT']}")
                wait_for(lambda: site.runs() == [INDEX_FAILED], within_s=INDEXED_S)
                yield site
            finally:
                process.terminate()
                listener.join(60)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with up() as site:
        yield site


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    yield page
    page.close()


def open_partitions(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/assets/embeddings?view=partitions")
    expect(page.get_by_text(re.compile(r"\d+ Partitions Selected"))).to_be_visible()


def choose(page: Page, keys: Sequence[str]) -> Locator:
    """Open the dialog that materializes partitions and choose some; returns the dialog."""
    page.get_by_role("button", name="Materialize…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Select a partition or create one").click()
    for key in keys:
        page.get_by_role("menuitem").filter(has_text=key).click()
    page.keyboard.press("Escape")
    return dialog


def test_lineage_leads_from_the_file_to_the_table(page: Page, site: Site) -> None:
    page.goto(
        f"{site.url}/assets/knowledge_chunks?view=lineage&lineageScope=upstream&lineageDepth=5"
    )

    nodes = page.locator("foreignObject")
    for asset, kind in (
        ("knowledge_files", "File"),
        ("chunks", "Python"),
        ("embeddings", "pgvector"),
        ("knowledge_chunks", "Postgres"),
    ):
        node = nodes.filter(has_text=re.compile(rf"^{asset}Latest event"))
        expect(node).to_be_visible()
        expect(node).to_contain_text(kind)
    places = [
        nodes.filter(has_text=re.compile(rf"^{asset}Latest event")).bounding_box()
        for asset in ("knowledge_files", "chunks", "embeddings", "knowledge_chunks")
    ]
    left_edges = [place["x"] for place in places if place is not None]
    assert len(left_edges) == 4 and left_edges == sorted(left_edges)


def test_each_item_shows_its_own_status(page: Page, site: Site) -> None:
    open_partitions(page, site)
    expect(page.get_by_text("Failed (1)")).to_be_visible()
    expect(page.get_by_text("Materialized (6)")).to_be_visible()

    page.get_by_text("Materialized (6)").click()  # takes them out of the list

    expect(page.get_by_text("1 Partitions Selected")).to_be_visible()
    expect(page.get_by_text(BAD, exact=True).first).to_be_attached()


def test_an_item_shows_its_rows_and_its_check(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/assets/embeddings?view=partitions&partition={PLACE}/note-3.md")

    for name in ("chunks_embedded", "tokens", "revision", "text-embedding-3-small"):
        expect(page.get_by_text(name).first).to_be_visible()
    page.goto(f"{site.url}/assets/embeddings?view=checks")
    expect(page.get_by_text("items_of_the_run_are_whole").first).to_be_attached()
    expect(page.get_by_text("Passed").first).to_be_visible()


def test_a_person_materializes_one_item(page: Page, site: Site) -> None:
    requests = site.requests
    open_partitions(page, site)

    dialog = choose(page, [f"{PLACE}/note-1.md"])
    dialog.get_by_role("button", name="Launch 1 run").click()

    wait_for(lambda: site.runs(of_a_person=True)[:1] == ["SUCCESS"], within_s=RUN_S)
    assert site.requests == requests, "its vectors were there already"


def test_a_person_backfills_a_selection(page: Page, site: Site) -> None:
    """Three items in one run; the bad one shows as failed until its file is good."""
    before = site.runs(of_a_person=True)
    open_partitions(page, site)

    dialog = choose(page, [f"{PLACE}/note-2.md", f"{PLACE}/note-4.md", BAD])
    expect(dialog.get_by_text("3 partitions")).to_be_visible()
    expect(dialog.get_by_text("Backfills all partitions in a single run.")).to_be_visible()
    dialog.get_by_role("button", name="Launch backfill").click()

    wait_for(lambda: is_done(site, before), within_s=RUN_S)
    open_partitions(page, site)
    expect(page.get_by_text("Failed (1)")).to_be_visible()
    expect(page.get_by_text("Materialized (6)")).to_be_visible()
    (site.line.tree / PLACE / "bad, [v2].md").write_text("café", "utf-8")
    wait_for(lambda: site.items["failed"] == 0, within_s=RUN_S)
    wait_for(lambda: site.runs()[0] == "SUCCESS", within_s=RUN_S)
    open_partitions(page, site)
    expect(page.get_by_text("Materialized (7)")).to_be_visible()


def is_done(site: Site, before: list[str]) -> bool:
    """Whether there are more runs than before, and none goes on."""
    now = site.runs(of_a_person=True)
    return len(now) > len(before) and set(now) <= {"SUCCESS", "FAILURE"}
