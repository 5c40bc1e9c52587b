"""What the client asks of one job, through its workflow: its state, and that it ends, waits, moves
or gets another size."""

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from longshore.activities.job_runs import failure_of, has_result
from longshore.client.array_status import as_on_record
from longshore.client.dags import DagControl
from longshore.client.errors import as_ours
from longshore.client.job_output import OutputReading
from longshore.client.late_answers import carried_out
from longshore.client.no_record import PATIENCE, message_of
from longshore.client.status import status_of
from longshore.models.errors import (
    EndedError,
    LongshoreError,
    NotFoundError,
    NotSubmittedError,
    RefusedError,
)
from longshore.models.job_status import JobState, JobStatus
from longshore.models.messages import CommandReason, InterruptRequest
from longshore.models.resize import Resize, ResizeReply
from longshore.workflows.job import JobWorkflow


class JobControl(OutputReading, DagControl):
    """What the client can do with one job; `ref` is an id, or the name of the newest."""

    temporal: Client

    async def status(self, ref: str) -> JobStatus:
        """Return what the job's workflow says of it. `ref` is an id, or the name of the newest."""
        job_id = await self._resolve(ref)
        try:
            found = await status_of(self.temporal, self._job(job_id))
        except RPCError as error:
            raise as_ours(error, f"job {ref}") from error
        return await as_on_record(found, self._views())

    async def cancel(self, ref: str, reason: str = "") -> str:
        """Ask a job to end; return its id. Its process gets its stop signal and its grace.

        A job of a DAG that waits for others is recorded as cancelled before its start.
        """
        try:
            job_id = await self._resolve(ref)
        except NotSubmittedError as error:
            if error.ended:
                raise
            await self.cancel_dag_job(error.dag_id, error.name, reason)
            return f"{error.dag_id}.{error.name}"
        try:
            # Temporal takes a request for a workflow that has ended, and forgets it.
            found = await self._job(job_id).describe()
            if found.status is not WorkflowExecutionStatus.RUNNING:
                raise await self._over(ref, found)
            await self._job(job_id).cancel(reason=reason or "cancelled by its user")
        except RPCError as error:
            raise as_ours(error, f"job {ref}") from error
        return job_id

    async def hold(self, ref: str, reason: str = "") -> str:
        """Keep a job out of placement; a running one is stopped and queued again, held."""
        return await self._signal_job(ref, "hold", reason)

    async def release(self, ref: str, reason: str = "") -> str:
        """End a hold; return the job's id."""
        return await self._signal_job(ref, "release", reason)

    async def requeue(self, ref: str, reason: str = "") -> str:
        """Stop a running job with its grace, and have it queued again; return its id."""
        status = await self.status(ref)
        if (await self.spec(status.job_id)).array is not None:
            raise RefusedError(
                f"{status.job_id} is an array: queue its slots again, such as {status.job_id}.s1"
            )
        if status.state not in (JobState.RUNNING, JobState.STOPPING):
            kind = EndedError if status.state.ended else RefusedError
            raise kind(
                f"job {ref} is {status.state.value}: only one that runs can be queued again"
            )
        request = InterruptRequest(
            attempt=status.attempt, reason=reason or "queued again by its user"
        )
        try:
            await self._job(status.job_id).signal(JobWorkflow.move, request)
        except RPCError as error:
            raise as_ours(error, f"job {ref}") from error
        return status.job_id

    async def resize(
        self, ref: str, gpus: int, reason: str = "", *, from_start: bool = False
    ) -> ResizeReply:
        """Give a malleable job another desired size; return what comes of it.

        One that runs is stopped with its grace and started again where that brings it nearer to
        the size now; without a checkpoint only with `from_start`. Raises RefusedError where the
        job has no such size, or has ended.
        """
        job_id = await self._resolve(ref)
        asked = Resize(gpus=gpus, reason=reason, from_start=from_start)
        try:
            update = self._job(job_id).execute_update(JobWorkflow.resize, asked)
            return await carried_out(update, f"job {job_id}")
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            why = cause.message if isinstance(cause, ApplicationError) else str(cause)
            raise RefusedError(f"job {ref} cannot be resized: {why}") from error
        except RPCError as error:
            ours = as_ours(error, f"job {ref}")
            if isinstance(ours, (RefusedError, NotFoundError)):
                ours = await self._over(ref, await self._job(job_id).describe())
            raise ours from error

    async def _signal_job(self, ref: str, signal: str, reason: str) -> str:
        job_id = await self._resolve(ref)
        try:
            await self._job(job_id).signal(signal, CommandReason(reason=reason))
        except RPCError as error:
            reply = as_ours(error, f"job {ref}")
            if isinstance(reply, RefusedError):
                reply = await self._over(ref, await self._job(job_id).describe())
            raise reply from error
        return job_id

    async def _over(self, ref: str, found: WorkflowExecutionDescription) -> LongshoreError:
        """Return why a job that has ended cannot be steered."""
        failed = await failure_of(self.temporal, found, within=PATIENCE)
        of = f"job {ref} has ended already"
        if failed is not None and not has_result(failed):
            return EndedError(f"{of}: its workflow refused it ({message_of(failed)})")
        return EndedError(of)
