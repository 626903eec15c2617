"""Brings automations and their edges in step with the canvases of the tree."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kshift_knowledge.canvas import CanvasProblem, CanvasRefused
from kshift_knowledge.canvas_files import CanvasFiles, Place, find_canvases, read_canvas
from kshift_knowledge.errors import Unsettled
from kshift_knowledge.item_source import SETTLE_S
from kshift_knowledge.postgres import canvases
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.tree import root_problem


@dataclass(frozen=True, slots=True)
class LoadReport:
    """
    What a load did. loaded, refused, removed: projects by what became of their canvas.

    unsettled: files that are being written, left for later. automations and edges: in all.
    """

    loaded: tuple[Place, ...]
    refused: tuple[Place, ...]
    removed: tuple[Place, ...]
    unsettled: tuple[Place, ...]
    automations: int
    edges: int


def stale_canvases(database: Database, knowledge_dir: Path) -> list[Place]:
    """
    Projects whose automations are not what their file says, or lack an edge that is possible now.

    Empty when the tree cannot be looked at: a disk that is not mounted removes nothing.
    """
    if root_problem(knowledge_dir) is not None:
        return []
    return _stale(database, find_canvases(knowledge_dir))


def load_canvases(
    database: Database,
    knowledge_dir: Path,
    generation_id: int,
    *,
    is_full: bool = False,
    wait: Callable[[float], None] = time.sleep,
) -> LoadReport:
    """
    Load every canvas that is stale, with is_full every one; each project in its own transaction.

    A file counts only when it is the same a second later. generation_id: serves a project that
    has a canvas before it has a database.
    """
    loaded: list[Place] = []
    refused: list[Place] = []
    removed: list[Place] = []
    unsettled: list[Place] = []
    found = _look(knowledge_dir)
    places = [] if found is None else _to_load(database, found, is_full)
    if places:
        wait(SETTLE_S)
    again = _look(knowledge_dir) if places else None
    for place in places:
        if found is None or again is None or not _is_at_rest(place, found, again):
            unsettled.append(place)
            continue
        outcome = _load_one(database, knowledge_dir, place, found.signature(place), generation_id)
        {"loaded": loaded, "refused": refused, "removed": removed}.get(outcome, unsettled).append(
            place
        )
    with database.transaction() as conn:
        automations, edges = canvases.counts(conn)
    return LoadReport(
        tuple(loaded), tuple(refused), tuple(removed), tuple(unsettled), automations, edges
    )


def _look(knowledge_dir: Path) -> CanvasFiles | None:
    return None if root_problem(knowledge_dir) is not None else find_canvases(knowledge_dir)


def _to_load(database: Database, found: CanvasFiles, is_full: bool) -> Sequence[Place]:
    stale = _stale(database, found)
    return sorted({*stale, *found.signatures}) if is_full else stale


def _stale(database: Database, found: CanvasFiles) -> list[Place]:
    with database.transaction() as conn:
        known = canvases.loaded(conn)
    changed = {
        place
        for place, signature in found.signatures.items()
        if place not in known or known[place].signature != signature or known[place].lacks_edges
    }
    vanished = {
        place for place in known.keys() - found.signatures.keys() if found.was_listed(place)
    }
    return sorted(changed | vanished)


def _is_at_rest(place: Place, found: CanvasFiles, again: CanvasFiles) -> bool:
    return found.signature(place) == again.signature(place) and again.was_listed(place)


def _load_one(
    database: Database, root: Path, place: Place, signature: str | None, generation_id: int
) -> str:
    if signature is None:
        with database.transaction() as conn:
            canvases.remove(conn, *place)
        return "removed"
    try:
        canvas = read_canvas(root, place, signature)
    except Unsettled:
        return "unsettled"
    except CanvasRefused as exc:
        problem = CanvasProblem(None, exc.code, exc.message, exc.hint)
        with database.transaction() as conn:
            canvases.refuse(conn, *place, generation_id, signature, problem)
        return "refused"
    with database.transaction() as conn:
        canvases.load(conn, *place, generation_id, signature, canvas)
    return "loaded"
