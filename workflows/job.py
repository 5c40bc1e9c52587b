"""The life of one job: queue, placement, run, end; with retries, hold and cancel at every point.

The workflow alone decides what happens next. Which GPUs the job holds, and its place in the
queue, are the capacity database's; every step there is idempotent by (job, attempt).
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from longshore.models.base import as_reason
    from longshore.models.failover import SwapRequest
    from longshore.models.job_status import JobResult, JobState, not_stored
    from longshore.models.messages import (
        JOB_WORKFLOW,
        EnqueueRequest,
        InterruptRequest,
        JobHistory,
        JobInput,
        LeaseEnd,
    )
    from longshore.models.node_messages import ProcessReport
    from longshore.models.output import why_unusable
    from longshore.models.placement import Placed, Placement
    from longshore.models.resize import JoinRequest
    from longshore.models.retry import FailureClass, RetryRule
    from longshore.models.text import format_duration
    from longshore.models.visible import visible
    from longshore.scheduling.failures import why_no_retry
    from longshore.workflows import attempt_records, steps
    from longshore.workflows.attempt import Attempt
    from longshore.workflows.elastic_attempt import Change, ElasticAttempt
    from longshore.workflows.holding import FREE, Kept
    from longshore.workflows.interruption import Swaps
    from longshore.workflows.job_handlers import JobHandlers
    from longshore.workflows.naming import refuse_input, refuse_odd_id
    from longshore.workflows.slots import SlotAttempt

_LEAVES_A_NODE = (LeaseEnd.NODE_LOST, LeaseEnd.MOVED)
"""Ends after which a gang may go on with a spare."""


@workflow.defn(name=JOB_WORKFLOW)
class JobWorkflow(JobHandlers):
    """One job. Completes with its `JobResult`; fails or is cancelled when the job is.

    Continues as new after `max_attempts_per_run` attempts.
    """

    @workflow.init
    def __init__(self, job: JobInput) -> None:
        super().__init__(job)

    @workflow.run
    async def run(self, job: JobInput) -> JobResult:
        refuse_odd_id(self._id)
        refuse_input(self._job)
        self._show()
        life = asyncio.create_task(self._live())
        try:
            result = await asyncio.shield(life)
        except asyncio.CancelledError:
            # A request, not an order: the process ends and the leases are given up first.
            self._cancel = as_reason(workflow.cancellation_reason() or "cancelled")
            result = await life
            if result.state is JobState.CANCELLED:
                raise
        if self._slot is not None:
            await workflow.wait_condition(workflow.all_handlers_finished)
        if result.state is JobState.FAILED:
            raise ApplicationError(
                visible(result.message), result,
                type=(result.failure or FailureClass.USER).value, non_retryable=True,
            )  # fmt: skip
        return result

    async def _live(self) -> JobResult:
        """Go through attempts until one of them ends the job."""
        while True:
            placement = self._placement  # set where spares have taken the places of lost nodes
            if placement is None:
                refusal = await self._enqueue()
                if refusal:
                    return await self._fail(FailureClass.UNSATISFIABLE, refusal)
                placement = await self._prepared_meanwhile()
            if self._cancel is not None:
                return await self._end_cancelled(placement)
            if placement is None:
                waited = format_duration(self._spec.queue_timeout or timedelta(0))
                return await self._fail(
                    FailureClass.QUEUE_TIMEOUT, f"no placement within {waited}"
                )
            report = await self._run_attempt(placement)
            result = await self._conclude(report)
            if result is not None:
                return result
            self._next_attempt_or_continue_as_new()

    async def _enqueue(self) -> str:
        """Put this attempt into the queue; return why no node could ever hold it, if so."""
        self._told = FREE
        if self._is_queued:
            self._is_queued = False
            self._enter(JobState.QUEUED, f"waits for a cycle of pool {self._spec.pool}")
            return ""
        request = self._entry(self._attempt)
        self._enqueuing = True
        try:
            return await self._enqueue_as(request)
        finally:
            self._enqueuing = False

    def _entry(self, attempt: int) -> EnqueueRequest:
        """Return what puts an attempt into the queue."""
        run, kept = workflow.info(), self._holding.kept
        return EnqueueRequest(
            job_id=self._id, attempt=attempt, spec=self._spec, key=self._job.key,
            submitted_at=self._submitted_at, held=kept.held, begin_only=kept.begin_only,
            path_behind=self._job.path_behind,
            reset=run.run_id != run.first_execution_run_id,
        )  # fmt: skip

    async def _enqueue_as(self, request: EnqueueRequest) -> str:
        entry = steps.start_enqueue(request)
        await workflow.wait_condition(lambda: entry.done() or self._cancel is not None)
        # It may be tried without end, and may have come through without an answer.
        if not entry.done() and workflow.patched("cancel-over-enqueue"):
            await steps.give_up(entry)
            self._unanswered = request
            return ""
        reply = await entry
        if not reply.queued:
            self._is_another = reply.other
            return reply.refusal
        if reply.max_duration is not None:
            self._spec = self._spec.model_copy(update={"max_duration": reply.max_duration})
            self._job = self._job.model_copy(update={"spec": self._spec})
        # A change meanwhile is told afterwards.
        self._told = Kept(request.held, request.begin_only)
        if request.held:
            self._enter(JobState.HELD, self._holding.why(workflow.now()))
        else:
            self._enter(JobState.QUEUED, f"waits for a cycle of pool {self._spec.pool}")
        return ""

    async def _prepared_meanwhile(self) -> Placement | None:
        """Wait as `_wait_for_placement` says; what it needs is brought meanwhile."""
        self._preparing.begin(self._attempt, self._spec)
        placement = await self._wait_for_placement()
        if placement is None or self._cancel is not None:
            self._preparing.forget()
        else:
            self._preparing.placed(placement)
        return placement

    async def _wait_for_placement(self) -> Placement | None:
        """Wait until placed or cancelled, or None when the queue timeout is over.

        Time under hold does not count towards the timeout, and neither does that before `begin`.
        One that has been placed before has none: what it has done is not thrown away.
        """
        waited = timedelta(0)
        while True:
            began, told, begins_at = workflow.now(), self._told, self._holding.begins_at
            left, what = None, "queue timeout"
            if begins_at is not None:
                left, what = max(begins_at - began, timedelta(0)), "until its begin"
            elif (limit := self._queue_timeout()) is not None and not told.held:
                left = max(limit - waited, timedelta(0))
            try:
                await workflow.wait_condition(
                    partial(self._something_happened, told), timeout=left, timeout_summary=what
                )
            except TimeoutError:
                if begins_at is None:
                    return None
                self._holding.begin()
            if self._placement is not None or self._cancel is not None:
                return self._placement
            waited += timedelta(0) if told.held else workflow.now() - began
            if self._holding.kept.held:
                self._preparing.forget()
            await self._tell_queue_of_hold(self._holding.kept)

    def _queue_timeout(self) -> timedelta | None:
        limit = self._spec.queue_timeout
        over = limit is not None and self._attempt > 1 and workflow.patched("queue-timeout-once")
        return None if over else limit

    def _something_happened(self, told: Kept) -> bool:
        ended = self._placement is not None or self._cancel is not None
        return ended or self._holding.kept != told

    async def _tell_queue_of_hold(self, kept: Kept) -> None:
        told, self._told = self._told, kept
        reason = self._holding.why(workflow.now())
        self._enter(JobState.HELD if kept.held else JobState.QUEUED, reason)
        if kept == told:  # its begin has come under a hold of its user
            return
        await steps.set_hold(self._here, held=kept.held, begin_only=kept.begin_only)

    async def _run_attempt(self, placement: Placement) -> ProcessReport:
        """Run its processes until they end, are stopped, or a node is lost."""
        before = self._attempts[-1].gpus if self._spec.malleable and self._attempts else None
        self._attempts.append(attempt_records.begun(placement))
        if self._interruption is not None:  # it heard of that before the placement itself
            return self._interruption.before_start()
        if isinstance(placement, Placed) and placement.paid is not None:
            self._paying.heard(placement.paid, workflow.now())
        self._enter(JobState.RUNNING, placement.reason or f"on {steps.where(placement)}")
        stopping = partial(self._enter, JobState.STOPPING)
        if self._job.slot is not None:
            self._slot = SlotAttempt(
                self._job.slot, placement, self._spec, self._stop_reason, self._loss_of,
                self._lease_end_of_stop,
            )  # fmt: skip
            return await self._slot.run(stopping)
        if self._spec.malleable is None or not self._spec.malleable.in_place:
            attempt = Attempt(placement, self._spec, self._stop_reason, self._loss_of, before)
            return await attempt.run(stopping)
        self._elastic = ElasticAttempt(
            placement, self._spec, self._stop_reason, self._loss_of, before,
            self._changed_in_place, self._not_in_place, partial(self._enter, JobState.RUNNING),
            self._joining, self._desired_size,
        )  # fmt: skip
        try:
            return await self._elastic.run(stopping)
        finally:
            self._elastic = None

    async def _conclude(self, report: ProcessReport) -> JobResult | None:
        """Decide what follows an attempt: the job's result, or None for another attempt."""
        succeeded = report.failure is None and report.stopped_for is None
        if self._job.needs_output and succeeded and (why := why_unusable(report.output)):
            lacks = {"failure": FailureClass.USER, "message": why, "output": None}
            report = report.model_copy(update=lacks)
        if report.failure is None and report.stopped_for is None:
            self._close_attempt(None, report)
            return await self._finish(LeaseEnd.FINISHED, JobState.SUCCEEDED, report)
        if self._cancel is not None:
            report = report.model_copy(update={"message": self._cancel})
            self._close_attempt(FailureClass.CANCELLED, report)
            return await self._finish(
                LeaseEnd.CANCELLED, JobState.CANCELLED, report, FailureClass.CANCELLED
            )
        if report.stopped_for is not None and report.failure is None:
            end = self._end_of_stop()
            if end is LeaseEnd.RESIZED:
                self._resizes += 1
            else:
                self._gave_way[end] += 1
            if end is not LeaseEnd.PREEMPTED:
                self._close_attempt(None, report, end)
                await self._give_up_or_swap(end, report.stopped_for)
                return None
            report = report.model_copy(update={"failure": FailureClass.PREEMPTED})
        return await self._retry_or_fail(report.failure or FailureClass.NODE, report)

    async def _retry_or_fail(
        self, failure: FailureClass, report: ProcessReport
    ) -> JobResult | None:
        self._close_attempt(failure, report)
        rule = self._spec.retry.rule_for(failure)
        used = self._retries.get(failure, 0)
        if rule.max_retries is not None and used >= rule.max_retries:
            end = LeaseEnd.PREEMPTED if failure is FailureClass.PREEMPTED else LeaseEnd.FAILED
            return await self._finish(end, JobState.FAILED, report, failure)
        useless = why_no_retry(failure, self._attempts)
        if useless and workflow.patched("start-failures"):
            report = report.model_copy(update={"message": f"{report.message}; {useless}"})
            return await self._finish(LeaseEnd.FAILED, JobState.FAILED, report, failure)
        self._retries[failure] = used + 1
        end = LeaseEnd.before_retry(failure)
        await self._give_up_or_swap(end, report.message, report.node_id)
        if self._swaps is not None and self._swaps.placement is not None:
            return None
        return await self._back_off(rule, failure, used + 1, report)

    async def _give_up_or_swap(self, end: LeaseEnd, message: str, failed_on: str = "") -> None:
        """Give up the leases; or where a gang has spares for the nodes that it lost or has to
        leave, go on with the others as the next attempt."""
        if end is LeaseEnd.RESIZED and self._cancel is None:
            await self._queue_again(end, message)
            return
        placement = self._placement
        goes_on = self._cancel is None and not self._holding.by_user and end in _LEAVES_A_NODE
        if placement is None or not placement.spares or not goes_on:
            await steps.give_up_leases(self._here, end, message)
            return
        self._swaps = Swaps()
        reply = await steps.swap(
            SwapRequest(key=self._here, end=end, message=message, failed_on=failed_on)
        )
        self._swaps.placement = reply.placement
        self._attempts[-1] = attempt_records.judged(self._attempts[-1], reply.reason)

    async def _queue_again(self, end: LeaseEnd, message: str) -> None:
        """Give up the leases, with the next attempt in the queue from that moment on."""
        self._swaps = Swaps(queued=True)
        self._enqueuing = True
        try:
            then = self._entry(self._attempt + 1)
            self._is_queued = await steps.give_up_leases(self._here, end, message, then)
        finally:
            self._enqueuing = False

    async def _back_off(
        self, rule: RetryRule, failure: FailureClass, retry: int, report: ProcessReport
    ) -> JobResult | None:
        """Wait before a retry; return a result only when the job is cancelled meanwhile."""
        wait = rule.wait_before(retry)
        if wait > timedelta(0):
            limit = "" if rule.max_retries is None else f" of {rule.max_retries}"
            self._enter(
                JobState.RETRYING,
                f"{failure.value} ({report.message}); retry {retry}{limit} "
                f"after {format_duration(wait)}",
            )
            try:
                await workflow.wait_condition(
                    lambda: self._cancel is not None,
                    timeout=wait,
                    timeout_summary=f"backoff before retry {retry} ({failure.value})",
                )
            except TimeoutError:
                return None
        return None if self._cancel is None else await self._end_cancelled(None)

    async def _end_cancelled(self, placement: Placement | None) -> JobResult:
        """End a job that was cancelled before its process was started."""
        if placement is not None:
            self._reason = "cancelled before its process was started"
        report = ProcessReport(message=self._cancel or "cancelled")
        return await self._finish(
            LeaseEnd.CANCELLED, JobState.CANCELLED, report, FailureClass.CANCELLED
        )

    async def _fail(self, failure: FailureClass, message: str) -> JobResult:
        report = ProcessReport(message=message)
        return await self._finish(LeaseEnd.FAILED, JobState.FAILED, report, failure)

    async def _finish(
        self,
        reason: LeaseEnd,
        state: JobState,
        report: ProcessReport,
        failure: FailureClass | None = None,
    ) -> JobResult:
        """Give up what the job holds, and record its end."""
        result = JobResult(
            job_id=self._id, state=state, exit_code=report.exit_code, failure=failure,
            message=f"{report.message}{not_stored(report.log_error)}",
            attempts=len(self._attempts) and self._attempts[-1].attempt,
            ended_at=workflow.now(),
        )  # fmt: skip
        if not self._is_another:
            await steps.finish(self._here, reason, result, self._unanswered, report.output)
        self._result = result
        self._enter(state, result.message)
        return result

    def _next_attempt_or_continue_as_new(self) -> None:
        self._attempt += 1
        self._preparing.stop()
        swaps, self._swaps = self._swaps, None
        if swaps is None or swaps.queued or swaps.placement is None:
            self._paying.forget()  # else spares have taken places, and their payers stay
        self._placement = self._interruption = None
        if swaps is not None and swaps.placement is not None:
            self._is_queued = False
            self._placement, self._interruption = swaps.placement, swaps.interruption
            self._listed = None  # it may be listed with another node now
            return
        if self._cancel is None and not self._resizing and self._should_continue_as_new():
            history = JobHistory(
                submitted_at=self._submitted_at, attempt=self._attempt, retries=self._retries,
                attempts=attempt_records.carried(self._attempts), hold_reason=self._holding.reason,
                gave_way=dict(self._gave_way), resizes=self._resizes,
            )  # fmt: skip
            workflow.continue_as_new(
                self._job.model_copy(update={"held": self._holding.by_user, "history": history})
            )

    def _should_continue_as_new(self) -> bool:
        full = self._attempt - self._first_attempt >= self._job.max_attempts_per_run
        return full or workflow.info().is_continue_as_new_suggested()

    def _desired_size(self) -> int:
        sizes = self._spec.malleable
        return sizes.target if sizes is not None else self._spec.gpus

    def _joining(self, change: Change, first_rank: int) -> JoinRequest:
        return JoinRequest(
            key=self._here, spec=self._spec, submitted_at=self._submitted_at,
            path_behind=self._job.path_behind, gpus=change.gpus, first_rank=first_rank,
            by_user=change.desired is not None, message=as_reason(change.reason),
        )  # fmt: skip

    def _changed_in_place(self, ranks: Sequence[Placement], reason: str) -> None:
        self._resizes += 1
        self._attempts[-1] = attempt_records.with_ranks(self._attempts[-1], ranks)
        self._enter(JobState.RUNNING, reason)

    def _not_in_place(self, change: Change, why: str) -> None:
        reason = as_reason(f"{change.reason}; not in place: {why}")
        told = InterruptRequest(attempt=self._attempt, reason=reason, for_job=change.for_job)
        self._interrupt(LeaseEnd.RESIZED, told)
