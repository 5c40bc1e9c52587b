"""What a run of faults has in hand: the fleet, its jobs, and a list of what went wrong."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.faults.chaos.counting import Counting
from tests.faults.chaos.many import ManyAsOne
from tests.faults.chaos.serving import Serving
from tests.faults.chaos.trading import Trading
from tests.faults.fleet import Fleet


@dataclass
class Scene:
    """Handed to every fault and to the load."""

    fleet: Fleet
    counting: Counting
    trading: Trading
    many: ManyAsOne
    serving: Serving
    submitted: list[str] = field(default_factory=list[str])
    """Jobs that have to succeed."""
    cancelled: list[str] = field(default_factory=list[str])
    """Jobs that somebody cancelled, perhaps too late."""
    lenders: list[str] = field(default_factory=list[str])
    """Gangs that lend their spares."""
    mending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while processes are started: two at once would start one twice."""

    def unfinished(self) -> list[str]:
        """Return jobs that have to succeed and have not ended, by their rows."""
        rows = self.fleet.rows("SELECT id FROM jobs WHERE ended_at IS NULL ORDER BY id")
        open_jobs = {row["id"] for row in rows}
        return [job_id for job_id in self.submitted if job_id in open_jobs]

    async def mend(self) -> None:
        """Start again what does not run."""
        async with self.mending:
            await asyncio.to_thread(self.fleet.start_what_is_missing)


Fault = Callable[[Scene, random.Random], Awaitable[str]]
"""Does it, and says to what; empty where there was nothing to do it to."""
