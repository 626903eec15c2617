"""One KSHIFT_HOME opened: its server started or joined, its logins known, its index at hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from kshift_knowledge.embedders.factory import embedder_for
from kshift_knowledge.embedders.protocol import Embedder
from kshift_knowledge.embedders.retries import ANSWERING, INDEXING, Patience
from kshift_knowledge.errors import NotReady
from kshift_knowledge.generation_settings import check_served, wanted_generation
from kshift_knowledge.indexing.cutting import Cutters
from kshift_knowledge.indexing.records import ItemOutcome
from kshift_knowledge.indexing.runs import IndexServices
from kshift_knowledge.postgres import generations, roles
from kshift_knowledge.postgres.credentials import Credentials
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.embedded import EmbeddedServer, ServerAddress
from kshift_knowledge.postgres.embedded_layout import has_server
from kshift_knowledge.postgres.keeper import keep_a_while
from kshift_knowledge.postgres.migrations import check_schema, migrate, pending
from kshift_knowledge.postgres.patience import PatientStore
from kshift_knowledge.postgres.roles import Connections, Logins, connections
from kshift_knowledge.postgres.vector_store import PgVectorStore
from kshift_knowledge.query_embedding import RetrieveByModel
from kshift_knowledge.records import Generation
from kshift_knowledge.settings import Settings, knowledge_dir_of

Watch = Callable[[ItemOutcome], None]
Talk = Callable[[str], None]
_TEND_S = 1.0  # a look at the server costs a connection, some 5 ms


@dataclass(frozen=True, slots=True)
class Home:
    """An open home. connections hold passwords: never log them."""

    settings: Settings
    connections: Connections
    server: EmbeddedServer | None = None  # None: somebody else's

    def revive(self) -> None:
        """Start the embedded server again if something killed it; its address stays."""
        if self.server is not None:
            self.server.ensure_running()

    @contextmanager
    def _kept_alive(self) -> Iterator[None]:
        """Revive the embedded server for as long as the block lasts: a run waits for it."""
        if self.server is None:
            yield
            return
        is_over = threading.Event()

        def tend() -> None:
            while not is_over.wait(_TEND_S):
                with suppress(NotReady):  # it is tried again
                    self.revive()

        thread = threading.Thread(target=tend, name="kshift-tend", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    @property
    def dagster_home(self) -> Path:
        return self.settings.home / "dagster"

    def writer(self, *, max_connections: int = 24) -> Database:
        """The pipeline's pool, to be opened: as many connections as requests are in flight."""
        return Database(self.connections.writer_url, max_connections=max_connections)

    def reader(self, *, max_connections: int = 16) -> Database:
        return Database(self.connections.reader_url, max_connections=max_connections)

    @contextmanager
    def open_index(self, watch: Watch | None = None) -> Iterator[IndexServices]:
        """
        Everything that indexing needs, for the generation that is served.

        Raises SettingsError, and Refused when settings ask for another generation.
        """
        knowledge_dir = knowledge_dir_of(self.settings)
        with ExitStack() as stack:
            stack.enter_context(self._kept_alive())
            database = stack.enter_context(self.writer())
            generation = self._current_generation(database)
            embedder = self.embedder_of(generation, INDEXING)
            stack.callback(embedder.close)
            cutters = Cutters()
            stack.callback(cutters.close)
            services = IndexServices(
                database,
                PatientStore(database),
                embedder,
                generation,
                knowledge_dir,
                budgets=self.settings.token_budget,
                prices=self.settings.prices,
                cutters=cutters,
            )
            yield services if watch is None else services.watched_by(watch)

    def answering(self, database: Database) -> RetrieveByModel:
        """Retrieve for whatever generation a project is served from, over the reader's pool."""
        return RetrieveByModel(PgVectorStore(database), self.embedder_of)

    def embedder_of(self, generation: Generation, patience: Patience = ANSWERING) -> Embedder:
        """The embedder whose vectors the generation holds. Raises SettingsError, BadKey."""
        key = self.settings.openai_api_key
        return embedder_for(
            generation.embedder,
            model=generation.model,
            dimensions=generation.dimensions,
            api_key=key.get_secret_value() if key else None,
            base_url=self.settings.openai_base_url,
            patience=patience,
        )

    def _current_generation(self, database: Database) -> Generation:
        with database.transaction() as conn:
            served = generations.default_generation(conn)
            if served is None:
                wanted = wanted_generation(self.settings)
                served = generations.ensure_default_generation(conn, wanted)
        check_served(self.settings, served)
        return served


