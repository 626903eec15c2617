"""Opening the home for a command: server, schema and Dagster's own home, whatever is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kshift_knowledge.home import Home, Talk
from kshift_knowledge.home import open_home as open_domain_home
from kshift_knowledge.settings import Settings


@contextmanager
def open_home(
    settings: Settings, talk: Talk = lambda line: None, *, lingers: bool = True
) -> Iterator[Home]:
    """
    Start or join the embedded server and migrate it; an outside server must be migrated already.

    lingers: the server stays for ten minutes after the command.

    Raises NotReady, SettingsError.
    """
    from kshift_assets.instance import prepare_dagster_home

    with open_domain_home(settings, talk, lingers=lingers) as home:
        prepare_dagster_home(home.dagster_home, home.connections.dagster_url)
        yield home
