"""A service: keeps its replicas at their number, and replaces them without a gap.

Its replicas are ordinary jobs that an activity starts. What they do their agents tell by a signal;
that one has ended its `finish` tells. One activity looks and does what follows.
"""

from collections.abc import Sequence
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from longshore.activities.serving.services import ServiceActivities
    from longshore.models.bounds import json_bytes
    from longshore.models.errors import StoredError
    from longshore.models.service import ServiceState
    from longshore.models.service_messages import (
        SERVICE_WORKFLOW,
        AdvanceService,
        EngineNotice,
        ReplicaProgress,
        ServiceInput,
        ServiceProgress,
        ServiceResult,
    )
    from longshore.models.text import count
    from longshore.models.visible import visible
    from longshore.workflows.arguments import Started
    from longshore.workflows.options import CYCLE_RETRY, SUBMITS_TIMEOUT

POLL_AT_LEAST = timedelta(minutes=10)
"""A look comes after this at the latest: for ends that nobody could tell of."""
MOST_AT_ONCE, MOST_BYTES_AT_ONCE = 200, 500_000
"""Notices that one look takes, and their bytes as JSON: an activity's input with more than
Temporal carries (2 MiB) would fail this workflow's task for ever."""


@workflow.defn(name=SERVICE_WORKFLOW)
class ServiceWorkflow(Started):
    """One service. Completes when it was removed and nothing of it runs."""

    @workflow.init
    def __init__(self, service: ServiceInput) -> None:
        self._input = service
        self._name = workflow.info().workflow_id.removeprefix("service-")
        self._notices = list(service.notices)
        self._progress = service.progress
        self._poked = True
        self._looks = 0

    @workflow.run
    async def run(self, service: ServiceInput) -> ServiceResult:
        while True:
            progress = await self._advance()
            if progress.state is ServiceState.REMOVED:
                return ServiceResult(service=self._name, ended_at=workflow.now())
            if not progress.more:
                await self._wait(progress.look_in)
            if self._is_full():
                self._continue()

    @workflow.signal(description="Something changed: look at its replicas")
    def poke(self) -> None:
        """The service was changed, or a replica has ended."""
        self._poked = True

    @workflow.signal(description="What an agent says of an engine of it")
    def engine(self, notice: EngineNotice) -> None:
        """An agent says what an engine does."""
        self._notices.append(notice)

    @workflow.query(description="How many replicas are ready, and what is waited for")
    def status(self) -> ServiceProgress | None:
        return self._progress

    async def _advance(self) -> ServiceProgress:
        self._poked = False
        number = _at_once(self._notices)
        notices, self._notices = self._notices[:number], self._notices[number:]
        self._looks += 1
        try:
            progress = await workflow.execute_activity_method(
                ServiceActivities.advance_service,
                AdvanceService(service=self._name, notices=tuple(notices)),
                start_to_close_timeout=SUBMITS_TIMEOUT,
                retry_policy=CYCLE_RETRY,
                summary="which replicas to start and to stop",
            )
        except ActivityError as error:
            if not _is_unreadable(error):
                raise
            # It was heard; the next look is when somebody changes it, or at the latest.
            progress = self._unread(str(error.cause))
        self._progress = progress
        workflow.set_current_details(_card(progress))
        return progress

    def _unread(self, why: str) -> ServiceProgress:
        """Return the progress of before, with why nothing is started and stopped."""
        workflow.logger.error("service %s: %s", self._name, why)
        before = self._progress or ServiceProgress(state=ServiceState.RUNNING)
        reason = f"nothing is started or stopped: {why}"
        return before.model_copy(update={"reason": reason, "look_in": None, "more": False})

    async def _wait(self, within: timedelta | None) -> None:
        longest = min(POLL_AT_LEAST, within) if within is not None else POLL_AT_LEAST
        try:
            await workflow.wait_condition(
                lambda: self._poked or bool(self._notices),
                timeout=max(longest, timedelta(milliseconds=100)),
            )
        except TimeoutError:
            return

    def _is_full(self) -> bool:
        full = self._looks >= self._input.max_looks_per_run
        if not (full or workflow.info().is_continue_as_new_suggested()):
            return False
        # What is left has to fit into the input of the next run.
        return _at_once(self._notices) == len(self._notices)

    def _continue(self) -> None:
        workflow.continue_as_new(
            ServiceInput(
                notices=tuple(self._notices), progress=self._progress,
                max_looks_per_run=self._input.max_looks_per_run,
            )
        )  # fmt: skip


def _at_once(notices: Sequence[EngineNotice]) -> int:
    """Return how many of the first notices go together."""
    number = size = 0
    for notice in notices[:MOST_AT_ONCE]:
        size += json_bytes(notice)
        if number and size > MOST_BYTES_AT_ONCE:
            break
        number += 1
    return number


def _is_unreadable(error: ActivityError) -> bool:
    cause = error.cause
    return isinstance(cause, ApplicationError) and cause.type == StoredError.__name__


def _card(progress: ServiceProgress) -> str:
    """Return how it is as Markdown, for the card that the Temporal UI shows."""
    serves = f"Model `{progress.model}`, revision" if progress.model else "Revision"
    ready = f"{progress.ready} of {count(progress.wanted, 'replica')} ready"
    lines = [
        f"### {progress.state.value}", "", f"{serves} {progress.revision}: {ready}",
    ]  # fmt: skip
    if progress.reason:
        lines += ["", progress.reason]
    if progress.replicas:
        lines += ["", *map(_of_replica, progress.replicas)]
    if progress.failure:
        lines += ["", "The last failure:", "", *_indented(progress.failure)]
    return visible("\n".join(lines))


def _of_replica(replica: ReplicaProgress) -> str:
    return f"- `job-{replica.job_id}`, revision {replica.revision}: {replica.says}"


def _indented(text: str) -> list[str]:
    """Return lines as Markdown shows them as they are."""
    return [f"    {line}" for line in text.splitlines()]
