"""Waiting for what a server does a moment later."""

import asyncio
from collections.abc import Awaitable, Callable

ON_RECORD_WITHIN = 10.0
"""Seconds: for so long the end of a workflow, or its next beginning, takes a loaded server."""


async def soon(ask: Callable[[], Awaitable[bool]]) -> bool:
    """Wait until `ask` returns True, and return that; False where it takes too long."""
    deadline = asyncio.get_running_loop().time() + ON_RECORD_WITHIN
    while asyncio.get_running_loop().time() < deadline:
        if await ask():
            return True
        await asyncio.sleep(0.1)
    return False
