"""Heartbeats of an activity that waits for somebody else: its worker's death is noticed soon."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity

EVERY = 1.0
"""Seconds; the server hears of most of them."""


@asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Heartbeat until the end of the block."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(EVERY)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
