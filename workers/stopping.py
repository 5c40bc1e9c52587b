"""Ending a process by signals within a time that nothing can stretch."""

import asyncio
import logging
import signal
import threading
from datetime import timedelta

from longshore.client.process import leave

logger = logging.getLogger("longshore.workers.stopping")


def stop_on_signals(bound: timedelta) -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets.

    From then on the process leaves with 0 when `bound` is over, whatever hangs: a driver may
    ignore its cancellation while its server is silent. A second signal ends it at once, with
    128 + its number.
    """
    stopped = asyncio.Event()

    def on_signal(number: int) -> None:
        if stopped.is_set():
            logger.warning("stopped at once by a second signal")
            leave(128 + number)
        stopped.set()
        timer = threading.Timer(bound.total_seconds(), _leave_anyway, [bound])
        timer.daemon = True
        timer.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    return stopped


def _leave_anyway(bound: timedelta) -> None:
    logger.warning("left after %s s with work under way", bound.total_seconds())
    leave(0)
