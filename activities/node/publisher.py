"""Copies checkpoints of a job into the checkpoint store: one at a time, and the newest wins."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.node import checkpoint_files
from longshore.activities.node.system import boot_clock
from longshore.activities.storage import GivenUp
from longshore.models.checkpoint import Manifest, StoredFile
from longshore.models.errors import DamagedError, StoreError

FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
"""Seconds between two tries at a store that refuses."""
LAST_CHANCE = 10.0
"""Seconds that publishing may still take once the job is to be gone at once."""

T = TypeVar("T")
_log = logging.getLogger(__name__)
# Threads of our own: a store that hangs must hold up nothing but checkpoints.
_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="checkpoints")


@dataclass(frozen=True)
class Moment:
    """What the job's folder held when it said that it had saved."""

    folder: Path
    draft: Manifest


class Publisher:
    """Publishes the moments of one process in the background. Whatever the store does, it raises
    nothing."""

    def __init__(
        self,
        store: CheckpointStore,
        keep: int,
        wanted: Callable[[StoredFile], bool],
        published: Callable[[Manifest], None],
        say: Callable[[str], None],
    ) -> None:
        """`keep` whole checkpoints stay in the store; `wanted` says which files belong to this
        rank; `published` hears of each success, `say` of each failure, and "" after it."""
        self._store = store
        self._keep = keep
        self._wanted = wanted
        self._heard = published
        self._say = say
        self._pending: Moment | None = None
        self._wake = asyncio.Event()
        self._hurry = False
        self._over = False
        self._given_up = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def offer(self, moment: Moment) -> None:
        """Publish this next, in place of an older one that still waits."""
        older, self._pending = self._pending, moment
        self._wake.set()
        if older:
            await _removed(older)

    def hurry(self) -> None:
        """Take no longer than LAST_CHANCE from now on, or from the end on."""
        self._hurry = True

    async def finish(self, within: timedelta) -> None:
        """Publish what is left; with no time at all, leave it."""
        self._over = True
        self._wake.set()
        if self._task is None:
            return
        left = within.total_seconds()
        limit, hurried = boot_clock() + left, False
        while not self._task.done() and boot_clock() < limit:
            if self._hurry and not hurried:
                limit, hurried = min(limit, boot_clock() + LAST_CHANCE), True
            await asyncio.wait({self._task}, timeout=0.2)
        if not self._task.done():
            self._given_up.set()
            await asyncio.wait({self._task}, timeout=1.0)  # it leaves off between two pieces
            if left > 0:
                self._say("the last checkpoint could not be published in time")
        self._task.cancel()
        if self._pending:
            await _removed(self._pending)

    async def _run(self) -> None:
        wait = FIRST_WAIT
        while not self._given_up.is_set():
            moment, self._pending = self._pending, None
            if moment is None:
                if self._over:
                    return
                self._wake.clear()
                await self._wake.wait()
            elif await self._done(moment):
                await _removed(moment)
                wait = FIRST_WAIT
            elif self._pending is not None:
                await _removed(moment)
            else:
                self._pending = moment
                await self._pause(wait)
                wait = min(wait * 2, LONGEST_WAIT)

    async def _pause(self, seconds: float) -> None:
        """Wait, or until there is a newer one."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    async def _done(self, moment: Moment) -> bool:
        """Try to publish; return whether another try is of no use."""
        publish = partial(
            self._store.publish, moment.folder, moment.draft, self._given_up, self._wanted
        )
        try:
            manifest = await in_thread(publish)
        except StoreError as error:
            self._say(str(error))
            return False
        except DamagedError as error:
            self._say(str(error))
            return True
        except GivenUp:
            return True
        self._say("")
        self._heard(manifest)
        try:
            await in_thread(partial(self._store.prune, manifest.job_id, manifest.name, self._keep))
        except StoreError as error:
            _log.warning("old checkpoints of %s stay: %s", manifest.job_id, error)
        return True


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call of the store."""
    return await asyncio.get_running_loop().run_in_executor(_threads, call)


async def _removed(moment: Moment) -> None:
    await asyncio.to_thread(checkpoint_files.remove, moment.folder)
