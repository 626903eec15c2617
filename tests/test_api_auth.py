"""Who may call what: keys on every route but the open ones, cookies on pages alone."""

from __future__ import annotations

import json
import re
import time
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from itsdangerous import TimestampSigner, URLSafeTimedSerializer
from served_api import FEAR, ServedApi, bearer, make_key, served_api
from waiting import wait_until
from werkzeug.test import TestResponse

from kshift_api.auth import COOKIE, COOKIE_ENDPOINTS, OPEN_ENDPOINTS
from kshift_knowledge.postgres import keys
from kshift_knowledge.postgres.database import Database

FORM = "application/x-www-form-urlencoded"
HTML = "text/html,application/xhtml+xml,*/*;q=0.8"


def _sign_in(api: ServedApi, key: str, **fields: str) -> TestResponse:
    return api.client.post("/sign-in", data={"key": key, **fields})


def _cookie(response: TestResponse) -> str:
    (header,) = response.headers.getlist("Set-Cookie")
    match = re.match(rf"{COOKIE}=([^;]*);", header)
    assert match is not None
    return match[1]


def test_each_route_is_open_or_needs_a_key(api: ServedApi) -> None:
    """A new route needs a key by default, and an entry here when it is to be open."""
    ids = {"account": 1, "project": 1, "file": 1, "code": "busy", "filename": "pages.css"}
    ids |= {"automation": 1, "receipt": "00000000-0000-4000-8000-000000000000"}
    needing = set()
    for rule in api.app.url_map.iter_rules():
        path = re.sub(r"<(?:\w+:)?(\w+)>", lambda match: str(ids[match[1]]), rule.rule)
        for method in (rule.methods or set()) - {"HEAD"}:
            response = api.client.open(path, method=method, buffered=True)
            if response.status_code == 401 and rule.endpoint != "sign_in.enter":
                needing.add(rule.endpoint)

    everything = {rule.endpoint for rule in api.app.url_map.iter_rules()}
    assert needing == everything - OPEN_ENDPOINTS
    assert needing == {
        *("retrieve.retrieve", "retrieve.knowledge_databases", "pages.item"),
        *("automations.listed", "automations.context", "automations.compared"),
        *("automations.tools", "automations.retrieve_knowledge"),
        *("receipts.listed", "receipts.one", "progress.progress"),
    }
    assert needing >= COOKIE_ENDPOINTS


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer nonsense",
        "Basic {key}",
        "Bearer {key}x",
        "Bearer ks_000000000000_" + "0" * 64,
        "Bearer " + "x" * 100_000,
        "{key}",
        "Bearer {key}, Bearer {key}",
        "Bearer \xff",
    ],
)
def test_no_valid_key_is_one_and_the_same_401(api: ServedApi, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.replace("{key}", api.key)}

    response = api.client.get("/v1/knowledge-databases", headers=headers)

    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == 'Bearer realm="kshift"'
    problem = json.loads(response.data)
    assert problem["code"] == "unauthenticated"
    assert problem["detail"] == "There is no key, or it is malformed, unknown, expired or revoked."


def test_the_scheme_may_be_written_in_any_case(api: ServedApi) -> None:
    headers = {"Authorization": f"bEARER   {api.key}"}

    assert api.client.get("/v1/knowledge-databases", headers=headers).status_code == 200


def test_a_revoked_key_stops_at_once_where_nothing_is_remembered(
    writer: Database, reader: Database
) -> None:
    with served_api(writer, reader, key_cache_s=0.0) as api:
        assert api.retrieve().status_code == 200
        with writer.transaction() as conn:
            keys.revoke_key(conn, api.key)

        assert api.retrieve().status_code == 401


def test_a_remembered_revoked_key_stops_within_five_seconds(
    writer: Database, reader: Database
) -> None:
    with served_api(writer, reader) as api:
        assert api.retrieve().status_code == 200
        with writer.transaction() as conn:
            keys.revoke_key(conn, api.key)

        wait_until(lambda: api.retrieve().status_code == 401, deadline_s=5)


