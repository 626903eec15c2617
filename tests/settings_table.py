"""
The table of docs/settings.md, made from Settings so that it cannot drift.

`python tests/settings_table.py` rewrites it after a setting changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from kshift_knowledge.settings import Settings

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
START, END = "<!-- table: made by tests/settings_table.py -->\n", "<!-- end of table -->\n"


def settings_table() -> str:
    """One row for each setting, in the order of Settings."""
    rows = ["| Setting | Default | What it does |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        rows.append(f"| `{variable(name, field)}` | {_default(field)} | {field.description} |")
    return "\n".join(rows) + "\n"


def variable(name: str, field: FieldInfo) -> str:
    """The environment variable of a field."""
    if isinstance(field.validation_alias, str):
        return field.validation_alias
    return f"KSHIFT_{name.upper()}"


def rewritten(page: str) -> str:
    """The page with its table made anew."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}{settings_table()}{END}{after}"


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if value is None or value == {}:
        return "unset"
    return "built in" if isinstance(value, Mapping) else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text("utf-8")), "utf-8")
