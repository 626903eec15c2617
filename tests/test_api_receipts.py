"""Receipts over HTTP: complete, paged, seen by whom they may be, true after the item changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from canvas_seeding import load
from seeding import add_item, only, served_generation, version_of
from served_api import FEAR, RAIN, STYLE, ServedApi, make_key, served_api
from test_api_automations import context, ids, post  # noqa: F401 (a fixture)
from test_api_server import environment, running  # noqa: F401 (a fixture)
from waiting import wait_until

from kshift_api.receipt_schemas import Receipt, Receipts
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.vector_store import PgVectorStore

LATER = "Riders love the new bell."


def put(api: ServedApi, texts: Sequence[str]) -> None:
    """Serve another version of the audience item."""
    version = version_of(api.audience, texts, name="Audience", origin="scraped")
    store = PgVectorStore(api.writer)
    store.replace_items(api.audience.scope, served_generation(api.writer), [version])


def remove(api: ServedApi) -> None:
    PgVectorStore(api.writer).delete_items(api.audience.scope, [api.audience.item_id])
    with api.writer.transaction() as conn:
        conn.execute(
            "UPDATE knowledge_database_items SET state = 'gone', gone_at = now(),"
            " waiting_since = NULL WHERE knowledge_database_item_id = %s",
            (api.audience.item_id,),
        )


def receipt(api: ServedApi, receipt_id: str, *, key: str | None = None) -> Any:
    response = api.get(f"/v1/receipts/{receipt_id}", key=key)
    assert response.status_code == 200
    Receipt.model_validate_json(response.data)
    return response.json


def rewrite_first_hit(api: ServedApi, **fields: Any) -> None:
    """Make every receipt's first hit one of excerpts, which these short texts never are."""
    with api.writer.transaction() as conn:
        conn.execute(
            "UPDATE receipts SET hits = jsonb_set(hits, '{0}', hits -> 0 || %s::jsonb)",
            (json.dumps(fields),),
        )


def states(api: ServedApi, receipt_id: str) -> dict[str, str]:
    """The state of each citation by its text."""
    return {one["content"]: one["state"] for one in receipt(api, receipt_id)["citations"]}


# One receipt ---------------------------------------------------------------------------------


def test_a_receipt_says_what_was_asked_used_cut_and_dropped(
    api: ServedApi,
    ids: dict[str, int],  # noqa: F811
) -> None:
    sent = context(api, ids["pinned"], subject_text=FEAR).json

    found = receipt(api, sent["receipt_id"])

    assert found["receipt_id"] == sent["receipt_id"]
    assert (found["account_id"], found["project_id"]) == (
        api.scope.account_id,
        api.scope.project_id,
    )
    assert found["knowledge_database_ids"] == [api.scope.knowledge_database_ids[0]]
    assert (found["automation_id"], found["automation"]) == (ids["pinned"], "pinned")
    assert found["key_id"] == api.key.split("_")[1]
    assert (found["mode"], found["embedding_model"]) == ("vector", sent["embedding_model"])
    query = f"Write.\n\n{FEAR}"
    assert (found["query"], found["query_was_cut"], found["vector_kept"]) == (query, False, True)
    assert found["query_hash"] == sha256(query.encode()).hexdigest()
    assert found["request"]["pins"] == ["Brand Styles", "No"]
    assert [{**hit, "revision": 0} for hit in found["hits"]] == [
        {**hit, "revision": 0} for hit in sent["hits"]
    ]
    assert found["dropped"] == sent["dropped"]
    assert (found["context"], found["prompt"]) == (sent["context"], sent["prompt"])
    assert found["usage"] == sent["usage"]
    assert all(milliseconds >= 0 for milliseconds in found["timings_ms"].values())
    assert not any("vector" in field and field != "vector_kept" for field in found)


def test_a_plain_retrieve_has_a_receipt_without_prompt_or_automation(api: ServedApi) -> None:
    found = receipt(api, api.retrieve(pins=["Nope"]).json["receipt_id"])

    assert (found["prompt"], found["automation_id"], found["automation"]) == (None, None, None)
    assert found["dropped"][-1]["reason"] == "pin_not_found"


def test_what_was_left_out_of_the_search_is_told(api: ServedApi) -> None:
    line = "Prefer brand voice and audience objections"

    answer = api.retrieve(query=f"{FEAR}\n{line}").json

    assert api.embeddings.texts == [FEAR]
    assert receipt(api, answer["receipt_id"])["request"]["preferences_left_out"] == [line]


def test_with_hashes_alone_a_receipt_tells_no_question(writer: Database, reader: Database) -> None:
    with served_api(writer, reader, keeps_query=False) as api:
        found = receipt(api, api.retrieve().json["receipt_id"])

    assert (found["query"], found["vector_kept"]) == (None, False)
    assert found["query_hash"] == sha256(FEAR.encode()).hexdigest()


