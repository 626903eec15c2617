"""Which receipts cite what has moved on, summed by project; and old receipts go."""

from __future__ import annotations

import pytest
from seeding import served_generation, version_of
from served_api import FEAR, RAIN, ServedApi
from test_api_receipts import put, remove

from kshift_knowledge.errors import NotFound
from kshift_knowledge.postgres import impact, receipts
from kshift_knowledge.postgres.impact import Impact
from kshift_knowledge.postgres.vector_store import PgVectorStore

NOTHING = {"gone": 0, "changed since": 0, "unchanged": 0}


def summary(api: ServedApi) -> dict[str, dict[str, int]]:
    with api.writer.transaction() as conn:
        return {project: dict(counts) for project, counts in impact.summary(conn).items()}


def impact_of(api: ServedApi, item: str) -> Impact:
    with api.writer.transaction() as conn:
        return impact.impact_of(conn, item)


def test_a_receipt_is_as_its_worst_citation(api: ServedApi) -> None:
    api.retrieve()
    api.retrieve(query=FEAR, top_k=1)
    api.retrieve(knowledge_database_ids=[])
    before = summary(api)
    put(api, [FEAR, "Now they ride in the rain."])
    changed = summary(api)
    remove(api)

    assert before == {"acme/site": {**NOTHING, "unchanged": 2}}
    assert changed == {"acme/site": {**NOTHING, "unchanged": 1, "changed since": 1}}
    assert summary(api) == {"acme/site": {**NOTHING, "gone": 2}}


def test_every_project_is_summed_alone(api: ServedApi) -> None:
    api.retrieve()
    api.retrieve(
        key=api.foreign_key,
        project_id=api.foreign.project_id,
        knowledge_database_ids=list(api.foreign.knowledge_database_ids),
    )
    version = version_of(api.secret, ["Another plan."], name="Launch")
    store = PgVectorStore(api.writer)
    store.replace_items(api.foreign, served_generation(api.writer), [version])

    assert summary(api) == {
        "acme/site": {**NOTHING, "unchanged": 1},
        "globex/shop": {**NOTHING, "changed since": 1},
    }


def test_an_item_is_found_by_key_or_id_with_the_citations_of_it_alone(api: ServedApi) -> None:
    receipt_id = api.retrieve().json["receipt_id"]
    with api.writer.transaction() as conn:
        ((key,),) = conn.execute(
            "SELECT partition_key FROM knowledge_database_items"
            " WHERE knowledge_database_item_id = %s",
            (api.audience.item_id,),
        ).fetchall()

    found = impact_of(api, key)

    assert found == impact_of(api, str(api.audience.item_id))
    assert {(str(one.receipt_id), one.chunk_index, one.state) for one in found.citations} == {
        (receipt_id, 0, "unchanged"),
        (receipt_id, 1, "unchanged"),
    }
    with pytest.raises(NotFound):
        impact_of(api, "acme/site/notes/no.md")


def test_a_text_that_only_moved_is_untouched(api: ServedApi) -> None:
    api.retrieve()
    put(api, [f"{RAIN} {FEAR}"])

    assert impact_of(api, str(api.audience.item_id)).count("unchanged") == 2


def test_old_receipts_go_and_new_ones_stay(api: ServedApi) -> None:
    old, new = (api.retrieve().json["receipt_id"] for _ in range(2))
    with api.writer.transaction() as conn:
        conn.execute(
            "UPDATE receipts SET created_at = now() - interval '91 days' WHERE receipt_id = %s",
            (old,),
        )
        purged = receipts.purge(conn, 90)

    assert purged == 1
    assert api.get(f"/v1/receipts/{old}").status_code == 404
    assert api.get(f"/v1/receipts/{new}").status_code == 200
