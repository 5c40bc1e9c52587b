"""Whether control workers ask for work and take it up, and what is said where none does."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from longshore.activities.pollers import POLL_SEEN_WITHIN, last_polls, poll_time
from longshore.models.messages import CONTROL_TASK_QUEUE, job_workflow_id
from longshore.models.service_messages import service_workflow_id
from longshore.models.text import listed

START = "Run `longshore up`, or `longshore worker` beside servers of your own."
TAKEN_UP_WITHIN = timedelta(seconds=2)
"""How long a submit waits until a control worker has answered for its job."""
_ANSWERED = (
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
)
_MOST_NAMED = 5
_LOOK_EVERY = 0.1
"""Seconds."""


@dataclass(frozen=True)
class Asking:
    """Which control workers asked for work, and when last, by what they asked for.

    By the server's clock and the workers' identities. The server forgets who has not asked for
    some minutes.
    """

    seen: Mapping[str, Mapping[str, datetime]]
    at: datetime

    @property
    def lately(self) -> frozenset[str]:
        """Those that asked so lately that they may wait for work now."""
        return frozenset().union(*map(self._lately, self.seen))

    @property
    def missing(self) -> tuple[str, ...]:
        """What nobody asked for lately."""
        return tuple(what for what in self.seen if not self._lately(what))

    @property
    def last_seen(self) -> str:
        """Each that the server remembers, and when it asked last: newest first; empty for none."""
        last: dict[str, datetime] = {}
        for workers in self.seen.values():
            for who, at in workers.items():
                last[who] = max(at, last.get(who, at))
        newest_first = sorted(last, key=lambda who: last[who], reverse=True)
        said = [f"{process_of(who)} at {last[who]:%H:%M:%S} UTC" for who in newest_first]
        return listed(said, _MOST_NAMED)

    def _lately(self, what: str) -> frozenset[str]:
        seen = self.seen[what].items()
        return frozenset(who for who, at in seen if self.at - at < POLL_SEEN_WITHIN)


@dataclass(frozen=True)
class TakenUp:
    """Whether a control worker has answered for the first step of a workflow."""

    answered: bool
    handed_to: str
    """Identity of the worker that was given the step last; empty for none."""


async def who_asks(temporal: Client) -> Asking:
    """Return which control workers asked for workflows, and for activities. Raises RPCError."""
    now = await poll_time(temporal)
    return Asking(
        {
            what: await last_polls(temporal, CONTROL_TASK_QUEUE, workflows=of_workflows)
            for what, of_workflows in (("workflows", True), ("activities", False))
        },
        now,
    )


async def taken_up(temporal: Client, workflow_id: str, within: timedelta) -> TakenUp:
    """Wait until a control worker has answered for a workflow, at most `within`. Raises RPCError.

    That it was handed to one is not enough: a process that hangs is handed work too. A workflow
    that is over counts as answered.
    """
    handed_to = ""
    events = temporal.get_workflow_handle(workflow_id).fetch_history_events(wait_new_event=True)
    try:
        async with asyncio.timeout(within.total_seconds()):
            async for event in events:
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
                    handed_to = event.workflow_task_started_event_attributes.identity
                if event.event_type in _ANSWERED:
                    break
    except TimeoutError:
        return TakenUp(False, handed_to)
    return TakenUp(True, handed_to)


def nobody_asks(what: str) -> str:
    return f"nobody asks task queue {CONTROL_TASK_QUEUE} for {what}"


def process_of(identity: str) -> str:
    """Return a worker as people look for it: ``process 4711 on gpu-1``, or its identity as it is
    where somebody chose that."""
    pid, _, host = identity.partition("@")
    return f"process {pid} on {host}" if pid.isdigit() and host else identity


async def why_not_taken_up(temporal: Client, job_id: str) -> str:
    """Return what to say of a job that no control worker has taken up within `TAKEN_UP_WITHIN`;
    empty where one has, or where Temporal does not say."""
    try:
        look = await taken_up(temporal, job_workflow_id(job_id), TAKEN_UP_WITHIN)
        if look.answered:
            return ""
        asking = await who_asks(temporal)
    except RPCError:
        return ""
    return _nobody("taken the job up", asking, look.handed_to)


async def why_not_heard(temporal: Client, service: str) -> str:
    """Return what to say of a service that was told of a change, where no control worker has taken
    that up within `TAKEN_UP_WITHIN`; empty where one has, or where Temporal does not say."""
    try:
        async with asyncio.timeout(TAKEN_UP_WITHIN.total_seconds()):
            await _step_is_done(temporal, service_workflow_id(service))
        return ""
    except TimeoutError:
        pass
    except RPCError:
        return ""
    try:
        return _nobody("taken this up", await who_asks(temporal), "")
    except RPCError:
        return ""


async def _step_is_done(temporal: Client, workflow_id: str) -> None:
    """Wait until a control worker has answered for the step of a workflow that waits, if any."""
    handle = temporal.get_workflow_handle(workflow_id)
    first: int | None = None
    while True:
        found = await handle.describe()
        task = found.raw_description.pending_workflow_task
        waits = found.status is WorkflowExecutionStatus.RUNNING and (
            found.raw_description.HasField("pending_workflow_task")
        )
        if not waits or first not in (None, task.original_scheduled_time.ToNanoseconds()):
            return
        first = task.original_scheduled_time.ToNanoseconds()
        await asyncio.sleep(_LOOK_EVERY)


def _nobody(done: str, asking: Asking, handed_to: str) -> str:
    """Return that no control worker has done something, why, and what helps."""
    if asking.missing:
        why, helps = nobody_asks(" and ".join(asking.missing)), START
    elif handed_to:
        who = process_of(handed_to)
        why = f"{who} was given it and has not answered: it is busy, hangs, or is gone"
        helps = "`longshore doctor` looks again."
    else:
        why = f"those that asked for work lately are busy, or gone ({asking.last_seen})"
        helps = "`longshore doctor` looks again."
    seconds = f"{TAKEN_UP_WITHIN.total_seconds():g} s"
    return (
        f"no control worker has {done} within {seconds}: {why}. {helps} It waits until one takes "
        "it up."
    )
