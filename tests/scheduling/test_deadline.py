"""How a job stands to its deadline, and what it costs to meet it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.buying import BuyingPolicy
from longshore.models.deadline import DeadlineOutlook
from longshore.models.durations import Learnt
from longshore.models.job import Tier
from longshore.models.preemption import Way, WayKind
from longshore.models.start_range import StartRange
from longshore.scheduling.deadline import (
    JobTimes,
    Known,
    LikelyDuration,
    judge,
    latest_start,
    start_by,
    what_it_costs,
)
from tests.support.packing import HOUR, NOW, a_job

MINUTE = timedelta(minutes=1)
ON_TIME, AT_RISK, LATE = DeadlineOutlook.ON_TIME, DeadlineOutlook.AT_RISK, DeadlineOutlook.LATE
UNKNOWN, MET, MISSED = DeadlineOutlook.UNKNOWN, DeadlineOutlook.MET, DeadlineOutlook.MISSED


def an_hour(**more: Any) -> LikelyDuration:
    return LikelyDuration(HOUR, **more)


def times(hours: float = 3, takes: LikelyDuration | None = None, **more: Any) -> JobTimes:
    return JobTimes(NOW + hours * HOUR, an_hour() if takes is None else takes, **more)


def starts(earliest: float, latest: float | None = None) -> StartRange:
    return StartRange(
        earliest=NOW + earliest * HOUR,
        latest=NOW + (earliest if latest is None else latest) * HOUR,
    )


@pytest.mark.parametrize(
    ("seen", "outlook", "says"),
    [
        (times(start=starts(2)), ON_TIME, "may start at 14:00 UTC; it has to start by 14:00 UTC"),
        (times(start=starts(-1)), ON_TIME, "may start now; it has to start by 14:00 UTC"),
        (
            times(start=starts(1, 2.5)),
            AT_RISK,
            "may start between 13:00 UTC and 14:30 UTC; it has to start by 14:00 UTC",
        ),
        (
            times(start=starts(1), takes=an_hour(most=2.5 * HOUR, known=Known.LEARNT)),
            AT_RISK,
            "may start at 13:00 UTC; it has to start by 14:00 UTC, and few like it took up to "
            "2h 30m",
        ),
        (
            times(start=starts(2.2)),
            LATE,
            "late by 12m: it may start at 14:12 UTC, and takes about 1h",
        ),
        (
            times(start=starts(2.5, 5), takes=an_hour(known=Known.LEARNT)),
            LATE,
            "late by at least 30m: it may start between 14:30 UTC and 17:00 UTC, and takes, as "
            "jobs like it did of late, about 1h",
        ),
        (times(0.5), LATE, "late by at least 30m: it has not started, and takes about 1h"),
        (
            times(1.5, begins_at=NOW + HOUR),
            LATE,
            "late by at least 30m: it begins at 13:00 UTC at the earliest, and takes about 1h",
        ),
        (times(-1), LATE, "late by at least 2h: it has not started, and takes about 1h"),
        (
            times(start=starts(1), start_kept=False),
            UNKNOWN,
            "no place is kept for it yet: it may start at 13:00 UTC; it has to start by 14:00 UTC",
        ),
        (
            times(start=starts(2.2, 4), start_kept=False),
            UNKNOWN,
            "no place is kept for it yet: it may start between 14:12 UTC and 16:00 UTC; it has to "
            "start by 14:00 UTC",
        ),
        (
            times(0.5, start=starts(2), start_kept=False),
            LATE,
            "late by at least 30m: it has not started, and takes about 1h",
        ),
        (times(), UNKNOWN, "nobody knows when it starts; it has to start by 14:00 UTC"),
        (
            times(begins_at=NOW + HOUR),
            UNKNOWN,
            "begins at 13:00 UTC, and what it finds then nobody knows; it has to start by 14:00 "
            "UTC",
        ),
        (
            times(start=starts(0), held=True),
            UNKNOWN,
            "it is held; it has to start by 14:00 UTC",
        ),
        (
            times(takes=LikelyDuration(), start=starts(0)),
            UNKNOWN,
            "nobody says how long it takes (`expected_duration`)",
        ),
        (
            times(takes=LikelyDuration(limit=2 * HOUR), start=starts(1.5)),
            UNKNOWN,
            "nobody says how long it takes (`expected_duration`); for all of its time limit it "
            "has to start by 13:00 UTC",
        ),
        (
            times(takes=LikelyDuration(limit=2 * HOUR), start=starts(1)),
            ON_TIME,
            "may start at 13:00 UTC; it has to start by 13:00 UTC",
        ),
        (
            times(takes=LikelyDuration(), start=starts(4)),
            LATE,
            "late by at least 1h: it may start at 16:00 UTC",
        ),
        (
            times(of_array=True, start=starts(0)),
            UNKNOWN,
            "nobody knows when the last of its elements ends",
        ),
        (
            times(0.5, of_array=True, started_at=NOW - HOUR),
            LATE,
            "late by at least 30m: an element has not started, and takes about 1h",
        ),
    ],
)
def test_a_job_that_waits(seen: JobTimes, outlook: DeadlineOutlook, says: str) -> None:
    found = judge(seen, NOW)
    assert (found.outlook, found.says) == (outlook, says)
    assert found.at == seen.deadline
    assert (found.late_by > timedelta(0)) is (outlook is LATE)


@pytest.mark.parametrize(
    ("seen", "outlook", "says"),
    [
        (times(started_at=NOW - HOUR / 2), ON_TIME, "it ends about 12:30 UTC"),
        (
            times(0.25, started_at=NOW - HOUR / 2),
            LATE,
            "late by 15m: it ends about 12:30 UTC",
        ),
        (
            times(started_at=NOW - 2 * HOUR),
            UNKNOWN,
            "nobody knows when it ends: it has run for longer than the 1h expected",
        ),
        (times(-0.5, started_at=NOW - 2 * HOUR), LATE, "late by at least 30m: it runs still"),
        (
            times(started_at=NOW - 2 * HOUR, takes=an_hour(limit=5 * HOUR)),
            ON_TIME,
            "it ends at 15:00 UTC at the latest",
        ),
        (
            times(started_at=NOW, takes=LikelyDuration()),
            UNKNOWN,
            "nobody says how long it takes (`expected_duration`)",
        ),
        (
            times(started_at=NOW, takes=an_hour(most=4 * HOUR)),
            AT_RISK,
            "it ends about 13:00 UTC, and few like it ran on for up to 4h",
        ),
        (times(ended_at=NOW, started_at=NOW - HOUR), MET, "ended 3h before it"),
        (times(-0.2, ended_at=NOW), MISSED, "missed by 12m"),
    ],
)
def test_a_job_that_runs_or_has_ended(seen: JobTimes, outlook: DeadlineOutlook, says: str) -> None:
    found = judge(seen, NOW)
    assert (found.outlook, found.says) == (outlook, says)
    assert found.latest_start is None


spans = st.integers(0, 10_000).map(lambda minutes: minutes * MINUTE)
maybe = st.none() | spans


@given(
    spans, maybe, maybe, maybe, st.none() | st.tuples(spans, spans), maybe, st.booleans(),
    st.booleans(), st.booleans(), st.integers(-5_000, 5_000),
)  # fmt: skip
def test_it_is_never_on_time_where_it_has_to_start_before_it_is_estimated_to(
    deadline: timedelta,
    likely: timedelta | None,
    more: timedelta | None,
    limit: timedelta | None,
    start: tuple[timedelta, timedelta] | None,
    begin: timedelta | None,
    kept: bool,
    held: bool,
    of_array: bool,
    since: int,
) -> None:
    estimated = start and StartRange(earliest=NOW + start[0], latest=NOW + start[0] + start[1])
    most = None if likely is None or more is None else likely + more
    seen = JobTimes(
        NOW + deadline, LikelyDuration(likely, most, limit), estimated,
        kept, None if begin is None else NOW + begin, held=held, of_array=of_array,
    )  # fmt: skip
    now = NOW + since * MINUTE
    found = judge(seen, now)
    if found.outlook in (ON_TIME, AT_RISK):
        assert estimated is not None
        assert kept
        assert found.latest_start is not None
        assert estimated.earliest <= found.latest_start
        assert seen.begins_at is None or seen.begins_at <= found.latest_start
        assert now <= found.latest_start
    if found.outlook is ON_TIME:
        assert estimated is not None
        assert found.latest_start is not None
        assert estimated.latest <= found.latest_start
    assert (found.outlook is LATE) is bool(found.late_by)
    # Who starts later is never better off.
    if estimated is not None and found.outlook is LATE:
        later = StartRange(earliest=estimated.earliest + HOUR, latest=estimated.latest + HOUR)
        assert judge(replace(seen, start=later), now).late_by >= found.late_by
    assert judge(seen, now) == found


def test_the_latest_start_is_in_the_calendar() -> None:
    first = datetime.min.replace(tzinfo=UTC)
    assert latest_start(first + HOUR, 2 * HOUR) == first
    assert latest_start(NOW, HOUR) == NOW - HOUR
    far = datetime.max.replace(tzinfo=UTC)
    assert judge(times(start=StartRange.at(far)), NOW).outlook is LATE


def way(kind: WayKind, cost: float, hours: float | None, title: str = "") -> Way:
    start = None if hours is None else NOW + hours * HOUR
    return Way(kind=kind, title=title or kind.value, start=start, cost=round(cost * 1e6))


def test_the_cheapest_way_that_is_soon_enough_is_the_remedy() -> None:
    judgment = judge(times(start=starts(4)), NOW)
    ways = [
        way(WayKind.WAIT, 0, 4),
        way(WayKind.PREEMPT, 20.1, 0.1, "stop sweep"),
        way(WayKind.BUY, 16, 1, "buy 1 x 8xH100"),
    ]
    found = what_it_costs(judgment, ways, an_hour())
    assert found.remedy is not None
    assert (found.remedy.kind, found.remedy.cost_micro_usd) == (WayKind.BUY, 16_000_000)
    assert found.says == "buy 1 x 8xH100 meets it, for $16.00; stop sweep costs $20.10"
    late = what_it_costs(judgment, [*ways[:2], way(WayKind.BUY, 16, 2.5)], an_hour())
    assert late.remedy is not None
    assert late.remedy.title == "stop sweep"
    assert [each.meets for each in late.ways] == [True, False]


def test_where_nothing_is_soon_enough_the_least_late_is_told() -> None:
    judgment = judge(times(start=starts(4)), NOW)
    ways = [
        way(WayKind.PREEMPT, 1, None, "stop sweep"),
        way(WayKind.BUY, 16, 2.5, "buy one"),
    ]
    found = what_it_costs(judgment, ways, an_hour())
    assert found.remedy is None
    assert found.says == (
        "nothing that is known meets it: buy one costs $16.00, and that is late by 30m all the "
        "same"
    )
    none = what_it_costs(judgment, [way(WayKind.WAIT, 0, 4)], an_hour())
    assert none.says.startswith("nothing is known that has it start sooner")


def test_a_deadline_makes_nobody_wait_longer_than_the_policy() -> None:
    policy = BuyingPolicy(flex_deadline=24 * HOUR)
    flex = a_job("flex", tier=Tier.FLEX, expected_duration=2 * HOUR, submitted_at=NOW)
    takes = LikelyDuration(2 * HOUR)
    assert start_by(flex, None, takes, policy, NOW) is None
    assert start_by(flex, NOW + 12 * HOUR, takes, policy, NOW) == NOW + 10 * HOUR
    assert start_by(flex, NOW + 48 * HOUR, takes, policy, NOW) is None
    fast = a_job("fast", tier=Tier.FAST, expected_duration=2 * HOUR, submitted_at=NOW)
    assert start_by(fast, NOW + 12 * HOUR, takes, policy, NOW) is None


LEARNT = Learnt(runs=40, seconds=(*[600] * 21, *[36_000] * 19))


@pytest.mark.parametrize(
    "takes",
    [
        LikelyDuration.of(2 * HOUR, None, LEARNT),
        LikelyDuration.of(None, 8 * HOUR, None),
        LikelyDuration.of(None, None, LEARNT),
        LikelyDuration.of(None, None, None),
    ],
    ids=["stated", "limited", "learnt", "unknown"],
)
def test_what_is_bought_for_it_is_to_be_there_by_the_latest_start_that_is_told(
    takes: LikelyDuration,
) -> None:
    flex = a_job("flex", tier=Tier.FLEX, expected_duration=3 * HOUR, submitted_at=NOW)
    deadline = NOW + 12 * HOUR
    told = judge(JobTimes(deadline, takes), NOW).latest_start
    planned = deadline - 3 * HOUR  # of one of which nobody knows how long it takes
    policy = BuyingPolicy(flex_deadline=24 * HOUR)
    assert start_by(flex, deadline, takes, policy, NOW) == (told or planned)


@pytest.mark.parametrize(
    ("ran", "hours", "outlook", "says"),
    [
        (5 * MINUTE, 2, AT_RISK, "it ends about 12:05 UTC, and few like it ran on for up to 10h"),
        (12 * MINUTE, 2, LATE, "late by 7h 48m: it ends about 21:48 UTC"),
        (12 * MINUTE, 30, ON_TIME, "it ends about 21:48 UTC"),
        (11 * HOUR, 2, UNKNOWN, "it has run for longer than the 10m expected"),
    ],
)
def test_of_one_that_overran_those_count_that_ran_for_longer(
    ran: timedelta, hours: float, outlook: DeadlineOutlook, says: str
) -> None:
    takes = LikelyDuration.of(None, None, LEARNT)
    judged = judge(times(hours, takes, started_at=NOW - ran), NOW)
    assert (judged.outlook, says in judged.says) == (outlook, True), judged.says
