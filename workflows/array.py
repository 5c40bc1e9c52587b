"""An array: opens slots, which are jobs that run its elements, until all elements have ended.

It is a job to everybody else: it has a job's id, record, status, result and messages. Slots take
elements from the capacity database themselves; this workflow only sees to it that there are enough
of them. It is poked by the ends of slots, as a DAG is by the ends of its jobs.
"""

import asyncio
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from longshore.activities.arrays import ArrayActivities
    from longshore.activities.job_starts import of_spec
    from longshore.models.array_messages import (
        AdvanceArray,
        ArrayInput,
        ArrayProgress,
        CancelElements,
        ElementsReply,
        ElementsRequest,
        OpenArray,
    )
    from longshore.models.base import as_reason
    from longshore.models.elements import ElementState
    from longshore.models.errors import RefusedError
    from longshore.models.job_status import JobResult, JobState, JobStatus
    from longshore.models.messages import ARRAY_WORKFLOW, CommandReason
    from longshore.models.retry import FailureClass
    from longshore.models.text import count
    from longshore.models.visible import visible
    from longshore.scheduling.arrays import progress_text
    from longshore.workflows import attributes
    from longshore.workflows.arguments import Started
    from longshore.workflows.naming import refuse_input, refuse_odd_id
    from longshore.workflows.options import DATABASE_RETRY, DATABASE_TIMEOUT, SUBMITS_TIMEOUT

CHECK_EVERY = timedelta(minutes=10)
"""Between two looks for slots whose end nobody records."""


