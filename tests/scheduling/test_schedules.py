"""What is refused of the times of a schedule, and on which days the clock makes them odd."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from longshore.models.schedule import OddDay, Oddity, ScheduleTimes
from longshore.scheduling.schedules import Calendar, clock_changes, odd_days, refusals

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
YEAR = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)


def calendar(minutes: Sequence[int] = (0,), hours: Sequence[int] = range(24)) -> Calendar:
    return Calendar(
        minutes=frozenset(minutes), hours=frozenset(hours), days=frozenset(range(1, 32)),
        months=frozenset(range(1, 13)), weekdays=frozenset(range(7)),
    )  # fmt: skip


def every_minute_that_fits(
    line: Calendar, zone: ZoneInfo, start: datetime, end: datetime
) -> list[datetime]:
    """Return each minute whose local time a line names, also where the time comes twice."""
    minutes = int((end - start) / MINUTE)
    instants = (start + number * MINUTE for number in range(1, minutes + 1))
    return [each for each in instants if line.fits(each.astimezone(zone))]


def found(
    line: Calendar, zone: ZoneInfo, day: datetime, leave_out: Sequence[datetime] = ()
) -> list[tuple[Oddity, tuple[str, ...]]]:
    start, end = day - DAY, day + 2 * DAY
    fires = [
        each for each in every_minute_that_fits(line, zone, start, end) if each not in leave_out
    ]
    odd = odd_days([line], zone, fires, start, end)
    assert all(each.day == day.date() for each in odd)
    return [(each.oddity, each.times) for each in odd]


SPRING, AUTUMN = datetime(2027, 3, 28, tzinfo=UTC), datetime(2027, 10, 31, tzinfo=UTC)


def test_a_time_in_the_gap_never_runs():
    assert found(calendar([30], [2]), BERLIN, SPRING) == [(Oddity.NEVER, ("02:30",))]
    assert not found(calendar([30], [3]), BERLIN, SPRING)


def test_a_time_that_comes_twice_is_to_run_once():
    at = calendar([30], [2])
    assert found(at, BERLIN, AUTUMN) == [(Oddity.TWICE, ("02:30",))]
    second = datetime(2027, 10, 31, 1, 30, tzinfo=UTC)
    assert not found(at, BERLIN, AUTUMN, leave_out=[second])
    both = [second - HOUR, second]
    assert found(at, BERLIN, AUTUMN, leave_out=both) == [(Oddity.NEVER, ("02:30",))]


def test_a_line_of_every_hour_follows_the_hours_that_pass():
    hourly = calendar()
    assert not found(hourly, BERLIN, SPRING)
    assert not found(hourly, BERLIN, AUTUMN)
    left_out = [datetime(2027, 10, 31, 0, tzinfo=UTC)]
    assert found(hourly, BERLIN, AUTUMN, left_out) == [(Oddity.ONCE, ("02:00",))]


def test_each_second_hour_loses_the_one_in_the_gap():
    assert found(calendar([0], range(0, 24, 2)), BERLIN, SPRING) == [(Oddity.NEVER, ("02:00",))]


def test_a_run_that_no_line_names_is_named():
    line, start = calendar([0], [12]), SPRING
    odd = odd_days([line], BERLIN, [start + 5 * HOUR], start, start + 6 * HOUR)
    assert odd == (OddDay(day=date(2027, 3, 28), oddity=Oddity.TWICE, times=("07:00",)),)


@pytest.mark.parametrize(
    ("zone", "changes"),
    [
        ("Europe/Berlin", [(3, 28, 1), (10, 31, 1)]),
        ("America/New_York", [(3, 14, 7), (11, 7, 6)]),
        ("Asia/Kathmandu", []),
        ("UTC", []),
    ],
)  # fmt: skip
def test_changes_of_the_clock(zone: str, changes: list[tuple[int, int, int]]):
    found = clock_changes(ZoneInfo(zone), *YEAR)
    assert [(each.month, each.day, each.hour) for each in found] == changes


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "UTC"])
def test_a_zone_whose_clock_does_not_change_has_no_odd_day(zone: str):
    assert not found(calendar([0, 15, 30, 45]), ZoneInfo(zone), SPRING)


def test_a_calendar_needs_all_of_its_parts():
    second_monday = Calendar(
        minutes=frozenset([0]), hours=frozenset([2]), days=frozenset(range(8, 15)),
        months=frozenset(range(1, 13)), weekdays=frozenset([1]), years=frozenset([2027]),
    )  # fmt: skip
    hits = [
        each
        for each in (datetime(2027, 1, 1, 2, tzinfo=UTC) + number * DAY for number in range(400))
        if second_monday.fits(each)
    ]
    assert [(each.month, each.day) for each in hits[:3]] == [(1, 11), (2, 8), (3, 8)]
    assert len(hits) == 12
    assert second_monday.by_both_days
    assert not calendar().by_both_days


@pytest.mark.parametrize(
    "times",
    [
        ScheduleTimes(cron=("0 2 * * *",), timezone="Europe/Berlin"),
        ScheduleTimes(cron=("@daily", "0 2 * * * 2027")),
        ScheduleTimes(every=MINUTE),
        ScheduleTimes(every=6 * HOUR, offset=5 * HOUR),
    ],
)
def test_what_is_right_is_taken(times: ScheduleTimes):
    assert refusals(times) == ()


def test_all_that_is_wrong_is_said_at_once():
    times = ScheduleTimes(
        cron=("0 2 * * MON#2", "@every 5m"), offset=HOUR, timezone="Nowhere/Land"
    )
    assert [each.partition(":")[0] for each in refusals(times)] == [
        "cron '0 2 * * MON#2'", "cron '@every 5m'", "offset", "timezone",
    ]  # fmt: skip
