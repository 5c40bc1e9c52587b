"""A cache of answers: concurrent requests fetch each once, and share it for a moment."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass
class _Entry(Generic[V]):
    task: "asyncio.Future[V]"
    done_at: float | None = None


class Shared(Generic[K, V]):
    """Fetches each key at most once in `keep` seconds, however many ask.

    A failure is kept as long as an answer: a market that is away is not asked more often.
    """

    def __init__(
        self, keep: float, *, size: int = 256, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keep = keep
        self._size = size
        self._clock = clock
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()

    async def get(self, key: K, fetch: Callable[[], Awaitable[V]]) -> V:
        """Return what `fetch` returned for `key`, now or a moment ago, or raise what it raised."""
        entry = self._entries.get(key)
        if entry is None or self._old(entry):
            entry = self._begin(key, fetch)
        # One who goes away does not take the answer from the others.
        return await asyncio.shield(entry.task)

    def _begin(self, key: K, fetch: Callable[[], Awaitable[V]]) -> _Entry[V]:
        entry = _Entry(asyncio.ensure_future(fetch()))
        self._entries[key] = entry
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)

        def ended(task: "asyncio.Future[V]") -> None:
            entry.done_at = self._clock()
            if not task.cancelled():
                task.exception()  # looked at, also when everybody who asked has gone

        entry.task.add_done_callback(ended)
        return entry

    def _old(self, entry: _Entry[V]) -> bool:
        return entry.done_at is not None and self._clock() - entry.done_at >= self._keep
