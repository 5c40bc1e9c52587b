"""A DAG: submits each job when its conditions hold, until all have ended.

Its jobs are ordinary jobs that an activity submits, and not child workflows: the results of these
never arrive after their parent continues as new. The end of each is on record in the capacity
database; the first since the last look pokes this workflow, and one activity does what follows.
"""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from longshore.activities.dags import DagActivities
    from longshore.activities.job_starts import of_dag
    from longshore.models.base import JOB_ID, as_reason
    from longshore.models.dag_messages import (
        DAG_WORKFLOW,
        AdvanceDag,
        CancelDagJob,
        DagInput,
        DagProgress,
        DagResult,
        DagStatus,
        OpenDag,
    )
    from longshore.models.dag_view import DagState, StepState
    from longshore.models.errors import SpecError
    from longshore.models.job_status import JobState
    from longshore.models.messages import CommandReason
    from longshore.models.text import count
    from longshore.models.visible import visible
    from longshore.workflows import attributes
    from longshore.workflows.arguments import Started
    from longshore.workflows.options import DATABASE_RETRY, DATABASE_TIMEOUT, SUBMITS_TIMEOUT

_ODD_ID = "the workflow id must be dag- and letters, digits, dots, dashes and underscores"
CHECK_EVERY = timedelta(minutes=10)
"""Between two looks for jobs whose end nobody records."""


@workflow.defn(name=DAG_WORKFLOW)
class DagWorkflow(Started):
    """One DAG. Completes with its `DagResult`; fails or is cancelled when the DAG is."""

    @workflow.init
    def __init__(self, dag: DagInput) -> None:
        self._dag = dag
        self._id = workflow.info().workflow_id.removeprefix("dag-")
        self._held = dag.held
        self._poked = dag.poked
        self._changed = False
        self._withdrawn = dict(dag.withdrawn)
        self._cancel: str | None = None
        self._cancel_told: str | None = None
        self._progress = dag.progress
        self._looks = 0
        self._overdue = False

    @workflow.run
    async def run(self, dag: DagInput) -> DagResult:
        if self._progress is not None:
            workflow.set_current_details(_card(self._progress, held=self._held))
        life = asyncio.create_task(self._live())
        self._clock = asyncio.create_task(self._watch_the_clock())
        try:
            result = await asyncio.shield(life)
        except asyncio.CancelledError:
            # A request, not an order: its jobs end first.
            self._cancel = as_reason(workflow.cancellation_reason() or "cancelled")
            result = await life
            if result.state is DagState.CANCELLED:
                raise
        if result.state is DagState.FAILED:
            raise ApplicationError(
                visible(result.message), result, type="DagFailed", non_retryable=True
            )
        return result

    @workflow.signal(description="A job of it has ended: look what follows")
    def poke(self) -> None:
        """A job has ended."""
        self._poked = True

    @workflow.signal(description="Submit no further job; those that were submitted go on")
    def hold(self, command: CommandReason) -> None:
        """Submit no further job; those that were submitted go on."""
        self._held = self._changed = True

    @workflow.signal(description="End a hold")
    def release(self, command: CommandReason) -> None:
        """End a hold."""
        self._held, self._changed = False, True

    @workflow.signal(description="Cancel one job, also while it waits for others")
    def cancel_job(self, command: CancelDagJob) -> None:
        """Cancel one job: at once where it is not submitted, else with its grace."""
        if not workflow.patched("cancel-job"):
            return  # a worker of the version before had no such signal
        self._withdrawn[command.name] = as_reason(command.reason or "cancelled by its user")
        self._changed = True

    @workflow.query(description="How far it is, and which job waits next")
    def status(self) -> DagStatus:
        return DagStatus(dag_id=self._id, held=self._held, progress=self._progress)

    async def _live(self) -> DagResult:
        first = workflow.info().continued_run_id is None
        if first:
            await self._open()
        check = False
        if not first and not self._poked:
            check = await self._wait()
        while True:
            progress = await self._advance(check=check)
            if progress.state.ended:
                return DagResult(
                    dag_id=self._id, state=progress.state, counts=progress.counts,
                    message=progress.reason, ended_at=progress.ended_at,
                )  # fmt: skip
            if self._is_full() and self._cancel is None:
                self._continue(more=progress.more)
            check = False if progress.more else await self._wait()

    async def _open(self) -> None:
        """Put it on record. Raises SpecError where that is refused."""
        if not JOB_ID.fullmatch(self._id):
            raise SpecError("input", (_ODD_ID,))
        opened = await workflow.execute_activity_method(
            DagActivities.open_dag,
            OpenDag(
                dag_id=self._id, spec=self._dag.spec, retry=self._dag.retry,
                submitted_at=workflow.info().start_time,
            ),
            start_to_close_timeout=DATABASE_TIMEOUT,
            retry_policy=DATABASE_RETRY,
            summary="open again what did not succeed" if self._dag.retry else "onto the record",
        )  # fmt: skip
        if opened.refusal:
            raise SpecError("input", (opened.refusal,))

    async def _advance(self, *, check: bool) -> DagProgress:
        self._poked = self._changed = False
        self._cancel_told = self._cancel
        withdrawn, self._withdrawn = self._withdrawn, {}
        self._looks += 1
        progress = await workflow.execute_activity_method(
            DagActivities.advance_dag,
            AdvanceDag(
                dag_id=self._id, held=self._held, cancelled=self._cancel, withdrawn=withdrawn,
                check=check,
            ),
            start_to_close_timeout=SUBMITS_TIMEOUT,
            retry_policy=DATABASE_RETRY,
            summary="what follows from the ends of its jobs",
        )  # fmt: skip
        self._progress = progress
        state = JobState.HELD if self._held else JobState.RUNNING
        said = of_dag(self._dag.spec) if self._dag.spec else ()
        attributes.tell_state(state, said)
        workflow.set_current_details(_card(progress, held=self._held))
        return progress

    async def _wait(self) -> bool:
        """Wait for something to do; return whether jobs without a record are to be looked for."""
        await workflow.wait_condition(
            lambda: (
                self._poked or self._changed or self._overdue or self._cancel != self._cancel_told
            )
        )
        overdue, self._overdue = self._overdue, False
        return overdue

    async def _watch_the_clock(self) -> None:
        """One timer for a long time, and not one for each wait: each is a billed action."""
        while True:
            await workflow.sleep(CHECK_EVERY, summary="look for jobs that have no record")
            self._overdue = True

    def _is_full(self) -> bool:
        full = self._looks >= self._dag.max_looks_per_run
        return full or workflow.info().is_continue_as_new_suggested()

    def _continue(self, *, more: bool) -> None:
        workflow.continue_as_new(
            DagInput(
                held=self._held, poked=self._poked or self._changed or more,
                max_looks_per_run=self._dag.max_looks_per_run,
                submitted_at=self._dag.submitted_at or workflow.info().start_time,
                withdrawn=self._withdrawn, progress=self._progress,
            )
        )  # fmt: skip


def _card(progress: DagProgress, *, held: bool) -> str:
    """Return where the DAG is as Markdown, for the card that the Temporal UI shows."""
    told = ", ".join(
        f"{progress.counts[state]} {state.value}"
        for state in StepState
        if state in progress.counts
    )
    jobs = count(sum(progress.counts.values()), "job")
    lines = [f"### {progress.state.value}", "", f"{jobs}: {told}"]
    if held and not progress.state.ended:
        lines += ["", "**Held**: submits no further job until it is released."]
    if progress.next:
        lines += ["", f"Next: {progress.next}."]
    if progress.reason:
        lines += ["", progress.reason]
    return visible("\n".join(lines))
