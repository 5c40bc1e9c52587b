"""The schedules of an installation: what Temporal starts again and again by itself."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from pydantic import BaseModel
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError

from longshore.activities.providers.registry import configured
from longshore.activities.schedules import Schedules, rests
from longshore.models.checkpointing import CHECKPOINT_WATCH_SCHEDULE, CHECKPOINT_WATCH_WORKFLOW
from longshore.models.market_memory import MARKET_WATCH_SCHEDULE, MARKET_WATCH_WORKFLOW
from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.models.reconcile import RECONCILE_SCHEDULE, RECONCILE_WORKFLOW, ReconcileRequest
from longshore.models.settings import Settings
from longshore.models.text import format_duration
from longshore.workers.temporal_errors import as_ours

_PATIENCE = timedelta(seconds=15)
_CATCH_UP = timedelta(minutes=1)
"""A run that was missed for longer is not made good: the next one sees the same."""


@dataclass(frozen=True)
class Recurring:
    """A workflow that a schedule starts."""

    schedule: str
    workflow: str
    workflow_id: str
    says: str
    """What runs, in a word or two."""
    summary: str
    arguments: Sequence[BaseModel] = ()
    longest: timedelta = timedelta(minutes=10)
    """A run is ended after this, or when the next is due where that is later."""


RECONCILE = Recurring(
    schedule=RECONCILE_SCHEDULE,
    workflow=RECONCILE_WORKFLOW,
    workflow_id="reconcile",
    arguments=(ReconcileRequest(),),
    says="reconcile",
    summary="compare database, workflows and agents",
    longest=timedelta(minutes=15),
)
MARKET_WATCH = Recurring(
    schedule=MARKET_WATCH_SCHEDULE,
    workflow=MARKET_WATCH_WORKFLOW,
    workflow_id="market-watch",
    says="the watch of the markets",
    summary="look at the markets",
)
CHECKPOINT_WATCH = Recurring(
    schedule=CHECKPOINT_WATCH_SCHEDULE,
    workflow=CHECKPOINT_WATCH_WORKFLOW,
    workflow_id="checkpoint-watch",
    says="the watch of unsaved work",
    summary="ask running jobs to save where that is worth it",
)


async def ensure_schedules(temporal: Client, settings: Settings) -> tuple[str, ...]:
    """Make or update every schedule; return what was done, a sentence each. A pause is kept.

    Raises RefusedError and UnavailableError.
    """
    wanted = (
        (RECONCILE, settings.reconcile_every),
        (MARKET_WATCH, settings.market_watch_every),
        (CHECKPOINT_WATCH, settings.checkpoint_watch_every),
    )
    return tuple([await ensure_schedule(temporal, *each) for each in wanted])


async def keep_watches_awake(temporal: Client, settings: Settings) -> None:
    """Have every watch look, then that of the markets go on whenever there is one: this worker may
    know a market that the one before did not, and a simulated one may be started at any time."""
    schedules = Schedules(temporal)
    for schedule in (MARKET_WATCH_SCHEDULE, CHECKPOINT_WATCH_SCHEDULE):
        await schedules.wake(schedule)
    while True:
        await asyncio.sleep(settings.market_watch_every.total_seconds())
        if await asyncio.to_thread(configured, settings):
            await schedules.wake(MARKET_WATCH_SCHEDULE)


async def ensure_schedule(temporal: Client, recurring: Recurring, every: timedelta) -> str:
    """Make or update one schedule; return what was done. A pause is kept.

    Raises RefusedError and UnavailableError.
    """
    schedule = schedule_of(recurring, every)
    words = f"{recurring.says} runs every {format_duration(every)}"
    try:
        await temporal.create_schedule(recurring.schedule, schedule, rpc_timeout=_PATIENCE)
    except ScheduleAlreadyRunningError:
        return await _update(temporal, recurring, schedule, words)
    except RPCError as error:
        raise as_ours(error, f"to make the schedule {recurring.schedule}") from error
    return f"{words}: the schedule {recurring.schedule} was made"


async def is_as(temporal: Client, found: Schedule, wanted: Schedule) -> bool:
    """Return whether a schedule, as the server describes it, does what is wanted when it runs."""
    there, action = found.action, wanted.action
    assert isinstance(there, ScheduleActionStartWorkflow)
    assert isinstance(action, ScheduleActionStartWorkflow)
    encode = temporal.data_converter.encode
    return (
        (found.spec.intervals, found.spec.jitter, found.policy)
        == (wanted.spec.intervals, wanted.spec.jitter, wanted.policy)
        and (there.workflow, there.id, there.task_queue, there.execution_timeout)
        == (action.workflow, action.id, action.task_queue, action.execution_timeout)
        and [*there.args, there.static_summary]
        == [*await encode(action.args), *await encode([action.static_summary])]
    )


def schedule_of(recurring: Recurring, every: timedelta) -> Schedule:
    return Schedule(
        action=ScheduleActionStartWorkflow(
            recurring.workflow,
            args=recurring.arguments,
            id=recurring.workflow_id,
            task_queue=CONTROL_TASK_QUEUE,
            execution_timeout=max(every, recurring.longest),
            static_summary=recurring.summary,
        ),
        # Several installations on one cluster should not all ask at the same moment.
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)], jitter=every / 10),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=_CATCH_UP),
    )


async def _update(temporal: Client, recurring: Recurring, schedule: Schedule, words: str) -> str:
    said = [words]

    async def update(found: ScheduleUpdateInput) -> ScheduleUpdate | None:
        before = found.description.schedule
        if before.spec.intervals != schedule.spec.intervals:
            said.append(f"the schedule {recurring.schedule} was changed")
        if rests(before.state):
            said.append("it rests until there is something to watch")
        elif before.state.paused:
            said.append("it is paused, and stays so")
        # Whoever pauses it just now may not be seen yet, and an update would undo that.
        if await is_as(temporal, before, schedule):
            return None
        schedule.state = before.state
        return ScheduleUpdate(schedule)

    try:
        await temporal.get_schedule_handle(recurring.schedule).update(
            update, rpc_timeout=_PATIENCE
        )
    except RPCError as error:
        raise as_ours(error, f"to update the schedule {recurring.schedule}") from error
    return "; ".join(said)
