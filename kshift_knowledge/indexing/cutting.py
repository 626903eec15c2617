"""Cutting in child processes: a text that kills its worker or never ends costs one item, no run."""

from __future__ import annotations

import os
import pickle
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO

from kshift_knowledge.chunker import Chunker
from kshift_knowledge.embedded_text import (
    embed_hash,
    embedded_text,
    passage_hash,
    prefix_tokens,
)
from kshift_knowledge.errors import ItemError
from kshift_knowledge.indexing.records import CutPassage, EmbedText, embedded_texts
from kshift_knowledge.item_source import ItemSource
from kshift_knowledge.passages import Passage, cut_passages, passage_lexemes, passage_text
from kshift_knowledge.records import Chunk, Generation, SearchedPassage
from kshift_knowledge.tokens import token_counter

_BASE_S, _S_PER_MEGABYTE = 20.0, 10.0  # a megabyte takes 0.1 s: only what hangs gets here
LENGTH_BYTES = 8
_PASSAGE_TOKENS = 64  # of passages that have words and no vectors


class CutterDied(ItemError):
    """The process that cut this item crashed, ran out of memory or was stopped at its limit."""

    code = "cutter_died"
    is_retryable = True


@dataclass(frozen=True, slots=True)
class CutJob:
    """
    What a worker needs to know of an item.

    passage_tokens: 0 gives passages no vectors. chunks: those that were cut from it before.
    """

    where: str
    text: str
    name: str
    title: str | None
    chunk_tokens: int
    overlap_tokens: int
    passage_tokens: int
    chunks: tuple[Chunk, ...] | None = None

    @classmethod
    def of(
        cls,
        where: str,
        source: ItemSource,
        generation: Generation,
        chunks: tuple[Chunk, ...] | None = None,
    ) -> CutJob:
        """The job of cutting a file as a generation wants it."""
        return cls(
            where,
            source.text,
            source.meta.name,
            source.meta.title,
            generation.chunk_tokens,
            generation.overlap_tokens,
            generation.passage_tokens,
            chunks,
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """The chunks of an item and, for each, what would be embedded of it, and its passages."""

    chunks: tuple[Chunk, ...]
    texts: tuple[EmbedText, ...]
    passages: tuple[tuple[CutPassage, ...], ...]

    @property
    def embedded(self) -> tuple[EmbedText, ...]:
        """All that would be embedded: of the chunks, then of the passages."""
        return embedded_texts(self.texts, self.passages)


class Cutters:
    """
    A few worker processes that cut texts, started with the first job or by `warm`.

    They end with this process, however it ends: their input closes.
    """

    def __init__(self, workers: int | None = None, *, base_s: float = _BASE_S) -> None:
        """base_s: what a worker may take for a text, and 10 s a megabyte on top."""
        count = workers or max(1, (os.cpu_count() or 2) // 2)
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="kshift-cut")
        self._mine = threading.local()
        self._workers: list[_Worker] = []
        self._count = count
        self._base_s = base_s

    def warm(self) -> None:
        """Start the workers now, so that they are ready when the first text comes."""
        for _ in range(self._count):
            self._pool.submit(self._worker)

    def submit(self, job: CutJob) -> Future[Cut]:
        """Cut a text; the future raises CutterDied, ItemError or SettingsError."""
        return self._pool.submit(self._cut, job)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.stop()

    def _cut(self, job: CutJob) -> Cut:
        worker = self._worker()
        try:
            return worker.cut(job)
        except _WorkerLost as exc:
            worker.stop()
            self._mine.worker = None
            raise CutterDied(
                f"{job.where} could not be cut: the process that did it {exc}.",
                hint="Split the file. After three times it is left alone; `kshift retry` tries "
                "again.",
            ) from None

    def _worker(self) -> _Worker:
        worker: _Worker | None = getattr(self._mine, "worker", None)
        if worker is None:
            worker = self._mine.worker = _Worker(self._base_s)
            self._workers.append(worker)
        return worker


class _WorkerLost(Exception):
    """The worker is gone; the message says how, as the end of a sentence."""


class _Worker:
    """One child process and the pipes to it."""

    def __init__(self, base_s: float) -> None:
        self._base_s = base_s
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kshift_knowledge.indexing.cutter_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C is for the parent, who closes our input.
            start_new_session=True,
        )

    def cut(self, job: CutJob) -> Cut:
        give_up_at = time.monotonic() + self._base_s + _S_PER_MEGABYTE * len(job.text) / 1e6
        assert self._process.stdin is not None
        try:
            send(self._process.stdin, job)
            answer = self._receive(give_up_at)
        except (BrokenPipeError, EOFError):
            code = self._process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
            raise _WorkerLost(how) from None
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Cut)
        return answer

    def stop(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        self._process.kill()
        self._process.wait()

    def _receive(self, give_up_at: float) -> object:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)

            def read(count: int) -> bytes:
                data = bytearray()
                while len(data) < count:
                    if not selector.select(max(0.0, give_up_at - time.monotonic())):
                        raise _WorkerLost("did not end in time")
                    block = os.read(fd, count - len(data))
                    if not block:
                        raise EOFError
                    data += block
                return bytes(data)

            return pickle.loads(read(int.from_bytes(read(LENGTH_BYTES), "big")))  # noqa: S301 (our child)


def cut(job: CutJob) -> Cut:
    """Cut one text in this process."""
    chunks = job.chunks
    if chunks is None:
        chunks = tuple(Chunker(job.chunk_tokens, job.overlap_tokens).cut(job.text))
    passages = cut_passages(job.text, chunks, job.passage_tokens or _PASSAGE_TOKENS)
    return Cut(
        chunks,
        _texts(chunks, job.title),
        tuple(
            tuple(_passage(job, chunk, passage, is_only=len(those) == 1) for passage in those)
            for chunk, those in zip(chunks, passages, strict=True)
        ),
    )


def _texts(chunks: Sequence[Chunk], title: str | None) -> tuple[EmbedText, ...]:
    counter = token_counter()
    texts = []
    for chunk in chunks:
        text = embedded_text(chunk, title, counter)
        tokens = chunk.token_count + prefix_tokens(chunk, title, counter)
        texts.append(EmbedText(embed_hash(text), text, tokens))
    return tuple(texts)


def _passage(job: CutJob, chunk: Chunk, passage: Passage, *, is_only: bool) -> CutPassage:
    lexemes, own_from = passage_lexemes(passage, job.text, job.name)
    head = passage.table_head
    if head is not None and not chunk.char_start <= head[0] < head[1] <= chunk.char_end:
        head = None
    searched = SearchedPassage(
        passage.char_start, passage.char_end, head, lexemes.astype("<u4").tobytes(), own_from
    )
    if is_only or not job.passage_tokens:
        return CutPassage(searched, None)  # the chunk's own vector says the same
    counter = token_counter()
    text = passage_text(passage, job.text, chunk, job.title, counter)
    return CutPassage(searched, EmbedText(passage_hash(text), text, counter.count(text)))


def send(pipe: IO[bytes], value: object) -> None:
    """Write a value as its length and its pickle; both ends are ours."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    pipe.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
    pipe.flush()
