"""Whether an engine is in use, as far as its connections and its work show."""

import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from longshore.models.serving import STALE_AFTER

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED, _TIME_WAIT = "01", "06"
_MOST_OWN = 256
"""Of our own connections: what is closed is seen for a minute (TIME_WAIT), and of an engine that
drains two come each second."""
_QUIET, _QUIET_AFTER_USE = 1.0, 10.0
"""Seconds without a connection after which an engine that is to stop has nothing to do. Who has
used it just now may have its address for some more: from a look every few seconds, which takes a
few on a busy machine."""
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
            self.asked(now)
        elif self.idle(now):
            self._resting = True

    def asked(self, now: float) -> None:
        """Take in that somebody has asked it since the last look."""
        self.uses += self._resting
        self._resting = False
        self._used_at = now

    def leave_out(self, work: float) -> None:
        """Count none of the work until now: it was for a question of ours."""
        self._work = work

    def idle(self, now: float) -> bool:
        """Return whether nobody has used it for as long as counts."""
        return now - self._used_at >= STALE_AFTER.total_seconds()

    def quiet(self, now: float) -> float:
        """Return for how many seconds nobody has to be connected before it stops."""
        return _QUIET if self.idle(now) or not self.uses else _QUIET_AFTER_USE


class Connections:
    """Who is connected to a port of this machine (proc(5), /proc/net/tcp), or was since the last
    look: a request may begin and end between two. Of one from another machine that its client
    closed nothing is left to be seen (`Requests` sees it)."""

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


class Requests:
    """What an engine of llama.cpp says of its requests: which one each of its slots had last, and
    whether that works on it. So those are seen that came and went between two looks, from
    wherever."""

    def __init__(self, ask: Callable[[], bytes | None]) -> None:
        """`ask` returns what the engine answers at `SLOTS`; None where it does not."""
        self._ask = ask
        self._last = _last_requests(ask())

    def look(self) -> bool:
        """Return whether the engine works on a request, or had one since the last look; False
        where it does not say."""
        before, now = self._last, _last_requests(self._ask())
        if now is None:
            return False
        self._last = now
        return any(works for _, works in now.values()) or (before is not None and now != before)


def _last_requests(raw: bytes | None) -> dict[int, tuple[int, bool]] | None:
    """Return of each slot the number of its last request, and whether it works on that; None
    where that is not what was answered."""
    try:
        slots = json.loads(raw or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(slots, list):
        return None
    each = [cast("dict[str, Any]", slot) for slot in cast("list[Any]", slots)
            if isinstance(slot, dict)]  # fmt: skip
    return {
        slot["id"]: (request if type(request := slot.get("id_task")) is int else -1,
                     slot.get("is_processing") is True)
        for slot in each
        if type(slot.get("id")) is int
    } or None  # fmt: skip


def _connections() -> Iterator[tuple[str, str, str]]:
    """Yield local and remote address and state of each TCP connection."""
    for table in _TABLES:
        with contextlib.suppress(FileNotFoundError), table.open() as file:
            for line in file:
                _, local, remote, state, *_ = line.split()
                yield local, remote, state
