"""What jobs write and give back, in the typed client."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from functools import partial
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.log_order import Chunk
from longshore.activities.logstore import LogStore, Stream
from longshore.client.array_status import as_on_record
from longshore.client.logs import JobLogs
from longshore.client.pull import Pulled, pull
from longshore.client.reconnecting import Reconnecting
from longshore.client.status import JobHandle, progress_of, status_of
from longshore.models.errors import NotFoundError
from longshore.models.job_status import JobState, JobStatus
from longshore.models.messages import job_workflow_id
from longshore.models.text import listed
from longshore.workflows.job import JobWorkflow


class OutputReading(Reconnecting):
    """Reads the logs of jobs from the log store."""

    temporal: Client

    async def logs(
        self,
        ref: str,
        *,
        stream: Stream = "stdout",
        attempt: int | None = None,
        rank: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[bytes]:
        """Yield what the job wrote to one stream, oldest first; with `follow` until the job has
        ended.

        Of a gang, what the node of `rank` wrote; that of rank 0 without. Raises NotFoundError
        when there is no such rank.
        """
        output = self.ordered_logs(ref, only=stream, attempt=attempt, rank=rank, follow=follow)
        async for chunk in output:
            yield chunk.data

    async def ordered_logs(
        self,
        ref: str,
        *,
        attempt: int | None = None,
        rank: int | None = None,
        follow: bool = False,
        last: int | None = None,
        since: datetime | None = None,
        only: Stream | None = None,
    ) -> AsyncIterator[Chunk]:
        """Yield what the job wrote, in the order of its writing: to both streams, or `only` one.

        Of it the `last` lines alone, or what came from the time `since` on, where these are
        given; with `follow` until the job has ended. Of a gang as `logs` does.
        """
        job_id = await self._resolve(ref)
        store = LogStore(self.settings.resolve_log_store())
        logs = JobLogs(store, job_id, lambda: self._status_when_back(job_id))
        async for chunk in logs.output(
            attempt, rank, follow=follow, last=last, since=since, only=only
        ):
            yield chunk

    async def pull(
        self,
        ref: str,
        folder: Path | None = None,
        *,
        attempt: int | None = None,
        dry_run: bool = False,
        told: Callable[[str], None] = lambda path: None,
    ) -> Pulled:
        """Bring the outputs of a job into a folder, by default one of its id, which is left
        out of later submits: what differs.

        `told` hears of each file. Raises NotFoundError where it gave nothing back, and what `pull`
        of `client.pull` raises.
        """
        job_id = await self._resolve(ref)
        store = OutputStore(self.settings.resolve_artifact_store())
        found = await asyncio.to_thread(store.of_attempt, job_id, attempt)
        if not found:
            of = f" in attempt {attempt}" if attempt else ""
            why = await self._why_nothing(job_id, attempt)
            raise NotFoundError(f"job {job_id} has given nothing back{of}: {why}")
        bring = partial(pull, dry_run=dry_run, ignored=folder is None, told=told)
        return await asyncio.to_thread(bring, store, found, folder or Path(job_id))

    async def _why_nothing(self, job_id: str, attempt: int | None) -> str:
        """Return why nothing that a job gives back is stored."""
        named = (await self.spec(job_id)).outputs
        if not named:
            return "its job file names no `outputs`"
        status = await self._status_when_back(job_id)
        last = max((a.attempt for a in status.attempts), default=0)
        if attempt is not None and 0 < last < attempt:
            return f"its last attempt is {last}"
        ended = [a.attempt for a in status.attempts if a.ended_at and attempt in (None, a.attempt)]
        if not ended:
            return f"nothing of {listed(named, 3)} is stored: that comes when an attempt has ended"
        return (
            f"attempt {ended[-1]} has ended, and nothing of {listed(named, 3)} is stored: "
            f"`longshore logs --stderr {job_id} --attempt {ended[-1]}` says why"
        )

    async def missing_logs(self, ref: str, attempt: int | None = None) -> str:
        """Return why the log store lacks a part of what an attempt wrote, the latest without one.

        Empty where it has all, or nobody knows: a workflow that is long over says nothing. Of one
        that runs it is what its agent said last.
        """
        job_id = await self._resolve(ref)
        store = LogStore(self.settings.resolve_log_store())
        rest = await asyncio.to_thread(store.read, job_id, attempt, from_offset=2**60)
        nodes = await asyncio.to_thread(store.nodes, job_id, attempt)
        if rest.ended and len(nodes) == 1:
            return ""
        try:
            status = await status_of(self.temporal, self._job(job_id))
            runs = status.state is JobState.RUNNING and attempt in (None, status.attempt)
            said = await progress_of(self.temporal, self._job(job_id)) if runs else None
        except RPCError:
            return ""
        if said is not None and said.log_error:
            return said.log_error
        found = [each for each in status.attempts if attempt in (None, each.attempt)]
        return found[-1].log_error if found else ""

    async def _status_when_back(self, job_id: str) -> JobStatus:
        job = self._job(job_id)
        found = await self._when_back(f"job {job_id}", lambda: status_of(self.temporal, job))
        return await as_on_record(found, self._views())

    def _job(self, job_id: str) -> JobHandle:
        return self.temporal.get_workflow_handle_for(JobWorkflow.run, job_workflow_id(job_id))
