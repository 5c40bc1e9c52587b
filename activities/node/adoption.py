"""Engines that outlive their agent: the next one finds their supervisors, and goes on."""

import asyncio
import contextlib
import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

from longshore.activities.node import orphans
from longshore.activities.node.runs import RunRecord, RunStore
from longshore.activities.node.supervisor_input import SupervisorInput
from longshore.activities.node.system import boot_clock, is_same
from longshore.models.node_messages import RunProcessRequest

ORDERS = "orders"
"""Name in a run folder: the FIFO by which an agent talks to a supervisor that another started."""
_LISTENS_WITHIN = 3.0
"""Seconds in which a supervisor hears of the end of its agent, and opens the FIFO."""
_POLL_EVERY = 0.2


class Adopted(SupervisorInput):
    """A supervisor at work that an earlier life of the agent started. What its agent does with one
    that it has started itself (`Supervised`), it does with this."""

    def __init__(self, folder: Path, started: dict[str, Any], orders: int) -> None:
        self._folder = folder
        self._started = started
        self._pid: int = started["supervisor"]
        self._ticks: int | None = started["supervisor_ticks"]
        self._orders = orders
        self.left: list[int] = []
        """What could not be ended of a job that killed it: nobody looks for that here."""

    @classmethod
    async def take(cls, folder: Path, started: dict[str, Any]) -> "Adopted | None":
        """Return the supervisor of a run folder; None where it has gone, or does not listen."""
        until = boot_clock() + _LISTENS_WITHIN
        pid, ticks = started["supervisor"], started["supervisor_ticks"]
        while ticks is not None and is_same(pid, ticks) and orphans.runs(pid):
            try:
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                return cls(folder, started, os.open(folder / ORDERS, flags))
            except OSError as error:
                # It may not have heard yet that the agent before has gone.
                if error.errno != errno.ENXIO or boot_clock() > until:
                    return None
            await asyncio.sleep(0.02)
        return None

    def kill(self) -> bool:
        """Kill it where it still lives, and what it keeps with it; return whether it did."""
        if not self._lives():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        return True

    async def end(self, started: asyncio.Future[dict[str, Any]]) -> dict[str, Any] | None:
        """Wait until the supervisor has ended; return what it says of the end, None where it was
        killed. It is a child of another process, so it is looked for again and again."""
        if not started.done():
            started.set_result(self._started)
        while self._lives():  # noqa: ASYNC110 (the end of a process that is no child)
            await asyncio.sleep(_POLL_EVERY)
        os.close(self._orders)
        self._orders = -1
        try:
            return json.loads((self._folder / "end.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _lives(self) -> bool:
        return is_same(self._pid, self._ticks) and orphans.runs(self._pid)

    def _send(self, message: dict[str, Any]) -> None:
        if self._orders >= 0:
            # One line is less than a pipe takes at once: it goes whole or not at all.
            with contextlib.suppress(OSError):
                os.write(self._orders, json.dumps(message).encode() + b"\n")


async def adoptable(
    store: RunStore, record: RunRecord
) -> tuple[RunProcessRequest, dict[str, Any], Adopted] | None:
    """Return how an engine goes on that an earlier life of the agent started: what it was started
    with, and its supervisor. None where it has ended, is to stop, or is no engine."""
    if record.report is not None or record.stop_reason is not None:
        return None
    request, started = store.request(record.key), store.started(record.key)
    if request is None or started is None or store.end(record.key) is not None:
        return None
    supervisor = await Adopted.take(store.folder(record.key), started)
    return None if supervisor is None else (request, started, supervisor)
