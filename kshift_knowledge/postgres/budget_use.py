"""What accounts with a token budget have used of it, exact for runs that spend at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kshift_knowledge.budgets import Budget, budget_of
from kshift_knowledge.postgres.database import Conn

# A new period begins with what the ledger says: a budget may be set in the middle of one.
_OPEN_PERIOD = """
INSERT INTO token_budget_use (account_id, period, starts_on, tokens)
SELECT %(account)s, %(period)s, date_trunc(%(period)s, current_date)::date,
       coalesce(sum(tokens_spent), 0)
  FROM token_ledger
 WHERE account_id = %(account)s AND day >= date_trunc(%(period)s, current_date)::date
ON CONFLICT DO NOTHING
"""

_LOCK_PERIOD = """
SELECT tokens, closed_at FROM token_budget_use
 WHERE account_id = %(account)s AND period = %(period)s
   AND starts_on = date_trunc(%(period)s, current_date)::date
   FOR UPDATE
"""

_USE = """
UPDATE token_budget_use SET tokens = greatest(tokens + %(tokens)s, 0), closed_at = %(closed_at)s
 WHERE account_id = %(account)s AND period = %(period)s
   AND starts_on = date_trunc(%(period)s, current_date)::date
"""

_CLOSED = """
SELECT a.account_id, a.slug, u.period, u.closed_at
  FROM token_budget_use u JOIN accounts a USING (account_id)
 WHERE u.closed_at IS NOT NULL AND u.starts_on = date_trunc(u.period, current_date)::date
"""


def take(conn: Conn, account_id: int, budget: Budget, texts: Sequence[int]) -> int:
    """
    Take the tokens of *texts* from the budget; returns how many of them, from the first, fit.

    Once one does not fit, the account is closed until its budget grows or its period ends, so
    that what is left over does not go to whichever text happens to be short enough.
    """
    values = {"account": account_id, "period": budget.period}
    conn.execute(_OPEN_PERIOD, values)
    row = conn.execute(_LOCK_PERIOD, values).fetchone()
    assert row is not None
    used, closed_at = row
    if closed_at is not None and closed_at >= budget.tokens:
        return 0
    taken, count = 0, 0
    for tokens in texts:
        if used + taken + tokens > budget.tokens:
            break
        taken += tokens
        count += 1
    is_used_up = count < len(texts)
    conn.execute(
        _USE, {**values, "tokens": taken, "closed_at": budget.tokens if is_used_up else None}
    )
    return count


def give_back(conn: Conn, account_id: int, budget: Budget, tokens: int) -> None:
    """Return tokens that the provider did not take after all."""
    conn.execute(
        _USE,
        {
            "account": account_id,
            "period": budget.period,
            "tokens": -tokens,
            "closed_at": None,
        },
    )


def exhausted_accounts(conn: Conn, budgets: Mapping[str, Budget]) -> frozenset[int]:
    """The accounts whose budget is used up now."""
    if not budgets:
        return frozenset()
    closed = set()
    for account_id, slug, period, closed_at in conn.execute(_CLOSED):
        budget = budget_of(budgets, slug)
        if budget is not None and budget.period == period and budget.tokens <= closed_at:
            closed.add(account_id)
    return frozenset(closed)
