"""Embeds with all-MiniLM-L6-v2 on this machine: no key, no network, and no text is ever cut."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from kshift_knowledge.embedders.batches import MAX_INPUT_TOKENS
from kshift_knowledge.embedders.minilm import MAX_POSITIONS, WIDTH, MiniLM
from kshift_knowledge.embedders.model_files import model_folder, open_model_files
from kshift_knowledge.embedders.protocol import EmbeddedBatch, Embedder, check_texts, no_vectors

LOCAL_MODEL = "all-MiniLM-L6-v2"
LOCAL_DIMENSIONS = WIDTH
_CLS, _SEP = 101, 102
_WINDOW = MAX_POSITIONS - 2  # Word pieces between [CLS] and [SEP].
_BLOCK_TOKENS = 2 * MAX_POSITIONS  # In one forward pass: larger ones are no faster.
_MAX_THREADS = 4


class LocalEmbedder(Embedder):
    """
    all-MiniLM-L6-v2: 384 numbers, unit length.

    A text of more than 510 word pieces is read in windows of about equal size that end between
    words; its vector is the mean of theirs, weighted by their tokens. The model is loaded and
    verified with the first text and shared by all embedders of the process.
    """

    name = "local"
    model = LOCAL_MODEL
    dimensions = LOCAL_DIMENSIONS
    max_input_tokens = MAX_INPUT_TOKENS  # None of the model's; a query of this size takes 2 s.

    def __init__(self, *, threads: int | None = None, folder: Path | None = None) -> None:
        """
        threads: forward passes at the same time over all callers, each with 17 MB; None is one
        per core, at most 4. folder: the model's files, None for the installed package.
        """
        self._threads = threads or min(_MAX_THREADS, os.cpu_count() or 1)
        self._turns = threading.BoundedSemaphore(self._threads)
        self._folder = folder

    def embed(self, texts: Sequence[str]) -> EmbeddedBatch:
        """Embed *texts*; a vector may differ in its seventh digit with the texts beside it."""
        check_texts(texts)
        if not texts:
            return no_vectors(self.dimensions)
        loaded = self._loaded()
        windows = [
            _Window(place, ids)
            for place, text in enumerate(texts)
            for ids in _windows(loaded.tokenizer, text)
        ]
        blocks = list(_blocks(windows))
        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for block, sums in zip(blocks, self._sums(loaded.network, blocks), strict=True):
            # Sums over tokens add up to the weighted mean, but for a factor that the norm takes.
            np.add.at(vectors, [window.place for window in block], sums)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return EmbeddedBatch(vectors, tokens=sum(len(window.ids) for window in windows))

    def prepare(self) -> None:
        self._loaded()

    def close(self) -> None:
        """Do nothing: the model stays for the other embedders of the process."""

    def _loaded(self) -> _Loaded:
        with _LOADING:
            return _load(self._folder or model_folder())

    def _sums(
        self, network: MiniLM, blocks: Sequence[Sequence[_Window]]
    ) -> Iterator[NDArray[np.float32]]:
        def sums(block: Sequence[_Window]) -> NDArray[np.float32]:
            with self._turns:
                return network.sums([window.ids for window in block])

        if len(blocks) == 1 or self._threads == 1:
            yield from map(sums, blocks)
        else:
            with ThreadPoolExecutor(self._threads, thread_name_prefix="kshift-minilm") as threads:
                yield from threads.map(sums, blocks)


@dataclass(frozen=True, slots=True)
class _Window:
    place: int  # Of its text in the batch.
    ids: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Loaded:
    tokenizer: Tokenizer
    network: MiniLM


def _windows(tokenizer: Tokenizer, text: str) -> Iterator[NDArray[np.intp]]:
    """Cut a text's word pieces into windows of about equal size that end between words."""
    encoding = tokenizer.encode(text, add_special_tokens=False)
    pieces = encoding.ids
    start = 0
    words = encoding.word_ids if len(pieces) > _WINDOW else []
    while True:
        left = len(pieces) - start
        end = start + -(-left // max(1, -(-left // _WINDOW)))
        while start < end < len(pieces) and words[end] == words[end - 1]:
            end -= 1
        yield np.array([_CLS, *pieces[start:end], _SEP], dtype=np.intp)
        start = end
        if start >= len(pieces):
            return


def _blocks(windows: Sequence[_Window]) -> Iterator[list[_Window]]:
    block: list[_Window] = []
    tokens = 0
    for window in windows:
        if block and tokens + len(window.ids) > _BLOCK_TOKENS:
            yield block
            block, tokens = [], 0
        block.append(window)
        tokens += len(window.ids)
    if block:
        yield block


_LOADING = threading.Lock()


@lru_cache(maxsize=1)
def _load(folder: Path) -> _Loaded:
    files = open_model_files(folder)
    tokenizer = Tokenizer.from_str(files.tokenizer_json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # "[SEP]" in a text is text.
    _use_one_blas_thread()
    return _Loaded(tokenizer, MiniLM(files.weights))


def _use_one_blas_thread() -> None:
    """
    Make numpy multiply on the calling thread; we run whole passes side by side instead.

    OpenBLAS splits every product over all cores and takes turns for that between threads: on 2
    cores 11 passages/s, and 6 when two threads call, against 16 (docs/decisions.md#blas). It has
    no setting for one caller, so this holds for the process.
    """
    for library in (Path(np.__file__).parents[1] / "numpy.libs").glob("libscipy_openblas*"):
        setter = getattr(ctypes.CDLL(str(library)), "scipy_openblas_set_num_threads64_", None)
        if setter is not None:
            setter(1)
