"""Every bound of a request, and the order in which requests are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from served_api import ServedApi, bearer
from werkzeug.test import TestResponse

from kshift_api.schemas import ProblemDetails
from kshift_knowledge.retrieval import MODES

NAN, INFINITY = float("nan"), float("inf")
NO_IDS = [
    *("1", 1.0, True, False, -1, 0, 2**63, 10**40, NAN, INFINITY, None, "", [], [1], [[1]], {}),
    {"$gt": 0},
]


def _problem(response: TestResponse, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status
    assert response.content_type == "application/problem+json"
    problem: dict[str, Any] = json.loads(response.data)
    ProblemDetails.model_validate(problem)
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["request_id"] == response.headers["X-Request-Id"]
    return problem


def _pointers(response: TestResponse) -> list[str]:
    problem = _problem(response, 422, "invalid_request")
    return [error["pointer"] for error in problem["errors"]]


@pytest.mark.parametrize("value", NO_IDS, ids=repr)
def test_what_is_no_id_is_refused_with_a_pointer(api: ServedApi, value: Any) -> None:
    assert _pointers(api.retrieve(project_id=value)) == ["/project_id"]
    assert _pointers(api.retrieve(knowledge_database_ids=[1, value])) == [
        "/knowledge_database_ids/1"
    ]
    if value is not None:
        assert _pointers(api.retrieve(account_id=value)) == ["/account_id"]


def test_a_number_beyond_every_float_is_a_value_and_not_bad_json(api: ServedApi) -> None:
    question = api.question
    for number in ("1e400", "9" * 6000, "-" + "9" * 6000):
        question["project_id"] = "NUMBER"
        body = json.dumps(question).replace('"NUMBER"', number)

        assert _pointers(api.send(body.encode())) == ["/project_id"]


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("query", ["x", "x" * 200_000], ["", " ", "\u200b\n\t", "x" * 200_001, 1, None, ["x"]]),
        ("query", ["\ufdfd"], ["a\0b", "\ud800", "a\udfffb"]),
        ("top_k", [1, 50], [0, 51, -1, 10**9, 1.0, "6", True, None, NAN]),
        ("max_chars", [1, 100_000], [0, 100_001, -1, 10**9, 1.5, "9", None]),
        ("mode", list(MODES), ["magic", "", None, 1, "VECTOR", "\ud800"]),
        ("kind", ["text", None], ["", 1, "a\0", "x" * 1001, "\ud800"]),
        ("origin", ["scraped", "uploaded", None], ["", "other", 1, True, "Scraped"]),
        ("knowledge_database_ids", [[]], [None, {}, "1", 1, [None], [1] * 101]),
        ("account_id", [None], ["1", 0, 2**63, True]),
    ],
)
def test_bounds_hold_on_both_sides(
    api: ServedApi, field: str, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        assert api.retrieve(**{field: value}).status_code == 200
    for value in bad:
        (pointer,) = _pointers(api.retrieve(**{field: value}))
        assert pointer.startswith(f"/{field}")


@pytest.mark.parametrize("field", ["pins", "labels", "item_names"])
def test_lists_of_names_are_bounded(api: ServedApi, field: str) -> None:
    good: list[Any] = [[], ["x"] * 50, ["'; --", '"', "%", "n" * 1000]]
    for value in good:
        assert api.retrieve(**{field: value}).status_code == 200
    no_lists: list[Any] = [None, "x", {}, ["x"] * 51]
    for value in no_lists:
        assert _pointers(api.retrieve(**{field: value})) == [f"/{field}"]
    bad: list[Any] = ["", 1, None, True, [], "a\0", "\ud800", "n" * 1001]
    for name in bad:
        assert _pointers(api.retrieve(**{field: ["x", name]})) == [f"/{field}/1"]


def test_a_hundred_databases_are_allowed(api: ServedApi) -> None:
    notes = api.scope.knowledge_database_ids[0]

    assert api.retrieve(knowledge_database_ids=[notes] * 100).status_code == 200


def test_an_unsupported_mode_is_told_which_are_supported(api: ServedApi) -> None:
    problem = _problem(api.retrieve(mode="magic"), 422, "invalid_request")

    assert problem["errors"] == [
        {"pointer": "/mode", "detail": f"Mode is not supported; supported are: {', '.join(MODES)}"}
    ]


@pytest.mark.parametrize("field", ["query", "project_id", "knowledge_database_ids"])
def test_what_is_required_must_be_there(api: ServedApi, field: str) -> None:
    assert _pointers(api.retrieve(**{field: ...})) == [f"/{field}"]


@pytest.mark.parametrize(
    ("name", "pointer"),
    [
        ("databases", "/databases"),
        ("a/b~c", "/a~1b~0c"),
        ("", "/"),
        ("__proto__", "/__proto__"),
        ("x" * 101, ""),
        ("\0", ""),
        ("\ud800", ""),
    ],
)
def test_fields_that_do_not_exist_are_refused(api: ServedApi, name: str, pointer: str) -> None:
    assert _pointers(api.retrieve(**{name: 1})) == [pointer]


@pytest.mark.parametrize("body", ["[]", "1", "null", '"x"', "true"])
def test_json_that_is_no_object_is_refused(api: ServedApi, body: str) -> None:
    problem = _problem(api.send(body.encode()), 422, "invalid_request")

    assert problem["errors"] == [{"pointer": "", "detail": "Input should be an object"}]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{'query': 1}",
        b'{"query": "x",}',
        b'{"query": "x"} {}',
        b'\xef\xbb\xbf{"query": "x"}',
        b'{"query": "\xff"}',
        b'{"query": "\xed\xa0\x80"}',
        '{"query": "x"}'.encode("utf-16"),
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"query": "x", "query": "y"}',
        b'{"query": {"a": 1, "a": 2}}',
        b"\0",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_what_is_not_one_json_value_with_unique_keys_is_a_400(api: ServedApi, body: bytes) -> None:
    problem = _problem(api.send(body), 400, "invalid_json")

    assert "errors" not in problem


def test_deep_nesting_that_still_parses_is_refused_as_a_value(api: ServedApi) -> None:
    assert _pointers(api.retrieve(labels=json.loads("[" * 900 + "]" * 900))) == ["/labels/0"]


def test_many_wrong_values_are_reported_up_to_a_bound(api: ServedApi) -> None:
    body = {**api.question, **{f"field{n}": n for n in range(10_000)}}

    response = api.send(json.dumps(body).encode())

    assert len(_pointers(response)) == 20
    assert len(response.data) < 5_000


def test_a_body_may_have_one_mebibyte_and_no_byte_more(api: ServedApi) -> None:
    question = json.dumps(api.question).encode()
    fitting = question + b" " * (1024 * 1024 - len(question))

    assert api.send(fitting).status_code == 200
    _problem(api.send(fitting + b" "), 413, "body_too_large")


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/x-www-form-urlencoded", "application/json+x", "json"],
)
def test_another_content_type_is_refused(api: ServedApi, content_type: str) -> None:
    body = json.dumps(api.question).encode()

    _problem(api.send(body, Content_Type=content_type), 415, "unsupported_media_type")


def test_json_may_name_its_charset_and_may_not_be_compressed(api: ServedApi) -> None:
    body = json.dumps(api.question).encode()

    assert api.send(body, Content_Type="application/json; charset=utf-8").status_code == 200
    assert api.send(body, Content_Encoding="identity").status_code == 200
    _problem(api.send(body, Content_Encoding="gzip"), 415, "unsupported_media_type")


def test_another_method_is_refused_with_those_that_are_allowed(api: ServedApi) -> None:
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        response = api.client.open("/v1/retrieve", method=method, headers=bearer(api.key))

        _problem(response, 405, "method_not_allowed")
        assert response.headers["Allow"] == "POST"


def test_requests_are_refused_in_the_order_of_the_contract(api: ServedApi) -> None:
    foreign = list(api.foreign.knowledge_database_ids)
    too_large = b" " * (1024 * 1024 + 1)
    other_account = api.foreign.account_id

    unsigned = api.client.post("/v1/retrieve", data=too_large, content_type="text/plain")
    _problem(unsigned, 401, "unauthenticated")
    _problem(api.send(too_large), 413, "body_too_large")
    _problem(api.send(b"{"), 400, "invalid_json")
    wrong = api.retrieve(top_k=0, account_id=other_account, knowledge_database_ids=foreign)
    _problem(wrong, 422, "invalid_request")
    mismatch = api.retrieve(account_id=other_account, knowledge_database_ids=foreign)
    _problem(mismatch, 403, "account_mismatch")
    _problem(api.retrieve(knowledge_database_ids=foreign), 404, "not_found")
    assert api.embeddings.counts["requests"] == 0


def test_the_project_is_looked_at_before_an_empty_list_of_databases(api: ServedApi) -> None:
    for project_id in (api.foreign.project_id, 2**63 - 1):
        response = api.retrieve(project_id=project_id, knowledge_database_ids=[])

        _problem(response, 404, "not_found")


def test_the_keys_own_account_may_be_named(api: ServedApi) -> None:
    assert api.retrieve(account_id=api.scope.account_id).status_code == 200


def test_foreign_and_missing_ids_get_the_same_answer(api: ServedApi) -> None:
    notes = api.scope.knowledge_database_ids[0]
    (foreign,) = api.foreign.knowledge_database_ids
    requests: list[dict[str, Any]] = [
        {"knowledge_database_ids": [foreign]},
        {"knowledge_database_ids": [notes, foreign]},
        {"knowledge_database_ids": [foreign, foreign]},
        {"knowledge_database_ids": [2**63 - 1]},
        {"project_id": api.foreign.project_id},
        {"project_id": 10**9},
        {"project_id": api.foreign.project_id, "knowledge_database_ids": [foreign]},
    ]

    answers = []
    for changes in requests:
        response = api.retrieve(**changes)
        body = _problem(response, 404, "not_found")
        assert body.pop("request_id")
        headers = {name: value for name, value in response.headers if name != "X-Request-Id"}
        answers.append((body, headers))

    assert all(answer == answers[0] for answer in answers)
