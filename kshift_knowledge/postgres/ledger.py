"""The ledger: tokens spent and tokens saved by reuse, per knowledge database and day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kshift_knowledge.indexing.records import ItemOutcome
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.records import Scope

_RECORD = """
INSERT INTO token_ledger
    (account_id, project_id, knowledge_database_id, day, tokens_spent, tokens_saved)
VALUES (%s, %s, %s, current_date, %s, %s)
ON CONFLICT (knowledge_database_id, day) DO UPDATE SET
    tokens_spent = token_ledger.tokens_spent + excluded.tokens_spent,
    tokens_saved = token_ledger.tokens_saved + excluded.tokens_saved
"""


def record(conn: Conn, scope: Scope, outcomes: Iterable[ItemOutcome]) -> None:
    """Add what these items cost and what reuse saved, also when a newer version won."""
    spent: defaultdict[int, int] = defaultdict(int)
    saved: defaultdict[int, int] = defaultdict(int)
    for outcome in outcomes:
        database = outcome.item.knowledge_database_id
        spent[database] += outcome.tokens - outcome.tokens_saved
        saved[database] += outcome.tokens_saved
    for database in sorted(spent):
        conn.execute(
            _RECORD,
            (scope.account_id, scope.project_id, database, spent[database], saved[database]),
        )
