"""Jobs of which nobody knows when they end: what waits behind them, and what runs beside."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.deadline import DeadlineOutlook
from longshore.models.placement import CyclePlan, RunningJob
from longshore.models.pool import PoolPacking
from longshore.models.score import ScorePolicy
from longshore.models.start_range import StartRange
from longshore.scheduling.cycle import plan, plan_cached
from longshore.scheduling.deadline import JobTimes, LikelyDuration, judge
from longshore.scheduling.durations import run_end, tail_of
from longshore.scheduling.placement.node_cache import NodeCache
from longshore.scheduling.placement.state import with_job, without_job
from longshore.scheduling.rank import GUARANTEED_AFTER
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node, running

MINUTE = timedelta(minutes=1)
LONG_AGO = NOW - GUARANTEED_AFTER
BALANCED = PoolPacking(score=ScorePolicy.model_validate({"profile": "balanced"}))


def unknown(name: str, gpus: int, *, ran: timedelta, limit: timedelta | None = None) -> RunningJob:
    """Return a job that has run for so long; an hour was assumed."""
    return running(
        name, "node-a", range(gpus), HOUR - ran, since=NOW - ran,
        latest=None if limit is None else NOW - ran + limit,
    )  # fmt: skip


def beside(held: RunningJob, narrow: int = 3) -> CyclePlan:
    queue = [a_job("wide", 8, submitted_at=NOW - HOUR, can_stop=False, duration_known=False)]
    queue += [a_job(f"narrow-{n}", 1, duration_known=False) for n in range(narrow)]
    return plan(queue, [a_node(busy=held.gpu_indices)], [held], BALANCED, NOW)


@pytest.mark.parametrize("ran", [2 * HOUR, 26 * HOUR, 72 * HOUR])
def test_what_nobody_knows_runs_as_long_again_and_others_fill_the_wait(ran: timedelta):
    wide, *narrow = beside(unknown("r", 1, ran=ran)).decisions
    assert wide.estimated_start == NOW + ran
    assert [each.node_id for each in narrow] == ["node-a"] * 3
    assert wide.start_range is not None
    assert wide.start_range.nobody_knows
    assert NOW < wide.start_range.earliest < NOW + ran / 4
    assert NOW + 4 * ran < wide.start_range.latest < NOW + 9 * ran


def test_a_time_limit_ends_it():
    wide, *narrow = beside(unknown("r", 1, ran=23 * HOUR, limit=24 * HOUR)).decisions
    assert wide.estimated_start == NOW + HOUR
    assert len([each for each in narrow if each.node_id]) == 3
    assert wide.start_range is not None
    # Most of what has run for 23 h runs on for more than the hour that is left.
    assert wide.start_range.earliest == wide.start_range.latest == NOW + HOUR
    assert wide.start_range.says(NOW) == "at 13:00 UTC"
    (wide, *_) = beside(unknown("r", 1, ran=23 * HOUR, limit=23.5 * HOUR)).decisions
    assert wide.estimated_start == NOW + HOUR / 2
    (wide, *_) = beside(unknown("r", 1, ran=23 * HOUR, limit=35 * HOUR)).decisions
    (free, *_) = beside(unknown("r", 1, ran=23 * HOUR)).decisions
    assert wide.start_range is not None
    assert free.start_range is not None
    assert wide.start_range.earliest == free.start_range.earliest
    assert wide.start_range.latest == NOW + 12 * HOUR


@given(
    st.integers(-300, 300), st.integers(0, 600), st.integers(0, 300),
    st.none() | st.integers(-60, 300), st.booleans(),
)  # fmt: skip
def test_an_end_is_never_past_and_never_moves_back(
    expected: int, ran: int, later: int, limit: int | None, known: bool
):
    since = None if known else NOW - ran * MINUTE
    latest = None if limit is None else NOW + limit * MINUTE
    ends = [
        run_end(NOW + expected * MINUTE, (), since, latest, now).at - now
        for now in (NOW, NOW + later * MINUTE)
    ]
    assert min(ends) > timedelta(0)
    assert ends[1] + later * MINUTE >= ends[0]


def test_half_of_such_jobs_end_by_the_end_that_is_told():
    found = tail_of(NOW + HOUR, NOW, None)
    assert sorted(found) == list(found)
    assert sum(each <= NOW + HOUR for each in found) == len(found) / 2
    assert set(tail_of(NOW + HOUR, NOW, NOW + MINUTE)) == {NOW + MINUTE}


def test_nodes_that_are_kept_say_the_same():
    held, queue = unknown("r", 8, ran=26 * HOUR), [a_job("next", 8)]
    cache, node = NodeCache(), a_node(busy=range(8))
    cache.update([node.id], [node], [held])
    for later in (timedelta(0), HOUR):
        expected = plan(queue, [node], [held], POLICY, NOW + later)
        assert plan_cached(queue, cache, POLICY, NOW + later) == expected


@pytest.mark.parametrize("compiled", [True, False])
def test_who_has_waited_long_keeps_what_comes_free(compiled: bool):
    """Others would fill it for ever: each of them may end before what nobody knows does."""
    held = unknown("r", 1, ran=26 * HOUR)
    since = LONG_AGO
    queue = [
        a_job("wide", 8, submitted_at=since, waits_since=since, duration_known=False),
        a_job("narrow", 1, duration_known=False),
    ]
    made = plan(queue, [a_node(busy=[0])], [held], BALANCED, NOW, compiled=compiled)
    assert made.placements == ()
    assert made.reservations[0].start == NOW + 26 * HOUR
    # One place at a time: else all that is free would be kept in overload.
    queue.insert(1, a_job("also", 8, submitted_at=since, waits_since=since, duration_known=False))
    nodes = [a_node(busy=[0]), a_node("node-b", busy=[0])]
    both = [held, running("s", "node-b", [0], -25 * HOUR, since=NOW - 26 * HOUR)]
    made = plan(queue, nodes, both, BALANCED, NOW, compiled=compiled)
    assert [each.job_id for each in made.placements] == ["narrow"]


@pytest.mark.parametrize("compiled", [True, False])
def test_what_others_may_have_until_then_is_not_kept(compiled: bool):
    """Of 64 cores 60 are held until then, and 62 wanted: two are for others."""
    held = unknown("r", 1, ran=26 * HOUR).model_copy(update={"cpus": 60.0, "ram": 1.0})
    node = a_node(busy=[0], cpus_used=60, ram_used=1)
    old = a_job("old", 1, cpus=62, ram=1, waits_since=LONG_AGO, duration_known=False)
    queue = [old, *(a_job(f"n-{n}", 1, cpus=1, ram=1, duration_known=False) for n in range(3))]
    made = plan(queue, [node], [held], BALANCED, NOW, compiled=compiled)
    assert [each.job_id for each in made.placements] == ["n-0", "n-1"]
    assert made.reservations[0].start == NOW + 26 * HOUR


def test_of_a_gpu_that_is_shared_others_have_what_is_left_beside_it():
    held = unknown("r", 1, ran=26 * HOUR).model_copy(
        update={"milli": 700, "vram_per_gpu": 8.0, "cpus": 1.0, "ram": 1.0}
    )
    part = {"vram_per_gpu": 8, "cpus": 1, "ram": 1, "duration_known": False}
    node = with_job(a_node(gpus=1), a_job("r", 1, milli=700, **part), (0,))
    queue = [a_job("old", 1, milli=800, waits_since=LONG_AGO, **part)]
    queue += [a_job(f"n-{n}", 1, milli=100, **part) for n in range(3)]
    made = plan(queue, [node], [held], BALANCED, NOW)
    assert made.reservations[0].job_id == "old"
    assert [each.job_id for each in made.placements] == ["n-0", "n-1"]


@pytest.mark.parametrize(("gpus", "cpus", "of_each"), [(8, 8, 1), (1, 60, 8), (1, 58, 4)])
@pytest.mark.parametrize("minutes", [20, 150])
def test_a_wide_job_starts_under_an_endless_stream_of_what_nobody_knows(
    minutes: int, gpus: int, cpus: int, of_each: int
):
    node, now, held = a_node(), NOW, list[RunningJob]()
    wide = a_job("wide", gpus, cpus=cpus, submitted_at=NOW + HOUR, duration_known=False)
    queue, number = [], 0
    while now < NOW + GUARANTEED_AFTER + 8 * HOUR:
        for one in [each for each in held if each.since and each.since + minutes * MINUTE <= now]:
            held.remove(one)
            node = without_job(node, one)
        if now == NOW + HOUR:
            queue = [wide]
        number += 1
        narrow = a_job(
            f"n{number}", 1, cpus=of_each, ram=1, submitted_at=now, duration_known=False
        )
        made = plan([*queue, narrow], [node], held, POLICY, now)
        for decision in made.placements:
            if decision.job_id == "wide":
                return
            node = with_job(node, narrow, decision.gpu_indices)
            held.append(
                RunningJob(
                    job_id=narrow.id, node_id=node.id, gpu_indices=decision.gpu_indices,
                    vram_per_gpu=narrow.vram_per_gpu, cpus=of_each, ram=1, expected_end=now + HOUR,
                    since=now,
                )
            )  # fmt: skip
        now += 10 * MINUTE
    pytest.fail("the wide job never started")


def test_a_deadline_behind_them_is_unknown_and_not_late():
    between = StartRange(earliest=NOW + 2 * HOUR, latest=NOW + 50 * HOUR, nobody_knows=True)
    duration = LikelyDuration(HOUR)
    found = judge(JobTimes(NOW + 2 * HOUR, duration, between), NOW)
    assert found.outlook is DeadlineOutlook.UNKNOWN
    assert found.says == (
        "it waits for a job of which nobody knows when it ends: it may start between 14:00 UTC "
        "and 2026-11-22 14:00 UTC; it has to start by 13:00 UTC"
    )
    sure = between.model_copy(update={"nobody_knows": False})
    assert judge(JobTimes(NOW + 2 * HOUR, duration, sure), NOW).outlook is DeadlineOutlook.LATE
    found = judge(JobTimes(NOW + HOUR / 2, duration, between), NOW)
    assert (found.outlook, found.late_by) == (DeadlineOutlook.LATE, HOUR / 2)
    ends = between.model_copy(update={"latest": NOW + 3 * HOUR})
    assert judge(JobTimes(NOW + 5 * HOUR, duration, ends), NOW).outlook is DeadlineOutlook.ON_TIME
