"""Work in a thread that ends soon where nobody waits for it any more."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from longshore.activities.storage import GivenUp

T = TypeVar("T")


async def in_thread(work: Callable[[Callable[[], None]], T]) -> T:
    """Return what `work` returns, from a thread. It is handed a check to call now and then, which
    raises GivenUp once whoever awaits this was cancelled: a thread cannot be."""
    gone = threading.Event()

    def go_on() -> None:
        if gone.is_set():
            raise GivenUp

    try:
        return await asyncio.to_thread(work, go_on)
    except asyncio.CancelledError:
        gone.set()
        raise
