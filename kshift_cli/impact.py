"""`kshift impact`: which receipts cite an item, and whether it still says what they cite."""

from __future__ import annotations

import click

from kshift_cli.home import open_home
from kshift_cli.output import json_option, reporting_errors, show, show_json
from kshift_knowledge.postgres.impact import STATES, Impact, impact_of
from kshift_knowledge.settings import load_settings


@click.command(
    "impact", epilog="Example: kshift impact velomend/rider-app/app-profile/plans-and-prices.md"
)
@click.argument("item")
@json_option
@reporting_errors
def command(item: str, as_json: bool) -> None:
    """
    Say which receipts cite ITEM and what has become of the text they cite.

    ITEM is the item's key as `kshift status` writes it, or its id.
    """
    with (
        open_home(load_settings()) as home,
        home.writer(max_connections=2) as database,
        database.transaction() as conn,
    ):
        found = impact_of(conn, item)
    if as_json:
        show_json(_as_dict(found))
    else:
        _show(found)


def _as_dict(found: Impact) -> dict[str, object]:
    return {
        "item": found.item,
        "knowledge_database_item_id": found.item_id,
        "item_state": found.item_state,
        "counts": {state: found.count(state) for state in STATES},
        "citations": [cited.as_dict() for cited in found.citations],
    }


def _show(found: Impact) -> None:
    counts = ", ".join(f"{found.count(state)} {state}" for state in STATES)
    show(f"{found.item} ({found.item_state}): cited {len(found.citations)} times, {counts}.")
    for cited in found.citations:
        index = "all of it" if cited.chunk_index is None else f"#{cited.chunk_index}"
        automation = cited.automation or "-"
        when = f"{cited.created_at.astimezone():%Y-%m-%d %H:%M}"
        show(f"{when}  {cited.receipt_id}  {automation}  {index}  {cited.state}")
