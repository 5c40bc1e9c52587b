"""Whether an engine is in use, as far as its connections and its work show."""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from longshore.models.runtimes import METRICS, SLOTS
from longshore.models.serving import STALE_AFTER

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED, _TIME_WAIT = "01", "06"
_QUIET, _QUIET_AFTER_USE = 1.0, 10.0
"""Seconds without a connection after which an engine that is to stop has nothing to do. Who has
used it just now may have its address for some more: from a look every few seconds, which takes a
few on a busy machine."""
_TOLD_EVERY = 60.0
"""Seconds between two tellings that it is in use: each is a signal."""
_TICK = 0.01
"""Seconds of the processor that count as work: the least that the system tells (proc(5))."""
_COUNTED = {
    "vllm:request_success_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
}  # fmt: skip
"""What vLLM counts. Of a request that is given up before its end, tokens may be all of it."""
_AT_WORK = {"vllm:num_requests_running", "vllm:num_requests_waiting"}


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
        self._told_at = -math.inf

    def look(self, work: float, now: float, *, connected: bool) -> None:
        """Take in what is so now, and whether anybody was `connected` since the last look."""
        # As floats 0.03 - 0.02 is less than 0.01.
        busy = connected and round(work - self._work, 6) >= _TICK
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

    def asked_since(self, looked: float, now: float) -> None:
        """Take in that somebody has asked it since `looked`: by what was seen of that meanwhile,
        where anything was."""
        if self._used_at <= looked:
            self.asked(now)

    def leave_out(self, work: float) -> None:
        """Count none of the work until now: it was for a question of ours."""
        self._work = work

    def idle(self, now: float) -> bool:
        """Return whether nobody has used it for as long as counts."""
        return now - self._used_at >= STALE_AFTER.total_seconds()

    def is_news(self, now: float, *, idle: bool, uses: int) -> bool:
        """Return whether it is to be told that it is in use, or no longer, where its `uses` and
        whether it is `idle` were told last.

        That it is idle is told at once, since others may then have its memory. That it is in use
        may be known late: who stops an engine has it end what it has begun in any case. Its first
        use is told at once: until then one that is prewarmed leaves for anybody.
        """
        is_first = self.uses > 0 and not uses
        if not is_first:
            if self.idle(now):
                return not idle
            if not idle or now - self._told_at < _TOLD_EVERY:
                return False
        self._told_at = now
        return True

    def quiet(self, now: float) -> float:
        """Return for how many seconds nobody has to be connected before it stops."""
        return _QUIET if self.idle(now) or not self.uses else _QUIET_AFTER_USE


class Connections:
    """Who is connected to a port of this machine (proc(5), /proc/net/tcp), or was since the last
    look: a request may begin and end between two. Of one from another machine that its client
    closed nothing is left to be seen (`Requests` sees it)."""

    def __init__(self, port: int) -> None:
        self._port = f":{port:04X}"
        self._own = set[str]()
        self._closed = frozenset[tuple[str, str]]()
        self.look()

    def leave_out(self, port: int) -> None:
        """Count nothing of a connection of ours that is closed, from this port: it is seen for a
        minute (TIME_WAIT). The system may give the port to a client then, or before that."""
        self._own.add(f"{port:04X}")

    def look(self) -> bool:
        """Return whether anybody is, or was since the last look."""
        known, closed, is_open = self._closed, set[tuple[str, str]](), False
        own = set[str]()
        for local, remote, state in _connections():
            if not local.endswith(self._port) and not remote.endswith(self._port):
                continue
            other = (remote if local.endswith(self._port) else local).rpartition(":")[2]
            if state == _ESTABLISHED:
                is_open |= local.endswith(self._port)
            elif other in self._own:
                own.add(other)
            elif state == _TIME_WAIT:
                closed.add((local, remote))
        # One that is open is none of ours: nobody looks while we ask.
        self._closed, self._own = frozenset(closed), own
        return is_open or not closed <= known


class Requests:
    """What an engine says of its requests: what it has counted, and whether it works on one. So
    those are seen that came and went between two looks, from wherever."""

    def __init__(self, ask: Callable[[], bytes | None], path: str = SLOTS) -> None:
        """`ask` returns what the engine answers at `path`, one of `REQUESTS`; None where it does
        not."""
        self._ask = ask
        self._read = {SLOTS: _of_slots, METRICS: _of_metrics}[path]
        self._last = self._read(ask() or b"")
        self.at_work = False
        """Whether it worked on one when it was looked at last."""

    def look(self) -> bool:
        """Return whether the engine works on a request, or had one since the last look; False
        where it does not say."""
        before, now = self._last, self._read(self._ask() or b"")
        self.at_work = now is not None and any(works for _, works in now.values())
        if now is None:
            return False
        self._last = now
        return self.at_work or (before is not None and now != before)


_Said = Mapping[str, tuple[float, bool]]
"""Of each slot, or of each figure, a number that another request changes, and whether the engine
works on one."""


def _of_slots(raw: bytes) -> _Said | None:
    """Return of each slot of llama.cpp the number of its last request; None where that is not
    what was answered."""
    try:
        slots = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(slots, list):
        return None
    each = [cast("dict[str, Any]", slot) for slot in cast("list[Any]", slots)
            if isinstance(slot, dict)]  # fmt: skip
    return {
        str(slot["id"]): (request if type(request := slot.get("id_task")) is int else -1,
                          slot.get("is_processing") is True)
        for slot in each
        if type(slot.get("id")) is int
    } or None  # fmt: skip


def _of_metrics(raw: bytes) -> _Said | None:
    """Return what vLLM has counted, by name and labels; None where that is not what was
    answered."""
    said: dict[str, tuple[float, bool]] = {}
    for line in raw.decode(errors="replace").split("\n"):
        series, _, figure = line.rpartition(" ")
        name = series.partition("{")[0]
        if name not in _COUNTED | _AT_WORK:
            continue
        with contextlib.suppress(ValueError):
            if math.isfinite(number := float(figure)):
                said[series] = (0.0, number > 0) if name in _AT_WORK else (number, False)
    return said or None


def _connections() -> Iterator[tuple[str, str, str]]:
    """Yield local and remote address and state of each TCP connection."""
    for table in _TABLES:
        with contextlib.suppress(FileNotFoundError), table.open() as file:
            for line in file:
                _, local, remote, state, *_ = line.split()
                yield local, remote, state
