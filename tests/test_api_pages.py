"""The citation page: the cited chunk in its item, whatever is in the text."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest
from seeding import Place, add_item, only, served_generation, version_of
from served_api import FEAR, RAIN, SECRET, ServedApi, make_key

from kshift_knowledge.postgres import pages
from kshift_knowledge.postgres.vector_store import PgVectorStore

HTML = "text/html,*/*;q=0.8"


def _add(api: ServedApi, path: str, *texts: str, **about: object) -> Place:
    notes = only(api.scope, api.scope.knowledge_database_ids[0])
    place = add_item(api.writer, notes, path)
    _put(api, place, *texts, **about)
    return place


def _put(api: ServedApi, place: Place, *texts: str, **about: object) -> None:
    version = version_of(place, texts, **about)  # type: ignore[arg-type]
    PgVectorStore(api.writer).replace_items(place.scope, served_generation(api.writer), [version])


def _set(api: ServedApi, place: Place, assignment: str) -> None:
    with api.writer.transaction() as conn:
        conn.execute(
            f"UPDATE knowledge_database_items SET {assignment}"
            " WHERE knowledge_database_item_id = %s",
            (place.item_id,),
        )


def _text(page: str) -> str:
    """What the reader sees of the item's text, the label of the cited chunk left out."""
    match = re.search(r'<div class="text"[^>]*>(.*?)</div>', page, re.DOTALL)
    assert match is not None
    body = re.sub(r'<a id="cited".*?</a>', "", match[1], flags=re.DOTALL)
    return unescape(re.sub(r"</?mark>", "", body))


def test_the_page_shows_the_item_with_the_cited_chunk_set_apart(api: ServedApi) -> None:
    response = api.get(api.page(api.audience, 1))

    assert response.status_code == 200
    assert response.content_type == "text/html; charset=utf-8"
    page = response.text
    assert f"<mark>{RAIN}</mark>" in page
    assert _text(page) == f"{FEAR}\n\n{RAIN}"
    for shown in ("Audience", "audience.md", "scraped", "persona", "acme / site / notes"):
        assert shown in page
    assert (
        '<a href="https://example.com/riders" rel="noopener noreferrer nofollow">'
        "https://example.com/riders</a>"
    ) in page
    assert '<html lang="en">' in page
    assert "<main>" in page
    assert page.count("autofocus") == 1


def test_the_neighbours_of_a_chunk_are_one_step_away(api: ServedApi) -> None:
    place = _add(api, "three.md", "one", "two", "three")

    first, middle, last = (api.get(api.page(place, n)).text for n in range(3))

    assert ("?chunk=0" in middle, "?chunk=2" in middle) == (True, True)
    assert 'rel="prev"' not in first
    assert 'rel="next"' not in last
    assert "(2 of 3)" in middle


def test_without_a_chunk_the_whole_item_is_shown(api: ServedApi) -> None:
    page = api.get(api.page(api.audience)).text

    assert _text(page) == f"{FEAR}\n\n{RAIN}"
    assert "<mark>" not in page


def test_a_chunk_that_is_no_more_is_said_to_be_gone(api: ServedApi) -> None:
    page = api.get(api.page(api.audience, 7)).text

    assert "Chunk #7 is not part of this item any more" in page
    assert _text(page) == f"{FEAR}\n\n{RAIN}"


def test_a_gone_item_says_so_and_shows_no_text(api: ServedApi) -> None:
    PgVectorStore(api.writer).delete_items(api.audience.scope, [api.audience.item_id])
    _set(api, api.audience, "state = 'gone', gone_at = now(), waiting_since = NULL")

    response = api.get(api.page(api.audience, 0))

    assert response.status_code == 200
    assert "This item is gone" in response.text
    assert FEAR not in response.text


def test_an_item_that_failed_shows_the_text_that_is_still_served(api: ServedApi) -> None:
    _set(api, api.audience, "state = 'failed', failure_code = 'not_utf8'")

    page = api.get(api.page(api.audience, 0)).text

    assert "could not be indexed" in page
    assert FEAR in page


def test_an_item_that_is_registered_only_says_why_there_is_no_text(api: ServedApi) -> None:
    notes = only(api.scope, api.scope.knowledge_database_ids[0])
    pdf = add_item(api.writer, notes, "plan.pdf", kind="pdf")
    waiting = add_item(api.writer, notes, "new.md")

    assert "registered as “pdf”" in api.get(api.page(pdf)).text
    assert "not indexed yet" in api.get(api.page(waiting)).text


def test_every_character_of_the_text_comes_through_as_text(api: ServedApi) -> None:
    nasty = (
        "\n<script>alert(1)</script> & <img src=x onerror=alert(1)>\n"
        "</div></mark>{{ 7*7 }} {% raw %} \u202e\u0007\x1b[31m ' \" &amp; 🚲\n"
    )
    place = _add(api, "<img onerror=1>.md", "first", nasty, "last", name="<b>{{ 1 }}</b>")

    page = api.get(api.page(place, 1)).text

    assert _text(page) == f"first\n\n{nasty}\n\nlast"
    assert "<script" not in page
    assert "<img" not in page
    assert "<b>" not in page


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "data:text/html,<script>",
        "file:///etc/passwd",
        "//evil.test/x",
        "https://user:pass@evil.test/",
        "https:///nohost",
        "https://[broken",
        "https://a.test/ b",
        "http\n://a.test/",
        "mailto:a@b.test",
        " https://a.test/",
    ],
)
def test_a_source_that_is_no_plain_web_address_is_text_and_no_link(
    api: ServedApi, url: str
) -> None:
    place = _add(api, "a.md", "text", source_url=url)

    page = unescape(api.get(api.page(place)).text)

    assert url in page
    assert f'href="{url}' not in page
    assert "nofollow" not in page


