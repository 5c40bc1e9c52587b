"""What is so of a job: its state, what it holds, why it would stop, and what people are shown."""

from collections import Counter
from datetime import datetime

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from longshore.models.job_status import JobResult, JobState, JobStatus
    from longshore.models.messages import (
        EnqueueRequest,
        JobHistory,
        JobInput,
        LeaseEnd,
        NodeLost,
    )
    from longshore.models.node_messages import ProcessReport
    from longshore.models.placement import Placement, PlacementKey
    from longshore.models.retry import FailureClass
    from longshore.workflows import attempt_records, attributes
    from longshore.workflows.arguments import Started
    from longshore.workflows.details import job_details
    from longshore.workflows.elastic_attempt import ElasticAttempt
    from longshore.workflows.holding import FREE, Holding
    from longshore.workflows.interruption import Interruption, Swaps
    from longshore.workflows.losses import Losses
    from longshore.workflows.paying import Paying
    from longshore.workflows.preparing import Preparing
    from longshore.workflows.slots import SlotAttempt


class JobRecord(Started):
    """What the workflow of a job knows of it. The handlers change it, and so does its life."""

    def __init__(self, job: JobInput) -> None:
        self._job = job
        self._spec = job.spec
        self._id = workflow.info().workflow_id.removeprefix("job-")
        history = job.history or JobHistory(
            submitted_at=workflow.info().start_time, attempt=1, hold_reason="held at submit"
        )
        self._submitted_at = history.submitted_at
        self._holding = Holding(job.held, history.hold_reason, self._begin_to_come())
        self._told = FREE
        """What the queue knows of that."""
        self._attempt: int = history.attempt
        self._retries = dict(history.retries)
        self._gave_way = Counter(history.gave_way)
        self._resizes: int = history.resizes
        self._resizing: int = 0
        """Updates of its size that are not answered yet."""
        self._telling_size = False
        """One of them is being written down."""
        self._enqueuing = False
        """An attempt is being put into the queue, as it was asked for."""
        self._is_queued = False
        """The attempt is in the queue, put there as the leases of the one before it ended."""
        self._attempts = list(history.attempts)
        self._first_attempt = history.attempt
        self._state = JobState.SUBMITTED
        listed = workflow.info().typed_search_attributes
        self._listed = listed.get(attributes.JOB_STATE)
        self._paying = Paying(listed.get(attributes.FUNDING_CLASS))
        self._reason = ""
        self._since = workflow.now()
        self._placement: Placement | None = None
        self._preparing = Preparing(self._id)
        self._losses = Losses()
        self._interruption: Interruption | None = None
        self._swaps: Swaps | None = None
        self._slot: SlotAttempt | None = None
        self._elastic: ElasticAttempt | None = None
        """The attempt that runs, of a job that changes its size in place."""
        self._cancel: str | None = None
        self._unanswered: EnqueueRequest | None = None
        self._is_another = False
        """The id is on record for another job: what that holds is not this one's to end."""
        self._result: JobResult | None = None

    @workflow.query(description="Where the job is in its life, and why")
    def status(self) -> JobStatus:
        return JobStatus(
            job_id=self._id, name=self._spec.name, tenant=self._spec.tenant,
            pool=self._spec.pool, state=self._state, attempt=self._attempt, reason=self._reason,
            submitted_at=self._submitted_at, since=self._since,
            attempts=tuple(self._attempts[-attempt_records.SHOWN:]), result=self._result,
            preemptions=self._gave_way[LeaseEnd.PREEMPTED], moves=self._gave_way[LeaseEnd.MOVED],
            resizes=self._resizes,
            not_brought=self._preparing.missing if self._state is JobState.QUEUED else (),
            next_attempt=self._next_attempt(),
        )  # fmt: skip

    @property
    def _here(self) -> PlacementKey:
        return PlacementKey(job_id=self._id, attempt=self._attempt)

    def _next_attempt(self) -> datetime | None:
        failure = self._attempts[-1].failure if self._attempts else None
        if self._state is not JobState.RETRYING or failure is None:
            return None
        wait = self._spec.retry.rule_for(failure).wait_before(self._retries.get(failure, 1))
        return self._since + wait

    def _begin_to_come(self) -> datetime | None:
        found = self._spec.begins_at(self._submitted_at)
        return found if found is not None and found > workflow.now() else None

    def _stop_reason(self) -> str | None:
        """Why the process should be stopped, or None to let it run."""
        if self._cancel is not None:
            return self._cancel
        if self._holding.by_user:
            return self._holding.reason
        return self._interruption.reason if self._interruption else None

    def _lease_end_of_stop(self) -> LeaseEnd:
        """How the leases end of an attempt that is to stop."""
        return LeaseEnd.CANCELLED if self._cancel is not None else self._end_of_stop()

    def _end_of_stop(self) -> LeaseEnd:
        if self._holding.by_user or self._interruption is None:
            return LeaseEnd.HELD
        return self._interruption.end

    def _loss_of(self, here: Placement) -> NodeLost | None:
        """How the node of a placement was lost, if it was."""
        return self._losses.of(here.node_id, here.epoch)

    def _close_attempt(
        self, failure: FailureClass | None, report: ProcessReport, end: LeaseEnd | None = None
    ) -> None:
        moved, resized = end is LeaseEnd.MOVED, end is LeaseEnd.RESIZED
        self._attempts[-1] = attempt_records.ended(
            self._attempts[-1], workflow.now(), report, failure, moved=moved, resized=resized
        )

    def _enter(self, state: JobState, reason: str = "") -> None:
        if state is not self._state:  # a job that changes its size in place goes on running
            self._since = workflow.now()
        self._state, self._reason = state, reason
        self._show()
        if state in attributes.LISTED_STATES and state.value != self._listed:
            self._listed = state.value
            running_on = self._placement if state is JobState.RUNNING else None
            node_id = running_on.node_id if running_on else None
            attributes.tell(state, node_id, self._spec, self._paying)

    def _show(self) -> None:
        """Keep the card in the Temporal UI up to date; it is read on demand and costs nothing."""
        simulated = self._placement is not None and self._placement.simulated
        status, other = self.status(), self._is_another
        holds = self._state in (JobState.RUNNING, JobState.STOPPING)
        card = job_details(
            status, self._spec, simulated=simulated, is_another=other,
            paid_for=self._paying.words if holds else "",
        )  # fmt: skip
        workflow.set_current_details(card)
