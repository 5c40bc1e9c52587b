"""What a job needs before its process starts, and how the work on that is waited for."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from longshore.activities.storage import GivenUp
from longshore.models.retry import FailureClass

POLL_EVERY = 0.1
"""Seconds between two polls for whether anybody still wants it."""

_log = logging.getLogger(__name__)
T = TypeVar("T")
# Threads of our own: a store that hangs must hold up nothing but jobs that bring their code.
_threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="preparing")


class NotReadyError(Exception):
    """What a job needs is not to be had here: whose fault that is, and a sentence."""

    def __init__(self, failure: FailureClass, message: str) -> None:
        self.failure = failure
        super().__init__(message)


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call to its end."""
    return await asyncio.get_running_loop().run_in_executor(_threads, call)


def in_background(call: Callable[[], None]) -> None:
    """Have a blocking call made that nobody waits for; what it raises is in the log."""

    def told(done: Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()):
            _log.warning("what nobody waits for failed: %s", error)

    _threads.submit(call).add_done_callback(told)


async def unless_unwanted(
    unwanted: threading.Event,
    call: Callable[[], T],
    undo: Callable[[T], None],
    threads: ThreadPoolExecutor = _threads,
) -> T:
    """Run a blocking call in one of `threads`; raises GivenUp as soon as nobody wants it.

    What hangs is left behind then, and what it returns late is handed to `undo`.
    """
    future = threads.submit(call)
    done = asyncio.wrap_future(future)
    try:
        while not done.done():
            await asyncio.wait({done}, timeout=POLL_EVERY)
            if not done.done() and unwanted.is_set():
                raise GivenUp
    except (GivenUp, asyncio.CancelledError):
        done.cancel()  # an end that nobody looks at is no error
        future.add_done_callback(lambda late: _undo(late, undo))
        raise
    return done.result()


def _undo(late: Future[T], undo: Callable[[T], None]) -> None:
    if not late.cancelled() and late.exception() is None:
        undo(late.result())
