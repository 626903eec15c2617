"""How long a look at the tree may take, and how that time is shared."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

# What is left behind them is for the tables and for Dagster's partitions.
_WALK_SHARE = 0.35
_SETTLING_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Pace:
    """
    One look's share of time.

    started_at: on *clock*, which must not jump.
    """

    limit_s: float
    started_at: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def starting_now(cls, limit_s: float, clock: Callable[[], float] = time.monotonic) -> Pace:
        return cls(limit_s, clock(), clock)

    def walk_is_over(self) -> bool:
        return self._spent_s() >= self.limit_s * _WALK_SHARE

    def settling_is_over(self) -> bool:
        return self._spent_s() >= self.limit_s * _SETTLING_SHARE

    def is_over(self) -> bool:
        return self._spent_s() >= self.limit_s

    def _spent_s(self) -> float:
        return self.clock() - self.started_at


UNHURRIED = Pace(inf, 0.0)
