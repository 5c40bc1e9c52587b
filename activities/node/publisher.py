"""Copies checkpoints of a job into the checkpoint store: one at a time, and the newest wins.

Of a rank of a gang, what all ranks choose alike wins, and then the newest.
"""

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import Callable, Sequence
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
from longshore.models.checkpoint import Manifest, ManifestName, StoredFile
from longshore.models.errors import DamagedError, StoreError
from longshore.scheduling.checkpoints import halvings

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


class _Waiting:
    """The moments that wait, oldest first: of one process the newest only.

    Of a rank also the one that most halvings of the saves leave: each rank finds the same, where
    the newest is another one for each that publishes in another time.
    """

    def __init__(self) -> None:
        self._moments: list[Moment] = []
        self._last: int | None = None
        self._apart = 0
        """What divides the differences of the steps, or of the numbers."""

    def __len__(self) -> int:
        return len(self._moments)

    def add(self, moment: Moment) -> list[Moment]:
        """Add the newest; return those that are passed over."""
        if self._last is not None:
            self._apart = math.gcd(self._apart, _which(moment) - self._last)
        self._last = _which(moment)
        return self._choose([*self._moments, moment])

    def put_back(self, taken: Moment) -> list[Moment]:
        """Have one wait again; return those that are passed over."""
        return self._choose(sorted([*self._moments, taken], key=lambda one: one.draft.name.order))

    def take(self, *, newest: bool) -> Moment:
        """Take the newest, or the oldest."""
        return self._moments.pop(-1 if newest else 0)

    def _choose(self, found: list[Moment]) -> list[Moment]:
        kept = [found[-1]]
        if found[-1].draft.ranks > 1:
            # Of equals the newest.
            chosen = max(reversed(found), key=lambda one: halvings(_which(one), self._apart))
            if chosen is not found[-1]:
                kept.insert(0, chosen)
        self._moments = kept
        return [moment for moment in found if moment not in kept]


def _which(moment: Moment) -> int:
    return moment.draft.number if moment.draft.step is None else moment.draft.step


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
        self.unusable: Sequence[ManifestName] = ()
        """Of the stored ones those that are damaged: none of them is one of the `keep`."""
        self._waiting = _Waiting()
        self._wake = asyncio.Event()
        self._hurry = False
        self._over = False
        self._given_up = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to publish. A repeat changes nothing."""
        self._task = self._task or asyncio.create_task(self._run())

    async def offer(self, moment: Moment) -> None:
        """Publish this next, in place of older ones that still wait."""
        passed_over = self._waiting.add(moment)
        self._wake.set()
        for older in passed_over:
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
        while self._waiting:
            await _removed(self._waiting.take(newest=True))

    async def _run(self) -> None:
        wait = FIRST_WAIT
        while not self._given_up.is_set():
            if not self._waiting:
                if self._over:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            # At the end the time may not do for both.
            taken = self._waiting.take(newest=self._over)
            if await self._done(taken):
                await _removed(taken)
                wait = FIRST_WAIT
                continue
            passed_over = self._waiting.put_back(taken)
            for older in passed_over:
                await _removed(older)
            if taken not in passed_over:
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
        prune = partial(
            self._store.prune, manifest.job_id, manifest.name, self._keep, self.unusable
        )
        try:
            await in_thread(prune)
        except StoreError as error:
            _log.warning("old checkpoints of %s stay: %s", manifest.job_id, error)
        return True


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call of the store."""
    return await asyncio.get_running_loop().run_in_executor(_threads, call)


async def _removed(moment: Moment) -> None:
    await asyncio.to_thread(checkpoint_files.remove, moment.folder)
