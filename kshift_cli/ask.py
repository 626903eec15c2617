"""`kshift ask`: one question, with the reader's rights, answered as the API would."""

from __future__ import annotations

from typing import Any

import click

from kshift_cli.home import open_home
from kshift_cli.output import json_option, reporting_errors, show, show_json
from kshift_knowledge.answers import Question, answer
from kshift_knowledge.errors import SettingsError
from kshift_knowledge.postgres import catalog, generations
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
@click.option("--top-k", type=click.IntRange(1, 50), help="Chunks in the answer.")
@click.option("--max-chars", type=click.IntRange(1, 100_000), help="Characters of the context.")
@click.option("--mode", type=click.Choice(MODES), default=MODES[0], show_default=True)
@json_option
@reporting_errors
def command(
    query: str,
    account: str,
    project: str,
    databases: tuple[str, ...],
    top_k: int | None,
    max_chars: int | None,
    mode: str,
    as_json: bool,
) -> None:
    """Ask QUERY of the knowledge databases that you name; none named, none searched."""
    if not query.strip():
        raise SettingsError("The question is blank.", hint="Write what you want to know.")
    settings = load_settings()
    question = Question(
        query,
        top_k=top_k or settings.top_k,
        max_chars=max_chars or settings.max_chars,
        mode=mode,
    )
    with open_home(settings) as home, home.reader() as database:
        with database.transaction() as conn:
            scope = catalog.resolve(conn, account, project, databases)
            generation = generations.served_generation(conn, scope)
        retrieve = home.answering(database)(generation)
        response = answer(database, retrieve, question, scope)
    if as_json:
        show_json(response)
    else:
        show_answer(response)


def show_answer(response: dict[str, Any]) -> None:
    """The cited passages as people read them."""
    for hit in response["hits"]:
        score = "" if hit["score"] is None else f"  score {hit['score']:.3f}"
        show(f"[{hit['item_name']}#{hit['chunk_index']}]  {hit['file']}{score}")
        show(f"{hit['content']}\n")
    if not response["hits"]:
        show("No passage was found.")
    for dropped in response["dropped"]:
        index = "" if dropped["chunk_index"] is None else f"#{dropped['chunk_index']}"
        show(f"left out: {dropped['item_name']}{index} ({dropped['reason']})")
