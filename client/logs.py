"""What a job wrote, from the log store: whose of its nodes, from the start or as it comes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime

from longshore.activities.log_order import Chunk, OrderedOutput, WholeLines
from longshore.activities.logstore import LogStore, Stream
from longshore.models.errors import NotFoundError, StoreError
from longshore.models.job_status import JobStatus
from longshore.models.node_messages import joined_id
from longshore.models.visible import visible

_POLL_EVERY = 0.5
_TAIL_LINES = 10
_TAIL_BYTES = 64 * 1024
"""Read at first; four times as many each time that these have too few lines."""
_MOST_TAIL_BYTES = 64 * _TAIL_BYTES
_LONGEST_LINE = 2_000
"""Characters of one that are shown."""
_TAIL_WITHIN = 3.0
"""Seconds: a screen does not wait longer for what it could do without."""


async def stderr_tail(
    store_url: str, job_id: str, attempt: int, node_id: str = ""
) -> tuple[str, ...]:
    """Return the last lines that an attempt wrote to stderr, fit for a screen: ten at most, long
    ones cut, and of a line that was written over what stood there last.

    None where the store has none, or cannot be read soon.
    """
    read = asyncio.to_thread(_stderr_tail, store_url, job_id, attempt, node_id)
    try:
        return await asyncio.wait_for(read, _TAIL_WITHIN)
    except (TimeoutError, StoreError):
        return ()


def _stderr_tail(store_url: str, job_id: str, attempt: int, node_id: str) -> tuple[str, ...]:
    store = LogStore(store_url)
    node_id = node_id or next(iter(store.nodes(job_id, attempt)), "")
    if not node_id:
        return ()
    size, window = store.stored(job_id, attempt, node_id, "stderr"), _TAIL_BYTES
    while True:
        begin = max(size - window, 0)
        data = store.read(job_id, attempt, "stderr", begin, node_id=node_id).data
        lines = data.removesuffix(b"\n").split(b"\n") if data else []
        if not begin or len(lines) > _TAIL_LINES or window >= _MOST_TAIL_BYTES:
            break
        window *= 4
    if begin and len(lines) > 1:
        lines = lines[1:]  # the first has no beginning
    return tuple(map(_on_screen, lines[-_TAIL_LINES:]))


def _on_screen(line: bytes) -> str:
    """Return what a terminal has of a line in the end: a progress bar writes over itself."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
    return visible(text if len(text) <= _LONGEST_LINE else f"{text[: _LONGEST_LINE - 1]}…")


class JobLogs:
    """The logs of one job; `status` is asked where the store alone does not tell."""

    def __init__(
        self, store: LogStore, job_id: str, status: Callable[[], Awaitable[JobStatus]]
    ) -> None:
        self._store = store
        self._job_id = job_id
        self._status = status

    async def output(
        self,
        attempt: int | None,
        rank: int | None,
        *,
        follow: bool,
        last: int | None = None,
        since: datetime | None = None,
        only: Stream | None = None,
    ) -> AsyncIterator[Chunk]:
        """Yield what an attempt wrote in order, the latest without one; `only` one stream of it.

        `last` is a number of lines, `since` the time before which nothing is wanted; with
        `follow` what comes follows. Raises NotFoundError when the attempt has no such rank.
        """
        output = await self._ordered(attempt, rank, only)
        while output is None:
            if not follow or await self._ended():
                return
            await asyncio.sleep(_POLL_EVERY)
            output = await self._ordered(attempt, rank, only)
        if since is not None:
            await asyncio.to_thread(output.start_at, since)
        if last is not None:
            for chunk in await asyncio.to_thread(output.last, last):
                yield chunk
            if not follow:
                return
        async for chunk in self._all_of(output, follow=follow):
            yield chunk

    async def _all_of(self, output: OrderedOutput, *, follow: bool) -> AsyncIterator[Chunk]:
        lines = WholeLines()
        while True:
            over = not follow or await self._ended()
            chunks, ended = await asyncio.to_thread(output.read, all_of_it=over)
            for chunk in lines.of(chunks):
                yield chunk
            if not chunks:
                for chunk in lines.rest():
                    yield chunk
                if over or ended:
                    return
                await asyncio.sleep(_POLL_EVERY)

    async def _ordered(
        self, attempt: int | None, rank: int | None, only: Stream | None
    ) -> OrderedOutput | None:
        """Return what reads an attempt; None where nothing of it is stored yet."""
        if attempt is None:
            attempt = await asyncio.to_thread(self._store.latest_attempt, self._job_id)
        if attempt is None:
            return None
        job_id, node_id = self._job_id, None
        if rank and await self._has_joined(attempt, rank):
            job_id = joined_id(job_id, rank)
        nodes = await asyncio.to_thread(self._store.nodes, job_id, attempt)
        if job_id == self._job_id and (rank or len(nodes) > 1):
            node_id = await self._node_of(attempt, rank or 0)
        if node_id is None and not nodes:
            return None
        return OrderedOutput(self._store, job_id, attempt, node_id or nodes[-1], only=only)

    async def _has_joined(self, attempt: int, rank: int) -> bool:
        """Return whether a rank that came to an attempt while that ran has written something."""
        joined = joined_id(self._job_id, rank)
        return attempt in await asyncio.to_thread(self._store.attempts, joined)

    async def _ended(self) -> bool:
        return (await self._status()).state.ended

    async def _node_of(self, attempt: int | None, rank: int) -> str | None:
        """Return the node of a rank; None where the attempt has one node, or is long over."""
        records = (await self._status()).attempts
        if attempt is not None:
            records = tuple(record for record in records if record.attempt == attempt)
        nodes = (records[-1].node_id, *records[-1].other_nodes) if records else ()
        if rank >= max(len(nodes), 1):
            ranks = f"ranks 0 to {len(nodes) - 1}" if len(nodes) > 1 else "one rank, 0"
            raise NotFoundError(f"job {self._job_id} has no rank {rank}: it has {ranks}")
        return nodes[rank] if len(nodes) > 1 else None
