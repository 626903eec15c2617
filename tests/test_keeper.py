"""The keeper: a server outlives the command that started it, for a while and no longer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from command_line import processes_of, wait_for
from unprivileged import public_folder

from kshift_knowledge.postgres.embedded import EmbeddedServer
from kshift_knowledge.postgres.keeper import dismiss

STOPPED_S = 30.0


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """One home for all: making its database takes longer than any test here."""
    with public_folder() as folder:
        yield folder / "home"


@pytest.fixture
def server(home: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(home, is_durable=False)
    yield server
    dismiss(home)
    server.stop()


def use_and_leave(home: Path, linger_s: float) -> str:
    """Run what a short command does, in a process of its own; returns the server's URL."""
    command = (
        "import sys\n"
        "from pathlib import Path\n"
        "from kshift_knowledge.postgres.embedded import EmbeddedServer\n"
        "from kshift_knowledge.postgres.keeper import keep_a_while\n"
        "home = Path(sys.argv[1])\n"
        "with EmbeddedServer(home, is_durable=False) as address:\n"
        "    keep_a_while(home, float(sys.argv[2]))\n"
        "    print(address.admin_url)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", command, home, str(linger_s)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_the_server_answers_after_its_command_left(server: EmbeddedServer, home: Path) -> None:
    url = use_and_leave(home, 600)

    with psycopg.connect(url) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_the_server_stops_when_its_time_is_over(server: EmbeddedServer, home: Path) -> None:
    use_and_leave(home, 0.5)

    wait_for(lambda: not server.is_running(), within_s=STOPPED_S)
    wait_for(lambda: processes_of(home) == {}, within_s=STOPPED_S)


def test_another_command_extends_the_time_of_the_one_keeper(
    server: EmbeddedServer, home: Path
) -> None:
    use_and_leave(home, 600)
    keepers = keepers_of(home)

    use_and_leave(home, 0.5)

    assert len(keepers) == 1
    assert keepers_of(home) in (keepers, set())  # the same one, or gone already
    wait_for(lambda: not server.is_running(), within_s=STOPPED_S)


def test_a_dismissed_keeper_takes_the_server_with_it(server: EmbeddedServer, home: Path) -> None:
    use_and_leave(home, 600)

    dismiss(home)

    assert (server.is_running(), keepers_of(home)) == (False, set())


def test_a_dismissed_keeper_leaves_the_server_to_who_still_uses_it(
    server: EmbeddedServer, home: Path
) -> None:
    with server:
        use_and_leave(home, 600)

        dismiss(home)

        assert (server.is_running(), keepers_of(home)) == (True, set())
    assert not server.is_running()


def test_dismissing_nobody_is_fine(home: Path) -> None:
    dismiss(home)

    assert keepers_of(home) == set()


def keepers_of(home: Path) -> set[int]:
    return {pid for pid, command in processes_of(home).items() if "postgres.keeper" in command}
