"""Where a watcher of the tree stands between two looks; a lost one costs a full compare."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

_VERSION = 1
# How long an equal tree may be passed over without comparing the rows of the index, too.
TRUSTED_S = 60.0


@dataclass(frozen=True, slots=True)
class Bookmark:
    """
    after: the place behind which the sweep of the tree goes on, None at its start.
    missing: items that this sweep did not find. Deletions are decided at its end, all together.
    quiet: the tree's fingerprint when the last sweep left nothing to do, else None.
    compared_at: when that was, in seconds since 1970.
    """

    after: str | None = None
    missing: tuple[int, ...] = ()
    quiet: str | None = None
    compared_at: float = 0.0

    def is_trusted(self, fingerprint: str, now: float) -> bool:
        """Say whether a tree with this fingerprint needs no comparing. A clock may jump."""
        return self.quiet == fingerprint and 0.0 <= now - self.compared_at < TRUSTED_S

    def dump(self) -> str:
        """Return it as ASCII: a file name may hold bytes that no database text can."""
        return json.dumps({"version": _VERSION, **asdict(self)})

    @classmethod
    def parse(cls, text: str | None) -> Bookmark:
        """Read what dump() wrote; anything else, also of another version, is the start."""
        try:
            return cls._checked(json.loads(text or ""))
        except (ValueError, TypeError, KeyError):
            return cls()

    @classmethod
    def _checked(cls, found: dict[str, Any]) -> Bookmark:
        after, quiet = found["after"], found["quiet"]
        is_ours = (
            found["version"] == _VERSION
            and (after is None or isinstance(after, str))
            and (quiet is None or isinstance(quiet, str))
        )
        if not is_ours:
            return cls()
        missing = tuple(int(item_id) for item_id in found["missing"])
        return cls(after, missing, quiet, float(found["compared_at"]))
