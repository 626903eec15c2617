"""Counters of this process in the text format of Prometheus; no customer data in any label."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Requests by route, method and status, their durations, and tokens spent on questions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._query_tokens = 0

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """route: the rule, never the path: a path is what a client wrote."""
        with self._lock:
            self._requests[route, method if method in METHODS else "OTHER", status] += 1
            buckets = self._buckets.setdefault(route, [0] * (len(BUCKETS_S) + 1))
            buckets[bisect_left(BUCKETS_S, seconds)] += 1
            self._seconds[route] += seconds  # type: ignore[assignment]  # Counter of floats

    def count_query_tokens(self, tokens: int) -> None:
        with self._lock:
            self._query_tokens += tokens

    def render(self) -> str:
        """The exposition text, version 0.0.4."""
        with self._lock:
            return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        yield "# HELP kshift_requests_total Answered requests."
        yield "# TYPE kshift_requests_total counter"
        for (route, method, status), count in sorted(self._requests.items()):
            yield (
                f'kshift_requests_total{{route="{route}",method="{method}",status="{status}"}}'
                f" {count}"
            )
        yield "# HELP kshift_request_seconds Time from the first byte to the answer."
        yield "# TYPE kshift_request_seconds histogram"
        for route, buckets in sorted(self._buckets.items()):
            total = 0
            for bound, count in zip((*BUCKETS_S, "+Inf"), buckets, strict=True):
                total += count
                yield f'kshift_request_seconds_bucket{{route="{route}",le="{bound}"}} {total}'
            yield f'kshift_request_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}'
            yield f'kshift_request_seconds_count{{route="{route}"}} {total}'
        yield "# HELP kshift_query_tokens_total Tokens spent on embedding questions."
        yield "# TYPE kshift_query_tokens_total counter"
        yield f"kshift_query_tokens_total {self._query_tokens}"
