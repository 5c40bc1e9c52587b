"""The days that `create` names, against a walk over the server's own times of a whole year."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from temporalio.client import Client, ScheduleState

from longshore.client.schedule_checks import look_at_times
from longshore.client.schedule_server import matching_times, schedule_of, times_of
from longshore.models.job import JobSpec
from longshore.models.schedule import CATCH_UP, OddDay, Oddity, Overlap, ScheduleTimes
from longshore.models.schedule_messages import ScheduleRunInput

JOB = ScheduleRunInput(schedule="x", job=JobSpec(name="x", command="true"))
YEAR = timedelta(days=366)


async def looked(temporal: Client, times: ScheduleTimes) -> tuple[OddDay, ...]:
    schedule = schedule_of(JOB, times, Overlap.SKIP, CATCH_UP, pause_on_failure=False)
    return (await look_at_times(temporal, "x", schedule, times)).odd_days


async def fires(temporal: Client, times: ScheduleTimes) -> tuple[datetime, ...]:
    """Return the server's times of the next year, all of them."""
    schedule = schedule_of(JOB, times, Overlap.SKIP, CATCH_UP, pause_on_failure=False)
    schedule.state = ScheduleState(paused=True)
    handle = await temporal.create_schedule("x-year", schedule)
    try:
        assert times_of((await handle.describe()).schedule.spec) == times
        now = datetime.now(UTC)
        return await matching_times(temporal, handle.id, now, now + YEAR, 100_000)
    finally:
        await handle.delete()


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "Asia/Kathmandu", "UTC"])
@pytest.mark.parametrize("minute", [0, 30])
async def test_the_days_of_a_daily_line_are_those_on_which_it_does_not_run_once(
    temporal: Client, zone: str, minute: int
):
    for hour in (1, 2):
        times = ScheduleTimes(cron=(f"{minute} {hour} * * *",), timezone=zone)
        local = [each.astimezone(ZoneInfo(zone)) for each in await fires(temporal, times)]
        runs = Counter(each.date() for each in local)
        first, last = min(runs), max(runs)
        days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
        wanted = {
            day: Oddity.NEVER if not runs[day] else Oddity.TWICE for day in days if runs[day] != 1
        }
        named = {each.day: each.oddity for each in await looked(temporal, times)}
        assert named == wanted, f"{hour}:{minute:02}"


@pytest.mark.exhaustive
async def test_what_the_server_does_with_hours_that_come_twice_is_named(temporal: Client):
    for zone in ("America/New_York", "Europe/Berlin"):
        for line in ("0 * * * *", "*/15 * * * *"):
            times = ScheduleTimes(cron=(line,), timezone=zone)
            ran = list(await fires(temporal, times))
            gaps = {
                after.astimezone(ZoneInfo(zone)).date()
                for before, after in pairwise(ran)
                if after - before > timedelta(hours=1 if line[0] == "0" else 0.25)
            }
            odd = await looked(temporal, times)
            assert {each.day for each in odd} == gaps, (zone, line)
            assert all(each.oddity is not Oddity.TWICE for each in odd)
    assert gaps, "the server leaves runs out east of Greenwich: see docs/schedules.md"


async def test_an_interval_has_no_odd_day(temporal: Client):
    assert not await looked(temporal, ScheduleTimes(every=timedelta(hours=7)))
