"""What a job wrote, from the log store: whose of its nodes, from the start or as it comes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from longshore.activities.logstore import LogStore, Stream
from longshore.models.errors import NotFoundError
from longshore.models.job import JobStatus
from longshore.models.messages import joined_id


class JobLogs:
    """The logs of one job; `status` is asked where the store alone does not tell."""

    def __init__(
        self, store: LogStore, job_id: str, status: Callable[[], Awaitable[JobStatus]]
    ) -> None:
        self._store = store
        self._job_id = job_id
        self._status = status

    async def read(
        self, stream: Stream, attempt: int | None, rank: int | None, *, follow: bool
    ) -> AsyncIterator[bytes]:
        """Yield what is stored of an attempt, the latest without one; with `follow` what comes.

        Raises NotFoundError when the attempt has no such rank.
        """
        job_id, node_id = self._job_id, None
        if rank and await self._has_joined(attempt, rank):
            job_id = joined_id(job_id, rank)
        elif rank or follow or await self._is_of_gang(attempt):
            node_id = await self._node_of(attempt, rank or 0)
        if follow:
            following = self._store.follow(
                job_id, attempt, stream, node_id=node_id, ended=self._ended
            )
            async for data in following:
                yield data
            return
        read = partial(self._store.read, node_id=node_id)
        piece = await asyncio.to_thread(read, job_id, attempt, stream)
        while piece.data:
            yield piece.data
            piece = await asyncio.to_thread(read, job_id, piece.attempt, stream, piece.next_offset)

    async def _is_of_gang(self, attempt: int | None) -> bool:
        return len(await asyncio.to_thread(self._store.nodes, self._job_id, attempt)) > 1

    async def _has_joined(self, attempt: int | None, rank: int) -> bool:
        """Return whether a rank that came to an attempt while that ran has written something."""
        if attempt is None:
            attempt = await asyncio.to_thread(self._store.latest_attempt, self._job_id)
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
