"""The pages in a real browser: signed in by form, scrolled to the citation, safe and narrow."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from seeding import Place, add_item, only, served_generation, version_of
from served_api import FEAR, RAIN, ServedApi
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from kshift_knowledge.postgres.vector_store import PgVectorStore

CHROMIUM = Path("/usr/bin/chromium")
NARROW = {"width": 360, "height": 640}

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    flags = ["--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-sync", *flags]
        )
        yield started
        started.close()


@contextmanager
def _serving(application: object) -> Iterator[int]:
    """Serve a WSGI application on loopback; yields the port."""
    server = make_server("127.0.0.1", 0, application, threaded=True)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def site(api: ServedApi) -> Iterator[str]:
    with _serving(api.app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def complaints() -> list[str]:
    """What the browser said that it should not have: errors, dialogs, blocked loads."""
    return []


@pytest.fixture
def page(browser: Browser, complaints: list[str]) -> Iterator[Page]:
    context = browser.new_context(viewport=NARROW)  # type: ignore[arg-type]
    page = context.new_page()
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.on("requestfailed", lambda failed: complaints.append(f"{failed.url} failed"))
    yield page
    context.close()


def _long_item(api: ServedApi) -> Place:
    notes = only(api.scope, api.scope.knowledge_database_ids[0])
    place = add_item(api.writer, notes, "long.md")
    texts = [f"Paragraph {n}. " + "Much has been said of it already. " * 40 for n in range(20)]
    nasty = "<script>alert(1)</script><img src=x onerror=alert(2)> " + "x" * 400
    version = version_of(place, [*texts, nasty], name="Long <b>read</b>")
    PgVectorStore(api.writer).replace_items(notes, served_generation(api.writer), [version])
    return place


def _sign_in(page: Page, key: str) -> None:
    page.get_by_label("Key").fill(key)
    page.keyboard.press("Enter")


def test_a_citation_opens_after_sign_in_at_the_cited_chunk(
    api: ServedApi, site: str, page: Page, complaints: list[str]
) -> None:
    place = _long_item(api)

    page.goto(site + api.page(place, 15))
    assert page.url.startswith(f"{site}/sign-in?next=")
    assert page.evaluate("document.activeElement.id") == "key"
    _sign_in(page, api.key)
    page.wait_for_url(site + api.page(place, 15))

    assert page.locator("mark").inner_text().startswith("Paragraph 15.")
    assert page.evaluate("document.activeElement.id") == "cited"
    top = page.locator("#cited").evaluate("node => node.getBoundingClientRect().top")
    assert 0 <= top < NARROW["height"] - 50
    assert complaints == []


def test_a_page_fits_a_narrow_screen_and_runs_nothing_of_its_text(
    api: ServedApi, site: str, page: Page, complaints: list[str]
) -> None:
    place = _long_item(api)
    page.goto(f"{site}/sign-in?next={api.page(place)}%3Fchunk%3D20")
    _sign_in(page, api.key)
    page.wait_for_url(site + api.page(place, 20))

    assert "<script>alert(1)</script>" in page.locator("mark").inner_text()
    assert page.locator("h1").inner_text() == "Long <b>read</b>"
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    assert complaints == []


def test_everything_is_reached_by_keyboard(api: ServedApi, site: str, page: Page) -> None:
    page.goto(f"{site}/sign-in?next={api.page(api.audience)}%3Fchunk%3D0")
    _sign_in(page, api.key)
    page.wait_for_url(site + api.page(api.audience, 0))

    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.textContent") == "Next chunk"
    page.keyboard.press("Enter")
    page.wait_for_url(site + api.page(api.audience, 1))
    assert page.locator("mark").inner_text() == RAIN
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Sign out"
    page.keyboard.press("Enter")
    page.wait_for_url(f"{site}/sign-in")
    page.goto(site + api.page(api.audience, 0))
    assert page.url.startswith(f"{site}/sign-in?next=")


def test_a_wrong_key_is_said_in_words_that_are_announced(
    api: ServedApi, site: str, page: Page
) -> None:
    page.goto(f"{site}/sign-in")
    _sign_in(page, "ks_wrong")

    assert "not valid" in page.get_by_role("alert").inner_text()
    assert page.get_by_label("Key").get_attribute("aria-describedby") == "refused"


def test_a_link_on_another_site_opens_the_page_for_who_is_signed_in(
    api: ServedApi, site: str, page: Page
) -> None:
    """SameSite=Strict keeps the cookie back at first; the page loads once more by itself."""
    page.goto(f"{site}/sign-in")
    _sign_in(page, api.key)
    page.get_by_text("Signed in").wait_for()
    target = site + api.page(api.audience, 0)

    @Request.application
    def other_site(request: Request) -> Response:
        return Response(f'<a href="{target}">cited</a>', content_type="text/html")

    with _serving(other_site) as port:
        page.goto(f"http://localhost:{port}/")  # to a browser another site than 127.0.0.1
        page.get_by_text("cited").click()
        page.locator("mark").wait_for()

    assert page.url == target
    assert page.locator("mark").inner_text() == FEAR
