"""What the application is built from; the server and the tests fill it in, nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kshift_api.metrics import Metrics
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.prices import DEFAULT_PRICES
from kshift_knowledge.records import Generation
from kshift_knowledge.retrieval import MAX_CHARS, TOP_K, Retrieve

Check = Callable[[], None]


@dataclass(frozen=True, slots=True)
class ApiServices:
    """
    The collaborators of one process.

    database: the reader's pool, opened by whoever builds this, after any fork.
    retrieve_for: the Retrieve whose embedder speaks a generation's model; raises NotReady.
    checks: what `/readyz` asks, by name; each raises KshiftError when it is not ready.
    cookie_secret: signs the cookie of `/sign-in`; another secret signs everybody out.
    top_k, max_chars: used where a request does not say.
    max_in_flight: requests that may wait for the database or an embedder at once, fewer than
    the server has threads, so that `/healthz` always answers.
    key_cache_s: how long a revoked key may still work.
    body_timeout_s: how long a body may take to arrive.
    prices: dollars per million tokens, by model.
    keeps_query: whether receipts keep a question's text and vector, or its hash alone.
    """

    database: Database
    retrieve_for: Callable[[Generation], Retrieve]
    checks: Mapping[str, Check]
    cookie_secret: bytes = field(repr=False)
    top_k: int = TOP_K
    max_chars: int = MAX_CHARS
    max_in_flight: int = 56
    key_cache_s: float = 2.0
    body_timeout_s: float = 10.0
    keeps_query: bool = True
    prices: Mapping[str, float] = field(default_factory=lambda: DEFAULT_PRICES)
    metrics: Metrics = field(default_factory=Metrics)