def test_a_remembered_key_still_expires_on_time(writer: Database, reader: Database) -> None:
    with served_api(writer, reader, key_cache_s=3600.0) as api:
        key = make_key(writer, api.scope.account_id, expires_in=timedelta(seconds=1))
        statuses: list[int] = []
        while 401 not in statuses and len(statuses) < 100_000:
            statuses.append(api.get("/v1/knowledge-databases", key=key).status_code)

    assert set(statuses) == {200, 401}


def test_signing_in_sets_a_cookie_that_opens_pages_and_goes_on(api: ServedApi) -> None:
    page = api.page(api.audience, 0)

    response = _sign_in(api, f" {api.key}\n", next=page)

    assert response.status_code == 303
    assert response.headers["Location"] == page
    (attributes,) = response.headers.getlist("Set-Cookie")
    parts = attributes.split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"} <= set(parts)
    client = api.client
    client.set_cookie(COOKIE, _cookie(response))
    shown = client.get(page)
    assert shown.status_code == 200
    assert FEAR in shown.text


def test_the_cookie_is_sent_over_https_only_when_it_was_set_over_https(api: ServedApi) -> None:
    secure = api.client.post("/sign-in", data={"key": api.key}, base_url="https://kshift.test")

    assert "Secure" in secure.headers["Set-Cookie"]
    assert "Secure" not in _sign_in(api, api.key).headers["Set-Cookie"]


def test_the_cookie_is_not_the_key_and_opens_no_api_route(api: ServedApi) -> None:
    cookie = _cookie(_sign_in(api, api.key))
    client = api.client
    client.set_cookie(COOKIE, cookie)

    assert api.key.split("_")[2] not in cookie
    assert client.get("/v1/knowledge-databases").status_code == 401
    assert client.post("/v1/retrieve", json=api.question).status_code == 401
    assert api.retrieve(key=cookie).status_code == 401


def test_a_cookie_of_another_secret_or_a_changed_one_opens_nothing(api: ServedApi) -> None:
    cookie = _cookie(_sign_in(api, api.key))
    key_hash = keys.hash_of(api.key)
    assert key_hash is not None
    forged = str(URLSafeTimedSerializer(b"guess", salt="kshift.sign-in").dumps(key_hash.hex()))
    unsigned = key_hash.hex()

    for value in (forged, unsigned, cookie[:-1], cookie + "x", "", "..", "a.b.c"):
        client = api.client
        client.set_cookie(COOKIE, value)
        assert client.get(api.page(api.audience)).status_code == 401


def test_a_cookie_ends_after_twelve_hours_and_with_its_key(
    writer: Database, reader: Database
) -> None:
    with served_api(writer, reader, key_cache_s=0.0) as api:
        client = api.client
        client.set_cookie(COOKIE, _cookie(_sign_in(api, api.key)))
        assert client.get(api.page(api.audience)).status_code == 200
        with writer.transaction() as conn:
            keys.revoke_key(conn, api.key)
        assert client.get(api.page(api.audience)).status_code == 401

        client.set_cookie(COOKIE, _aged_cookie(api, api.foreign_key, 12 * 3600 - 60))
        assert client.get(api.page(api.secret)).status_code == 200
        client.set_cookie(COOKIE, _aged_cookie(api, api.foreign_key, 12 * 3600 + 60))
        assert client.get(api.page(api.secret)).status_code == 401


def _aged_cookie(api: ServedApi, key: str, age_s: int) -> str:
    """A cookie of the application's own secret, signed *age_s* seconds ago."""

    class Past(TimestampSigner):
        def get_timestamp(self) -> int:
            return int(time.time()) - age_s

    key_hash = keys.hash_of(key)
    assert key_hash is not None
    serializer = URLSafeTimedSerializer(
        api.services.cookie_secret, salt="kshift.sign-in", signer=Past
    )
    return str(serializer.dumps(key_hash.hex()))


@pytest.mark.parametrize("key", ["", "nonsense", "ks_000000000000_" + "0" * 64])
def test_a_wrong_key_shows_the_form_again_and_sets_nothing(api: ServedApi, key: str) -> None:
    response = _sign_in(api, key, next="/accounts/1/projects/1/files/1")

    assert response.status_code == 401
    assert response.headers.getlist("Set-Cookie") == []
    assert 'role="alert"' in response.text
    assert 'value="/accounts/1/projects/1/files/1"' in response.text


