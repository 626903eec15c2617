"""Evaluates the sensor in this process as the daemon does, and prints how long it took."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg

from kshift_assets.definitions import defs
from kshift_assets.resources import KnowledgeIndex
from kshift_assets.sensors import knowledge_files_sensor


def main() -> None:
    """
    Print JSON: seconds of a tick without a cursor and of the one after it, and what they said.

    The first compares tree and index, as one tick a minute does; the second passes over a tree
    in which nothing moved.
    """
    evaluate: Callable[..., Any] = knowledge_files_sensor
    home = Path(os.environ["KSHIFT_HOME"], "dagster")
    cursor: str | None = None
    ticks = []
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for _ in range(2):
            began = time.perf_counter()
            context = dg.build_sensor_context(
                instance=instance,
                cursor=cursor,
                resources={"index": KnowledgeIndex()},
                definitions=defs,
            )
            answer = evaluate(context)
            ticks.append({"seconds": time.perf_counter() - began, "said": repr(answer)})
            assert isinstance(answer, dg.SkipReason), answer
            cursor = context.cursor
    print(json.dumps({"compared": ticks[0], "passed_over": ticks[1]}))


if __name__ == "__main__":
    main()
