"""POST /v1/retrieve and GET /v1/knowledge-databases: the answers."""

from __future__ import annotations

import json
import uuid
from hashlib import sha256
from typing import Any

import pytest
from served_api import FEAR, RAIN, SECRET, STYLE, ServedApi, make_key, served_api

from kshift_api.schemas import KnowledgeDatabases, RetrieveResponse
from kshift_knowledge.postgres.database import Database


def test_a_question_is_answered_with_cited_passages(api: ServedApi) -> None:
    response = api.retrieve(top_k=2)

    assert response.status_code == 200
    answer = response.json
    RetrieveResponse.model_validate(answer)
    notes = api.scope.knowledge_database_ids[0]
    path = api.page(api.audience, 0)
    assert answer["hits"][0] == {
        "rank": 1,
        "content": FEAR,
        "item_name": "Audience",
        "file": "audience.md",
        "chunk_index": 0,
        "score": pytest.approx(1.0),
        "knowledge_database_id": notes,
        "knowledge_database_item_id": api.audience.item_id,
        "project_file_id": api.audience.file_id,
        "source_url": "https://example.com/riders",
        "origin": "scraped",
        "labels": ["persona"],
        "content_hash": sha256(FEAR.encode()).hexdigest(),
        "char_start": 0,
        "char_end": len(FEAR),
        "excerpts": [[0, len(FEAR)]],
        "truncated": False,
        "pinned": False,
        "path": path,
    }
    assert [hit["rank"] for hit in answer["hits"]] == [1, 2]
    assert answer["context"].startswith(f"[Audience#0]\n{FEAR}\n\n[")
    assert answer["citations"][0] == {
        "project_file_id": api.audience.file_id,
        "name": "Audience",
        "file": "audience.md",
        "chunk_index": 0,
        "source_url": "https://example.com/riders",
        "path": path,
    }
    assert answer["dropped"] == []
    assert answer["usage"]["context_chars"] == len(answer["context"])
    assert answer["usage"]["embedding_tokens"] > 0
    assert (answer["mode"], answer["embedding_model"]) == ("hybrid", "text-embedding-3-small")
    assert list(answer) == [
        *("receipt_id", "mode", "embedding_model", "hits", "context", "citations", "dropped"),
        "usage",
    ]


def test_the_path_of_a_citation_leads_to_the_page_that_shows_it(api: ServedApi) -> None:
    path = api.retrieve(top_k=1).json["citations"][0]["path"]

    page = api.get(path)

    assert page.status_code == 200
    assert f"<mark>{FEAR}</mark>" in page.text


def test_the_same_question_again_costs_no_tokens(api: ServedApi) -> None:
    costs = [api.retrieve().json["usage"]["embedding_tokens"] for _ in range(2)]

    assert costs[0] > 0
    assert costs[1] == 0
    assert api.embeddings.texts == [FEAR]


def test_no_database_means_no_hits_and_no_embedding_call(api: ServedApi) -> None:
    response = api.retrieve(knowledge_database_ids=[], pins=["Audience"])

    assert response.status_code == 200
    assert response.json["hits"] == []
    assert response.json["context"] == ""
    assert response.json["dropped"] == [
        {"item_name": "Audience", "chunk_index": None, "reason": "pin_not_found"}
    ]
    assert api.embeddings.counts["requests"] == 0


def test_a_database_without_items_answers_with_no_hits(api: ServedApi) -> None:
    blog = api.scope.knowledge_database_ids[1]

    assert api.retrieve(knowledge_database_ids=[blog]).json["hits"] == []


def test_a_database_named_twice_counts_once(api: ServedApi) -> None:
    notes = api.scope.knowledge_database_ids[0]

    answer = api.retrieve(knowledge_database_ids=[notes, notes], top_k=50).json

    assert len(answer["hits"]) == 3


@pytest.mark.parametrize(
    ("narrowing", "expected"),
    [
        ({"origin": "scraped"}, {FEAR, RAIN}),
        ({"origin": None}, {FEAR, RAIN, STYLE}),
        ({"labels": ["persona"]}, {FEAR, RAIN}),
        ({"labels": ["persona", "other"]}, set()),
        ({"item_names": ["Brand Styles"]}, {STYLE}),
        ({"item_names": ["x' OR '1'='1"]}, set()),
        ({"labels": ["$.*"]}, set()),
        ({"kind": "pdf"}, set()),
        ({"kind": None}, {FEAR, RAIN, STYLE}),
    ],
)
def test_a_body_narrows_what_is_searched(
    api: ServedApi, narrowing: dict[str, Any], expected: set[str]
) -> None:
    assert {hit["content"] for hit in api.retrieve(**narrowing).json["hits"]} == expected


def test_pins_come_first_and_ignore_origin_labels_and_names(api: ServedApi) -> None:
    answer = api.retrieve(
        pins=["Brand Styles"], origin="scraped", labels=["persona"], item_names=["Audience"]
    ).json

    assert [(hit["content"], hit["pinned"]) for hit in answer["hits"]] == [
        (STYLE, True),
        (FEAR, False),
        (RAIN, False),
    ]


def test_the_context_keeps_to_the_budget_and_what_was_left_out_is_named(api: ServedApi) -> None:
    answer = api.retrieve(max_chars=60, top_k=3).json

    assert len(answer["context"]) <= 60
    names = [(entry["item_name"], entry["reason"]) for entry in answer["dropped"]]
    assert len(answer["hits"]) + len(names) == 3
    assert {reason for _, reason in names} == {"budget"}


