"""The command's surface: help with examples, near misses, wrong usage; needs no server."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from command_line import KSHIFT, find, parse, plain_environment

from kshift_cli.main import cli

WITHOUT_JSON = {"up", "demo", "mcp"}


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """The path of every command that does something."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name)


COMMANDS = list(commands(cli))


def kshift(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KSHIFT, *arguments],
        env=plain_environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def help_of(path: tuple[str, ...]) -> str:
    command, _ = find(list(path))
    return command.get_help(click.Context(command, info_name=" ".join(path)))


def test_every_command_of_the_contract_is_there() -> None:
    assert set(COMMANDS) >= {
        ("up",),
        ("migrate",),
        ("doctor",),
        ("index",),
        ("ask",),
        ("status",),
        ("keys", "create"),
        ("keys", "list"),
        ("keys", "revoke"),
        ("demo",),
        ("impact",),
        ("mcp",),
    }


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_shows_an_example_that_parses(path: tuple[str, ...]) -> None:
    _, _, example = " ".join(help_of(path).split()).partition("Example: ")

    words = shlex.split(example)
    arguments = words[words.index("kshift") + 1 :]
    assert tuple(arguments[: len(path)]) == path
    parse(arguments)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_that_ends_can_answer_in_json(path: tuple[str, ...]) -> None:
    assert ("--json" in help_of(path)) == (path[0] not in WITHOUT_JSON)


def test_the_first_help_lists_commands_and_exit_codes() -> None:
    shown = kshift("--help").stdout

    assert [name for (name, *_) in COMMANDS if f"\n  {name} " not in shown] == []
    assert "Exit codes: 0 done, 1 in part, 2 usage, 3 not ready, 4 refused." in shown


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        (["indx"], "index"),
        (["keys", "craete"], "create"),
        (["status", "--jsn"], "--json"),
    ],
)
def test_a_near_miss_is_answered_with_what_was_meant(wrong: list[str], meant: str) -> None:
    with pytest.raises(click.UsageError) as refusal:
        parse(wrong)

    assert f"Did you mean '{meant}'" in refusal.value.format_message()


@pytest.mark.parametrize(
    "arguments",
    [
        ("nothing",),
        ("ask", "What?", "--account", "a", "--project", "p", "--top-k", "51"),
        ("keys", "create", "--account", "a", "--database", "d"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_json_document_for_who_asked_for_json(
    arguments: tuple[str, ...],
) -> None:
    done = kshift(*arguments, "--json")

    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert set(error) == {"code", "message", "hint"}
    assert error["code"] == "usage"
    assert error["message"] in done.stderr


def test_wrong_settings_end_a_command_before_it_touches_the_disk(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KSHIFT_TOP_K=0\nKSHIFT_MAX_CHARS=many\n")

    done = kshift("index", "--json", folder=tmp_path)

    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (2, "settings_invalid")
    assert "KSHIFT_TOP_K" in error["message"]
    assert "KSHIFT_MAX_CHARS" in error["message"]
    assert [entry.name for entry in tmp_path.iterdir()] == [".env"]
