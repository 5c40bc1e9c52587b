"""What `create` looks at before it makes a schedule: its times as the server has them."""

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from temporalio.client import Client, Schedule, ScheduleHandle, ScheduleState
from temporalio.service import RPCError, RPCStatusCode

from longshore.client.errors import as_ours
from longshore.client.schedule_server import ANSWER_WITHIN, calendars_of, matching_times
from longshore.models.base import JOB_ID
from longshore.models.dag import DagSpec
from longshore.models.errors import LongshoreError, SpecError
from longshore.models.schedule import MOST_AGAIN, OddDay, ScheduleTimes
from longshore.models.schedule_messages import run_id
from longshore.models.visible import shown
from longshore.scheduling.schedules import AROUND, Calendar, clock_changes, odd_days

NEXT = 10
"""Times that are told."""
YEAR = timedelta(days=366)
NEVER_WITHIN = timedelta(days=5 * 366)
"""A line that names no time within these is refused."""
_WORDS = "Invalid schedule spec: "
_RANGE = re.compile(r"(\w+) is not in range \[(\d+)-(\d+)\]")
"""How the server refuses a field of a line."""


@dataclass(frozen=True)
class Looked:
    """What the server does with the times of a schedule."""

    next: tuple[datetime, ...]
    odd_days: tuple[OddDay, ...]
    warnings: tuple[str, ...]


async def look_at_times(
    temporal: Client, name: str, schedule: Schedule, times: ScheduleTimes
) -> Looked:
    """Return what the server makes of the times of a schedule.

    It tells of schedules that it has alone: one that is paused is there for the moment. Raises
    SpecError where it does not take them, or no time comes; and UnavailableError.
    """
    now = datetime.now(UTC)
    try:
        return await _looked(temporal, name, schedule, times, now)
    except SpecError as error:
        # The server names its first mistake, and no line.
        wrong = await _wrong_lines(temporal, name, schedule, times) if times.cron else []
        raise (SpecError(f"schedule {name}", tuple(wrong)) if wrong else error) from None


async def _wrong_lines(
    temporal: Client, name: str, schedule: Schedule, times: ScheduleTimes
) -> list[str]:
    """Return what the server says of each line that it does not take."""
    found: list[str] = []
    for line in times.cron:
        alone = replace(schedule, spec=replace(schedule.spec, cron_expressions=[line]))
        try:
            async with _for_a_moment(temporal, name, alone):
                pass
        except SpecError as error:
            found += (f"cron {shown(line)}: {each.removeprefix('cron: ')}" for each in
                      error.problems)  # fmt: skip
    return found


async def _looked(
    temporal: Client, name: str, schedule: Schedule, times: ScheduleTimes, now: datetime
) -> Looked:
    async with _for_a_moment(temporal, name, schedule) as handle:
        spec = (await handle.describe(rpc_timeout=ANSWER_WITHIN)).schedule.spec
        calendars = calendars_of(spec)
        next_ones = await matching_times(temporal, handle.id, now, now + NEVER_WITHIN, NEXT)
        if not next_ones:
            what = ", ".join(map(shown, times.cron)) or "the interval"
            why = f"cron {what}: no such time comes within five years"
            raise SpecError(f"schedule {name}", (why,))
        odd = await _odd_days(temporal, handle.id, calendars, times, now)
    return Looked(next_ones, odd, _warnings(times, calendars))


async def _odd_days(
    temporal: Client,
    schedule_id: str,
    calendars: tuple[Calendar, ...],
    times: ScheduleTimes,
    now: datetime,
) -> tuple[OddDay, ...]:
    """Hold the server's times around each change of the clock against a walk of our own."""
    zone = ZoneInfo(times.timezone or "UTC")
    found: list[OddDay] = []
    for change in clock_changes(zone, now, now + YEAR):
        start, end = max(change - AROUND, now.replace(second=0, microsecond=0)), change + AROUND
        # One for each minute at most.
        most = (end - start) // timedelta(minutes=1) + 1
        fires = await matching_times(temporal, schedule_id, start, end, most)
        found += odd_days(calendars, zone, fires, start, end)
    return tuple(found)


def _warnings(times: ScheduleTimes, calendars: tuple[Calendar, ...]) -> tuple[str, ...]:
    """Return what differs from cron in how the server reads these lines."""
    return tuple(
        f"cron {shown(line)} names days of the month and of the week: it runs on days that are "
        "both, where cron runs on days that are either. Give two lines for either."
        for line, calendar in zip(times.cron, calendars, strict=False)
        if calendar.by_both_days
    )


@asynccontextmanager
async def _for_a_moment(
    temporal: Client, name: str, schedule: Schedule
) -> AsyncIterator[ScheduleHandle]:
    """Have the server keep a schedule under an id that nobody lists, paused, and delete it."""
    schedule.state = ScheduleState(
        paused=True, note="a look at its times, by `longshore schedule create`, which deletes it"
    )
    try:
        handle = await temporal.create_schedule(
            f"check-{name}-{secrets.token_hex(4)}", schedule, rpc_timeout=ANSWER_WITHIN
        )
    except RPCError as error:
        raise refused_spec(error, name) from error
    try:
        yield handle
    except RPCError as error:
        raise as_ours(error, f"schedule {name}") from error
    finally:
        with suppress(RPCError):
            await handle.delete(rpc_timeout=ANSWER_WITHIN)


def refused_spec(error: RPCError, name: str) -> LongshoreError:
    """Return what a refusal of a schedule by the server says of its times."""
    if error.status is RPCStatusCode.INVALID_ARGUMENT and error.message.startswith(_WORDS):
        why = error.message.removeprefix(_WORDS)
        if outside := _RANGE.fullmatch(why):
            field, least, most = outside.groups()
            why = f"the {field.lower()} must be from {least} to {most}"
        return SpecError(f"schedule {name}", (f"cron: {why}",))
    return as_ours(error, f"schedule {name}")


def long_ids(name: str, spec: DagSpec) -> tuple[str, ...]:
    """Return why the names of a schedule and of the jobs of its DAG do not fit together."""
    longest = f"{run_id(name, datetime.now(UTC), MOST_AGAIN)}.{max(spec.jobs, key=len)}.r999"
    if JOB_ID.fullmatch(longest):
        return ()
    return (f"its jobs would have ids such as {shown(longest)}, which is too long",)
