"""`kshift retry`: index failed items again."""

from __future__ import annotations

import click

from kshift_cli.home import open_home
from kshift_cli.index import Watch, show_failures
from kshift_cli.output import (
    DONE,
    PARTLY,
    json_option,
    leave,
    reporting_errors,
    say,
    show,
    show_json,
)
from kshift_knowledge.indexing.retrying import find_key
from kshift_knowledge.postgres import items
from kshift_knowledge.settings import load_settings


@click.command("retry", epilog="Example: kshift retry acme/shop/uploads/report.md")
@click.argument("wanted", metavar="[ITEM]...", nargs=-1)
@click.option("--failed", "is_all", is_flag=True, help="Every item that failed.")
@json_option
@reporting_errors
def command(wanted: tuple[str, ...], is_all: bool, as_json: bool) -> None:
    """
    Index failed items again, permanent failures and quarantined ones too.

    ITEM is a key as `kshift status` prints it, or the file's place in the knowledge tree.
    """
    if bool(wanted) == is_all:
        raise click.UsageError("Name an item, or all with --failed.")
    from kshift_assets import launch

    with (
        open_home(load_settings(), talk=say) as home,
        Watch(is_quiet=False) as watch,
        home.open_index(watch=watch.count) as services,
    ):
        keys = None if is_all else [find_key(services.database, one) for one in wanted]
        report, figures = launch.retry(services, home.dagster_home, keys, talk=watch.talk)
        tried = {*report.batch_keys, *report.left}
        with services.database.transaction() as conn:
            failures = [one for one in items.failures(conn) if one.item in tried]
    if as_json:
        show_json(
            {
                "items_retried": len(report.batch_keys),
                **figures.as_dict(),
                "items_failed": len(failures),
                "failures": [failure.as_dict() for failure in failures],
            }
        )
    elif not tried:
        show("None of these items has failed." if wanted else "No item has failed.")
    else:
        show(f"{len(tried) - len(failures)} of {len(tried)} failed items are indexed now.")
    for key in report.left:
        say(f"being written or not to be looked at, left as it is: {key}")
    show_failures(failures)
    leave(PARTLY if failures else DONE)
