"""What a run may still spend of an account's token budget."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from kshift_knowledge.budgets import Budget, budget_of
from kshift_knowledge.errors import BudgetExhausted
from kshift_knowledge.postgres import budget_use, catalog
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.patience import transact


class Spending:
    """
    Takes tokens from budgets before they are asked for; an account without one costs no query.

    Safe for several threads, and exact for several runs.
    """

    def __init__(self, database: Database, budgets: Mapping[str, Budget]) -> None:
        self._database = database
        self._budgets = budgets
        self._of_account: dict[int, Budget | None] = {}
        self._lock = threading.Lock()

    def take(self, account_id: int, texts: Sequence[int]) -> int:
        """Take the tokens of *texts*, one number each; returns how many, from the first, fit."""
        budget = self._budget(account_id)
        if budget is None or not texts:
            return len(texts)
        return transact(
            self._database, lambda conn: budget_use.take(conn, account_id, budget, texts)
        )

    def give_back(self, account_id: int, tokens: int) -> None:
        """Return the tokens of a request that the provider did not answer."""
        budget = self._budget(account_id)
        if budget is not None:
            transact(
                self._database,
                lambda conn: budget_use.give_back(conn, account_id, budget, tokens),
            )

    def refusal(self, account_id: int) -> BudgetExhausted:
        """The error of an item whose texts did not fit."""
        budget = self._budget(account_id)
        assert budget is not None, "an account without a budget is never refused"
        return BudgetExhausted(
            f"The account's budget of {budget.tokens:,} tokens a {budget.period} is used up.",
            hint=f"It goes on by itself in the next {budget.period}, or once KSHIFT_TOKEN_BUDGET "
            "is raised.",
        )

    def _budget(self, account_id: int) -> Budget | None:
        if not self._budgets:
            return None
        with self._lock:
            if account_id not in self._of_account:
                slug = transact(self._database, lambda conn: catalog.account_slug(conn, account_id))
                self._of_account[account_id] = budget_of(self._budgets, slug)
            return self._of_account[account_id]
