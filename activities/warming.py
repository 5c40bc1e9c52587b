"""Loads the compiled pass beside the work of a control worker, once its cycles take long."""

import asyncio
import logging
import sys

from scheduling import bulk

_LONG = 0.3
"""Seconds of a cycle: small pools never load numba."""

logger = logging.getLogger(__name__)


class Warming:
    """Has the compiled pass loaded after the first cycle that took long."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def after(self, seconds: float) -> None:
        """Note how long a cycle took; until the pass is loaded, plans are made without it."""
        if seconds >= _LONG and self._task is None and not bulk.is_loaded():
            self._task = asyncio.create_task(_warm())

    async def done(self) -> None:
        """Wait until what was begun is done."""
        if self._task is not None:
            await self._task


async def _warm() -> None:
    # Compiled in a process of its own: a thread would keep this one from its heartbeats. What is
    # compiled is on the disk then, and loads in a second or two.
    compiling = await asyncio.create_subprocess_exec(sys.executable, "-m", "scheduling.bulk.warm")
    if await compiling.wait():
        logger.warning("the compiled pass does not load here: plans are made without it")
        return
    await asyncio.to_thread(_load)
    logger.info("plans of long queues go by the compiled pass from now on")


def _load() -> None:
    from scheduling.bulk.warm import warm  # loads numba

    warm()