def test_the_served_process_keeps_what_the_setting_says(
    api: ServedApi,
    environment: dict[str, str],  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = {**environment, "KSHIFT_RECEIPT_QUERY": "hash"}
    with running(tmp_path / "home", settings) as server:
        wait_until(server.is_ready)
        headers = {"Authorization": f"Bearer {api.key}", "Content-Type": "application/json"}
        status, _, body = server.ask(
            "POST", "/v1/retrieve", json.dumps(api.question).encode(), **headers
        )
        assert status == 200

    assert receipt(api, json.loads(body)["receipt_id"])["query"] is None


# What citations say after the item changed ---------------------------------------------------


def test_a_citation_resolves_to_the_text_that_was_used(api: ServedApi) -> None:
    answer = api.retrieve(max_chars=60).json

    (hit,) = answer["hits"]
    found = receipt(api, answer["receipt_id"])
    assert found["citations"] == [
        {
            "citation_id": f"{answer['receipt_id']}.1",
            "rank": 1,
            "project_file_id": api.audience.file_id,
            "name": "Audience",
            "file": "audience.md",
            "chunk_index": 0,
            "source_url": "https://example.com/riders",
            "path": f"{hit['path']}&receipt={answer['receipt_id']}",
            "content": hit["content"],
            "content_hash": sha256(FEAR.encode()).hexdigest(),
            "state": "unchanged",
            "passage": FEAR,
        }
    ]


def test_citations_say_what_became_of_their_text(api: ServedApi) -> None:
    receipt_id = api.retrieve().json["receipt_id"]
    before = states(api, receipt_id)
    put(api, [LATER, FEAR])
    moved = states(api, receipt_id)
    put(api, [f"{LATER} {FEAR} And more."])
    cut_anew = states(api, receipt_id)
    remove(api)
    gone = states(api, receipt_id)
    put_back = version_of(api.audience, [FEAR, RAIN], name="Audience")
    with api.writer.transaction() as conn:
        conn.execute(
            "UPDATE knowledge_database_items SET state = 'waiting', waiting_since = now()"
            " WHERE knowledge_database_item_id = %s",
            (api.audience.item_id,),
        )
    PgVectorStore(api.writer).replace_items(
        api.audience.scope, served_generation(api.writer), [put_back]
    )
    restored = states(api, receipt_id)

    assert before == {FEAR: "unchanged", RAIN: "unchanged", STYLE: "unchanged"}
    assert moved == cut_anew == {FEAR: "unchanged", RAIN: "changed since", STYLE: "unchanged"}
    assert gone == {FEAR: "gone", RAIN: "gone", STYLE: "unchanged"}
    assert restored == before


def test_the_whole_passage_is_there_while_it_is_served_as_it_was(api: ServedApi) -> None:
    answer = api.retrieve(max_chars=100, top_k=1, query=FEAR).json
    put(api, [f"{FEAR} And more."])

    (citation,) = receipt(api, answer["receipt_id"])["citations"]

    assert (citation["content"], citation["state"]) == (FEAR, "unchanged")
    assert citation["passage"] is None


def test_a_whole_item_of_concat_is_judged_by_its_text(api: ServedApi) -> None:
    receipt_id = api.retrieve(mode="concat").json["receipt_id"]
    whole = f"{FEAR}\n\n{RAIN}"
    before = states(api, receipt_id)
    put(api, [RAIN, FEAR])

    assert before == {whole: "unchanged", STYLE: "unchanged"}
    assert states(api, receipt_id) == {whole: "changed since", STYLE: "unchanged"}


def test_excerpts_are_judged_one_by_one(api: ServedApi) -> None:
    answer = api.retrieve(top_k=1).json
    rewrite_first_hit(api, content="Riders fear\n…\nis stolen.", content_hash="no more")
    before = states(api, answer["receipt_id"])
    put(api, ["Riders fear that the bike is sold."])

    assert list(before.values()) == ["unchanged"]
    assert list(states(api, answer["receipt_id"]).values()) == ["changed since"]


# Who sees which ------------------------------------------------------------------------------


def test_a_narrower_key_sees_a_receipt_only_if_all_of_it_is_in_its_scope(
    api: ServedApi,
    ids: dict[str, int],  # noqa: F811
) -> None:
    notes, blog = api.scope.knowledge_database_ids
    account, project = api.scope.account_id, api.scope.project_id
    both = api.retrieve().json["receipt_id"]
    one = api.retrieve(knowledge_database_ids=[notes]).json["receipt_id"]
    nothing = api.retrieve(knowledge_database_ids=[]).json["receipt_id"]
    of_tip = context(api, ids["tip"]).json["receipt_id"]
    of_free = context(api, ids["free"]).json["receipt_id"]
    everything = {both, one, nothing, of_tip, of_free}

    def seen(key: str) -> set[str]:
        listed = {line["receipt_id"] for line in api.get("/v1/receipts", key=key).json["receipts"]}
        single = {
            receipt_id
            for receipt_id in everything
            if api.get(f"/v1/receipts/{receipt_id}", key=key).status_code == 200
        }
        assert listed == single
        return listed

    def key(**narrowing: Any) -> str:
        return make_key(api.writer, account, project_id=project, **narrowing)

    assert seen(api.key) == seen(key()) == everything
    assert seen(key(knowledge_database_ids=[notes])) == {one}
    assert seen(key(knowledge_database_ids=[notes, blog])) == {both, one, of_tip}
    assert seen(key(knowledge_database_ids=[blog])) == set()
    assert seen(key(knowledge_database_ids=[])) == set()
    assert seen(key(automation_id=ids["tip"])) == {of_tip}
    assert seen(key(automation_id=ids["free"])) == {of_free}
    assert seen(api.foreign_key) == set()


def test_a_key_sees_its_own_receipt_of_nothing(api: ServedApi) -> None:
    key = make_key(
        api.writer,
        api.scope.account_id,
        project_id=api.scope.project_id,
        knowledge_database_ids=[],
    )
    receipt_id = api.retrieve(knowledge_database_ids=[], key=key).json["receipt_id"]

    assert receipt(api, receipt_id, key=key)["hits"] == []


def test_an_edge_that_is_cut_takes_old_receipts_out_of_the_automations_sight(
    api: ServedApi,
    ids: dict[str, int],  # noqa: F811
) -> None:
    key = make_key(
        api.writer,
        api.scope.account_id,
        project_id=api.scope.project_id,
        automation_id=ids["tip"],
    )
    receipt_id = context(api, ids["tip"], key=key).json["receipt_id"]
    load(api, "acme", "site", "automations: [{slug: tip, prompt: p, knowledge: [blog]}]")

    assert api.get(f"/v1/receipts/{receipt_id}", key=key).status_code == 404
    assert api.get(f"/v1/receipts/{receipt_id}").status_code == 200


def test_receipts_outside_the_key_are_as_missing_as_any(api: ServedApi) -> None:
    foreign = post(
        api,
        "/v1/retrieve",
        {
            "query": "q",
            "project_id": api.foreign.project_id,
            "knowledge_database_ids": list(api.foreign.knowledge_database_ids),
        },
        key=api.foreign_key,
    ).json["receipt_id"]

    answers = [api.get(f"/v1/receipts/{one}") for one in (foreign, uuid4())]

    bodies = [{**json.loads(answer.data), "request_id": ""} for answer in answers]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert bodies[0] == bodies[1]
    assert api.get("/v1/receipts/not-a-uuid").status_code == 404
    assert api.get(f"/v1/receipts?after={foreign}").status_code == 404


# The list ------------------------------------------------------------------------------------


def test_pages_of_the_list_are_newest_first_and_together_whole(api: ServedApi) -> None:
    made = [api.retrieve(query=f"question {number}").json["receipt_id"] for number in range(7)]

    seen: list[str] = []
    after = ""
    while True:
        page = api.get(f"/v1/receipts?limit=3{after}").json
        Receipts.model_validate_json(json.dumps(page))
        seen += [line["receipt_id"] for line in page["receipts"]]
        if page["next_after"] is None:
            break
        after = f"&after={page['next_after']}"

    assert seen == made[::-1]
    assert len(api.get("/v1/receipts").json["receipts"]) == 7


def test_a_line_of_the_list_has_the_figures(api: ServedApi) -> None:
    answer = api.retrieve(pins=["No"]).json

    (line,) = api.get("/v1/receipts").json["receipts"]

    assert UUID(line.pop("receipt_id")) == UUID(answer["receipt_id"])
    assert line.pop("created_at").endswith("+00:00")
    assert line == {
        "account_id": api.scope.account_id,
        "project_id": api.scope.project_id,
        "automation_id": None,
        "mode": answer["mode"],
        "query": FEAR,
        "hits": len(answer["hits"]),
        "dropped": 1,
        "context_chars": len(answer["context"]),
        "embedding_tokens": answer["usage"]["embedding_tokens"],
    }


def test_the_list_of_one_automation_also_after_it_is_gone(
    api: ServedApi,
    ids: dict[str, int],  # noqa: F811
) -> None:
    api.retrieve()
    wanted = context(api, ids["tip"]).json["receipt_id"]
    path = f"/v1/receipts?automation_id={ids['tip']}"
    before = api.get(path).json["receipts"]
    load(api, "acme", "site", "automations: []")

    assert [line["receipt_id"] for line in before] == [wanted]
    assert api.get(path).json["receipts"] == before
    assert receipt(api, wanted)["automation"] == "tip"
    assert api.get(f"/v1/receipts?automation_id={ids['foreign']}").status_code == 404
    assert api.get(f"/v1/receipts?automation_id={2**63 - 1}").status_code == 404


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("limit=0", "/limit"),
        ("limit=101", "/limit"),
        ("limit=x", "/limit"),
        ("limit=1.0", "/limit"),
        ("limit=", "/limit"),
        ("limit=+5", "/limit"),
        ("limit=5&limit=6", "/limit"),
        ("automation_id=0", "/automation_id"),
        ("automation_id=-1", "/automation_id"),
        (f"automation_id={2**63}", "/automation_id"),
        ("automation_id=true", "/automation_id"),
        ("after=1", "/after"),
        ("after=x", "/after"),
        ("more=1", "/more"),
    ],
)
def test_what_is_no_parameter_is_refused_with_a_pointer(
    api: ServedApi, query: str, pointer: str
) -> None:
    response = api.get(f"/v1/receipts?{query}")

    assert response.status_code == 422
    assert [error["pointer"] for error in json.loads(response.data)["errors"]] == [pointer]


