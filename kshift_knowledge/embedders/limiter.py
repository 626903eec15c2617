"""One brake for all workers of a process: how many requests are in flight, and when to pause."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kshift_knowledge.errors import RateLimited

MAX_IN_FLIGHT = 16


class Limiter:
    """
    Lets requests through, at most *max_in_flight* at a time and none while the provider rests.

    A 429 pauses every worker for the wait it asks for and halves how many may be in flight, once
    per burst; each success lets the number grow back by 1 for every round of requests (additive
    increase, multiplicative decrease, as TCP does it).
    """

    def __init__(
        self,
        max_in_flight: int = MAX_IN_FLIGHT,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._sleep = sleep
        self._freed = threading.Condition()
        self._in_flight = 0
        self._allowed = float(max_in_flight)
        self._slowed_at = -float("inf")
        self._resumes_at = -float("inf")

    @property
    def allowed(self) -> int:
        """How many requests may be in flight now."""
        return int(self._allowed)

    @contextmanager
    def turn(self, give_up_at: float) -> Iterator[float]:
        """
        Wait for a turn and hold it for the block, which gets the time at which it began.

        Raises RateLimited at once when the pause is longer than until *give_up_at*, and at that
        time when all turns stay taken.
        """
        began_at = self._wait(give_up_at)
        try:
            yield began_at
        finally:
            with self._freed:
                self._in_flight -= 1
                self._freed.notify()

    def slow_down(self, pause_s: float, began_at: float) -> None:
        """Note that a request that began at *began_at* was refused: pause, and send fewer."""
        with self._freed:
            now = self._clock()
            self._resumes_at = max(self._resumes_at, now + pause_s)
            if began_at >= self._slowed_at:
                self._allowed = max(1.0, self._allowed / 2)
                self._slowed_at = now

    def speed_up(self) -> None:
        """Note that a request went well."""
        with self._freed:
            self._allowed = min(float(self._max_in_flight), self._allowed + 1 / self._allowed)
            self._freed.notify()

    def _wait(self, give_up_at: float) -> float:
        while True:
            with self._freed:
                now = self._clock()
                pause_s = self._resumes_at - now
                if pause_s <= 0:
                    if self._in_flight < self.allowed:
                        self._in_flight += 1
                        return now
                    if now >= give_up_at:
                        raise _too_busy("All turns are taken", None)
                    self._freed.wait(give_up_at - now)
                    continue
            if now + pause_s > give_up_at:
                raise _too_busy(f"The provider rests for {pause_s:.0f} s more", pause_s)
            self._sleep(pause_s)


def _too_busy(why: str, retry_after_s: float | None) -> RateLimited:
    return RateLimited(
        f"{why}, longer than this request may wait.",
        hint="Ask again later.",
        retry_after_s=retry_after_s,
    )
