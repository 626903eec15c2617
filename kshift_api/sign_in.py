"""Sign-in for browsers: a form that takes a key and leaves a cookie."""

from __future__ import annotations

from urllib.parse import parse_qs

from flask import Blueprint, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from kshift_api.auth import COOKIE, COOKIE_S, Cookies, KeyRing
from kshift_api.bodies import read_bytes, require_media_type
from kshift_api.problems import Problem
from kshift_knowledge.postgres import keys
from kshift_knowledge.records import ApiKey

FORM_TYPE = "application/x-www-form-urlencoded"
_MAX_FIELDS = 10


def sign_in_blueprint(key_ring: KeyRing, cookies: Cookies) -> Blueprint:
    blueprint = Blueprint("sign_in", __name__)

    @blueprint.get("/sign-in")
    def form() -> str:
        return _page(_local_path(request.args.get("next")), signed_in_with=_signed_in_key())

    @blueprint.post("/sign-in")
    def enter() -> Response | tuple[str, int]:
        _refuse_other_sites()
        fields = _form_fields()
        target = _local_path(fields.get("next"))
        key_hash = keys.hash_of(fields.get("key", "").strip())
        if key_hash is None or key_ring.find(key_hash) is None:
            return _page(target, is_refused=True), 401
        response = redirect(target or url_for("sign_in.form"), 303)
        response.set_cookie(
            COOKIE,
            cookies.make(key_hash),
            max_age=COOKIE_S,
            secure=request.is_secure,
            httponly=True,
            samesite="Strict",
        )
        return response

    @blueprint.post("/sign-out")
    def leave() -> Response:
        _refuse_other_sites()
        response = redirect(url_for("sign_in.form"), 303)
        response.delete_cookie(COOKIE, httponly=True, samesite="Strict")
        return response

    def _signed_in_key() -> ApiKey | None:
        key_hash = cookies.key_hash(request.cookies.get(COOKIE, ""))
        return key_ring.find(key_hash) if key_hash else None

    return blueprint


def _page(
    target: str | None, *, is_refused: bool = False, signed_in_with: ApiKey | None = None
) -> str:
    return render_template("sign_in.html", target=target, is_refused=is_refused, key=signed_in_with)


def _refuse_other_sites() -> None:
    """A form of another site must not sign anybody in or out. Raises Problem."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise Problem("cross_site")


def _form_fields() -> dict[str, str]:
    require_media_type(FORM_TYPE)
    try:
        fields = parse_qs(read_bytes().decode("utf-8"), max_num_fields=_MAX_FIELDS)
    except ValueError as exc:
        raise Problem("invalid_request") from exc
    return {name: values[0] for name, values in fields.items()}


def _local_path(target: str | None) -> str | None:
    """The path to go on to, None unless it is one of this site: `//host` and `/\\host` are not."""
    if target is None or not target.startswith("/") or target[1:2] in ("/", "\\"):
        return None
    return target if target.isascii() and target.isprintable() and " " not in target else None
