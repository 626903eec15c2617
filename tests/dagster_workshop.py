"""A workshop whose runs are those of a real Dagster instance in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import dagster as dg
from postgres_server import PostgresServer
from workshop import DATABASE, Workshop, open_workshop

from kshift_assets import launch
from kshift_assets.assets import index_items
from kshift_assets.definitions import defs
from kshift_assets.instance import prepare_dagster_home
from kshift_assets.jobs import index_job
from kshift_assets.partitions import PARTITION_SET
from kshift_assets.resources import OpenIndex
from kshift_assets.sensors import knowledge_files_sensor
from kshift_knowledge.postgres import run_lock
from kshift_knowledge.postgres.database import Database


class Dagster:
    """A workshop with the instance that its runs are recorded in."""

    def __init__(
        self, workshop: Workshop, home: Path, instance: dg.DagsterInstance, writer_url: str
    ) -> None:
        self.workshop = workshop
        self.writer_url = writer_url
        self.home = home
        self.instance = instance
        self.cursor: str | None = None

    def index(self, *, is_full: bool = False) -> launch.IndexReport:
        return launch.index_once(
            self.workshop.services, self.home, is_full=is_full, talk=lambda line: None
        )

    def tick(self, cursor: str | None = None) -> dg.RunRequest | dg.SkipReason:
        """Evaluate the sensor as the daemon does; it goes on from its last cursor, or *cursor*."""
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor if cursor is None else cursor,
            resources={"index": OpenIndex(self.workshop.services)},
            definitions=defs,
        )
        evaluate: Callable[..., Any] = knowledge_files_sensor
        answer: dg.RunRequest | dg.SkipReason = evaluate(context)
        self.cursor = context.cursor
        return answer

    def request(self) -> dg.RunRequest:
        """A tick that must ask for a run."""
        answer = self.tick()
        assert isinstance(answer, dg.RunRequest), answer
        return answer

    def is_held(self, run_id: UUID) -> bool:
        """Whether the run's process holds its lock."""
        with self.workshop.database.transaction() as conn:
            return run_lock.held_among(conn, [run_id]) == {run_id}

    def run_batch(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        """Do what the daemon does about a run request."""
        return defs.resolve_job_def(index_job.name).execute_in_process(
            instance=self.instance,
            tags=request.tags,
            resources={"index": OpenIndex(self.workshop.services)},
            raise_on_error=False,
        )

    def materialize(self, *assets: dg.AssetKey, **options: object) -> dg.ExecuteInProcessResult:
        """What a person does on the asset's page."""
        return dg.materialize(
            [index_items],
            instance=self.instance,
            selection=dg.AssetSelection.assets(*assets),
            resources={"index": OpenIndex(self.workshop.services)},
            raise_on_error=False,
            **options,  # type: ignore[arg-type]
        )

    def statuses(self, asset: dg.AssetKey) -> dict[str, str]:
        """The status of each partition as the page shows it, by path."""
        partitions = self.instance.get_dynamic_partitions(PARTITION_SET)
        found = self.instance.get_status_by_partition(asset, partitions, knowledge_items())
        statuses = dict.fromkeys(partitions, None) if found is None else found
        return {
            key.removeprefix(f"{DATABASE}/"): "none" if status is None else status.value
            for key, status in statuses.items()
        }


def knowledge_items() -> dg.PartitionsDefinition[str]:
    return dg.DynamicPartitionsDefinition(name=PARTITION_SET)


@contextmanager
def open_dagster(folder: Path, server: PostgresServer) -> Iterator[Dagster]:
    with server.fresh_database(with_dagster=True) as urls:
        home = prepare_dagster_home(folder / "dagster", urls.dagster_url)
        with (
            Database(urls.writer_url, max_connections=20) as database,
            open_workshop(folder / "tree", database) as workshop,
            dg.DagsterInstance.from_config(str(home)) as instance,
        ):
            yield Dagster(workshop, home, instance, urls.writer_url)