# The page of a citation in a receipt ---------------------------------------------------------


def page_of(api: ServedApi, answer: Any, rank: int = 1) -> Any:
    path = receipt(api, answer["receipt_id"])["citations"][rank - 1]["path"]
    return api.get(path)


def test_the_page_highlights_the_cited_text_and_shows_the_prompt(
    api: ServedApi,
    ids: dict[str, int],  # noqa: F811
) -> None:
    answer = context(api, ids["tip"], subject_text=FEAR).json

    page = page_of(api, answer)

    assert page.status_code == 200
    assert f"<mark>{answer['hits'][0]['content']}</mark>" in page.text
    assert "The cited text is unchanged" in page.text
    assert "Additional context from linked knowledge (cited):" in page.text
    assert "&lt;knowledge-" in page.text
    assert answer["receipt_id"] in page.text


def test_only_the_excerpts_are_highlighted_where_they_stand(api: ServedApi) -> None:
    answer = api.retrieve(top_k=1).json
    rewrite_first_hit(api, content="Riders\n…\nbike", excerpts=[[0, 6], [21, 25]])

    page = page_of(api, answer)

    assert "<mark>Riders</mark> fear that the <mark>bike</mark> is stolen." in page.text


def test_a_text_that_moved_is_highlighted_at_its_new_place(api: ServedApi) -> None:
    answer = api.retrieve(top_k=1).json
    put(api, [f"{LATER} {FEAR} And more."])

    page = page_of(api, answer).text

    assert f"{LATER} <a id=" in page
    assert f"<mark>{FEAR}</mark> And more." in page
    assert "unchanged" in page