@contextmanager
def open_home(
    settings: Settings, talk: Talk = lambda line: None, *, lingers: bool = False
) -> Iterator[Home]:
    """
    Open the home: an embedded server is started or joined, and migrated when it lacks something.

    Any other server must be migrated already: kshift uses its administrator for nothing else.
    lingers: leave an embedded server running for ten minutes, for whatever comes next.

    Raises NotReady, StoreUnavailable, Refused, SettingsError.
    """
    with ExitStack() as stack:
        server = EmbeddedServer(settings.home) if is_embedded(settings) else None
        if server is not None:
            address = stack.enter_context(server)
            if lingers:
                stack.callback(keep_a_while, settings.home)
            found = _embedded_connections(settings, address, talk)
        else:
            found = connections(_plain(settings.database_url), *_keeping(settings))
            check_schema(found.writer_url)
        yield Home(settings, found, server)


@contextmanager
def peek_home(settings: Settings) -> Iterator[Home | None]:
    """
    Open the home for reading: nothing is made, remembered or migrated. None: there is no index yet.

    Raises NotReady when the schema is behind, StoreUnavailable, Refused, SettingsError.
    """
    if is_embedded(settings) and not has_server(settings.home):
        yield None
        return
    with ExitStack() as stack:
        credentials, logins = _keeping(settings)
        if is_embedded(settings):
            address = stack.enter_context(EmbeddedServer(settings.home))
            found = connections(address.admin_url, credentials, logins, server=address.server)
        else:
            found = connections(_plain(settings.database_url), credentials, logins)
        check_schema(found.writer_url)
        yield Home(settings, found)


def migrate_home(settings: Settings, talk: Talk) -> tuple[str, ...]:
    """
    Bring roles and schema up to this code; returns the migrations that were applied.

    Raises NotReady, StoreUnavailable, Refused.
    """
    credentials, logins = _keeping(settings)
    if is_embedded(settings):
        with EmbeddedServer(settings.home) as address:
            done = migrate(address.admin_url, credentials, logins, server=address.server, talk=talk)
    else:
        admin_url = _plain(settings.database_url)
        if admin_url is None:
            raise NotReady(
                "Migrating needs an administrator.",
                hint="Set KSHIFT_DATABASE_URL to an administrator's URL for this command.",
            )
        done = migrate(admin_url, credentials, logins, talk=talk)
    return done.applied


def missing_statements(settings: Settings) -> list[str]:
    """The SQL that an administrator must run on an outside server; the embedded one needs none."""
    url = _plain(settings.database_url) or _plain(settings.writer_url)
    if is_embedded(settings) or url is None:
        return []
    return roles.missing_statements(url, _keeping(settings)[1])


def is_embedded(settings: Settings) -> bool:
    """Whether the home brings its own server: no URL says otherwise."""
    return settings.database_url is None and not (settings.writer_url and settings.reader_url)


def _embedded_connections(settings: Settings, address: ServerAddress, talk: Talk) -> Connections:
    credentials, logins = _keeping(settings)
    try:
        found = connections(address.admin_url, credentials, logins, server=address.server)
        is_ready = not pending(found.writer_url)
    except NotReady:
        is_ready = False
    if is_ready:
        return found
    return migrate(
        address.admin_url, credentials, logins, server=address.server, talk=talk
    ).connections


def _keeping(settings: Settings) -> tuple[Credentials, Logins]:
    return Credentials(settings.home), Logins(
        _plain(settings.writer_url), _plain(settings.reader_url), _plain(settings.dagster_url)
    )


def _plain(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None
