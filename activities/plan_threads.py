"""Plans are made in threads: a long one must not keep its process from other work."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from longshore.models.errors import UnavailableError

_WAITS = 5.0
"""Seconds that a plan waits for the one before it of its pool."""

P = ParamSpec("P")
T = TypeVar("T")


class PlanThreads:
    """Makes the plans of each pool one after the other.

    Nothing ends a thread: a plan that takes longer than its activity may goes on. Each further try
    would run beside it, and in the end all pools wait for one that cannot be planned.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, asyncio.Future[Any]]] = {}
        """Of each pool: since when, by the clock of this process, its last plan is made."""

    async def run(self, pool: str, plan: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `plan` returns. Raises UnavailableError where the plan before it of this
        pool does not end."""
        while (last := self._last.get(pool)) is not None and not last[1].done():
            await asyncio.wait({last[1]}, timeout=_WAITS)
            if self._last.get(pool) is last and not last[1].done():
                raise UnavailableError(
                    f"a plan of pool {pool} has been made for {time.monotonic() - last[0]:.0f} s "
                    "by now and does not end: another one is not begun beside it"
                )
        made = asyncio.ensure_future(asyncio.to_thread(partial(plan, *args, **kwargs)))
        made.add_done_callback(_heard)
        self._last[pool] = time.monotonic(), made
        return await asyncio.shield(made)


def _heard(made: "asyncio.Future[Any]") -> None:
    """Take the error of a plan for which nobody waits any more: it is in no log."""
    if not made.cancelled():
        made.exception()
