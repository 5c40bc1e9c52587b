"""Python's search for garbage in cycles, put off while much is made that all stays.

It looks through all objects again as their number grows: with those of 50,000 files that takes
more than a third of the time of an upload, and finds nothing.
"""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_lock = threading.Lock()
_within = 0
_was_on = False


@contextmanager
def uncollected() -> Iterator[None]:
    """Let no garbage be looked for in this process until the end of the block, and of any other
    such block that has begun meanwhile. What no cycle holds is freed as ever."""
    global _within, _was_on
    with _lock:
        if not _within:
            _was_on = gc.isenabled()
            gc.disable()
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if not _within and _was_on:
                gc.enable()


async def in_thread_uncollected(function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Call in a thread what makes many objects."""

    def call() -> T:
        with uncollected():
            return function(*given, **named)

    return await asyncio.to_thread(call)
