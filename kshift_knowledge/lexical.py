"""Words of any language, and how well the texts of one pool hold a question's; knows no vectors."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Lexemes = NDArray[np.uint32]
Floats = NDArray[np.float64]

LEXEME_FORMAT = 1  # goes up whenever the same text would give other lexemes
K1, B = 0.9, 0.4  # of BM25, as in Anserini; flat on our questions: docs/decisions.md#lexical
MAX_QUERY_LEXEMES = 64  # of a long draft only the telling words are looked for

# Lucene's English stop words, and what apostrophes leave over. Other languages need none: a word
# that most chunks of the pool hold weighs next to nothing.
# fmt: off
_STOP_WORDS = frozenset([
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it",
    "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these",
    "they", "this", "to", "was", "will", "with", "s", "t",
])
# fmt: on
_ASCII_WORD = re.compile(r"[a-z0-9]+")
# The vowel signs of Indic and South-East Asian scripts are no letters to \w.
_WORD = re.compile("(?:[^\\W_]|[\u0900-\u0963\u0966-\u0dff\u0e00-\u109f\u1780-\u17d3])+")
# Scripts that write no blanks between words; Hangul writes some, but glues particles to words.
_UNSPACED = re.compile(
    "([\u0e00-\u109f\u1780-\u17d3\u3005\u3006\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]+)"
)
# Accents and vowel signs that people leave out: Latin, Greek and Cyrillic, Hebrew, Arabic.
_OPTIONAL_MARKS = re.compile("[\u0300-\u036f\u0591-\u05c7\u0640\u064b-\u065f\u0670]+")
# Letters that an Arabic and a Persian keyboard write differently, and their digits.
_FOLDED = str.maketrans(
    {"\u064a": "\u06cc", "\u0649": "\u06cc", "\u0643": "\u06a9"}
    | {chr(zero + digit): str(digit) for zero in (0x660, 0x6F0) for digit in range(10)}
)


def words(text: str) -> list[str]:
    """
    Return the words of *text* in order, as they are compared: folded, English ones as stems.

    Runs of Han, kana, Hangul, Thai and other scripts without blanks come as overlapping pairs of
    letters, a run of one letter as that letter.
    """
    if text.isascii():
        found = _ASCII_WORD.findall(text.lower())
    else:
        decomposed = unicodedata.normalize("NFKD", text.casefold())
        bare = _OPTIONAL_MARKS.sub("", decomposed).translate(_FOLDED)
        folded = unicodedata.normalize("NFKC", bare).casefold()
        found = [part for word in _WORD.findall(folded) for part in _parts(word)]
    return [_stem(word) for word in found if word not in _STOP_WORDS]


def lexemes(text: str) -> Lexemes:
    """Return the words of *text* as numbers (CRC-32), in order and with repetitions."""
    return np.array([_number(word) for word in words(text)], dtype=np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class LexicalPool:
    """
    The lexemes of all passages that a question may find.

    lexemes: of all passages, one after the other. own_starts and ends: where those of each
    passage's own text begin, behind its item's name and headings, and where they end.
    owners: for each passage the position of its chunk, ascending from 0.
    chunk_count: the chunks of the pool, those without a passage included.
    """

    lexemes: Lexemes
    own_starts: Ints
    ends: Ints
    owners: Ints
    chunk_count: int

    def own(self, passage: int) -> Lexemes:
        """Return the lexemes of one passage's own text."""
        return self.lexemes[self.own_starts[passage] : self.ends[passage]]


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """
    How well each chunk and each passage of a pool holds the words of a question.

    0 where it holds none; 1 is what a text of average length has that holds each word once.
    """

    chunks: Floats
    passages: Floats


def match(pool: LexicalPool, question: Lexemes) -> Matches:
    """
    Score *pool* by BM25, divided by the weight of all words of the question.

    Document frequencies are those of this pool's chunks and of nothing else. A word counts once,
    however often the question repeats it; of more than MAX_QUERY_LEXEMES those that weigh most.
    Dividing by what was asked for, not by the best score, keeps a question whose words the pool
    hardly holds from shouting.
    """
    sizes = np.diff(pool.ends, prepend=0)
    chunk_sizes = np.bincount(pool.owners, weights=sizes, minlength=pool.chunk_count)
    norms, chunk_norms = _length_norms(sizes), _length_norms(chunk_sizes)
    passages, chunks = np.zeros(len(sizes)), np.zeros(pool.chunk_count)
    asked = 0.0
    for occurrences in _occurrences(pool, question):
        found, counts = _runs(occurrences)
        holders, parts = _runs(pool.owners[found])
        totals = np.add.reduceat(counts, np.cumsum(parts) - parts) if len(parts) else parts
        weight = np.log1p((pool.chunk_count - len(holders) + 0.5) / (len(holders) + 0.5))
        asked += weight
        passages[found] += weight * counts * (K1 + 1) / (counts + norms[found])
        chunks[holders] += weight * totals * (K1 + 1) / (totals + chunk_norms[holders])
    return Matches(chunks / (asked or 1), passages / (asked or 1))


def _parts(word: str) -> Iterator[str]:
    for number, run in enumerate(_UNSPACED.split(word)):
        if number % 2 == 0 or len(run) == 1:
            if run:
                yield run
        else:
            yield from (first + second for first, second in pairwise(run))


def _stem(word: str) -> str:
    """Return the singular of an English plural. Source: Harman 1991, the "S" stemmer."""
    if word[-1] != "s" or len(word) < 4 or not word.isascii():
        return word
    if word.endswith("ies"):
        return word if word[-4] in "ea" else f"{word[:-3]}y"
    if word.endswith("es"):
        return word if word[-3] in "aeo" else word[:-1]
    return word if word[-2] in "us" else word[:-1]


@lru_cache(maxsize=1 << 16)
def _number(word: str) -> int:
    return crc32(word.encode())


def _length_norms(sizes: NDArray[np.number]) -> Floats:
    average = float(sizes.mean()) if len(sizes) else 0.0
    return np.asarray(K1 * (1 - B + B * sizes / (average or 1.0)), dtype=np.float64)


def _occurrences(pool: LexicalPool, question: Lexemes) -> list[Ints]:
    """Return for each word that counts the passages it occurs in, ascending, one per occurrence."""
    terms, uses = np.unique(question, return_counts=True)
    if not len(terms):
        return []
    is_near = np.zeros(1 << 16, dtype=np.bool_)  # by the lower half of the number: one look-up each
    is_near[terms.astype(np.uint16)] = True
    places = np.flatnonzero(is_near.take(pool.lexemes.astype(np.uint16)))
    numbers = np.minimum(np.searchsorted(terms, pool.lexemes[places]), len(terms) - 1)
    is_term = terms[numbers] == pool.lexemes[places]
    numbers, places = numbers[is_term].astype(np.uint16), places[is_term]
    passages = np.searchsorted(pool.ends, places, side="right")
    counts = np.bincount(numbers, minlength=len(terms))
    groups = np.split(passages[np.argsort(numbers, kind="stable")], np.cumsum(counts)[:-1])
    if len(terms) <= MAX_QUERY_LEXEMES:
        return groups
    weights = uses * np.log1p(len(pool.lexemes) / np.maximum(counts, 1)) * (counts > 0)
    return [groups[term] for term in np.argsort(-weights, kind="stable")[:MAX_QUERY_LEXEMES]]


def _runs(ascending: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values and how often each occurs."""
    starts = np.flatnonzero(np.diff(ascending, prepend=-1))
    return ascending[starts], np.diff(starts, append=len(ascending))
