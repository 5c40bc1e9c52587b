"""Who leaves a node when: before its end, for a drain, at a notice."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.departures import Cause, Leaving, Margins, Occupant
from longshore.models.placement import PlacementKey
from longshore.scheduling.departures import all_gone_by, needs_a_look, plan_departures

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
MARGINS = Margins(end=30 * SECOND, publish=MINUTE)


def a_job(
    name: str = "job", *, grace: timedelta = 10 * SECOND, saves: bool = False,
    lasts: timedelta = 100 * HOUR, replica: bool = False,
) -> Occupant:  # fmt: skip
    key = PlacementKey(job_id=name, attempt=1)
    return Occupant(key=key, grace=grace, saves=saves, expected_end=NOW + lasts, replica=replica)


def drain(**how: object) -> Leaving:
    return Leaving.model_validate({"cause": Cause.DRAIN, "reason": "new disk", **how})


def expiry(left: timedelta) -> Leaving:
    return Leaving(cause=Cause.EXPIRY, reason="its node ends", by=NOW + left)


def notice(left: timedelta) -> Leaving:
    return Leaving(cause=Cause.NOTICE, reason="spot", by=NOW + left)


def leave(*jobs: Occupant, by: Leaving) -> list[str]:
    plan = plan_departures(jobs, [by], MARGINS, NOW)
    return [departure.key.job_id for departure in plan.departures]


def test_a_drain_sends_those_that_can_save_and_lets_the_others_finish() -> None:
    jobs = (a_job("saves", saves=True), a_job("cannot"))
    plan = plan_departures(jobs, [drain()], MARGINS, NOW)
    assert [each.key.job_id for each in plan.departures] == ["saves"]
    assert plan.departures[0].reason == plan.cordon == "new disk"
    assert plan.next_look is None


@pytest.mark.parametrize("end", [expiry(10 * SECOND), notice(HOUR)], ids=["end", "notice"])
def test_what_nobody_can_undo_is_why_a_node_takes_no_jobs_and_not_a_drain(end: Leaving) -> None:
    for leavings in ([drain(), end], [end, drain()]):
        assert plan_departures([], leavings, MARGINS, NOW).cordon == end.reason
    still_far = plan_departures([], [drain(), expiry(HOUR)], MARGINS, NOW)
    assert still_far.cordon == "new disk"


def test_a_drain_now_sends_all() -> None:
    assert leave(a_job("a", saves=True), a_job("b"), by=drain(at_once=True)) == ["a", "b"]


def test_a_deadline_lets_all_stay_until_they_have_to_go() -> None:
    jobs = (a_job("saves", saves=True, grace=2 * MINUTE), a_job("cannot", grace=10 * SECOND))
    plan = plan_departures(jobs, [drain(by=NOW + 10 * MINUTE)], MARGINS, NOW)
    assert plan.departures == ()
    assert plan.cordon == "new disk"
    assert plan.next_look == NOW + 7 * MINUTE  # 2 min to save and 1 to publish before the 10
    assert leave(*jobs, by=drain(by=NOW + 3 * MINUTE)) == ["saves"]
    assert leave(*jobs, by=drain(by=NOW + 10 * SECOND)) == ["saves", "cannot"]


def test_a_replica_stays_for_half_of_a_deadline_so_that_another_gets_ready() -> None:
    replica, job = a_job("replica", grace=MINUTE, replica=True), a_job("job", grace=MINUTE)

    def asked(by: Leaving, now: datetime = NOW, since: datetime | None = NOW) -> list[str]:
        found = plan_departures((replica, job), [by], MARGINS, now, since)
        return [each.key.job_id for each in found.departures]

    soon = drain(by=NOW + MINUTE)
    assert asked(soon) == ["job"]
    assert plan_departures((replica,), [soon], MARGINS, NOW, NOW).next_look == NOW + 30 * SECOND
    assert asked(soon, NOW + 30 * SECOND) == ["replica", "job"]
    assert asked(soon, since=None) == ["replica", "job"]
    assert asked(drain(at_once=True)) == ["replica", "job"]
    assert asked(drain(by=NOW - HOUR)) == ["replica", "job"]
    later = drain(by=NOW + 10 * MINUTE)
    assert asked(later, NOW + 9 * MINUTE) == ["replica", "job"]
    assert asked(later, NOW + 9 * MINUTE - SECOND) == []
    # The end of a node is another thing: there is nothing afterwards.
    assert asked(expiry(MINUTE)) == ["replica", "job"]


def test_before_its_end_a_node_is_left_by_those_that_cannot_finish() -> None:
    slow = a_job("slow", saves=True, grace=2 * MINUTE)
    quick = a_job("quick", lasts=MINUTE)
    lead = 2 * MINUTE + MINUTE + 30 * SECOND
    early = plan_departures((slow, quick), [expiry(lead + SECOND)], MARGINS, NOW)
    assert (early.departures, early.cordon) == ((), "")
    assert early.next_look == NOW + SECOND
    due = plan_departures((slow, quick), [expiry(lead)], MARGINS, NOW)
    assert [each.key.job_id for each in due.departures] == ["slow"]
    assert due.cordon == "its node ends"
    assert due.next_look == NOW + lead - 40 * SECOND  # the last moment of the quick one


def test_one_that_should_have_finished_leaves_at_the_last_moment() -> None:
    late = a_job("late", lasts=-MINUTE)
    assert leave(late, by=expiry(41 * SECOND)) == []
    assert leave(late, by=expiry(40 * SECOND)) == ["late"]


def test_looks_at_a_node_that_takes_jobs_come_closer() -> None:
    looks, now = 0, NOW
    end = expiry(24 * HOUR)
    while not (plan := plan_departures((), [end], MARGINS, now)).cordon:
        assert plan.next_look is not None
        assert now < plan.next_look <= NOW + 24 * HOUR - MARGINS.end
        now, looks = plan.next_look, looks + 1
    assert looks < 20
    assert plan.next_look is None


def test_at_a_notice_all_leave_at_once_but_those_that_finish() -> None:
    jobs = (a_job("long"), a_job("short", lasts=MINUTE))
    assert leave(*jobs, by=notice(2 * MINUTE)) == ["long"]
    assert leave(*jobs, by=notice(MINUTE)) == ["long", "short"]


def test_what_is_still_there_at_the_end_is_killed() -> None:
    job = a_job()
    assert plan_departures((job,), [expiry(16 * SECOND)], MARGINS, NOW).overdue == ()
    plan = plan_departures((job,), [expiry(15 * SECOND)], MARGINS, NOW)
    assert plan.overdue == (job.key,)
    assert plan.next_look == NOW + 5 * SECOND
    gone = plan_departures((job,), [expiry(-31 * SECOND)], MARGINS, NOW)
    assert gone.next_look is None
    assert plan_departures((job,), [drain(by=NOW - HOUR)], MARGINS, NOW).overdue == ()


def test_the_earliest_of_several_reasons_counts() -> None:
    job = a_job(saves=True)
    plan = plan_departures((job,), [expiry(HOUR), drain()], MARGINS, NOW)
    assert [each.reason for each in plan.departures] == ["new disk"]
    assert plan_departures((job,), [], MARGINS, NOW).cordon == ""


jobs = st.builds(
    lambda number, grace, saves, lasts: a_job(
        f"job-{number}", grace=grace, saves=saves, lasts=lasts
    ),
    st.integers(0, 10**6),
    st.timedeltas(timedelta(0), timedelta.max / 2),
    st.booleans(),
    st.timedeltas(-HOUR, 100 * HOUR),
)
leavings = st.builds(
    lambda cause, left, at_once: Leaving(
        cause=cause, reason="why", by=NOW + left, at_once=at_once
    ),
    st.sampled_from(Cause),
    st.timedeltas(-HOUR, 50 * HOUR),
    st.booleans(),
)


@given(st.lists(jobs, max_size=5), st.lists(leavings, max_size=3))
def test_whoever_stays_can_still_leave_in_time(there: list[Occupant], why: list[Leaving]) -> None:
    plan = plan_departures(there, why, MARGINS, NOW)
    leaving = {each.key.job_id for each in plan.departures}
    for job in there:
        for each in why:
            assert each.by is not None
            needs = min(job.grace, timedelta(days=365))
            if each.by - NOW < needs + (MARGINS.end if each.hard else timedelta(0)):
                assert job.key.job_id in leaving
    if plan.next_look is not None:
        assert plan.next_look > NOW
    if leaving != {job.key.job_id for job in there} and why:
        assert plan.next_look is not None


@pytest.mark.parametrize("left", [timedelta(0), SECOND, HOUR])
def test_a_node_without_jobs_has_nobody_to_send(left: timedelta) -> None:
    plan = plan_departures((), [expiry(left)], MARGINS, NOW)
    assert (plan.departures, plan.overdue) == ((), ())


def test_a_block_waits_for_the_slowest_of_its_jobs_and_for_none_where_none_runs() -> None:
    quick, slow = a_job("quick", grace=SECOND), a_job("slow", grace=10 * SECOND, saves=True)
    assert all_gone_by([], MARGINS, NOW) is None
    assert all_gone_by([quick], MARGINS, NOW) == NOW + SECOND + MARGINS.end
    assert all_gone_by([quick, slow], MARGINS, NOW) == (
        NOW + 10 * SECOND + MARGINS.publish + MARGINS.end
    )
    endless = a_job("endless", grace=timedelta.max)
    assert all_gone_by([endless], MARGINS, NOW) is not None


def test_who_needs_longer_than_half_of_the_time_left_asks_for_a_look():
    ends = NOW + timedelta(hours=1)
    for grace, looks in ((10, False), (25, False), (31, True), (90, True)):
        assert needs_a_look(timedelta(minutes=grace), False, ends, MARGINS, NOW) is looks
    assert needs_a_look(timedelta.max, True, NOW + timedelta(days=9), MARGINS, NOW)
    assert not needs_a_look(timedelta(seconds=1), False, NOW + timedelta(days=9), MARGINS, NOW)
