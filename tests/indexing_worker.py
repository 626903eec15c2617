"""A process that indexes one batch, as a run does, so that a test can kill it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID, uuid4

from command_line import processes_of
from workshop import Workshop

from kshift_knowledge import failpoints
from kshift_knowledge.indexing.runs import index_batch
from kshift_knowledge.postgres.database import Database

_MARK = "KSHIFT_TEST_WORKER"


@dataclass(frozen=True)
class Work:
    """What a worker is told: a batch to run, or Dagster's home to index through."""

    writer_url: str
    tree: str
    embedding_url: str
    batch_id: str = ""
    dagster_home: str = ""


@dataclass(frozen=True)
class Worker:
    """A worker and a mark that all its descendants carry in their environment."""

    process: subprocess.Popen[bytes]
    mark: str

    def descendants(self) -> dict[int, str]:
        """What is alive of it, by process id."""
        return processes_of(Path(self.mark))


@contextmanager
def working(work: Work, *, failpoint: str = "") -> Iterator[Worker]:
    """A worker, told to fail where *failpoint* says; it is killed at the end at the latest."""
    mark = str(uuid4())
    with subprocess.Popen(
        [sys.executable, __file__, json.dumps(asdict(work))],
        env={**os.environ, failpoints.VARIABLE: failpoint, _MARK: mark},
    ) as process:
        try:
            yield Worker(process, mark)
        finally:
            process.kill()


def main(work: Work) -> None:
    with Database(work.writer_url, max_connections=20) as database:
        server = SimpleNamespace(url=work.embedding_url)
        workshop = Workshop(Path(work.tree), database, server)  # type: ignore[arg-type]
        if work.batch_id:
            index_batch(workshop.services, UUID(work.batch_id), on_outcome=lambda outcome: None)
        else:
            from kshift_assets.launch import index_once  # takes seconds to import

            index_once(workshop.services, Path(work.dagster_home), talk=print)


if __name__ == "__main__":
    main(Work(**json.loads(sys.argv[1])))
