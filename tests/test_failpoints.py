"""Failpoints: what the variable says happens at its moment, and nothing happens without it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kshift_knowledge import failpoints
from kshift_knowledge.failpoints import MOMENTS, FailpointReached, armed, failpoint, parse

PROJECT = Path(__file__).parent.parent
PROGRAM = (
    "from kshift_knowledge.failpoints import failpoint\n"
    "for turn in range(4):\n"
    "    print(turn, flush=True)\n"
    "    failpoint('batch_kept')\n"
)


def run_with(spelled: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, failpoints.VARIABLE: spelled},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_the_variable_every_moment_passes() -> None:
    assert run_with("").stdout.split() == ["0", "1", "2", "3"]


def test_kill9_kills_at_the_hit_that_is_named() -> None:
    done = run_with("batch_kept@3:kill9")

    assert (done.returncode, done.stdout.split()) == (-signal.SIGKILL, ["0", "1", "2"])


def test_raise_fails_at_the_first_hit_and_other_moments_pass() -> None:
    done = run_with("batch_paid:raise, batch_kept:raise")

    assert (done.returncode, done.stdout.split()) == (1, ["0"])
    assert "FailpointReached: batch_kept" in done.stderr


def test_sleep_waits_once() -> None:
    (waiting,) = parse("batch_kept@2:sleep:0.2").values()
    took_s = []
    for _ in range(3):
        started = time.perf_counter()
        waiting.reached()
        took_s.append(time.perf_counter() - started)

    assert [seconds >= 0.2 for seconds in took_s] == [False, True, False]


@pytest.mark.parametrize(
    "spelled",
    ["nowhere:raise", "batch_kept", "batch_kept:stop", "batch_kept:kill9:3", "batch_kept@0:raise"],
)
def test_what_would_never_happen_is_refused(spelled: str) -> None:
    with pytest.raises(ValueError, match=failpoints.VARIABLE):
        parse(spelled)


def test_a_block_arms_a_moment_for_as_long_as_it_lasts() -> None:
    reached: list[str] = []
    with armed("claimed", lambda: reached.append("claimed"), hit=2):
        failpoint("claimed")
        failpoint("claimed")
        failpoint("claimed")
    failpoint("claimed")

    assert reached == ["claimed"]
    with armed("claimed"), pytest.raises(FailpointReached):
        failpoint("claimed")


def test_every_named_moment_is_in_the_code_and_every_one_in_the_code_is_named() -> None:
    used = {
        name
        for package in ("kshift_knowledge", "kshift_assets", "kshift_cli", "kshift_api")
        for module in (PROJECT / package).rglob("*.py")
        for name in re.findall(r'(?<!def )failpoint\("([a-z_]+)"\)', module.read_text("utf-8"))
    }

    assert used == set(MOMENTS)