@workflow.defn(name=ARRAY_WORKFLOW)
class ArrayWorkflow(Started):
    """One array. Completes with its `JobResult`; fails or is cancelled when the array is."""

    @workflow.init
    def __init__(self, array: ArrayInput) -> None:
        self._array = array
        self._spec = array.spec
        self._id = workflow.info().workflow_id.removeprefix("job-")
        self._held = array.held
        self._submitted_at = array.submitted_at or workflow.info().start_time
        self._begins_at = self._begin_to_come()
        self._poked = array.poked
        self._changed = False
        self._overdue = False
        self._cancel: str | None = None
        self._cancel_told: str | None = None
        self._progress: ArrayProgress | None = None
        self._since = workflow.now()
        self._looks = 0
        self._result: JobResult | None = None

    @workflow.run
    async def run(self, array: ArrayInput) -> JobResult:
        refuse_odd_id(self._id)
        refuse_input(self._array)
        attributes.tell_left_out(self._spec, held=self._held)
        life = asyncio.create_task(self._live())
        self._clock = asyncio.create_task(self._watch_the_clock())
        try:
            result = await asyncio.shield(life)
        except asyncio.CancelledError:
            # A request, not an order: its slots end first.
            self._cancel = as_reason(workflow.cancellation_reason() or "cancelled")
            result = await life
            if result.state is JobState.CANCELLED:
                raise
        await workflow.wait_condition(workflow.all_handlers_finished)
        if result.state is JobState.FAILED:
            raise ApplicationError(
                visible(result.message), result,
                type=(result.failure or FailureClass.USER).value, non_retryable=True,
            )  # fmt: skip
        return result

    @workflow.signal(description="A slot has ended, or needs company: look what follows")
    def poke(self) -> None:
        """A slot has ended, or has got elements while others wait."""
        self._poked = True

    @workflow.signal(description="Start no further element; those under way go on")
    def hold(self, command: CommandReason) -> None:
        """Start no further element; a slot ends with its batch."""
        self._held = self._changed = True

    @workflow.signal(description="End a hold")
    def release(self, command: CommandReason) -> None:
        """End a hold; the wait for a `begin` goes on."""
        self._held, self._changed = False, True

    @workflow.update(description="Cancel some elements, as 3-9,12")
    async def cancel_elements(self, request: ElementsRequest) -> ElementsReply:
        """Cancel elements: those that wait at once, those that run with their grace."""
        await workflow.wait_condition(
            lambda: self._progress is not None or self._result is not None
        )
        if self._progress is None:
            why = "the array has ended: it was not put on record"
            raise ApplicationError(why, type=RefusedError.__name__, non_retryable=True)
        reply = await workflow.execute_activity_method(
            ArrayActivities.cancel_elements,
            CancelElements(array_id=self._id, indices=request.indices, reason=request.reason),
            start_to_close_timeout=DATABASE_TIMEOUT,
            retry_policy=DATABASE_RETRY,
            summary="cancel elements",
        )
        if reply.refusal:
            raise ApplicationError(
                visible(reply.refusal), type=RefusedError.__name__, non_retryable=True
            )
        self._changed = True
        return reply

    @workflow.query(description="How far it is")
    def status(self) -> JobStatus:
        return JobStatus(
            job_id=self._id, name=self._spec.name, tenant=self._spec.tenant, pool=self._spec.pool,
            state=self._state, attempt=0, reason=self._reason, submitted_at=self._submitted_at,
            since=self._since, result=self._result,
        )  # fmt: skip

    @property
    def _state(self) -> JobState:
        if self._result is not None:
            return self._result.state
        if self._progress is None:
            return JobState.SUBMITTED
        if self._cancel is not None:
            return JobState.STOPPING
        if self._held or self._begins_at is not None:
            return JobState.HELD
        return JobState.RUNNING if self._progress.placed else JobState.QUEUED

    @property
    def _reason(self) -> str:
        return self._result.message if self._result else self._told()

    def _told(self) -> str:
        if self._progress is None:
            return ""
        return self._progress.reason or progress_text(
            self._progress.counts, self._progress.claimed
        )

    async def _live(self) -> JobResult:
        first = workflow.info().continued_run_id is None
        if first and (refused := await self._open()):
            self._result = refused
            return refused
        check = False
        if not first and not self._poked:
            check = await self._wait(None)
        while True:
            progress = await self._advance(check=check)
            if progress.state is not JobState.RUNNING:
                self._result = JobResult(
                    job_id=self._id, state=progress.state, failure=progress.failure,
                    message=progress.reason, attempts=int(progress.started),
                    ended_at=progress.ended_at,
                )  # fmt: skip
                self._show(progress)
                return self._result
            if self._is_full() and self._cancel is None and workflow.all_handlers_finished():
                self._continue()
            check = False if progress.again else await self._wait(progress)

    async def _open(self) -> JobResult | None:
        """Put it on record; return how it ended where that is refused."""
        opened = await workflow.execute_activity_method(
            ArrayActivities.open_array,
            OpenArray(
                array_id=self._id, job=self._array, retry=self._array.retry,
                submitted_at=workflow.info().start_time,
            ),
            start_to_close_timeout=SUBMITS_TIMEOUT,
            retry_policy=DATABASE_RETRY,
            summary="open again what is to run again" if self._array.retry else "onto the record",
        )  # fmt: skip
        if not opened.refusal:
            return None
        return JobResult(
            job_id=self._id, state=JobState.FAILED, failure=FailureClass.UNSATISFIABLE,
            message=opened.refusal, ended_at=workflow.now(),
        )  # fmt: skip

    async def _advance(self, *, check: bool) -> ArrayProgress:
        self._poked = self._changed = False
        self._cancel_told = self._cancel
        self._looks += 1
        before = self._state
        progress = await workflow.execute_activity_method(
            ArrayActivities.advance_array,
            AdvanceArray(
                array_id=self._id,
                held=self._held,
                begins_at=self._begins_at,
                cancelled=self._cancel,
                check=check,
                path_behind=self._array.path_behind,
            ),
            start_to_close_timeout=SUBMITS_TIMEOUT,
            retry_policy=DATABASE_RETRY,
            summary="what follows for slots and elements",
        )
        self._progress = progress
        if self._state is not before:
            self._since = workflow.now()
        attributes.tell_state(self._state, of_spec(self._spec))
        self._show(progress)
        return progress

    async def _wait(self, progress: ArrayProgress | None) -> bool:
        """Wait for something to do; return whether slots without a record are to be looked for."""
        timeout, what = None, "the wait before a retry"
        wake_at = None if progress is None else progress.wake_at
        if begins := self._begins_at is not None:
            wake_at, what = self._begins_at, "until its begin"
        if wake_at is not None:
            timeout = max(wake_at - workflow.now(), timedelta(milliseconds=50))
        try:
            await workflow.wait_condition(
                lambda: (
                    self._poked or self._changed or self._overdue
                    or self._cancel != self._cancel_told
                ),
                timeout=timeout,
                timeout_summary=what,
            )  # fmt: skip
        except TimeoutError:
            if begins:
                self._begins_at = None
            return False
        overdue, self._overdue = self._overdue, False
        return overdue

    async def _watch_the_clock(self) -> None:
        """One timer for a long time, and not one for each wait: each is a billed action."""
        while True:
            await workflow.sleep(CHECK_EVERY, summary="look for slots that have no record")
            self._overdue = True

    def _begin_to_come(self) -> datetime | None:
        """Return its `begin`, where that is to come; elements that run again have had theirs."""
        found = None if self._array.retry else self._spec.begins_at(self._submitted_at)
        return found if found is not None and found > workflow.now() else None

    def _is_full(self) -> bool:
        full = self._looks >= self._array.max_looks_per_run
        return full or workflow.info().is_continue_as_new_suggested()

    def _continue(self) -> None:
        array = self._spec.array
        spec = self._spec.model_copy(update={"array": array.without_rows if array else None})
        workflow.continue_as_new(
            ArrayInput(
                spec=spec, key=self._array.key, held=self._held,
                poked=True,  # it looks at once: until when it waits is known to this run alone
                submitted_at=self._submitted_at, path_behind=self._array.path_behind,
                max_looks_per_run=self._array.max_looks_per_run,
            )
        )  # fmt: skip

    def _show(self, progress: ArrayProgress) -> None:
        """Keep the card in the Temporal UI up to date; it is read on demand and costs nothing."""
        running = ElementState.RUNNING
        counts = ", ".join(
            f"{progress.counts[state]:,} {state.value}"
            + (f" ({progress.claimed:,} claimed)" if state is running and progress.claimed else "")
            for state in ElementState
            if progress.counts.get(state)
        )
        elements = count(sum(progress.counts.values()), "element")
        lines = [f"### {self._state.value}", "", f"{elements}: {counts}"]
        lines += ["", f"{count(progress.slots, 'slot')}, of which {progress.placed} had elements"]
        if self._result is not None and self._result.message:
            lines += ["", self._result.message]
        workflow.set_current_details(visible("\n".join(lines)))
