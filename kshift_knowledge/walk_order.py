"""The order in which a walk meets the places of the tree, so that it can go on where it stopped."""

from __future__ import annotations

from collections.abc import Sequence

_Steps = tuple[tuple[bool, str], ...]


class GoingOn:
    """
    What a walk that goes on behind *after* need not look at again.

    after: the file it came to last, `account/project/database/path` as the disk spells it; one
    that ends in "/" is the folder it had just entered. None is the start of the tree.
    """

    def __init__(self, after: str | None) -> None:
        self._after = tuple(after.split("/")) if after else ()
        self._steps = steps(self._after)  # the start lies before everything

    def is_passed(self, folder: Sequence[str]) -> bool:
        """Say whether all of a folder lies before the place."""
        parts = tuple(folder)
        if parts == self._after[: len(parts)] and len(parts) < len(self._after):
            return False  # on the way to it
        return tuple((True, part) for part in parts) < self._steps

    def is_behind(self, place: Sequence[str]) -> bool:
        """Say whether the walk has come farther than it was: it must, before it stops again."""
        return steps(place) > self._steps

    def passed_name(self, folder: Sequence[str]) -> str | None:
        """Return the last file name of a folder that is passed; None when all of them are."""
        parts = tuple(folder)
        if parts == self._after[:-1]:
            return self._after[-1]
        is_above = parts == self._after[: len(parts)] and len(parts) < len(self._after)
        return None if is_above else ""


def steps(place: Sequence[str]) -> _Steps:
    """Return what places are ordered by: in a folder the files come first, then its folders."""
    return tuple((at < len(place) - 1, part) for at, part in enumerate(place))


def lies_between(place: str, after: str | None, up_to: str | None) -> bool:
    """Say whether a file lies behind *after* and not behind *up_to*; None is an end of the tree."""
    here = steps(place.split("/"))
    return (after is None or here > steps(after.split("/"))) and (
        up_to is None or here <= steps(up_to.split("/"))
    )