def test_defaults_come_from_the_services(writer: Database, reader: Database) -> None:
    with served_api(writer, reader, top_k=1, max_chars=45) as api:
        answer = api.retrieve().json
        wider = api.retrieve(top_k=3, max_chars=1500).json

    assert len(answer["hits"]) + len(answer["dropped"]) == 1
    assert len(answer["context"]) <= 45
    assert len(wider["hits"]) == 3


def test_every_answer_leaves_a_receipt_of_what_was_asked_used_and_cut(api: ServedApi) -> None:
    answer = api.retrieve(max_chars=60, pins=["Nope"], labels=["persona"]).json

    with api.writer.transaction() as conn:
        cursor = conn.execute("SELECT * FROM receipts")
        assert cursor.description is not None
        columns = [column.name for column in cursor.description]
        (receipt,) = [dict(zip(columns, row, strict=True)) for row in cursor]
    assert receipt["receipt_id"] == uuid.UUID(answer["receipt_id"])
    assert receipt["account_id"] == api.scope.account_id
    assert receipt["project_id"] == api.scope.project_id
    assert receipt["knowledge_database_ids"] == list(api.scope.knowledge_database_ids)
    assert receipt["key_id"] == api.key.split("_")[1]
    assert receipt["query"] == FEAR
    assert receipt["query_hash"] == sha256(FEAR.encode()).hexdigest()
    assert receipt["query_was_cut"] is False
    assert len(receipt["query_vector"]) == 16
    assert receipt["request"] == {
        "kind": "text",
        "origin": None,
        "labels": ["persona"],
        "item_names": [],
        "pins": ["Nope"],
        "top_k": 6,
        "max_chars": 60,
        "preferences_left_out": [],
    }
    hits = receipt["hits"]
    assert all(hit.pop("revision") > 0 for hit in hits)
    assert hits == json.loads(json.dumps(answer["hits"]))
    assert receipt["dropped"] == answer["dropped"]
    assert receipt["context"] == answer["context"]
    assert receipt["usage"] == answer["usage"]
    assert set(receipt["timings_ms"]) == {"embed", "search", "pack"}


def test_an_answer_without_hits_leaves_a_receipt_too(api: ServedApi) -> None:
    receipt_id = api.retrieve(knowledge_database_ids=[]).json["receipt_id"]

    with api.writer.transaction() as conn:
        rows = conn.execute("SELECT receipt_id::text, hits, context FROM receipts").fetchall()
    assert rows == [(receipt_id, [], "")]


def test_a_question_beyond_the_models_limit_is_cut_and_the_receipt_says_so(
    api: ServedApi,
) -> None:
    response = api.retrieve(query="every rider fears rain " * 8000)

    assert response.status_code == 200
    assert len(api.embeddings.texts[0]) < 100_000
    with api.writer.transaction() as conn:
        assert conn.execute("SELECT query_was_cut FROM receipts").fetchall() == [(True,)]


def test_odd_text_is_asked_and_answered_as_it_is(api: ServedApi) -> None:
    for query in (
        "🚲",
        "\u202eriders",
        "e\u0301\u0327" * 50,
        "自転車",
        "<|endoftext|>",
        "a\u200bb",
    ):
        assert api.retrieve(query=query).status_code == 200

    assert "自転車" in api.embeddings.texts


def test_other_scripts_are_sent_readable_as_utf_8(api: ServedApi) -> None:
    response = api.retrieve(pins=["自転車"])

    assert response.content_type == "application/json"
    assert '"item_name":"自転車"' in response.text.replace(": ", ":")


def test_the_databases_a_key_may_see_are_listed(api: ServedApi) -> None:
    response = api.get("/v1/knowledge-databases")

    assert response.status_code == 200
    KnowledgeDatabases.model_validate_json(response.data)
    blog, notes = response.json["knowledge_databases"]
    assert blog["knowledge_database"] == "blog"
    assert notes == {
        "account_id": api.scope.account_id,
        "account": "acme",
        "project_id": api.scope.project_id,
        "project": "site",
        "knowledge_database_id": api.scope.knowledge_database_ids[0],
        "knowledge_database": "notes",
        "items": 2,
        "chunks": 3,
        "last_indexed_at": notes["last_indexed_at"],
    }
    assert notes["last_indexed_at"].endswith("+00:00")


def test_a_narrow_key_lists_and_asks_only_its_databases(api: ServedApi) -> None:
    notes, blog = api.scope.knowledge_database_ids
    key = make_key(
        api.writer,
        api.scope.account_id,
        project_id=api.scope.project_id,
        knowledge_database_ids=[notes],
    )

    listed = api.get("/v1/knowledge-databases", key=key).json["knowledge_databases"]

    assert [one["knowledge_database_id"] for one in listed] == [notes]
    assert api.retrieve(key=key, knowledge_database_ids=[notes]).status_code == 200
    assert api.retrieve(key=key, knowledge_database_ids=[notes, blog]).status_code == 404


def test_the_other_tenant_finds_its_own_text_and_nothing_of_ours(api: ServedApi) -> None:
    answer = api.retrieve(
        key=api.foreign_key,
        query=FEAR,
        project_id=api.foreign.project_id,
        knowledge_database_ids=list(api.foreign.knowledge_database_ids),
        pins=["Audience"],
        top_k=50,
    ).json

    assert [hit["content"] for hit in answer["hits"]] == [SECRET]
