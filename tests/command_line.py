"""Runs the real `kshift` in a home of its own, with our scripted embedding server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from embedding_server import EmbeddingServer
from unprivileged import public_folder

from kshift_cli.main import cli
from kshift_knowledge.postgres.keeper import dismiss

KSHIFT = Path(sys.executable).with_name("kshift")
DIMENSIONS = 16
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class CommandLine:
    """
    One home, its tree and the embedding server behind it.

    folder: where commands run; no `.env` lies there unless a test writes one.
    settings: the environment of every command, which starts from none of ours.
    """

    folder: Path
    embedding_server: EmbeddingServer
    settings: dict[str, str]

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    def write(self, place: str, text: str | bytes) -> Path:
        """Put a file into the tree."""
        target = self.tree / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode() if isinstance(text, str) else text)
        return target

    def run(
        self, *arguments: str, exit_code: int = 0, **settings: str | None
    ) -> subprocess.CompletedProcess[str]:
        """Run `kshift` to its end; *settings* come on top, None takes one away."""
        done = subprocess.run(
            [KSHIFT, *arguments],
            env=self.environment(**settings),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == exit_code, f"{done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *arguments: str, exit_code: int = 0, **settings: str | None) -> Any:
        """Run `kshift ... --json` and return the one document on its stdout."""
        return json.loads(self.run(*arguments, "--json", exit_code=exit_code, **settings).stdout)

    @contextmanager
    def started(self, *arguments: str, **settings: str | None) -> Iterator[subprocess.Popen[str]]:
        """Start `kshift` with pipes to its stdout and stderr; what is left of it is killed."""
        with subprocess.Popen(
            [KSHIFT, *arguments],
            env=self.environment(**settings),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def environment(self, **settings: str | None) -> dict[str, str]:
        merged = {**plain_environment(), **self.settings, **settings}
        return {name: value for name, value in merged.items() if value is not None}

    def processes(self) -> dict[int, str]:
        """Every living process that carries this home in its command line or environment."""
        return processes_of(self.home)


@contextmanager
def command_line(**settings: str) -> Iterator[CommandLine]:
    """A folder with an empty tree; whatever runs for its home is stopped at the end."""
    with public_folder() as folder, EmbeddingServer(dimensions=DIMENSIONS) as server:
        line = CommandLine(
            folder,
            server,
            {
                "KSHIFT_HOME": str(folder / "home"),
                "KSHIFT_KNOWLEDGE_DIR": str(folder / "tree"),
                "KSHIFT_EMBEDDER": "openai",
                "KSHIFT_EMBEDDING_DIMENSIONS": str(DIMENSIONS),
                "OPENAI_BASE_URL": server.url,
                **settings,
            },
        )
        line.tree.mkdir()
        try:
            yield line
        finally:
            if line.home.exists():
                dismiss(line.home)


def find(arguments: list[str]) -> tuple[click.Command, list[str]]:
    """The command that *arguments* name, and what is left for it. Raises click.UsageError."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        _, found, arguments = command.resolve_command(click.Context(command), arguments)
        assert found is not None
        command = found
    return command, arguments


def parse(arguments: list[str]) -> None:
    """Read a command line with its command's own options. Raises click.UsageError."""
    command, rest = find(arguments)
    command.make_context(command.name, rest)


def plain_environment() -> dict[str, str]:
    """Our environment without any setting of kshift."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KSHIFT_", "OPENAI_", "DAGSTER_"))
    }


def processes_of(home: Path) -> dict[int, str]:
    """Process ids and command lines of what carries *home*; other users' environments are shut."""
    needle = os.fsencode(home)
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        argv = _read(entry / "cmdline")
        if needle in argv or needle in _read(entry / "environ"):
            found[int(entry.name)] = argv.replace(b"\0", b" ").decode(errors="replace")
    return found


def wait_for(what: Callable[[], Any], *, within_s: float) -> Any:
    """Return the first true answer of *what*; fail when none comes in time."""
    give_up_at = time.monotonic() + within_s
    while not (answer := what()):
        assert time.monotonic() < give_up_at, f"{what} did not come true within {within_s:g} s"
        time.sleep(0.05)
    return answer


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # ended meanwhile, or another user's
        return b""
