"""Keeps what the passages of searched pools say, so that a question need not read it again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from kshift_knowledge.pools import Ints, PassagePool
from kshift_knowledge.records import Filters, Generation, Scope

MAX_BYTES = 128 << 20  # some 50,000 chunks of English text: 2.5 KB each

_Key = tuple[int, Scope, Filters]


class PassageCache:
    """
    Pools of passages by what was asked of; the longest unused ones go first.

    Safe for several threads. A pool is right exactly when it is of the same chunks, for a chunk
    that is swapped in always gets a new id.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._pools: OrderedDict[_Key, PassagePool] = OrderedDict()

    def get(
        self,
        scope: Scope,
        generation: Generation,
        filters: Filters,
        chunk_ids: Ints,
        load: Callable[[], PassagePool],
    ) -> PassagePool:
        """Return the passages of *chunk_ids*, from *load* where they are not here."""
        key = (generation.generation_id, scope, filters)
        with self._lock:
            known = self._pools.get(key)
            if known is not None:
                self._pools.move_to_end(key)
        if known is not None and np.array_equal(known.chunk_ids, chunk_ids):
            return known
        loaded = load()
        with self._lock:
            self._drop(key)
            self._pools[key] = loaded
            self._bytes += loaded.nbytes
            while self._bytes > self._max_bytes:
                self._drop(next(iter(self._pools)))
        return loaded

    def _drop(self, key: _Key) -> None:
        gone = self._pools.pop(key, None)
        self._bytes -= gone.nbytes if gone is not None else 0
