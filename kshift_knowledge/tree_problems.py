"""What may be wrong with a place of the knowledge tree: code, sentence and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kshift_knowledge.item_keys import encode_name

_REASONS = {  # code: what is wrong, with {detail} from the system, and what to do
    "not_a_slug": (
        "cannot be an account, a project or a database: its name is not letters and digits "
        "joined by dots, hyphens or underscores",
        "Rename the folder, for example to `brand-styles`.",
    ),
    "link_above_database": (
        "is a link; accounts, projects and databases are plain folders",
        "Move the folder itself there, or mount it.",
    ),
    "link_leaves_database": (
        "is a link to a place outside its database folder and is never followed",
        "Copy the file itself into the folder.",
    ),
    "link_dangling": (
        "is a link that leads to no file ({detail})",
        "Remove the link or restore its target.",
    ),
    "link_not_to_a_file": (
        "is a link to a folder or a device and is not followed",
        "Files of a linked folder are indexed at their own place.",
    ),
    "not_a_regular_file": (
        "is not a plain file and is never opened",
        "Remove it from the knowledge tree.",
    ),
    "folder_unlisted": (
        "could not be listed ({detail}); its items stay as they are",
        "Give the user that runs kshift the right to list the folder. One that was only moved "
        "meanwhile is found by the next scan.",
    ),
    "unreadable": (
        "cannot be looked at ({detail})",
        "Give the user that runs kshift the right to enter its folder.",
    ),
}


@dataclass(frozen=True, slots=True)
class TreeProblem:
    """Something in the tree that is no item, or an item that cannot be indexed, and why."""

    where: str  # a place in the tree, percent-encoded like a partition key
    code: str
    message: str
    hint: str


def tree_problem(levels: Sequence[str], code: str, exc: OSError | None = None) -> TreeProblem:
    """Say what is wrong with a place; *exc* is why the system refused."""
    where = encode_name("/".join(levels))
    state, hint = _REASONS[code]
    detail = exc.strerror if exc else ""
    return TreeProblem(where, code, f"{where} {state.format(detail=detail)}.", hint)
