"""`kshift ask`: one question, with the reader's rights, answered as the API would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from kshift_cli.home import open_home
from kshift_cli.output import json_option, reporting_errors, show, show_json
from kshift_knowledge.answers import SOMEBODY, Asker, Question, answer
from kshift_knowledge.errors import NotFound, SettingsError
from kshift_knowledge.postgres import automations, catalog, generations
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.records import Scope
from kshift_knowledge.retrieval import MODES
from kshift_knowledge.settings import load_settings


@click.command(
    "ask",
    epilog="Example: kshift ask 'What does the plan cost?' --account velomend "
    "--project rider-app --database app-profile",
)
@click.argument("query")
@click.option("--account", required=True, help="Slug or id.")
@click.option("--project", required=True, help="Slug or id.")
@click.option("--database", "databases", multiple=True, help="Slug or id; may be repeated.")
@click.option("--automation", help="Slug or id: search what it is linked to, with its pins.")
@click.option("--top-k", type=click.IntRange(1, 50), help="Chunks in the answer.")
@click.option("--max-chars", type=click.IntRange(1, 100_000), help="Characters of the context.")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    help=f"How to rank; {MODES[0]}, or what the automation says, if left out.",
)
@json_option
@reporting_errors
def command(
    query: str,
    account: str,
    project: str,
    databases: tuple[str, ...],
    automation: str | None,
    top_k: int | None,
    max_chars: int | None,
    mode: str | None,
    as_json: bool,
) -> None:
    """
    Ask QUERY of the knowledge databases that you name; none named, none searched.

    With an automation, of those it is linked to; naming some of them narrows.
    """
    if not query.strip():
        raise SettingsError("The question is blank.", hint="Write what you want to know.")
    settings = load_settings()
    question = Question(
        query,
        top_k=top_k or settings.top_k,
        max_chars=max_chars or settings.max_chars,
        mode=mode or MODES[0],
    )
    asker = replace(SOMEBODY, keeps_query=settings.receipt_query == "text")
    with open_home(settings) as home, home.reader() as database:
        with database.transaction() as conn:
            scope = catalog.resolve(conn, account, project, databases)
            if automation is not None:
                scope, question, asker = _for_automation(
                    conn, scope, automation, databases, question, asker, mode
                )
            known = automations.preferences(conn, scope.account_id, scope.project_id)
            generation = generations.served_generation(conn, scope)
        retrieve = home.answering(database)(generation)
        response = answer(database, retrieve, replace(question, preferences=known), scope, asker)
    if as_json:
        show_json(response)
    else:
        show_answer(response)


def _for_automation(
    conn: Conn,
    named: Scope,
    automation: str,
    databases: Sequence[str],
    question: Question,
    asker: Asker,
    mode: str | None,
) -> tuple[Scope, Question, Asker]:
    """The automation's scope, pins and mode. Raises NotFound for a database it is not linked to."""
    found = automations.find_named(conn, named.account_id, named.project_id, automation)
    unlinked = set(named.knowledge_database_ids) - set(found.knowledge_database_ids)
    if unlinked:
        raise NotFound(
            f"The automation {found.slug} is not linked to all of {', '.join(databases)}.",
            hint=f"It is linked to {', '.join(found.knowledge) or 'nothing'}.",
        )
    return (
        named if databases else found.scope,
        replace(question, pins=found.pins, mode=mode or found.retrieval),
        replace(asker, automation_id=found.automation_id),
    )


def show_answer(response: dict[str, Any]) -> None:
    """The cited passages as people read them."""
    for hit in response["hits"]:
        score = "" if hit["score"] is None else f"  score {hit['score']:.3f}"
        index = "" if hit["chunk_index"] is None else f"#{hit['chunk_index']}"
        show(f"[{hit['item_name']}{index}]  {hit['file']}{score}")
        show(f"{hit['content']}\n")
    if not response["hits"]:
        show("No passage was found.")
    for dropped in response["dropped"]:
        index = "" if dropped["chunk_index"] is None else f"#{dropped['chunk_index']}"
        show(f"left out: {dropped['item_name']}{index} ({dropped['reason']})")
