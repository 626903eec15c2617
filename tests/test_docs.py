"""The documents hold to the code: links, commands, settings, failure codes, and the tour."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import KSHIFT, command_line, parse
from settings_table import PAGE, rewritten, variable

from kshift_knowledge import errors
from kshift_knowledge.postgres import keys
from kshift_knowledge.settings import Settings, load_settings

PROJECT = Path(__file__).parent.parent
OPERATIONS = PROJECT / "docs" / "operations.md"
DOCUMENTS = sorted(
    [*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md"), PROJECT / "examples" / "README.md"]
)
BLOCK = re.compile(r"(<!-- not run.*?-->\n)?```sh\n(.*?)```", re.DOTALL)

each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT))
)


def blocks(document: Path) -> Iterator[tuple[bool, str]]:
    """The shell blocks of a document: whether it is run here, and the block."""
    for excuse, block in BLOCK.findall(document.read_text("utf-8")):
        yield not excuse, block


def command_lines(document: Path, program: str) -> list[list[str]]:
    """The arguments of every call of *program* in the document's shell blocks."""
    joined = "\n".join(block for _, block in blocks(document)).replace("\\\n", " ")
    calls = re.findall(rf"^(?:[A-Z_]+=\S* )*{program} (.*)$", joined, re.MULTILINE)
    return [shlex.split(re.split(r" (?:\|\|?|&&|>) ", call)[0], comments=True) for call in calls]


@each_document
def test_links_resolve(document: Path) -> None:
    text = _without_code(document.read_text("utf-8"))

    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    assert broken == []


@each_document
def test_no_path_of_a_machine_is_named(document: Path) -> None:
    text = document.read_text("utf-8")

    assert [place for place in (str(PROJECT), str(Path.home())) if f"{place}/" in text] == []
    assert re.findall(r"(?<![\w.])/(?:root|home|Users|workspace)/\S+", text) == []


@each_document
def test_commands_parse(document: Path) -> None:
    for arguments in command_lines(document, "kshift"):
        parse(arguments)


@each_document
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    named = {target for (target, *_) in command_lines(document, "make")}
    named |= set(re.findall(r"`make ([a-z]+)`", document.read_text("utf-8")))

    assert named - targets == set()


def test_the_settings_table_is_what_settings_say() -> None:
    page = PAGE.read_text("utf-8")

    assert page == rewritten(page), "run `python tests/settings_table.py`"


def test_the_example_env_names_settings_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = (PROJECT / ".env.example").read_text("utf-8")
    for name in [name for name in os.environ if name.startswith(("KSHIFT_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    all_set = tmp_path / ".env"
    all_set.write_text(re.sub(r"^# (?=[A-Z_]+=)", "", example, flags=re.MULTILINE))

    named = set(re.findall(r"^(?:# )?([A-Z_]+)=", example, re.MULTILINE))
    assert named - {variable(*item) for item in Settings.model_fields.items()} == set()
    assert load_settings(env_file=str(all_set)).knowledge_dir is not None


def test_every_setting_named_in_a_document_exists() -> None:
    text = "\n".join(document.read_text("utf-8") for document in DOCUMENTS)

    named = set(re.findall(r"\b(?:KSHIFT|OPENAI)_[A-Z_]+\b", text))
    assert named - {variable(*item) for item in Settings.model_fields.items()} == set()


def test_every_code_is_listed_with_a_remedy() -> None:
    documented = {row[0].strip("`"): row for row in _code_rows()}

    known = set(_codes_of_the_source()) | {"usage"}
    assert (known - set(documented), set(documented) - known) == (set(), set())
    assert [code for code, row in documented.items() if not all(row)] == []


def test_exit_codes_are_those_of_the_errors() -> None:
    documented = {row[0].strip("`"): int(row[1]) for row in _code_rows() if row[1].isdigit()}
    documented.pop("usage")
    raised = _codes_of_the_source()

    wrong = {
        code: (exit_code, raised[code])
        for code, exit_code in documented.items()
        if raised[code] and exit_code not in raised[code]
    }
    assert wrong == {}


def test_the_tour_and_the_operations_run(tmp_path: Path) -> None:
    """In a folder of their own, with the scripted embedder instead of the local model."""
    script = "\n".join(
        block
        for document in (PROJECT / "README.md", OPERATIONS)
        for is_run, block in blocks(document)
        if is_run
    )
    with command_line(KSHIFT_HOME="", KSHIFT_KNOWLEDGE_DIR="") as line:
        shutil.copytree(PROJECT / "examples", line.folder / "examples")
        line.home.symlink_to(".kshift")  # where the commands have it; stopped at the end
        environment = line.environment()
        done = subprocess.run(
            ["bash", "-e", "-u", "-o", "pipefail", "-c", script],
            cwd=line.folder,
            env=environment | {"PATH": f"{KSHIFT.parent}:{environment['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "44 items seen: 44 indexed" in done.stdout
    assert "44 items seen: 1 indexed, 43 unchanged" in done.stdout
    assert "1 embedded now, 4 reused; 1 requests" in done.stdout
    assert "exit code 1" in done.stdout


def _anchors(file: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", _without_code(file.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def _code_rows() -> list[list[str]]:
    """The rows of the tables of codes in docs/operations.md, as cells."""
    _, _, failures = OPERATIONS.read_text("utf-8").partition("## Failures of items")
    rows = re.findall(r"^\| (`[a-z0-9_]+` \|.*) \|$", failures, re.MULTILINE)
    return [[cell.strip() for cell in row.split(" | ")] for row in rows]


def _codes_of_the_source() -> dict[str, set[int]]:
    """Every code that the source gives to an error or a place, and the exit codes it may have."""
    classes = {**vars(errors), **vars(keys)}
    found: dict[str, set[int]] = {}
    for package in ("kshift_knowledge", "kshift_assets"):
        for file in (PROJECT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                for code, owner in _codes_of(node):
                    exits = found.setdefault(code, set())
                    if isinstance(classes.get(owner), type):
                        exits.add(classes[owner].exit_code)
    return found


def _codes_of(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The codes that one node gives, each with the error class it belongs to, if it says so."""
    match node:
        case ast.Call(func=ast.Name(id=owner), keywords=keywords):
            for keyword in keywords:
                if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                    yield str(keyword.value.value), owner
        case ast.ClassDef(name=owner, body=body):
            for statement in body:
                match statement:
                    case ast.Assign(
                        targets=[ast.Name(id="code")], value=ast.Constant(value=str() as code)
                    ):
                        yield code, owner
        case ast.Assign(targets=[ast.Name(id="_REASONS")], value=ast.Dict(keys=names)):
            yield from ((str(name.value), "") for name in names if isinstance(name, ast.Constant))
        case ast.Assign(
            targets=[ast.Tuple(elts=[ast.Name(id="code"), *_])],
            value=ast.Tuple(elts=[ast.Constant(value=code), *_]),
        ):
            yield str(code), ""
