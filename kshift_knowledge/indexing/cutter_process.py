"""The child process that cuts: reads jobs from its input and answers until the input closes."""

from __future__ import annotations

import os
import pickle
import resource
import sys

from kshift_knowledge.failpoints import failpoint
from kshift_knowledge.indexing.cutting import LENGTH_BYTES, cut, send
from kshift_knowledge.tokens import token_counter

MEMORY_MB = 2048  # address space; a worker at rest has 0.4 GB of it, mostly libraries
MEMORY_VARIABLE = "KSHIFT_CUTTER_MEMORY_MB"  # for tests


def main() -> None:
    """Answer each job with its Cut or the exception that it raised."""
    memory = int(os.environ.get(MEMORY_VARIABLE, MEMORY_MB)) << 20
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    token_counter()
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while length := source.read(LENGTH_BYTES):
        try:
            job = pickle.loads(source.read(int.from_bytes(length, "big")))  # noqa: S301 (ours)
            failpoint("cutting")
            answer: object = cut(job)
        except MemoryError:
            os._exit(1)  # nothing else may work any more: the parent says what happened
        except Exception as exc:  # noqa: BLE001 (it goes back to the parent, who raises it)
            answer = exc
        send(target, answer)


if __name__ == "__main__":
    main()
