"""`kshift demo` as a real process: what `make demo` does after its set-up."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import KSHIFT, plain_environment, processes_of
from unprivileged import public_folder

from kshift_knowledge.postgres.embedded import EmbeddedServer
from kshift_knowledge.tree import scan_tree

EXAMPLES = Path(__file__).parent.parent / "examples" / "knowledge"
ITEMS = len(scan_tree(EXAMPLES).entries)
TIMEOUT_S = 240.0  # the local model embeds about 11 chunks a second on one core

# Whatever a user has set: the demo is the same everywhere.
ELSEWHERE = {
    "KSHIFT_KNOWLEDGE_DIR": "/nowhere",
    "KSHIFT_DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none",
    "KSHIFT_CHUNK_TOKENS": "32",
    "KSHIFT_EMBEDDER": "openai",
    "OPENAI_API_KEY": "sk-not-used",
    "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
}


@dataclass(frozen=True)
class Demo:
    """What two runs in one home printed on stdout, and what was left of each."""

    home: Path
    first: str
    second: str
    left: dict[int, str]
    is_server_left: bool


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with public_folder() as folder:
        home = folder / "home"
        (folder / ".env").write_text("KSHIFT_TOP_K=0\n")  # wrong, if it were read
        first = _run(home)
        left, is_server_left = processes_of(home), EmbeddedServer(home).is_running()
        yield Demo(home, first, _run(home), left, is_server_left)


def test_three_answers_cite_files_that_exist(demo: Demo) -> None:
    answers = demo.first.split("POST /v1/retrieve: ")[1:]

    assert len(answers) == 3
    for answer in answers:
        place = re.search(r"^  (\S+/\S+): ", answer, re.MULTILINE)
        assert place is not None
        cited = re.findall(r"^\[.+#\d+\]  (\S+) ", answer, re.MULTILINE)
        assert cited
        assert [file for file in cited if not any((EXAMPLES / place[1]).glob(f"*/**/{file}"))] == []


def test_the_first_run_indexes_every_example(demo: Demo) -> None:
    assert f"Indexed {ITEMS} of {ITEMS} items in 1 runs: " in demo.first


def test_the_second_run_indexes_nothing_and_makes_no_embedding_call(demo: Demo) -> None:
    assert f"Indexed 0 of {ITEMS} items in 0 runs: 0 chunks embedded in 0 calls" in demo.second
    assert demo.second.count("POST /v1/retrieve: ") == 3


def test_nothing_is_left_running(demo: Demo) -> None:
    assert (demo.left, demo.is_server_left) == ({}, False)
    assert (processes_of(demo.home), EmbeddedServer(demo.home).is_running()) == ({}, False)


def _run(home: Path) -> str:
    done = subprocess.run(
        [KSHIFT, "demo", "--home", str(home)],
        env=plain_environment() | ELSEWHERE,
        cwd=home.parent,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
