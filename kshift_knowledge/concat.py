"""Mode concat, the legacy way: whole items one after the other, cut where the budget ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from kshift_knowledge.citations import escaped
from kshift_knowledge.records import (
    Dropped,
    Filters,
    Generation,
    Hit,
    Retrieval,
    Scope,
    StoredChunk,
)
from kshift_knowledge.store import VectorStore

CONCAT = "concat"
MOST_DROPPED = 50  # named of what did not fit: the next ones, as many as a list may have
_JOINT = "\n\n"
_PAGE = 50


def concatenate(
    store: VectorStore,
    scope: Scope,
    generation: Generation,
    *,
    filters: Filters,
    pins: Sequence[str],
    max_chars: int,
) -> Retrieval:
    """
    Return the items of *scope* in path order, one hit each, without asking anything of them.

    The last one is cut after exactly max_chars characters of the context, as the legacy code did.
    Pins move nothing, they only mark their hits; one that names no item is reported.
    """
    started = time.perf_counter()
    hits: list[Hit] = []
    dropped: list[Dropped] = []
    used = 0
    page: list[StoredChunk] = []
    while len(dropped) < MOST_DROPPED:
        after = page[-1] if page else None
        page = store.whole_items(
            scope, generation, filters, after=after, limit=_PAGE, max_chars=max_chars
        )
        for item in page:
            room = max_chars - used - (len(_JOINT) if hits else 0)
            content = "" if dropped else _fitting(item.content, room)
            if not content:
                dropped.append(Dropped(item.item_name, None, "budget"))
                continue
            used = max_chars - room + len(escaped(content))
            hits.append(_hit(len(hits) + 1, item, content, item.item_name in pins))
        if len(page) < _PAGE:
            break
    return Retrieval(
        mode=CONCAT,
        embedding_model=generation.model,
        generation_id=generation.generation_id,
        hits=tuple(hits),
        context=_JOINT.join(escaped(hit.content) for hit in hits),
        dropped=tuple(dropped[:MOST_DROPPED]) + _not_found(store, scope, generation, pins),
        embedding_tokens=0,
        timings_ms={"search": (time.perf_counter() - started) * 1000},
    )


def _fitting(text: str, room: int) -> str:
    """The longest beginning whose escaped form fits; escaping only ever adds."""
    length = min(len(text), room)
    while length > 0:
        excess = len(escaped(text[:length])) - room
        if excess <= 0:
            return text[:length]
        length -= excess
    return ""


def _hit(rank: int, item: StoredChunk, content: str, is_pinned: bool) -> Hit:
    return Hit(
        rank=rank,
        chunk=replace(item, content=content),
        content=content,
        excerpts=((0, len(content)),),
        is_truncated=len(content) < item.char_end,
        is_pinned=is_pinned,
    )


def _not_found(
    store: VectorStore, scope: Scope, generation: Generation, pins: Sequence[str]
) -> tuple[Dropped, ...]:
    found = {chunk.item_name for chunk in store.named(scope, generation, pins)}
    return tuple(
        Dropped(pin, None, "pin_not_found") for pin in dict.fromkeys(pins) if pin not in found
    )
