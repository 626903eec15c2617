"""A receipt's citation in a real browser: highlighted, unfolded by keyboard, narrow and safe."""

from __future__ import annotations

import json

from canvas_seeding import load
from playwright.sync_api import Page
from served_api import FEAR, ServedApi
from test_api_automations import context
from test_api_browser import (  # noqa: F401 (fixtures)
    NARROW,
    browser,
    complaints,
    page,
    pytestmark,
    site,
)
from test_api_receipts import put, receipt

PROMPT = "<script>alert(1)</script><img src=x onerror=alert(2)>" + "x" * 500


def _open_citation(api: ServedApi, site: str, page: Page) -> None:  # noqa: F811
    """Ask for an automation, and follow the first citation of its receipt."""
    canvas = {
        "automations": [
            {"slug": "a", "prompt": PROMPT, "knowledge": ["notes"], "retrieval": "concat"}
        ]
    }
    ids = load(api, "acme", "site", json.dumps(canvas))
    answer = context(api, ids["a"], mode="vector", subject_text=FEAR).json
    cited = next(
        one for one in receipt(api, answer["receipt_id"])["citations"] if one["content"] == FEAR
    )
    page.goto(site + cited["path"])
    page.get_by_label("Key").fill(api.key)
    page.get_by_role("button").first.click()
    page.get_by_role("heading", name="Cited in a receipt").wait_for()


def test_the_prompt_unfolds_by_keyboard_and_runs_nothing(
    api: ServedApi,
    site: str,  # noqa: F811
    page: Page,  # noqa: F811
    complaints: list[str],  # noqa: F811
) -> None:
    _open_citation(api, site, page)
    summary = page.locator("summary")
    folded = page.locator("details pre").is_visible()
    summary.focus()
    page.keyboard.press("Enter")

    assert not folded
    assert PROMPT in page.locator("details pre").inner_text()
    assert page.locator("mark").inner_text() == FEAR
    assert complaints == []


def test_a_receipts_page_fits_a_narrow_screen_also_unfolded(
    api: ServedApi,
    site: str,  # noqa: F811
    page: Page,  # noqa: F811
) -> None:
    _open_citation(api, site, page)
    page.locator("summary").click()

    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_a_text_that_is_cited_no_more_is_announced_and_quoted(
    api: ServedApi,
    site: str,  # noqa: F811
    page: Page,  # noqa: F811
) -> None:
    _open_citation(api, site, page)
    put(api, ["Something else."])
    page.reload()

    assert "changed since" in page.get_by_role("status").first.inner_text()
    assert page.locator("blockquote").inner_text() == FEAR
