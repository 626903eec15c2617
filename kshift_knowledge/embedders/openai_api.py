"""Embeds through OpenAI or any server that speaks its API; one request a call, no retries."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Sequence
from urllib.parse import urlsplit

import openai

from kshift_knowledge.embedders.answers import read_answer
from kshift_knowledge.embedders.background import BACKGROUND
from kshift_knowledge.embedders.batches import MAX_INPUT_TOKENS
from kshift_knowledge.embedders.openai_models import (
    MODEL_DIMENSIONS,
    OPENAI_URL,
    SHORTENABLE,
    Deadlines,
)
from kshift_knowledge.embedders.protocol import EmbeddedBatch, Embedder, check_texts, no_vectors
from kshift_knowledge.embedders.refusals import refusal
from kshift_knowledge.errors import BadKey, EmbedderUnreachable, EmbeddingError, MalformedAnswer

_BYTES_PER_NUMBER = 64  # A float64 in JSON takes up to 26, indented on a line of its own 50.
_BYTES_BESIDE = 1 << 20


class OpenAIEmbedder(Embedder):
    """
    One model of one server.

    The key goes into the Authorization header and nowhere else. Errors and logs hold neither
    the key nor a text nor words of the server, which may echo both.
    """

    name = "openai"

    def __init__(
        self,
        *,
        model: str,
        dimensions: int,
        api_key: str | None,
        base_url: str | None = None,
        answered_model: str | None = None,
        max_input_tokens: int = MAX_INPUT_TOKENS,
        deadlines: Deadlines | None = None,
    ) -> None:
        """
        base_url: with its /v1; None is OpenAI. api_key: None for a server that wants none.
        answered_model: the name under which the server answers, when it is another.
        max_input_tokens: 8,192 at OpenAI; many models that run elsewhere read 512.

        Raises BadKey when the key cannot be a key.
        """
        self.model = model
        self.dimensions = dimensions
        self.max_input_tokens = max_input_tokens
        self._answered_model = answered_model
        self._api_key = _sendable(api_key)
        self._base_url = base_url or OPENAI_URL
        self._place = _without_credentials(self._base_url)
        self._deadlines = deadlines or Deadlines()
        self._lock = threading.Lock()
        self._client: openai.AsyncOpenAI | None = None
        self._finalizer: weakref.finalize[..., OpenAIEmbedder] | None = None
        self._process = 0

    def embed(self, texts: Sequence[str]) -> EmbeddedBatch:
        check_texts(texts)
        if not texts:
            return no_vectors(self.dimensions)
        body = self._answer_to(list(texts))
        return read_answer(
            body,
            count=len(texts),
            dimensions=self.dimensions,
            model=self.model,
            answered_model=self._answered_model,
        )

    def prepare(self) -> None:
        """Do nothing: the first text connects."""

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
            if self._finalizer is not None:
                self._finalizer.detach()
        if client is not None and self._process == os.getpid():
            BACKGROUND.run(client.close())

    def _answer_to(self, texts: list[str]) -> bytes:
        """
        Return the body of a 200.

        The client's exceptions quote the server, so ours are raised outside their handlers:
        nothing that prints a traceback can follow the chain to them.
        """
        try:
            return BACKGROUND.run(self._post(texts))
        except openai.APIStatusError as exc:
            response = exc.response
            error: EmbeddingError = refusal(
                response.status_code,
                response.headers,
                response.content,
                place=self._place,
                model=self.model,
            )
        except (TimeoutError, openai.APITimeoutError):
            error = EmbedderUnreachable(
                f"{self._place} gave no whole answer within {self._deadlines.total_s:g} s.",
                hint="It is asked again later by itself; see whether the server is overloaded.",
            )
        except EmbeddingError as exc:
            error = exc
        except Exception as exc:  # noqa: BLE001 The client lets exceptions of its transport through.
            error = EmbedderUnreachable(
                f"{self._place} cannot be reached or broke off ({_kind_of(exc)}).",
                hint="Check OPENAI_BASE_URL and the network; it is asked again later by itself.",
            )
        raise error

    async def _post(self, texts: list[str]) -> bytes:
        limit = len(texts) * self.dimensions * _BYTES_PER_NUMBER + _BYTES_BESIDE
        body = bytearray()
        async with (
            asyncio.timeout(self._deadlines.total_s),
            self._connected().embeddings.with_streaming_response.create(
                model=self.model,
                input=texts,
                dimensions=self._asked_dimensions(),
                encoding_format="base64",  # docs/decisions.md#base64
            ) as response,
        ):
            async for part in response.iter_bytes():
                body += part
                if len(body) > limit:
                    raise MalformedAnswer(
                        f"{self._place} sent more than {limit} bytes for {len(texts)} texts.",
                        hint="Check that OPENAI_BASE_URL is an OpenAI-compatible server.",
                    )
        return bytes(body)

    def _asked_dimensions(self) -> int | openai.Omit:
        """Ask for a width only where the model can be shortened; other servers refuse the field."""
        shortened = self.model in SHORTENABLE and self.dimensions != MODEL_DIMENSIONS[self.model]
        return self.dimensions if shortened else openai.omit

    def _connected(self) -> openai.AsyncOpenAI:
        with self._lock:
            if self._client is None or self._process != os.getpid():
                self._client = openai.AsyncOpenAI(
                    api_key=self._api_key,
                    base_url=self._base_url,
                    max_retries=0,
                    timeout=openai.Timeout(
                        self._deadlines.read_s, connect=self._deadlines.connect_s
                    ),
                )
                self._process = os.getpid()
                self._finalizer = weakref.finalize(self, _let_go, self._client, self._process)
                self._finalizer.atexit = False
            return self._client


def _let_go(client: openai.AsyncOpenAI, process: int) -> None:
    """Close the connections of an embedder that nobody closed; a forked child leaves them alone."""
    if process == os.getpid():
        BACKGROUND.start(client.close())


def _sendable(api_key: str | None) -> str:
    key = (api_key or "").strip()
    if not all("!" <= char <= "~" for char in key):
        raise BadKey(
            "OPENAI_API_KEY holds a blank or a character that no key has.",
            hint="Copy the key again.",
        )
    return key or "none"  # The client insists on one; servers without keys ignore it.


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _kind_of(exc: BaseException) -> str:
    """Name the innermost cause, whose class is the most telling ("ConnectError", "SSLError")."""
    while exc.__cause__ is not None:
        exc = exc.__cause__
    return type(exc).__name__
