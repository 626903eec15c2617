"""Prints how fast text is cut, beside how fast it is merely encoded, on one core in one run."""

from __future__ import annotations

import argparse
import itertools
import random
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kshift_knowledge.chunker import Chunker
from kshift_knowledge.tokens import Cl100kCounter, token_counter

if TYPE_CHECKING:
    from collections.abc import Callable

SUFFIXES = {".md", ".mdx", ".markdown", ".txt"}
WORD = re.compile(rb" [a-z]{2,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="texts to cut; generated if left out")
    parser.add_argument("--rounds", type=int, default=5, help="the best round counts (default 5)")
    arguments = parser.parse_args()

    counter = token_counter()
    assert isinstance(counter, Cl100kCounter), "the ratio needs the real vocabulary"
    if arguments.folder:
        texts = read_texts(arguments.folder)
    else:
        texts = NoteWriter(counter, seed=1).notes(400)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    chunker = Chunker(counter=counter)
    chunker.cut(texts[0])

    # The rounds take turns, so that a slower moment of the machine meets both.
    encode_s = cut_s = float("inf")
    for _ in range(arguments.rounds):
        encode_s = min(encode_s, seconds(counter.encoding.encode_ordinary, texts))
        cut_s = min(cut_s, seconds(chunker.cut, texts))
    chunks = [chunk for text in texts for chunk in chunker.cut(text)]

    print(f"{len(texts)} texts, {megabytes:.2f} MB, {len(chunks)} chunks", end=", ")
    print(f"{sum(chunk.token_count for chunk in chunks) / len(chunks):.0f} tokens each on average")
    print(f"encode_ordinary  {megabytes / encode_s:6.1f} MB/s")
    print(f"Chunker.cut      {megabytes / cut_s:6.1f} MB/s")
    print(f"ratio            {encode_s / cut_s:6.2f}   (to reach: 0.55)")


def seconds(work: Callable[[str], object], texts: list[str]) -> float:
    begin = time.process_time()
    for text in texts:
        work(text)
    return time.process_time() - begin


def read_texts(folder: Path) -> list[str]:
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    return [path.read_text(encoding="utf-8") for path in paths]


class NoteWriter:
    """
    Writes Markdown notes of about 7 kB: headings, paragraphs, some lists and tables.

    Its words are those that are one token each, the common ones often (Zipf's law).
    """

    def __init__(self, counter: Cl100kCounter, seed: int) -> None:
        tokens = map(counter.encoding.decode_single_token_bytes, range(256, 50_000))
        self._words = [token[1:].decode() for token in tokens if WORD.fullmatch(token)]
        self._weights = list(itertools.accumulate(1 / (n + 3) for n in range(len(self._words))))
        self._rng = random.Random(seed)

    def notes(self, number: int) -> list[str]:
        return [self._note() for _ in range(number)]

    def _note(self) -> str:
        rng = self._rng
        parts = [f"# {self._text(3).title()}\n\n{self._paragraph()}"]
        for _ in range(rng.randint(4, 8)):
            parts.append(f"## {self._text(4).capitalize()}")
            parts += [self._paragraph() for _ in range(rng.randint(1, 4))]
            if rng.random() < 0.3:
                parts.append("\n".join(f"- {self._sentence()}" for _ in range(rng.randint(3, 8))))
            if rng.random() < 0.1:
                rows = [f"| {self._text(2)} | {self._text(3)} |" for _ in range(6)]
                parts.append("\n".join([rows[0], "| --- | --- |", *rows[1:]]))
        return "\n\n".join(parts) + "\n"

    def _paragraph(self) -> str:
        return " ".join(self._sentence() for _ in range(self._rng.randint(2, 6)))

    def _sentence(self) -> str:
        return self._text(self._rng.randint(6, 18)).capitalize() + "."

    def _text(self, words: int) -> str:
        return " ".join(self._rng.choices(self._words, cum_weights=self._weights, k=words))


if __name__ == "__main__":
    main()
