"""Copies the output of a process from the spool files on its node into the log store."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from longshore.activities.logstore import SHIPPED, LogStore, Shipped
from longshore.activities.metrics import LOG_ERRORS, SILENT, Metrics
from longshore.models.placement import PlacementKey

PART_BYTES = 8 * 2**20
FIRST_WAIT, LONGEST_WAIT = 0.3, 5.0
LONGEST_RETRY_WAIT = 30.0
LAST_CHANCE = 10.0
"""Seconds that the last shipment of a process may take; the report does not wait longer."""

_log = logging.getLogger(__name__)
# Threads of our own: a store that hangs must hold up nothing but logs.
_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="log-shipping")


class Shipper:
    """Ships the two streams of one attempt, and when they grew. It raises nothing, whatever the
    store does."""

    def __init__(
        self,
        store: LogStore,
        key: PlacementKey,
        node_id: str,
        folder: Path,
        metrics: Metrics = SILENT,
    ) -> None:
        self._metrics = metrics
        self._store = store
        self._key = key
        self._node_id = node_id
        self._folder = folder
        self._shipped: dict[Shipped, int] = dict.fromkeys(SHIPPED, 0)
        self._over = asyncio.Event()
        self._bell = asyncio.Event()
        self._wait = FIRST_WAIT
        self._task: asyncio.Task[None] | None = None
        self.error = ""
        """Why the last shipment failed; empty while all is well."""

    def start(self) -> None:
        """Begin to ship in the background: soon at first, then less and less often."""
        self._task = asyncio.create_task(self._run())

    def go_on(self) -> None:
        """Begin as `start` does, where an earlier life of the agent has shipped a part."""
        self._task = asyncio.create_task(self._find_and_run())

    def begin_anew(self) -> None:
        """Ship soon and often again: what is wanted to be seen begins now."""
        self._wait = FIRST_WAIT
        self._bell.set()

    async def finish(self) -> None:
        """Ship the rest and store the end; gives up after `LAST_CHANCE` seconds."""
        self._over.set()
        self._bell.set()
        if self._task is None:
            return
        try:
            await asyncio.wait_for(self._task, LAST_CHANCE)
        except TimeoutError:
            self.error = f"the log store did not answer within {LAST_CHANCE:g} s"

    async def finish_earlier(self) -> None:
        """Ship what an earlier life of the agent left in the spool, and store the end."""
        self._over.set()
        self._task = asyncio.create_task(self._resume())
        await self.finish()

    async def _run(self) -> None:
        while not self._over.is_set():
            self._bell.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._bell.wait(), self._wait)
                continue
            await self._guarded(self._ship)
            longest = LONGEST_RETRY_WAIT if self.error else LONGEST_WAIT
            self._wait = min(self._wait * (2.0 if self.error else 1.3), longest)
        # Never cancelled before this: two shipments at a time could overwrite each other's parts.
        await self._guarded(self._ship_last)

    async def _find_and_run(self) -> None:
        await self._guarded(self._find_offsets)
        while self.error and not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), LONGEST_RETRY_WAIT)
            await self._guarded(self._find_offsets)
        if not self.error:
            await self._run()

    async def _resume(self) -> None:
        await self._guarded(self._find_offsets)
        if not self.error:
            await self._guarded(self._ship_last)

    async def _guarded(self, call: Callable[[], None]) -> None:
        """Run blocking calls of the store in a thread; note their error instead of raising it."""
        try:
            await asyncio.get_running_loop().run_in_executor(_threads, call)
        except Exception as error:  # a store may raise anything, and a job must not suffer from it
            self._metrics.add(LOG_ERRORS)
            if not self.error:
                _log.warning("logs of %s are not reaching the log store: %s", self._name, error)
            self.error = f"{type(error).__name__}: {error}"
            return
        if self.error:
            _log.info("logs of %s are reaching the log store again", self._name)
        self.error = ""

    def _ship(self) -> None:
        for stream in SHIPPED:
            while self._ship_part(stream):
                pass

    def _ship_last(self) -> None:
        self._ship()
        self._store.write_end(self._key.job_id, self._key.attempt, self._node_id)

    def _find_offsets(self) -> None:
        for stream in SHIPPED:
            self._shipped[stream] = self._store.stored(
                self._key.job_id, self._key.attempt, self._node_id, stream
            )

    def _ship_part(self, stream: Shipped) -> bool:
        """Ship one part; return whether there may be more."""
        offset = self._shipped[stream]
        try:
            with (self._folder / stream).open("rb") as spool:
                spool.seek(offset)
                data = spool.read(PART_BYTES)
        except FileNotFoundError:
            return False  # not started yet
        if not data:
            return False
        self._store.write(self._key.job_id, self._key.attempt, self._node_id, stream, offset, data)
        self._shipped[stream] = offset + len(data)
        return len(data) == PART_BYTES

    @property
    def _name(self) -> str:
        return f"{self._key.job_id} attempt {self._key.attempt}"
