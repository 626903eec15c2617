"""Who is calling: keys and sign-in cookies, and which route needs which; default is a key."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

from flask import Flask, g, request
from itsdangerous import BadSignature, URLSafeTimedSerializer

from kshift_api.problems import Problem
from kshift_knowledge.postgres import keys
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.records import ApiKey

COOKIE = "kshift_session"
COOKIE_S = 12 * 3600

# Every other endpoint needs `Authorization: Bearer <key>`; one that is new does, too.
OPEN_ENDPOINTS = frozenset(
    {
        "static",
        "service.healthz",
        "service.readyz",
        "service.metrics",
        "service.openapi",
        "service.problem",
        "sign_in.form",
        "sign_in.enter",
        "sign_in.leave",
    }
)
COOKIE_ENDPOINTS = frozenset({"pages.item"})

_MAX_CACHED = 10_000


def require_keys(app: Flask, key_ring: KeyRing, cookies: Cookies) -> None:
    """Let no request of *app* reach a view without the key that its endpoint needs."""

    @app.before_request
    def authenticate() -> None:
        if request.endpoint is None or request.endpoint in OPEN_ENDPOINTS:
            return  # without an endpoint the answer is 404 or 405
        key_hash = _bearer_hash()
        if key_hash is None and request.endpoint in COOKIE_ENDPOINTS:
            key_hash = cookies.key_hash(request.cookies.get(COOKIE, ""))
        key = key_ring.find(key_hash) if key_hash is not None else None
        if key is None:
            raise Problem("unauthenticated")
        g.key = key


def calling_key() -> ApiKey:
    """The key of the current request; only in views that need one."""
    key: ApiKey = g.key
    return key


class KeyRing:
    """Looks keys up by hash and remembers living ones for a moment; safe for several threads."""

    def __init__(self, database: Database, cache_s: float) -> None:
        self._database = database
        self._cache_s = cache_s
        self._lock = threading.Lock()
        self._found: dict[bytes, tuple[float, ApiKey]] = {}

    def find(self, key_hash: bytes) -> ApiKey | None:
        """Raises StoreUnavailable."""
        with self._lock:
            until, key = self._found.get(key_hash, (0.0, None))
        if key is None or until < time.monotonic():
            key = self._look_up(key_hash)
        if key is None or (key.expires_at is not None and key.expires_at <= datetime.now(UTC)):
            return None
        return key

    def _look_up(self, key_hash: bytes) -> ApiKey | None:
        with self._database.transaction() as conn:
            key = keys.authenticate(conn, key_hash)
        with self._lock:
            if len(self._found) >= _MAX_CACHED:
                self._found.clear()
            if key is None:
                self._found.pop(key_hash, None)
            else:
                self._found[key_hash] = (time.monotonic() + self._cache_s, key)
        return key


class Cookies:
    """
    The sign-in cookie: the key's hash and the time, signed.

    It is not the key, cannot be sent as one, and cannot be made from a leaked table of hashes.
    The key is looked up at each request, so that the cookie dies with it.
    """

    def __init__(self, secret: bytes) -> None:
        self._serializer = URLSafeTimedSerializer(secret, salt="kshift.sign-in")

    def make(self, key_hash: bytes) -> str:
        return str(self._serializer.dumps(key_hash.hex()))

    def key_hash(self, cookie: str) -> bytes | None:
        """None for a cookie that is not ours or older than 12 hours."""
        try:
            return bytes.fromhex(self._serializer.loads(cookie, max_age=COOKIE_S))
        except (BadSignature, ValueError):
            return None


def _bearer_hash() -> bytes | None:
    header = request.headers.get("Authorization", "")
    scheme, _, token = header.partition(" ")
    return keys.hash_of(token.strip()) if scheme.lower() == "bearer" else None
