"""Ends a process that has run for as long as its job may: here, where it is known since when it
runs. So a time limit costs no timer and no step of a workflow."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from longshore.activities.node.system import boot_clock
from longshore.models.text import format_duration

_LONGEST_SLEEP = 30.0
"""Seconds: a machine that was suspended looks again soon after."""


def passed(limit: timedelta) -> str:
    """Return why a process is stopped that has run for as long as it may."""
    return f"its time limit of {format_duration(limit)} has passed"


async def keep(
    started: asyncio.Future[dict[str, Any]], limit: timedelta, stop: Callable[[], None]
) -> None:
    """Call `stop` once a process has run for so long; cancelled when it ends before."""
    await asyncio.shield(started)
    until = boot_clock() + limit.total_seconds()
    while (left := until - boot_clock()) > 0:  # noqa: ASYNC110 (a clock)
        await asyncio.sleep(min(left, _LONGEST_SLEEP))
    stop()
