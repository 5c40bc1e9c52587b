"""Whether an engine is in use, as far as its connections and its work show."""

import contextlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from longshore.models.serving import STALE_AFTER

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED, _TIME_WAIT = "01", "06"
_MOST_OWN = 64
"""Of our own connections: what is closed is seen for a minute (TIME_WAIT), ours come seldom."""
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
        """Take in what is so now, and whether anybody was `connected` since the last look."""
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


class Connections:
    """Who is connected to a port of this machine (proc(5), /proc/net/tcp), or was since the last
    look: a request may begin and end between two. Of one from another machine that its client
    closed nothing is left to be seen."""

    def __init__(self, port: int) -> None:
        self._port = f":{port:04X}"
        self._own = deque[str](maxlen=_MOST_OWN)
        self._closed = frozenset[tuple[str, str]]()
        self.look()

    def leave_out(self, port: int) -> None:
        """Count no connection of this port: it is our own."""
        self._own.append(f":{port:04X}")

    def look(self) -> bool:
        """Return whether anybody is, or was since the last look."""
        known, closed, is_open = self._closed, set[tuple[str, str]](), False
        for local, remote, state in _connections():
            if not local.endswith(self._port) and not remote.endswith(self._port):
                continue
            if local.endswith(tuple(self._own)) or remote.endswith(tuple(self._own)):
                continue
            if state == _TIME_WAIT:
                closed.add((local, remote))
            elif state == _ESTABLISHED and local.endswith(self._port):
                is_open = True
        self._closed = frozenset(closed)
        return is_open or not closed <= known


def _connections() -> Iterator[tuple[str, str, str]]:
    """Yield local and remote address and state of each TCP connection."""
    for table in _TABLES:
        with contextlib.suppress(FileNotFoundError), table.open() as file:
            for line in file:
                _, local, remote, state, *_ = line.split()
                yield local, remote, state
