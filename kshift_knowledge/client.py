"""A client of the HTTP API: typed answers, retries that honour Retry-After; no driver behind it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar
from uuid import UUID

import httpx2
from pydantic import ValidationError

from kshift_knowledge.client_records import (
    Answer,
    Automation,
    AutomationContext,
    Automations,
    Comparison,
    KnowledgeDatabase,
    KnowledgeDatabases,
    Progress,
    Receipt,
    ReceiptLine,
    Receipts,
    Record,
    Tool,
    ToolAnswer,
    Tools,
)
from kshift_knowledge.embedders.refusals import retry_after_s
from kshift_knowledge.errors import KshiftError

TIMEOUT_S = 30.0
ATTEMPTS = 5
PATIENCE_S = 60.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0

_RETRIED = {408, 429, 502, 503, 504}

AnyRecord = TypeVar("AnyRecord", bound=Record)


class ApiRefused(KshiftError):
    """
    The API answered with a problem: branch on code, docs/http.md lists them.

    errors: JSON pointers and what is wrong there, of `invalid_request`.
    """

    code = "api_refused"

    def __init__(
        self,
        message: str,
        *,
        status: int,
        hint: str = "",
        code: str | None = None,
        request_id: str | None = None,
        errors: Sequence[Mapping[str, str]] = (),
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.status = status
        self.request_id = request_id
        self.errors = tuple(errors)


class ApiUnavailable(ApiRefused):
    """No answer, or none but "later", for as long as the patience lasted."""

    code = "api_unavailable"
    exit_code = 3
    is_retryable = True


class KshiftClient:
    """
    Asks one API with one key; safe for several threads. Close it, or use it as a context.

    Every call may be repeated: what it writes is another receipt. Each raises ApiRefused and
    ApiUnavailable.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        timeout_s: float = TIMEOUT_S,
        attempts: int = ATTEMPTS,
        patience_s: float = PATIENCE_S,
        transport: httpx2.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """
        timeout_s: of one attempt. attempts, patience_s: for one call, whichever ends first.

        chance: a number from 0 to below 1, which spreads the waits.
        """
        self._http = httpx2.Client(
            base_url=base_url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=timeout_s,
            transport=transport,
        )
        self._attempts = attempts
        self._patience_s = patience_s
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def retrieve(
        self, query: str, project_id: int, knowledge_database_ids: Sequence[int], **options: Any
    ) -> Answer:
        """options: the other fields of `POST /v1/retrieve`; what is left out has its default."""
        body = {
            "query": query,
            "project_id": project_id,
            "knowledge_database_ids": list(knowledge_database_ids),
            **options,
        }
        return self._send(Answer, "POST", "/v1/retrieve", json=body)

    def knowledge_databases(self) -> tuple[KnowledgeDatabase, ...]:
        path = "/v1/knowledge-databases"
        return self._send(KnowledgeDatabases, "GET", path).knowledge_databases

    def progress(self) -> Progress:
        return self._send(Progress, "GET", "/v1/progress")

    def automations(self) -> tuple[Automation, ...]:
        return self._send(Automations, "GET", "/v1/automations").automations

    def context(
        self, automation_id: int, subject_text: str | None = None, mode: str | None = None
    ) -> AutomationContext:
        body = {"subject_text": subject_text, "mode": mode}
        path = f"/v1/automations/{automation_id}/context"
        return self._send(AutomationContext, "POST", path, json=body)

    def compare(self, automation_id: int, subject_text: str | None = None) -> Comparison:
        path = f"/v1/automations/{automation_id}/compare"
        return self._send(Comparison, "POST", path, json={"subject_text": subject_text})

    def tools(self) -> tuple[Tool, ...]:
        return self._send(Tools, "GET", "/v1/tools").tools

    def retrieve_knowledge(self, automation_id: int, query: str) -> ToolAnswer:
        path = f"/v1/automations/{automation_id}/tools/retrieve_knowledge"
        return self._send(ToolAnswer, "POST", path, json={"query": query})

    def receipts(
        self, automation_id: int | None = None, *, page_size: int = 100
    ) -> Iterator[ReceiptLine]:
        """Every receipt that the key may see, newest first, a page at a time."""
        wanted: dict[str, Any] = {"limit": page_size}
        if automation_id is not None:
            wanted["automation_id"] = automation_id
        while True:
            page = self._send(Receipts, "GET", "/v1/receipts", params=wanted)
            yield from page.receipts
            if page.next_after is None:
                return
            wanted["after"] = str(page.next_after)

    def receipt(self, receipt_id: UUID | str) -> Receipt:
        return self._send(Receipt, "GET", f"/v1/receipts/{receipt_id}")

    def _send(self, record: type[AnyRecord], method: str, path: str, **content: Any) -> AnyRecord:
        """The answer as a record. Waits as long as the patience lasts where that may help."""
        give_up_at = self._clock() + self._patience_s
        attempt = 0
        while True:
            attempt += 1
            asked_wait_s: float | None = None
            try:
                response = self._http.request(method, path, **content)
            except httpx2.TransportError as exc:
                error: ApiRefused = _unreachable(exc)
            else:
                if response.is_success:
                    return _read(record, response)
                error = _refusal(response)
                asked_wait_s = retry_after_s(response.headers)
            wait_s = self._wait_s(attempt, asked_wait_s)
            if (
                not error.is_retryable
                or attempt >= self._attempts
                or self._clock() + wait_s > give_up_at
            ):
                raise error
            self._sleep(wait_s)

    def _wait_s(self, attempt: int, asked_s: float | None) -> float:
        """What the API asks for and a little more, else exponentially with jitter."""
        if asked_s is not None:
            return asked_s + self._chance() * _FIRST_WAIT_S
        backoff_s = _FIRST_WAIT_S * 2.0 ** (attempt - 1)
        return min(backoff_s, _LONGEST_WAIT_S) * (0.5 + self._chance() / 2)


def _read(record: type[AnyRecord], response: httpx2.Response) -> AnyRecord:
    try:
        return record.model_validate_json(response.content)
    except ValidationError as exc:
        raise ApiRefused(
            f"The answer is no {record.__name__} ({exc.error_count()} fields are wrong).",
            status=response.status_code,
            hint="Is this the address of the API, and is it as new as this client?",
            code="api_answer_malformed",
        ) from None


def _unreachable(exc: httpx2.TransportError) -> ApiUnavailable:
    return ApiUnavailable(
        f"The API does not answer ({type(exc).__name__}).",
        status=0,
        hint="Is it running, and at this address? `kshift up` runs it.",
    )


def _refusal(response: httpx2.Response) -> ApiRefused:
    """The problem that the API names, or what stands between it and us."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict) or "code" not in problem:
        problem = {"detail": f"Something answered with status {response.status_code}."}
    error_class = ApiUnavailable if response.status_code in _RETRIED else ApiRefused
    return error_class(
        str(problem.get("detail", "")),
        status=response.status_code,
        hint=str(problem.get("hint", "")),
        code=problem.get("code"),
        request_id=problem.get("request_id"),
        errors=problem.get("errors", ()),
    )
