"""Arrays in the typed client: elements, their logs, cancels and retries. For all else an array is
a job."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.common import (
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError

from longshore.activities.array_views import ArrayViews
from longshore.activities.job_runs import is_job_over
from longshore.activities.job_starts import at_submit, digest_of, summary_of, with_labels
from longshore.activities.log_order import Chunk, OrderedOutput, WholeLines
from longshore.activities.logstore import LogStore, Stream
from longshore.client.array_reading import ArrayReading, ranges_of
from longshore.client.errors import as_ours
from longshore.client.late_answers import carried_out
from longshore.client.soon import soon
from longshore.models.array_messages import ArrayInput, ElementsReply, ElementsRequest
from longshore.models.array_view import ElementView
from longshore.models.elements import ElementState
from longshore.models.errors import RefusedError
from longshore.models.job import JobSpec
from longshore.models.messages import CONTROL_TASK_QUEUE, job_workflow_id
from longshore.workflows.array import ArrayWorkflow

_POLL_EVERY = 0.5


class ArrayControl(ArrayReading):
    """What the client can do with arrays beside what it can do with jobs."""

    temporal: Client

    async def cancel_elements(self, ref: str, indices: str, reason: str = "") -> ElementsReply:
        """Cancel elements of an array that runs. Raises RefusedError, and SpecError for indices
        that are none."""
        array_id = await self._array(ref)
        ranges_of(indices)
        if (await self.job(array_id)).state.ended:
            raise RefusedError(f"array {array_id} has ended already")
        handle = self.temporal.get_workflow_handle(job_workflow_id(array_id))
        try:
            update = handle.execute_update(
                "cancel_elements",
                ElementsRequest(indices=indices, reason=reason),
                result_type=ElementsReply,
            )
            return await carried_out(update, f"array {array_id}")
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            raise RefusedError(
                cause.message if isinstance(cause, ApplicationError) else str(cause)
            ) from error
        except RPCError as error:
            raise as_ours(error, f"array {ref}") from error

    async def retry_array(
        self,
        ref: str,
        states: Sequence[ElementState] = (ElementState.FAILED, ElementState.CANCELLED),
    ) -> tuple[str, int]:
        """Run those elements of an array that has ended again that failed or were cancelled, or
        ended in these states; go on with one whose workflow was ended from outside.

        Returns its id, and how many run again. Raises RefusedError where it still runs, where no
        element ended so, or where it is a job of a DAG.
        """
        array_id = await self._array(ref)
        job = await self.job(array_id)
        view = await ArrayViews(self._db()).array(array_id)
        assert view is not None
        if (dag_id := await ArrayViews(self._db()).dag_of(array_id)) is not None:
            raise RefusedError(
                f"{array_id} is a job of DAG {dag_id}: `longshore dag retry {dag_id}` runs its "
                "elements again that did not succeed, with those behind them"
            )
        # What waits or runs of one that has ended was left by a workflow that was terminated.
        left = (ElementState.BLOCKED, ElementState.WAITING, ElementState.RUNNING)
        again = sum(view.counts.get(state, 0) for state in (*states, *left))
        if not again and job.state.ended:
            which = " or ".join(state.value for state in states)
            raise RefusedError(f"no element of {array_id} is {which}: nothing runs again")
        spec = await self.spec(array_id)
        short = spec.model_copy(update={"array": spec.array and spec.array.without_rows})
        if job.state.ended:  # on record, and its workflow is over a moment later
            await soon(lambda: self._is_array_over(array_id))
        try:
            await self._start_again(array_id, short, tuple(states))
        except WorkflowAlreadyStartedError:
            raise RefusedError(
                f"array {array_id} still runs: wait for its end (`longshore watch {array_id}`)"
            ) from None
        except RPCError as error:
            raise as_ours(error, f"array {ref}") from error
        if job.state.ended:  # who waits from now on does not see the end before this
            await soon(lambda: self._is_array_after(array_id, view.generation))
        return array_id, again

    async def _is_array_over(self, array_id: str) -> bool:
        """Return whether the workflow of an array is over. Raises UnavailableError."""
        try:
            return await is_job_over(self.temporal, array_id)
        except RPCError as error:
            raise as_ours(error, f"array {array_id}") from error

    async def _is_array_after(self, array_id: str, generation: int) -> bool:
        found = await ArrayViews(self._db()).array(array_id)
        return found is not None and found.generation > generation

    async def element_logs(
        self,
        ref: str,
        index: int,
        *,
        attempt: int | None = None,
        follow: bool = False,
        last: int | None = None,
        only: Stream | None = None,
    ) -> AsyncIterator[Chunk]:
        """Yield what an element wrote in order, `last` lines of it or all, to both streams or to
        `only` one; with `follow` until it has ended.

        Raises NotFoundError, and RefusedError where nobody can say yet which output is its own.
        """
        array_id = await self._array(ref)
        views, store = ArrayViews(self._db()), LogStore(self.settings.resolve_log_store())
        output, lines = None, WholeLines()
        while True:
            found = await views.element(array_id, index, attempt)
            begun = found.state not in (ElementState.BLOCKED, ElementState.WAITING)
            attempt = found.attempt if begun else attempt
            over = found.state.ended
            if not over and not follow and not found.alone:
                raise RefusedError(_not_yet(found))
            first = output is None
            output = output or await asyncio.to_thread(_output_of, store, found, only)
            chunks: tuple[Chunk, ...] = ()
            if output is not None:
                if found.stdout and found.stderr:
                    output.end_at((found.stdout.end, found.stderr.end))
                if first and last is not None:
                    chunks = await asyncio.to_thread(output.last, last)
                elif over:
                    chunks = await asyncio.to_thread(output.all_of_it)
                else:
                    chunks = (await asyncio.to_thread(output.read))[0]
            for chunk in lines.of(chunks):
                yield chunk
            if over or not follow:
                for chunk in lines.rest():
                    yield chunk
                return
            await asyncio.sleep(_POLL_EVERY)

    async def _start_again(
        self, array_id: str, spec: JobSpec, states: tuple[ElementState, ...]
    ) -> None:
        async def start(attributes: TypedSearchAttributes) -> None:
            await self.temporal.start_workflow(
                ArrayWorkflow.run,
                ArrayInput(spec=spec, retry=states),
                id=job_workflow_id(array_id),
                task_queue=CONTROL_TASK_QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                memo={"digest": digest_of(spec)},
                static_summary=summary_of(spec),
                search_attributes=attributes,
            )

        await with_labels(spec, at_submit(spec, held=False), start)


def _not_yet(found: ElementView) -> str:
    if found.state in (ElementState.BLOCKED, ElementState.WAITING):
        return f"element {found.index} has not started yet: --follow waits for it"
    return (
        f"element {found.index} is in a batch that runs: its output can be told from that of the "
        "others when the batch ends, within about 20 s; --follow waits for it"
    )


def _output_of(store: LogStore, found: ElementView, only: Stream | None) -> OrderedOutput | None:
    """Return what reads an element's output from its batch; None while nobody knows where."""
    if found.job_id is None or found.job_attempt is None or not (found.stdout or found.alone):
        return None
    key = f"{found.job_id}.b{found.batch}"
    nodes = store.nodes(key, found.job_attempt)
    if not nodes:
        return None
    out, err = found.stdout, found.stderr
    begin = (out.offset if out else 0, err.offset if err else 0)
    return OrderedOutput(store, key, found.job_attempt, nodes[-1], begin=begin, only=only)
