"""Loads the compiled pass in the background of a control worker, once its cycles take long."""

import asyncio
import logging
import sys
from typing import Any

from temporalio import activity

from longshore.scheduling import bulk

_LONG = 0.3
"""Seconds of the processor for a plan: small pools never load numba."""

logger = logging.getLogger(__name__)


class Warming:
    """Has the compiled pass loaded after the first plan that took long."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def after(self, seconds: float) -> None:
        """Note how long a plan took; until the pass is loaded, plans are made without it."""
        if seconds >= _LONG and self._task is None and not bulk.is_loaded():
            self._task = asyncio.create_task(_warm())

    async def done(self) -> None:
        """Wait until what was begun is done."""
        if self._task is not None:
            await self._task


async def _warm() -> None:
    # Compiled in a process of its own: a thread would keep this one from its heartbeats. What is
    # compiled is on the disk then, and loads in a second or two.
    compiling = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "longshore.scheduling.bulk.warm"
    )
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(compiling.wait()), *_worker_stops()]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if compiling.returncode is None:
            return  # nobody is left to use it
    finally:
        for each in waits:
            each.cancel()
        if compiling.returncode is None:
            compiling.kill()
            await compiling.wait()
    if compiling.returncode:
        logger.warning("the compiled pass does not load here: plans are made without it")
        return
    await asyncio.to_thread(_load)
    logger.info("plans of long queues go by the compiled pass from now on")


def _worker_stops() -> list[asyncio.Future[Any]]:
    """Return a task that ends when the worker of this activity stops; none outside a worker."""
    if not activity.in_activity():
        return []
    return [asyncio.create_task(activity.wait_for_worker_shutdown())]


def _load() -> None:
    from longshore.scheduling.bulk.warm import warm  # loads numba

    warm()
