"""The market's own clock: it runs with real time at a factor, or stands still and is moved."""

import heapq
import itertools
import time
from collections.abc import Callable


class Clock:
    """Seconds since 1970 in the market, and what is to happen there, in order.

    `now` moves only in `catch_up` and `advance`, and while they run it is the time of the event
    that is running. Events of one time run in the order in which they were scheduled.
    """

    def __init__(
        self, start: float, factor: float = 1.0, real: Callable[[], float] = time.monotonic
    ) -> None:
        self._real = real
        self._now = self._base = start
        self._since = real()
        self._factor = factor
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = itertools.count()

    @property
    def now(self) -> float:
        return self._now

    @property
    def minute(self) -> int:
        """Whole minutes since 1970."""
        return int(self._now // 60)

    @property
    def factor(self) -> float:
        """Market seconds in a real second; 0 while the clock stands still."""
        return self._factor

    def set_factor(self, factor: float) -> None:
        """Go on from here, faster or slower. Raises ValueError for a negative factor."""
        if factor < 0:
            raise ValueError(f"a clock cannot run backwards, got {factor}")
        self._base, self._since = self._reading(), self._real()
        self._factor = factor

    def at(self, when: float, do: Callable[[], object]) -> None:
        """Have `do` called when it is `when`; with the next move of the clock if that is past."""
        heapq.heappush(self._events, (max(when, self._now), next(self._sequence), do))

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        self.at(self._now + seconds, do)

    def catch_up(self) -> None:
        """Move to where real time has come, and run what is due."""
        self._move_to(self._reading())

    def advance(self, seconds: float) -> None:
        """Move ahead by so many market seconds, and run what is due on the way."""
        if seconds < 0:
            raise ValueError(f"a clock cannot run backwards, got {seconds}")
        self._base += seconds
        self.catch_up()

    def _reading(self) -> float:
        return self._base + (self._real() - self._since) * self._factor

    def _move_to(self, target: float) -> None:
        while self._events and self._events[0][0] <= target:
            when, _, do = heapq.heappop(self._events)
            self._now = max(self._now, when)
            do()
        self._now = max(self._now, target)
