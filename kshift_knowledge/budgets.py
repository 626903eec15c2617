"""Token budgets of accounts as a person writes them; knows no table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Period = Literal["day", "month"]
EVERYBODY = "*"

NO_BUDGETS: Mapping[str, Budget] = {}

_BUDGET = re.compile(r"(?P<account>[^=\s]+)\s*=\s*(?P<tokens>\d[\d_]*)(?:\s*/\s*(?P<per>\w+))?")


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens an account may have embedded in a day or a calendar month."""

    tokens: int
    period: Period


def parse_budgets(spelled: str) -> dict[str, Budget]:
    """
    Read `account=tokens[/day|/month], ...`; `*` stands for every account not named.

    Raises ValueError, naming the part that is not a budget.
    """
    budgets: dict[str, Budget] = {}
    for part in filter(None, (part.strip() for part in spelled.split(","))):
        match = _BUDGET.fullmatch(part)
        period = match["per"] or "day" if match else None
        if match is None or period not in ("day", "month"):
            raise ValueError(f"{part!r} is not `account=tokens`, `.../day` or `.../month`")
        if match["account"] in budgets:
            raise ValueError(f"{match['account']!r} has two budgets")
        budgets[match["account"]] = Budget(int(match["tokens"]), _period(period))
    return budgets


def budget_of(budgets: Mapping[str, Budget], account: str) -> Budget | None:
    """Return the budget of an account's slug, None when it may spend what it likes."""
    return budgets.get(account, budgets.get(EVERYBODY))


def _period(word: str) -> Period:
    return "month" if word == "month" else "day"
