"""Import contracts that need an interpreter: what is loaded, not only what is named."""

from __future__ import annotations

import ast
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
FRAMEWORKS = ("dagster", "flask")


def modules_of(package: str) -> list[str]:
    """Every module of a package, found without importing any."""
    return [
        package,
        *(
            module.name
            for module in pkgutil.walk_packages([str(PROJECT / package)], prefix=f"{package}.")
        ),
    ]


def loaded_by(modules: list[str]) -> set[str]:
    """The top-level packages that a fresh interpreter holds after importing *modules*."""
    program = (
        "import importlib, json, sys\n"
        "for name in json.load(sys.stdin):\n"
        "    importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(modules),
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("kshift_knowledge", {"dagster", "flask", "kshift_api", "kshift_assets", "kshift_cli"}),
        ("kshift_api", {"dagster", "kshift_assets", "kshift_cli"}),
        ("kshift_assets", {"flask", "kshift_api", "kshift_cli"}),
    ],
)
def test_a_package_loads_no_framework_but_its_own(package: str, forbidden: set[str]) -> None:
    loaded = loaded_by(modules_of(package))

    assert package in loaded
    assert loaded & forbidden == set()


def test_the_command_itself_loads_no_framework() -> None:
    """Every command must start fast: frameworks are loaded by the commands that need them."""
    loaded = loaded_by(modules_of("kshift_cli"))

    assert loaded.isdisjoint({*FRAMEWORKS, "kshift_api"})


@pytest.mark.parametrize(
    ("driver", "owner"),
    [
        ("psycopg", "kshift_knowledge/postgres"),
        ("psycopg_pool", "kshift_knowledge/postgres"),
        ("pgvector", "kshift_knowledge/postgres"),
        ("dagster", "kshift_assets"),
        ("flask", "kshift_api"),
        ("openai", "kshift_knowledge/embedders"),
    ],
)
def test_a_driver_is_named_by_its_owner_alone(driver: str, owner: str) -> None:
    users = {file for file in sources() if driver in imported_by(file)}

    assert users
    assert {file for file in users if not file.startswith(f"{owner}/")} == set()


def test_nobody_imports_the_command() -> None:
    outside = {file for file in sources() if not file.startswith("kshift_cli/")}

    assert {file for file in outside if "kshift_cli" in imported_by(file)} == set()


def sources() -> list[str]:
    return [
        str(file.relative_to(PROJECT))
        for package in ("kshift_knowledge", "kshift_assets", "kshift_api", "kshift_cli")
        for file in (PROJECT / package).rglob("*.py")
    ]


def imported_by(file: str) -> set[str]:
    """The top-level packages that a source file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse((PROJECT / file).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}