def test_a_text_that_changed_is_shown_as_it_was_cited(api: ServedApi) -> None:
    answer = api.retrieve(top_k=1).json
    put(api, [LATER])

    page = page_of(api, answer).text

    assert "changed since" in page
    assert f'<blockquote class="text" dir="auto" lang=""><mark>{FEAR}</mark></blockquote>' in page
    assert LATER in page


def test_a_text_that_is_gone_is_shown_as_it_was_cited(api: ServedApi) -> None:
    answer = api.retrieve(top_k=1).json
    remove(api)

    page = page_of(api, answer).text

    assert "The item is gone." in page
    assert f"<mark>{FEAR}</mark>" in page


def test_a_receipt_that_cites_something_else_or_is_foreign_opens_no_page(api: ServedApi) -> None:
    answer = api.retrieve(top_k=1).json
    own = f"{api.page(api.audience, 0)}&receipt={answer['receipt_id']}"
    notes = only(api.scope, api.scope.knowledge_database_ids[0])
    other = add_item(api.writer, notes, "other.md")

    assert api.get(own).status_code == 200
    assert api.get(own, key=api.foreign_key).status_code == 404
    assert api.get(f"{api.page(api.audience, 1)}&receipt={answer['receipt_id']}").status_code == 404
    assert api.get(f"{api.page(other)}?receipt={answer['receipt_id']}").status_code == 404
    assert api.get(f"{api.page(api.audience, 0)}&receipt={uuid4()}").status_code == 404
    assert api.get(f"{api.page(api.audience, 0)}&receipt=x").status_code == 422


def test_a_prompt_full_of_markup_is_shown_as_text(api: ServedApi) -> None:
    nasty = "</pre><script>alert(1)</script>{{ 7*7 }}"
    found = load(
        api,
        "acme",
        "site",
        f"automations: [{{slug: a, prompt: {json.dumps(nasty)}, knowledge: [notes]}}]",
    )
    answer = context(api, found["a"], mode="vector").json

    page = page_of(api, answer).text

    assert "<script" not in page
    assert "{{ 7*7 }}" in page
