"""Answers the questions of an eval file from an indexed home, in the form that a scorer reads."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kshift_knowledge.home import open_home
from kshift_knowledge.postgres import catalog
from kshift_knowledge.postgres.vector_store import PgVectorStore
from kshift_knowledge.preferences import without_preferences
from kshift_knowledge.retrieval import MODES
from kshift_knowledge.settings import load_settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", type=Path, help="JSON lines: id, account, project, databases")
    parser.add_argument("answers", type=Path, help="JSON lines to write: id, hits")
    parser.add_argument("--max-chars", type=int, default=1500)
    parser.add_argument("--top-k", type=int, default=6)
    parser.add_argument("--mode", choices=MODES, default=MODES[0])
    arguments = parser.parse_args()
    questions = [json.loads(line) for line in arguments.questions.read_text("utf-8").splitlines()]
    with (
        open_home(load_settings(), lingers=True) as home,
        home.reader() as reader,
        arguments.answers.open("w", encoding="utf-8") as answers,
    ):
        answering = home.answering(reader)
        store = PgVectorStore(reader)
        for question in questions:
            account, project = question["account"], question["project"]
            with reader.transaction() as conn:
                scope = catalog.resolve(conn, account, project, question["databases"])
                slugs = {
                    catalog.find_database(conn, scope.project_id, slug): slug
                    for slug in question["databases"]
                }
            retrieval = answering(store.served_generation(scope))(
                without_preferences(question["query"])[0],
                scope,
                top_k=arguments.top_k,
                max_chars=arguments.max_chars,
                mode=arguments.mode,
            )
            hits = [
                {
                    "content": hit.content,
                    "file": f"{account}/{project}/{slugs[hit.chunk.knowledge_database_id]}"
                    f"/{hit.chunk.file}",
                }
                for hit in retrieval.hits
            ]
            line = {"id": question["id"], "hits": hits, "context_chars": len(retrieval.context)}
            answers.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
