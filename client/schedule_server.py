"""Schedules as the server has them: to it, from it, and the times at which it starts runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import WorkflowExecutionStatus as RunStatus
from temporalio.api.workflowservice.v1 import ListScheduleMatchingTimesRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleDescription,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
)

from longshore.activities.job_starts import as_summary, summary_of, summary_of_dag
from longshore.models.job import JobSpec
from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.models.schedule import (
    CATCH_UP,
    MOST_TIMES,
    Kind,
    Overlap,
    ScheduleTimes,
    ScheduleView,
)
from longshore.models.schedule_messages import (
    SCHEDULE_PREFIX,
    SCHEDULE_RUN_WORKFLOW,
    ScheduleRunInput,
    schedule_workflow_id,
)
from longshore.scheduling.schedules import Calendar

ANSWER_WITHIN = timedelta(seconds=15)
_PAGE = 1000
"""Times that the server tells in one answer."""
_OWN_CALENDAR = "a calendar set in Temporal"
_OVERLAPS = {
    Overlap.SKIP: ScheduleOverlapPolicy.SKIP,
    Overlap.BUFFER_ONE: ScheduleOverlapPolicy.BUFFER_ONE,
    Overlap.BUFFER_ALL: ScheduleOverlapPolicy.BUFFER_ALL,
    Overlap.CANCEL_OTHER: ScheduleOverlapPolicy.CANCEL_OTHER,
    Overlap.ALLOW_ALL: ScheduleOverlapPolicy.ALLOW_ALL,
}
_FROM_SERVER = {policy: overlap for overlap, policy in _OVERLAPS.items()}
STATES = {
    RunStatus.WORKFLOW_EXECUTION_STATUS_RUNNING: "SUBMITTED",
    RunStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED: "SUCCEEDED",
    RunStatus.WORKFLOW_EXECUTION_STATUS_CANCELED: "CANCELLED",
}
"""How a run is by its workflow, where nothing is on record; failed for the others."""


@dataclass(frozen=True)
class Action:
    """A run as the server keeps it."""

    at: datetime
    """To the second."""
    started_at: datetime
    state: str

    @property
    def ended(self) -> bool:
        return self.state != "SUBMITTED"


def overlap_policy(overlap: Overlap) -> ScheduleOverlapPolicy:
    """Return a policy as the server calls it."""
    return _OVERLAPS[overlap]


def schedule_of(
    given: ScheduleRunInput,
    times: ScheduleTimes,
    overlap: Overlap,
    catch_up: timedelta,
    *,
    pause_on_failure: bool,
) -> Schedule:
    """Return a schedule as the server takes it."""
    spec = given.spec
    what = summary_of(spec) if isinstance(spec, JobSpec) else summary_of_dag(spec)
    return Schedule(
        action=ScheduleActionStartWorkflow(
            SCHEDULE_RUN_WORKFLOW,
            given,
            id=schedule_workflow_id(given.schedule),
            task_queue=CONTROL_TASK_QUEUE,
            static_summary=as_summary(f"schedule {given.schedule}: {what}"),
        ),
        spec=_spec_of(times),
        policy=SchedulePolicy(
            overlap=_OVERLAPS[overlap],
            catchup_window=catch_up,
            pause_on_failure=pause_on_failure,
        ),
    )


def _spec_of(times: ScheduleTimes) -> ScheduleSpec:
    # The server keeps of a line what it means; its comment is where the line itself stays.
    lines = [" ".join(line.split()) for line in times.cron]
    every = times.every
    return ScheduleSpec(
        cron_expressions=[f"{line} #{line}" for line in lines],
        intervals=[ScheduleIntervalSpec(every, times.offset or None)] if every else [],
        time_zone_name=times.timezone,
    )


def times_of(spec: ScheduleSpec) -> ScheduleTimes:
    """Return the times of a schedule that the server describes."""
    interval = spec.intervals[0] if spec.intervals else None
    lines = dict.fromkeys(each.comment or _OWN_CALENDAR for each in spec.calendars)
    return ScheduleTimes(
        cron=tuple(lines),
        every=interval.every if interval else None,
        offset=(interval.offset if interval else None) or timedelta(0),
        timezone=spec.time_zone_name or None,
    )


def calendars_of(spec: ScheduleSpec) -> tuple[Calendar, ...]:
    """Return the lines of a schedule as the server has read them."""
    return tuple(
        Calendar(
            minutes=_numbers(each.minute), hours=_numbers(each.hour),
            days=_numbers(each.day_of_month), months=_numbers(each.month),
            weekdays=_numbers(each.day_of_week), years=_numbers(each.year),
        )
        for each in spec.calendars
    )  # fmt: skip


def _numbers(ranges: Iterable[ScheduleRange]) -> frozenset[int]:
    return frozenset(
        number
        for each in ranges
        for number in range(each.start, max(each.start, each.end) + 1, max(each.step, 1))
    )


async def matching_times(
    temporal: Client, schedule_id: str, start: datetime, end: datetime, most: int = MOST_TIMES
) -> tuple[datetime, ...]:
    """Return when the server starts runs of a schedule, after `start` and up to `end`: the first
    `most` times. Raises RPCError."""
    found: list[datetime] = []
    while len(found) < most:
        request = ListScheduleMatchingTimesRequest(
            namespace=temporal.namespace, schedule_id=schedule_id
        )
        request.start_time.FromDatetime(start)
        request.end_time.FromDatetime(end)
        answer = await temporal.workflow_service.list_schedule_matching_times(
            request, retry=True, timeout=ANSWER_WITHIN
        )
        page = [each.ToDatetime(tzinfo=UTC) for each in answer.start_time]
        found += page
        if len(page) < _PAGE:
            break
        start = page[-1]
    return tuple(found[:most])


async def given_to(temporal: Client, schedule: Schedule) -> ScheduleRunInput | None:
    """Return what a schedule starts; None of one that is not of ours.

    Raises SpecError where that cannot be read: a newer version may have made it.
    """
    action = schedule.action
    if (
        not isinstance(action, ScheduleActionStartWorkflow)
        or action.workflow != SCHEDULE_RUN_WORKFLOW
        or len(action.args) != 1
        or not isinstance(action.args[0], Payload)
    ):
        return None
    (given,) = await temporal.data_converter.decode([action.args[0]], [ScheduleRunInput])
    return given


def actions_of(found: ScheduleDescription) -> tuple[Action, ...]:
    """Return the last runs as the server has them, oldest first."""
    return tuple(
        Action(
            at=each.schedule_time.ToDatetime(tzinfo=UTC).replace(microsecond=0),
            started_at=each.actual_time.ToDatetime(tzinfo=UTC),
            state=STATES.get(each.start_workflow_status, "FAILED"),
        )
        for each in found.raw_description.info.recent_actions
    )


async def view_of(found: ScheduleDescription, given: ScheduleRunInput | None) -> ScheduleView:
    """Return a schedule without its runs, for which the database is to be asked. What it starts
    is as its memo has it where that cannot be read."""
    schedule, info, raw = found.schedule, found.info, found.raw_description.info
    memo = await found.memo()
    spec = given.spec if given else None
    return ScheduleView(
        name=found.id.removeprefix(SCHEDULE_PREFIX),
        kind=given.kind if given else Kind(memo.get("kind", Kind.JOB)),
        what=spec.name if spec else str(memo.get("what", "?")),
        tenant=spec.tenant if spec else str(memo.get("tenant", "?")),
        owner=str(memo.get("owner", "")), times=times_of(schedule.spec),
        overlap=_FROM_SERVER.get(schedule.policy.overlap, Overlap.SKIP),
        catch_up=schedule.policy.catchup_window or CATCH_UP,
        pause_on_failure=schedule.policy.pause_on_failure,
        paused=schedule.state.paused, note=schedule.state.note or "",
        created_at=info.created_at, updated_at=info.last_updated_at,
        next=tuple(info.next_action_times), started=info.num_actions,
        skipped=info.num_actions_skipped_overlap,
        missed=info.num_actions_missed_catchup_window,
        buffered=raw.buffer_size, dropped=raw.buffer_dropped, trouble=raw.invalid_schedule_error,
    )  # fmt: skip