@pytest.mark.parametrize("url", ["https://a.test/?q=1&x=<y>", "http://b.test:8080/ü", "HTTP://C.d"])
def test_a_web_address_is_a_link_that_tells_nothing_about_us(api: ServedApi, url: str) -> None:
    place = _add(api, "a.md", "text", source_url=url)

    page = unescape(api.get(api.page(place)).text)

    assert f'<a href="{url}" rel="noopener noreferrer nofollow">{url}</a>' in page


def test_a_long_text_is_cut_around_the_chunk_and_says_by_how_much(api: ServedApi) -> None:
    paragraphs = [f"{n} " + "words " * 3000 for n in range(30)]
    place = _add(api, "long.md", *paragraphs)
    whole = "\n\n".join(paragraphs)
    start = whole.index(paragraphs[15])
    end = start + len(paragraphs[15])

    page = api.get(api.page(place, 15)).text

    window = whole[start - pages.WINDOW_CHARS : end + pages.WINDOW_CHARS]
    assert _text(page) == window
    assert f"<mark>{paragraphs[15]}</mark>" in page
    assert f"{start - pages.WINDOW_CHARS:,} characters before are left out" in page
    assert f"{len(whole) - end - pages.WINDOW_CHARS:,} characters after are left out" in page


def test_a_chunk_of_a_text_that_is_kept_no_more_is_shown_alone(api: ServedApi) -> None:
    """Another generation may have read the file later than the served one."""
    with api.writer.transaction() as conn:
        conn.execute(
            "UPDATE item_texts SET revision = revision + 1, text = 'newer text'"
            " WHERE knowledge_database_item_id = %s",
            (api.audience.item_id,),
        )

    page = api.get(api.page(api.audience, 1)).text

    assert _text(page) == RAIN


@pytest.mark.parametrize("chunk", ["", "-1", "x", "1.0", "01", "9999999999", "1'--", "٣"])
def test_what_is_no_index_is_refused(api: ServedApi, chunk: str) -> None:
    response = api.get(f"{api.page(api.audience)}?chunk={chunk}")

    assert response.status_code == 422
    assert response.json["errors"] == [
        {"pointer": "/chunk", "detail": "Input should be a chunk's index"}
    ]


def test_foreign_and_missing_files_are_the_same_404(api: ServedApi) -> None:
    blog_only = make_key(
        api.writer,
        api.scope.account_id,
        project_id=api.scope.project_id,
        knowledge_database_ids=api.scope.knowledge_database_ids[1:],
    )
    mine, theirs = api.audience.scope, api.secret.scope
    paths = [
        (api.key, api.page(api.secret, 0)),
        (api.key, api.page(replace(api.secret, scope=mine), 0)),
        (api.key, api.page(replace(api.audience, scope=theirs), 0)),
        (api.key, api.page(replace(api.audience, file_id=10**9))),
        (api.key, api.page(replace(api.audience, file_id=2**63 - 1))),
        (api.key, api.page(replace(api.audience, file_id=2**63))),
        (api.key, api.page(replace(api.audience, scope=replace(mine, project_id=10**9)))),
        (api.foreign_key, api.page(api.audience, 0)),
        (blog_only, api.page(api.audience, 0)),
    ]

    bodies = []
    for key, path in paths:
        response = api.get(path, key=key)
        assert response.status_code == 404
        body = response.json
        assert body.pop("request_id")
        bodies.append(body)

    assert all(body == bodies[0] for body in bodies)
    assert SECRET in api.get(api.page(api.secret, 0), key=api.foreign_key).text


def test_a_browser_gets_its_problems_as_pages(api: ServedApi) -> None:
    missing = api.get(api.page(replace(api.audience, file_id=10**9)), Accept=HTML)
    wrong = api.get(f"{api.page(api.audience)}?chunk=x", Accept=HTML)

    assert (missing.status_code, wrong.status_code) == (404, 422)
    for response in (missing, wrong):
        assert response.content_type == "text/html; charset=utf-8"
        assert response.headers["X-Request-Id"] in response.text
    assert "Not found" in missing.text


@pytest.mark.parametrize("path", ["/sign-in", "/problems/busy", "/nowhere", "/static/pages.css"])
def test_every_answer_carries_the_security_headers(api: ServedApi, path: str) -> None:
    _assert_security_headers(api.get(path).headers)
    _assert_security_headers(api.get(api.page(api.audience)).headers)
    _assert_security_headers(api.retrieve().headers)


def _assert_security_headers(headers: object) -> None:
    found = dict(headers)  # type: ignore[call-overload]
    policy = found["Content-Security-Policy"].split("; ")
    assert "default-src 'none'" in policy
    assert "style-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not any("script" in part or "unsafe" in part for part in policy)
    assert found["X-Content-Type-Options"] == "nosniff"
    assert found["Referrer-Policy"] == "no-referrer"
    assert found["X-Frame-Options"] == "DENY"


def test_what_belongs_to_a_key_is_never_cached(api: ServedApi) -> None:
    assert api.get(api.page(api.audience)).headers["Cache-Control"] == "no-store"
    assert api.retrieve().headers["Cache-Control"] == "no-store"
    assert "max-age" in api.get("/static/pages.css").headers["Cache-Control"]
