"""A run of a schedule: starts the job or DAG under an id of ours, and waits for its end.

The schedule sees only this workflow: by it the server knows whether a run has ended, and which
overlaps. The server's own id has the time with colons, which can name no folder.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    WorkflowAlreadyStartedError,
)

with workflow.unsafe.imports_passed_through():
    from longshore.activities.job_starts import (
        at_submit,
        dag_at_submit,
        details_of,
        digest_of,
        summary_of,
        summary_of_dag,
    )
    from longshore.activities.schedule_runs import ScheduleRunActivities
    from longshore.models.array_messages import job_input
    from longshore.models.base import as_reason
    from longshore.models.dag_messages import DAG_WORKFLOW, DagInput, DagResult
    from longshore.models.job_status import JobResult
    from longshore.models.messages import workflow_of
    from longshore.models.schedule import MOST_AGAIN, Kind
    from longshore.models.schedule_messages import (
        SCHEDULE_RUN_WORKFLOW,
        CancelRun,
        FindRun,
        FoundRun,
        LookAtRun,
        RunEnd,
        ScheduleRunInput,
        ScheduleRunResult,
        run_workflow_id,
        time_in,
    )
    from longshore.models.visible import visible
    from longshore.workflows.arguments import Started
    from longshore.workflows.options import DATABASE_RETRY, DATABASE_TIMEOUT

_OF_OVERLAP = "cancelled by schedule overlap policy"
"""The server's reason for a cancel."""
_SCHEDULED = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")
_POLL_FROM, _POLL_TO = timedelta(seconds=1), timedelta(minutes=30)
"""Between two polls of a job or DAG that another run has started."""

Child = workflow.ChildWorkflowHandle[Any, Any]


