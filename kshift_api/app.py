"""The Flask application: blueprints, and what holds for every request and every answer."""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid

from flask import Flask, g, request
from werkzeug.routing import IntegerConverter, ValidationError
from werkzeug.wrappers import Response

from kshift_api.auth import Cookies, KeyRing, require_keys
from kshift_api.automations import automations_blueprint
from kshift_api.bodies import READ_LIMIT
from kshift_api.pages import pages_blueprint
from kshift_api.problems import Problem, register_problems
from kshift_api.progress import progress_blueprint
from kshift_api.receipts import receipts_blueprint
from kshift_api.retrieve import retrieve_blueprint
from kshift_api.schemas import MAX_ID
from kshift_api.service import service_blueprint
from kshift_api.services import ApiServices
from kshift_api.sign_in import sign_in_blueprint

log = logging.getLogger("kshift_api")

# Answered without waiting for anything, whatever goes on elsewhere.
_NEVER_WAIT = frozenset({None, "static", "service.healthz", "service.metrics", "service.openapi"})
_QUEUE_WAIT_S = 1.0

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class IdConverter(IntegerConverter):
    """An id in a path: 1 to 2^63-1, in digits; anything else is no route."""

    regex = r"[1-9][0-9]{0,18}"

    def to_python(self, value: str) -> int:
        number = int(value)
        if number > MAX_ID:
            raise ValidationError
        return number


def create_app(services: ApiServices) -> Flask:
    """Build the application of one process; it opens nothing and starts nothing."""
    app = Flask("kshift_api")
    app.config.update(
        MAX_CONTENT_LENGTH=READ_LIMIT,
        BODY_TIMEOUT_S=services.body_timeout_s,
        PROVIDE_AUTOMATIC_OPTIONS=False,
        SEND_FILE_MAX_AGE_DEFAULT=3600,
    )
    app.json.ensure_ascii = False  # type: ignore[attr-defined]
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.url_map.converters["id"] = IdConverter
    app.url_map.merge_slashes = False
    key_ring = KeyRing(services.database, services.key_cache_s)
    cookies = Cookies(services.cookie_secret)

    _observe(app, services)
    _bound_waiting(app, services.max_in_flight)
    require_keys(app, key_ring, cookies)
    register_problems(app)
    app.register_blueprint(retrieve_blueprint(services))
    app.register_blueprint(automations_blueprint(services))
    app.register_blueprint(receipts_blueprint(services))
    app.register_blueprint(progress_blueprint(services))
    app.register_blueprint(pages_blueprint(services))
    app.register_blueprint(sign_in_blueprint(key_ring, cookies))
    app.register_blueprint(service_blueprint(services))
    return app


def _observe(app: Flask, services: ApiServices) -> None:
    """Give each request an id; log and count it by its rule, never by what a client wrote."""

    @app.before_request
    def start() -> None:
        wanted = request.headers.get("X-Request-Id", "")
        g.request_id = wanted if _REQUEST_ID.fullmatch(wanted) else uuid.uuid4().hex
        g.started = time.perf_counter()

    @app.after_request
    def finish(response: Response) -> Response:
        seconds = time.perf_counter() - g.started
        rule = request.url_rule.rule if request.url_rule else "unmatched"
        services.metrics.count_request(rule, request.method, response.status_code, seconds)
        key = g.get("key")
        log.info(
            "%s %s %s %d %.1f ms key=%s",
            g.request_id,
            request.method,
            rule,
            response.status_code,
            seconds * 1000,
            key.key_id if key else "-",
        )
        response.headers["X-Request-Id"] = g.request_id
        response.headers.setdefault("Cache-Control", "no-store")
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response


def _bound_waiting(app: Flask, max_in_flight: int) -> None:
    """Keep some threads free of requests that wait for the database, so that health answers."""
    slots = threading.BoundedSemaphore(max_in_flight)

    @app.before_request
    def enter() -> None:
        if request.endpoint in _NEVER_WAIT:
            return
        if not slots.acquire(timeout=_QUEUE_WAIT_S):
            raise Problem("busy")
        g.has_slot = True

    @app.teardown_request
    def leave(_: BaseException | None) -> None:
        if g.pop("has_slot", False):
            slots.release()