@pytest.mark.parametrize(
    "target",
    [
        "//evil.test/",
        "/\\evil.test",
        "https://evil.test/",
        "javascript:alert(1)",
        "evil.test",
        "/\t/evil.test",
        "/a\r\nSet-Cookie: x=y",
        "/ü",
        "",
    ],
)
def test_only_a_path_of_this_site_is_gone_on_to(api: ServedApi, target: str) -> None:
    response = _sign_in(api, api.key, next=target)

    assert response.headers["Location"] == "/sign-in"
    assert 'name="next"' not in api.client.get("/sign-in", query_string={"next": target}).text


def test_the_form_keeps_where_to_go_on_to_as_text(api: ServedApi) -> None:
    target = '/accounts/1/"><script>alert(1)</script>'.replace(" ", "")

    page = api.client.get("/sign-in", query_string={"next": target}).text

    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_signing_out_takes_the_cookie_away(api: ServedApi) -> None:
    client = api.client
    client.set_cookie(COOKIE, _cookie(_sign_in(api, api.key)))
    assert api.key.split("_")[1] in client.get("/sign-in").text

    response = client.post("/sign-out")

    assert (response.status_code, response.headers["Location"]) == (303, "/sign-in")
    assert client.get(api.page(api.audience)).status_code == 401


@pytest.mark.parametrize("path", ["/sign-in", "/sign-out"])
def test_a_form_of_another_site_signs_nobody_in_or_out(api: ServedApi, path: str) -> None:
    for site in ("cross-site", "same-site"):
        response = api.client.post(path, data={"key": api.key}, headers={"Sec-Fetch-Site": site})

        assert response.status_code == 403
        assert json.loads(response.data)["code"] == "cross_site"
    own = api.client.post(path, data={"key": api.key}, headers={"Sec-Fetch-Site": "same-origin"})
    assert own.status_code == 303


def test_the_form_takes_only_a_form_and_a_small_one(api: ServedApi) -> None:
    client = api.client

    assert client.post("/sign-in", json={"key": api.key}).status_code == 415
    assert client.post("/sign-in", data=b"x" * 1_048_577, content_type=FORM).status_code == 413
    assert client.post("/sign-in", data="a=1&" * 20, content_type=FORM).status_code == 422
    assert client.post("/sign-in", data=b"key=\xff", content_type=FORM).status_code == 422


def test_a_browser_without_a_key_is_sent_to_sign_in_and_a_program_gets_a_401(
    api: ServedApi,
) -> None:
    page = api.page(api.audience, 1)

    browser = api.client.get(page, headers={"Accept": HTML})
    program = api.client.get(page, headers={"Accept": "application/json"})
    anybody = api.client.get(page)

    assert browser.status_code == 303
    location = urlsplit(browser.headers["Location"])
    assert (location.path, parse_qs(location.query)) == ("/sign-in", {"next": [page]})
    assert api.client.get(browser.headers["Location"]).status_code == 200
    assert (program.status_code, anybody.status_code) == (401, 401)
    assert json.loads(program.data)["code"] == "unauthenticated"


def test_a_browser_that_comes_from_another_site_loads_once_more_to_bring_its_cookie(
    api: ServedApi,
) -> None:
    """SameSite=Strict keeps the cookie back on the first request."""
    page = api.page(api.audience, 1)
    headers = {"Accept": HTML, "Sec-Fetch-Site": "cross-site"}

    response = api.client.get(page, headers=headers)

    assert response.status_code == 401
    assert '<meta http-equiv="refresh" content="0">' in response.text
    assert f'href="{page}"' in response.text


def test_a_key_that_dies_while_pages_are_open_needs_a_new_sign_in(api: ServedApi) -> None:
    client = api.client
    client.set_cookie(COOKIE, "stale.cookie.value")

    assert client.get(api.page(api.audience), headers={"Accept": HTML}).status_code == 303


def test_bearer_and_cookie_do_not_mix(api: ServedApi) -> None:
    """A header that is there decides alone where it is a key; the page is the caller's."""
    client = api.client
    client.set_cookie(COOKIE, _cookie(_sign_in(api, api.key)))

    as_foreigner = client.get(api.page(api.audience), headers=bearer(api.foreign_key))

    assert as_foreigner.status_code == 404