@workflow.defn(name=SCHEDULE_RUN_WORKFLOW)
class ScheduleRunWorkflow(Started):
    """One run. Completes with its result, also where its user cancelled the job or DAG; fails
    where that has failed, and is cancelled after that has ended."""

    @workflow.init
    def __init__(self, given: ScheduleRunInput) -> None:
        self._given = given
        self._at = _time_of_run()
        self._cancel: str | None = None
        self._id = ""

    @workflow.run
    async def run(self, given: ScheduleRunInput) -> ScheduleRunResult:
        life = asyncio.create_task(self._live())
        try:
            end = await asyncio.shield(life)
        except asyncio.CancelledError:
            # A request, not an order: the job ends first.
            why = as_reason(workflow.cancellation_reason() or "cancelled")
            said = f"another run of schedule {given.schedule} is due"
            self._cancel = said if why == _OF_OVERLAP else why
            end = await life
            if end.state == "CANCELLED":
                raise
        if end.state == "FAILED":
            raise ApplicationError(
                visible(end.message), type="ScheduleRunFailed", non_retryable=True
            )
        return ScheduleRunResult(
            schedule=given.schedule, kind=given.kind, id=self._id,
            state=end.state or "", message=end.message,
        )  # fmt: skip

    async def _live(self) -> RunEnd:
        end = await self._started_and_ended()
        if self._id:
            self._show(end)
        return end

    async def _started_and_ended(self) -> RunEnd:
        """Start the job or DAG of this time, and return how it ended."""
        while True:
            found = await self._find()
            if found.id is None:
                return RunEnd(
                    state="FAILED",
                    message=f"this time has run {MOST_AGAIN} times: no further run is started",
                )
            if self._cancel is not None and not found.running:
                return RunEnd(state="CANCELLED", message=self._cancel)
            self._id = found.id
            self._show(None)
            if found.running:
                return await self._wait_for_another()
            try:
                child = await self._start(found.id)
            except WorkflowAlreadyStartedError:
                continue  # somebody was quicker: look again
            return await self._wait_for(child)

    async def _find(self) -> FoundRun:
        return await workflow.execute_activity_method(
            ScheduleRunActivities.find_run,
            FindRun(schedule=self._given.schedule, kind=self._given.kind, at=self._at),
            start_to_close_timeout=DATABASE_TIMEOUT,
            retry_policy=DATABASE_RETRY,
            summary="the id for this time",
        )

    async def _start(self, of: str) -> Child:
        """Start the job or DAG. It goes on where this workflow is terminated."""
        job, dag = self._given.job, self._given.dag
        workflow_id = run_workflow_id(self._given.kind, of)
        if job is not None:
            return await workflow.start_child_workflow(
                workflow_of(job),
                job_input(job),
                id=workflow_id,
                result_type=JobResult,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                memo={"digest": digest_of(job)},
                static_summary=summary_of(job),
                static_details=details_of(job),
                search_attributes=at_submit(job, held=False),
            )
        assert dag is not None
        return await workflow.start_child_workflow(
            DAG_WORKFLOW,
            DagInput(spec=dag),
            id=workflow_id,
            result_type=DagResult,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            memo={"digest": digest_of(dag)},
            static_summary=summary_of_dag(dag),
            search_attributes=dag_at_submit(dag, held=False),
        )

    async def _wait_for(self, child: Child) -> RunEnd:
        """Wait for the end of what was started; once this run is cancelled, have it cancelled."""
        ended = asyncio.ensure_future(child)
        await workflow.wait_condition(lambda: ended.done() or self._cancel is not None)
        if not ended.done():
            await self._cancel_it()
        try:
            result: JobResult | DagResult = await ended
        except ChildWorkflowError as error:
            if isinstance(error.cause, TerminatedError):
                return await self._wait_for_another()  # or it was reset, and runs on
            return _end_of_failure(error)
        return RunEnd(state="SUCCEEDED", message=result.message)

    async def _wait_for_another(self) -> RunEnd:
        """Wait for a job or DAG whose end nobody tells this workflow of: look ever less often."""
        pause, told = _POLL_FROM, False
        while True:
            if self._cancel is not None and not told:
                await self._cancel_it()
                told, pause = True, _POLL_FROM
            end = await workflow.execute_activity_method(
                ScheduleRunActivities.look_at_run,
                LookAtRun(kind=self._given.kind, id=self._id),
                start_to_close_timeout=DATABASE_TIMEOUT,
                retry_policy=DATABASE_RETRY,
                summary="how it is",
            )
            if end.state is not None:
                told_by = end.message or f"{self._given.kind.value} {self._id} {_WORDS[end.state]}"
                return end.model_copy(update={"message": told_by})
            asked = self._cancel
            try:
                await workflow.wait_condition(
                    lambda asked=asked: self._cancel != asked,
                    timeout=pause,
                    timeout_summary="look again",
                )
            except TimeoutError:
                pause = min(pause * 2, _POLL_TO)

    async def _cancel_it(self) -> None:
        await workflow.execute_activity_method(
            ScheduleRunActivities.cancel_run,
            CancelRun(kind=self._given.kind, id=self._id, reason=self._cancel or ""),
            start_to_close_timeout=DATABASE_TIMEOUT,
            retry_policy=DATABASE_RETRY,
            summary=f"cancel {self._given.kind.value}",
        )

    def _show(self, end: RunEnd | None) -> None:
        workflow.set_current_details(_card(self._given, self._id, self._at, end))


_WORDS = {"SUCCEEDED": "succeeded", "FAILED": "failed", "CANCELLED": "was cancelled"}


def _time_of_run() -> datetime:
    """Return the time that the run was due: the server says it, and has it in the id."""
    run = workflow.info()
    due = run.typed_search_attributes.get(_SCHEDULED)
    return due or time_in(run.workflow_id) or run.start_time


def _end_of_failure(error: ChildWorkflowError) -> RunEnd:
    if isinstance(error.cause, CancelledError):
        return RunEnd(state="CANCELLED", message="cancelled by its user")
    cause = error.cause
    message = cause.message if isinstance(cause, ApplicationError) else str(cause or error)
    return RunEnd(state="FAILED", message=as_reason(message))


def _card(given: ScheduleRunInput, of: str, at: datetime, end: RunEnd | None) -> str:
    """Return the run as Markdown, for the card that the Temporal UI shows."""
    kind = "Job" if given.kind is Kind.JOB else "DAG"
    state = "RUNNING" if end is None else end.state
    lines = [
        f"### {state}", "",
        f"{kind} `{of}` of schedule {given.schedule}, due {at:%Y-%m-%d %H:%M:%S} UTC",
    ]  # fmt: skip
    if end is not None and end.message:
        lines += ["", end.message]
    return visible("\n".join(lines))
