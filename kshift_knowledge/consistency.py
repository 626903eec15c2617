"""Whether the index is what the knowledge tree says: rebuilt in memory and compared row by row."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from kshift_knowledge.chunker import PIPELINE_VERSION
from kshift_knowledge.embedded_text import TEXT_FORMAT
from kshift_knowledge.errors import ItemError, KshiftError
from kshift_knowledge.front_matter import parse_front_matter
from kshift_knowledge.indexing.cutting import Cut, CutJob, cut
from kshift_knowledge.item_source import read_once
from kshift_knowledge.postgres import audit, vector_rows
from kshift_knowledge.postgres.audit import ListedItem, StoredItem, StoredRow
from kshift_knowledge.postgres.database import Conn, Database
from kshift_knowledge.postgres.generations import living_generations
from kshift_knowledge.records import Generation
from kshift_knowledge.store import VectorRow
from kshift_knowledge.tokens import token_counter
from kshift_knowledge.tree import TreeScan, scan_tree

Embed = Callable[[Sequence[str]], ArrayLike]

HALF_PRECISION = 1e-3  # how exactly a halfvec holds a number of a unit vector
MAX_NAMED = 10  # in an error; the list of findings has all
_ITEMS_AT_ONCE = 200  # held in memory together


@dataclass(frozen=True, slots=True)
class Inconsistency:
    """
    Something that must not be.

    oracle: I1 the rows are not those that the file gives, I3 gaps in chunk_index, I4 rows of what
    is gone, I5 a vector that cannot be its text's, I9 a failure without its reason.
    item: a partition key. No text of a customer is ever quoted.
    """

    oracle: str
    item: str
    what: str

    def __str__(self) -> str:
        return f"{self.oracle} {self.item}: {self.what}"


class IndexInconsistent(KshiftError):
    """The index is not what the knowledge tree says."""

    code = "index_inconsistent"


def assert_consistent(
    database: Database,
    knowledge_dir: Path,
    *,
    embed: Embed | None = None,
    tolerance: float = 1e-5,
    sample: int | None = None,
    at_rest: bool = True,
) -> None:
    """Raise IndexInconsistent when find_inconsistencies finds any; takes what that takes."""
    found = find_inconsistencies(
        database,
        knowledge_dir,
        embed=embed,
        tolerance=tolerance,
        sample=sample,
        at_rest=at_rest,
    )
    if found:
        named = "\n".join(f"  {one}" for one in found[:MAX_NAMED])
        more = f"\n  and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
        raise IndexInconsistent(
            f"{len(found)} contradictions between the knowledge tree and the index:\n{named}{more}",
            hint="Materialize these items in Dagster: that builds all their rows again.",
        )


def find_inconsistencies(
    database: Database,
    knowledge_dir: Path,
    *,
    embed: Embed | None = None,
    tolerance: float = 1e-5,
    sample: int | None = None,
    seed: int = 0,
    at_rest: bool = True,
) -> list[Inconsistency]:
    """
    Compare what is stored with what the tree gives, in one snapshot of the database.

    embed: makes vectors of embedded texts, one row each; given, every vector must equal its own
    within *tolerance* in each number, which finds swapped pairs. sample: rebuild only so many
    items, chosen by *seed*; None rebuilds all. What rows show alone is always looked at in full.
    at_rest: nothing is being written, so that an item that waits or whose file differs from what
    is indexed is a finding too; otherwise such items are only compared with their stored text.

    database: as the writer, who alone sees staged rows. Raises Refused when there is no tree, and
    StoreUnavailable.
    """
    scan = scan_tree(knowledge_dir)
    with audit.snapshot(database) as conn:
        generations = {one.generation_id: one for one in living_generations(conn)}
        items = audit.listed(conn)
        found = [Inconsistency(*one) for one in audit.contradictions(conn, list(generations))]
        if at_rest:
            found += _not_followed(scan, items)
        living = sorted(
            (item for item in items if item.state != "gone"),
            key=lambda item: (item.generation_id, item.partition_key),
        )
        if sample is not None and sample < len(living):
            chosen = set(random.Random(seed).sample(range(len(living)), sample))  # noqa: S311
            living = [item for place, item in enumerate(living) if place in chosen]
        for generation_id, group in groupby(living, key=lambda item: item.generation_id):
            check = _Rebuild(knowledge_dir, generations[generation_id], embed, tolerance, at_rest)
            found += check.differences(conn, list(group))
    return found


def _not_followed(scan: TreeScan, items: Sequence[ListedItem]) -> Iterator[Inconsistency]:
    """What the tree and the items should agree on once everything is indexed."""
    entries = {entry.partition_key: entry for entry in scan.entries}
    states = {item.partition_key: item.state for item in items}
    for key, entry in entries.items():
        state = states.get(key)
        if state in (None, "gone", "waiting"):
            yield Inconsistency("I1", key, f"its file is there, but it is {state or 'not known'}")
        elif entry.problem is not None and state != "failed":
            yield Inconsistency("I9", key, f"it cannot be read, but it is {state}")
    for item in items:
        is_listed = scan.was_listed(item.account, item.project, item.database, item.path)
        if item.state != "gone" and item.partition_key not in entries and is_listed:
            yield Inconsistency("I4", item.partition_key, f"its file is gone, it is {item.state}")


class _Rebuild:
    """Cuts items of one generation again, from their stored texts and from their files."""

    def __init__(
        self,
        root: Path,
        generation: Generation,
        embed: Embed | None,
        tolerance: float,
        at_rest: bool,
    ) -> None:
        self._root = root
        self._generation = generation
        self._embed = embed
        self._tolerance = tolerance
        self._at_rest = at_rest
        self._counter = token_counter()

    def differences(self, conn: Conn, items: Sequence[ListedItem]) -> Iterator[Inconsistency]:
        generation = self._generation
        cut_by = (generation.token_counter, generation.pipeline_version, generation.text_format)
        if cut_by != (self._counter.name, PIPELINE_VERSION, TEXT_FORMAT):
            yield Inconsistency(
                "I1",
                f"generation {generation.generation_id}",
                "this version of kshift cuts text differently and can rebuild nothing of it",
            )
            return
        for start in range(0, len(items), _ITEMS_AT_ONCE):
            part = items[start : start + _ITEMS_AT_ONCE]
            stored = audit.stored(
                conn,
                generation.generation_id,
                [item.item_id for item in part],
                with_vectors=self._embed is not None,
            )
            for item in part:
                for oracle, what in self._of_item(item, stored[item.item_id]):
                    yield Inconsistency(oracle, item.partition_key, what)

    def _of_item(self, item: ListedItem, stored: StoredItem) -> Iterator[tuple[str, str]]:
        if item.state == "indexed":
            yield from self._against_file(item, stored)
        if stored.text is not None:
            yield from self._against_text(stored, stored.text)

    def _against_file(self, item: ListedItem, stored: StoredItem) -> Iterator[tuple[str, str]]:
        try:
            source = read_once(self._root, item)
        except ItemError as exc:
            if self._at_rest:
                yield "I1", f"it is indexed, but its file cannot be read: {exc.code}"
            return
        if not self._at_rest and source.signature != item.seen_signature:
            return
        if stored.source_hash != source.raw_hash:
            yield "I1", "the bytes that are indexed are not those of its file"
        elif stored.text != source.text:
            yield "I1", "its stored text is not its file's"
        for field in ("name", "kind", "origin", "source_url", "labels"):
            if getattr(stored.meta, field) != getattr(source.meta, field):
                yield "I1", f"its {field} is not what its file says"

    def _against_text(self, stored: StoredItem, text: str) -> Iterator[tuple[str, str]]:
        generation = self._generation
        job = CutJob(
            "",
            text,
            stored.meta.name,
            parse_front_matter(text).name,
            generation.chunk_tokens,
            generation.overlap_tokens,
            generation.passage_tokens,
        )
        right = cut(job)
        chunks = right.chunks
        if len(chunks) != len(stored.rows):
            yield "I1", f"it has {len(stored.rows)} chunks, but its text gives {len(chunks)}"
            return
        for row, chunk, text_of_it, passages in zip(
            stored.rows, chunks, right.texts, right.passages, strict=True
        ):
            for field in ("content", "char_start", "char_end", "heading_path", "token_count"):
                if getattr(row, field) != getattr(chunk, field):
                    yield "I1", f"the {field} of chunk {row.index} is not what its text gives"
            if row.embed_hash != text_of_it.embed_hash:
                yield "I5", f"chunk {row.index} has the vector of another text"
            found = [one.passage for one in passages]
            if row.places != vector_rows.places(found):
                yield "I1", f"the passages of chunk {row.index} do not lie where its text says"
            if row.lexemes != b"".join(one.lexemes for one in found):
                yield "I1", f"the words of chunk {row.index} are not those of its text"
            hashes = tuple(one.text.embed_hash for one in passages if one.text is not None)
            if row.passage_hashes != hashes:
                yield "I5", f"the passages of chunk {row.index} have vectors of other texts"
        if self._embed is not None and chunks:
            yield from self._against_vectors(stored.rows, right, self._embed)

    def _against_vectors(
        self, rows: Sequence[StoredRow], right: Cut, embed: Embed
    ) -> Iterator[tuple[str, str]]:
        if len(right.embedded) != sum(1 + len(row.passage_vectors) for row in rows):
            return  # their hashes differ, which is said already
        expected = iter(np.asarray(embed([one.text for one in right.embedded])))
        for row in rows:
            assert row.vector is not None, "asked for"
            if not _is_close(row.vector, next(expected), self._tolerance):
                yield "I5", f"the vector of chunk {row.index} is not its text's"
        for row in rows:
            for number, vector in enumerate(row.passage_vectors):
                if not _is_close(vector, next(expected), max(self._tolerance, HALF_PRECISION)):
                    yield "I5", f"vector {number} of the passages of chunk {row.index} is wrong"


def _is_close(found: VectorRow, right: VectorRow, tolerance: float) -> bool:
    return found.shape == right.shape and np.allclose(found, right, rtol=0.0, atol=tolerance)
