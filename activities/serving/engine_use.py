"""Whether an engine is in use, as far as its connections and its work show."""

import contextlib
from pathlib import Path

from longshore.models.serving import STALE_AFTER

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"
_QUIET, _QUIET_AFTER_USE = 1.0, 5.0
"""Seconds without a connection after which an engine that is to stop has nothing to do. Who has
used it just now may have its address for some more."""
_TICK = 0.01
"""Seconds of the processor that count as work: the least that the system tells (proc(5))."""


class EngineUse:
    """What was seen of the use of one engine. Times are those of a clock that never goes back.

    It is in use while somebody is connected and it works: clients keep connections that they do
    not use, and some engines work a little for nobody.
    """

    def __init__(self, work: float, now: float) -> None:
        """`work` is the seconds of the processor that it has taken so far."""
        self.uses = 0
        self._work = work
        self._used_at = now
        self._resting = True

    def look(self, work: float, now: float, *, connected: bool) -> None:
        """Take in what is so now."""
        busy = connected and work - self._work >= _TICK
        self._work = work
        if busy:
            self.uses += self._resting
            self._resting = False
            self._used_at = now
        elif self.idle(now):
            self._resting = True

    def idle(self, now: float) -> bool:
        """Return whether nobody has used it for as long as counts."""
        return now - self._used_at >= STALE_AFTER.total_seconds()

    def quiet(self, now: float) -> float:
        """Return for how many seconds nobody has to be connected before it stops."""
        return _QUIET if self.idle(now) or not self.uses else _QUIET_AFTER_USE


def connected(port: int) -> bool:
    """Return whether anybody is connected to a port of this machine (proc(5), /proc/net/tcp)."""
    for table in _TABLES:
        with contextlib.suppress(FileNotFoundError), table.open() as file:
            for line in file:
                _, local, _, state, *_ = line.split()
                if state == _ESTABLISHED and local.endswith(f":{port:04X}"):
                    return True
    return False
