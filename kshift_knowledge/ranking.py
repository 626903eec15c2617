"""Ranks the chunks of one pool by their best passages; knows cosines and words, but no store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kshift_knowledge.lexical import Lexemes, LexicalPool, Matches

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# A passage's score is the sum of these; flat within a factor of 1.5: docs/decisions.md#ranking
PASSAGE_COSINE = 1.0
CHUNK_COSINE = 0.4
CHUNK_WORDS = 0.3
PASSAGE_WORDS = 0.3

SHORTLIST = 100  # chunks whose passages are looked at: docs/decisions.md#shortlist
COPY_SHARE = 0.8  # of the words in either of two passages, those in both: one copies the other
COPY_PENALTY = 0.05  # for each passage before that says the same
_COMPARED = 64  # passages compared with each other; 1,500 characters hold about seven


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """
    What a question may find, as columns.

    Of each chunk, by ascending id: its item and its cosine with the question. Of each passage,
    in the order of the chunks and of their text: owners, the position of its chunk; spans, shape
    (passages, 2), its range in the item's text.
    """

    items: Ints
    cosines: Floats
    owners: Ints
    spans: Ints

    def passages_of(self, chunks: Ints) -> Ints:
        """Return the positions of the passages of the chunks at these positions, ascending."""
        is_wanted = np.zeros(len(self.items), dtype=np.bool_)
        is_wanted[chunks] = True
        return np.flatnonzero(is_wanted[self.owners])


@dataclass(frozen=True, slots=True)
class RankedPassage:
    """A range of an item's text and the position of the chunk that it is taken from."""

    chunk: int
    char_start: int
    char_end: int


def shortlist(pool: Pool, matches: Matches | None, size: int = SHORTLIST) -> Ints:
    """
    Return the positions of the *size* chunks whose passages are worth a look, ascending.

    matches: None when words do not count. The choice is made as if each chunk's best passage were
    as near to the question as the chunk.
    """
    scores = (PASSAGE_COSINE + CHUNK_COSINE) * pool.cosines
    if matches is not None:
        best = np.zeros(len(scores))
        np.maximum.at(best, pool.owners, matches.passages)
        scores = scores + CHUNK_WORDS * matches.chunks + PASSAGE_WORDS * best
    return np.sort(np.argsort(-scores, kind="stable")[:size])


def score(pool: Pool, passages: Ints, cosines: Floats, matches: Matches | None) -> Floats:
    """
    Return the scores of the *passages* at these positions.

    cosines: of each of them with the question, NaN where it has no vector: then its chunk's
    counts. matches: None when words do not count.
    """
    owners = pool.owners[passages]
    chunk_cosines = pool.cosines[owners]
    nearness = np.where(np.isnan(cosines), chunk_cosines, cosines)
    scores = PASSAGE_COSINE * nearness + CHUNK_COSINE * chunk_cosines
    if matches is not None:
        scores = scores + CHUNK_WORDS * matches.chunks[owners]
        scores = scores + PASSAGE_WORDS * matches.passages[passages]
    return scores


def order(
    pool: Pool, passages: Ints, scores: Floats, words: LexicalPool | None = None
) -> list[RankedPassage]:
    """
    Return the *passages* at these ascending positions, best first.

    A chunk ranks where its first passage does.
    words: of the pool; with them, passages that say the same as better ones move back a little.
    Text that overlapping chunks of an item share is offered once. Ties go to the smaller position.
    The order depends on nothing but the arguments, so that the list for a smaller top_k is a
    prefix.
    """
    best_first = np.argsort(-scores, kind="stable")
    if words is not None and len(passages):
        compared = best_first[:_COMPARED]
        scores = scores.copy()
        scores[compared] -= COPY_PENALTY * _copies_before(
            [words.own(at) for at in passages[compared]]
        )
        best_first = np.argsort(-scores, kind="stable")
    ranked: dict[tuple[int, int, int], RankedPassage] = {}
    for passage in passages[best_first].tolist():
        chunk = int(pool.owners[passage])
        start, end = pool.spans[passage].tolist()
        place = (int(pool.items[chunk]), start, end)
        ranked.setdefault(place, RankedPassage(chunk, start, end))
    return list(ranked.values())


def _copies_before(texts: Sequence[Lexemes]) -> Ints:
    """Return for each text how many of those before it hold nearly the same words."""
    numbers = np.unique(np.concatenate(texts), return_inverse=True)[1]
    holds = np.zeros((len(texts), int(numbers.max(initial=-1)) + 1), dtype=np.float32)
    holds[np.repeat(np.arange(len(texts)), [len(text) for text in texts]), numbers] = 1
    both = holds @ holds.T
    sizes = holds.sum(axis=1)
    either = sizes[:, None] + sizes - both
    is_copy = (both >= COPY_SHARE * either) & (both > 0)
    copies: Ints = np.tril(is_copy, -1).sum(axis=1)
    return copies
