"""How long jobs run is learnt as a distribution, by which one that overruns has a new end."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longshore.models.durations import ExpectedFrom, Learnt
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.packing import PackingPolicy, QueueOrder
from longshore.models.units import LONGEST
from longshore.scheduling.cycle import plan, plan_cached
from longshore.scheduling.durations import (
    LEAST_RUNS,
    MOST_RUNS,
    PLANNED_PART,
    end_at,
    ends_of,
    expected_from,
    learn,
    says_learnt,
    shape_of,
    time_left,
    with_learnt,
)
from longshore.scheduling.placement.node_cache import NodeCache
from longshore.scheduling.preemption.costs import probable_end
from longshore.scheduling.rank import Service, rank
from tests.support.packing import NOW, a_job, a_node, running
from tests.support.preemption import RULES, a_work

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
NONE = timedelta(0)
BY_RANK = PackingPolicy(order=QueueOrder.ATTAINED_SERVICE)
SILENT: dict[str, Any] = {"duration_known": False, "can_stop": True}
RUNS = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=LEAST_RUNS, max_size=MOST_RUNS)
SPANS = st.floats(0, 1.2e6, allow_nan=False).map(lambda seconds: timedelta(seconds=seconds))


def of(runs: Sequence[float]) -> Learnt:
    learnt = learn(runs)
    assert learnt is not None
    return learnt


TEN = of([600] * 10 + [3600] * 8 + [36_000] * 2)
"""Half took ten minutes, one in ten ten hours."""


def test_below_twenty_runs_nothing_is_learnt():
    assert learn([60.0] * (LEAST_RUNS - 1)) is None
    assert of([60.0] * LEAST_RUNS).left(NONE) == MINUTE


def test_who_overruns_gets_a_new_end():
    assert TEN.left(NONE) == 10 * MINUTE
    assert TEN.left(9 * MINUTE) == MINUTE
    # Of those that ran longer eight in ten took an hour.
    assert TEN.left(10 * MINUTE) == 50 * MINUTE
    assert TEN.left(HOUR) == 9 * HOUR
    assert TEN.left(10 * HOUR) is None, "none has ever run for longer"
    assert (TEN.left(NONE, 0.25), TEN.left(NONE, 0.9)) == (10 * MINUTE, HOUR)


def test_many_runs_are_told_by_forty_points_of_their_distribution():
    learnt = of([float(seconds) for seconds in range(200, 0, -1)])
    assert (learnt.runs, len(learnt.seconds)) == (200, 40)
    assert (learnt.seconds[0], learnt.seconds[-1]) == (5, 200)
    assert learnt.left(NONE) == 100 * SECOND


@given(st.floats(0, 1e9, allow_nan=False))
def test_times_are_rounded_up_by_a_tenth_at_most(seconds: float):
    (rounded,) = set(of([seconds] * LEAST_RUNS).seconds)
    assert max(seconds, 1) <= rounded or rounded == LONGEST // SECOND
    assert rounded <= max(1.1 * seconds, seconds + 1)
    assert set(of([rounded] * LEAST_RUNS).seconds) == {rounded}


@given(RUNS, SPANS, SPANS, st.floats(0.01, 1))
def test_more_time_run_never_lowers_the_expected_total(
    runs: list[float], one: timedelta, other: timedelta, part: float
):
    learnt = of(runs)
    less, more = sorted((one, other))
    before, after = learnt.left(less, part), learnt.left(more, part)
    if before is None:
        assert after is None
    elif after is not None:
        assert before > NONE
        assert less + before <= more + after


@given(RUNS)
def test_a_larger_part_never_ends_sooner(runs: list[float]):
    lefts = [of(runs).left(NONE, part) for part in (0.1, 0.25, 0.5, 0.75, 0.9, 1)]
    assert all(left is not None for left in lefts)
    assert lefts == sorted(lefts, key=lambda left: left or NONE)


@given(RUNS, st.randoms())
def test_the_order_of_runs_says_nothing(runs: list[float], chance: Any):
    mixed = list(runs)
    chance.shuffle(mixed)
    assert of(mixed) == of(runs)


@given(RUNS, SPANS, SPANS)
def test_the_end_of_what_runs_is_that_of_what_is_left(
    runs: list[float], before: timedelta, since: timedelta
):
    """A plan has ends as moments, the rank as time left: both say the same."""
    learnt = of(runs)
    attained = timedelta(seconds=before // SECOND)
    ends = ends_of(learnt, NOW - since, attained)
    left = learnt.left(attained + since, PLANNED_PART)
    end = end_at(NOW - HOUR, ends, NOW)
    assert end == (NOW - HOUR if left is None else NOW + left)


def test_one_value_for_all_uses():
    known = a_job("known", expected_duration=2 * HOUR)
    unknown = a_job("unknown", **SILENT)
    learnt = with_learnt(unknown, TEN)
    assert [expected_from(each) for each in (known, learnt, unknown)] == list(ExpectedFrom)
    assert with_learnt(known, TEN) is known, "its user knows better"
    assert learnt.expected_duration == HOUR
    assert [time_left(each, HOUR) for each in (known, learnt, unknown)] == [HOUR, 9 * HOUR, None]
    assert time_left(known, 3 * HOUR) is None
    assert time_left(learnt, 11 * HOUR) is None


def test_earlier_attempts_count_and_what_was_taken_over_does_not():
    again = a_job("again", attempt=2, attained=HOUR, **SILENT)
    assert with_learnt(again, TEN).expected_duration == 9 * HOUR
    taken = TEN.model_copy(update={"taken_over": 3600})
    assert with_learnt(again, taken).expected_duration == HOUR
    # For its rank it does: who cuts a job into pieces is no newcomer with each.
    assert time_left(with_learnt(again, taken), HOUR) == 9 * HOUR


def test_an_attempt_is_planned_for_no_longer_than_it_may_run():
    limited = TEN.model_copy(update={"limit": 300})
    assert with_learnt(a_job("j", **SILENT), limited).expected_duration == 5 * MINUTE
    assert set(ends_of(limited, NOW, NONE)) == {NOW + 5 * MINUTE}


def test_a_job_that_can_be_stopped_ranks_by_the_least_of_what_it_had_and_what_is_left():
    job = with_learnt(a_job("j", **SILENT), TEN)

    def left(ran: timedelta, **changes: Any) -> float:
        had = Service(job.model_copy(update=changes), 1, ran, NONE, changes.get("can_stop", True))
        return 1 / rank(had, BY_RANK) - 600

    assert left(NONE) == pytest.approx(0)
    assert left(9 * MINUTE) == pytest.approx(60)
    assert left(30 * MINUTE) == pytest.approx(1800)
    assert left(20 * HOUR) == pytest.approx(72_000), "nobody knows any more"
    assert left(NONE, can_stop=False) == pytest.approx(3600)
    assert left(NONE, can_stop=False, learnt=None) == pytest.approx(9_400)


@given(RUNS, SPANS)
def test_what_is_learnt_never_lowers_the_rank_of_who_can_be_stopped(
    runs: list[float], ran: timedelta
):
    job = a_job("j", **SILENT)
    blind, knows = Service(job, 1, ran, NONE, True), Service(job, 1, ran, NONE, True)
    knows = knows._replace(request=with_learnt(job, of(runs)))
    assert rank(knows, BY_RANK) >= rank(blind, BY_RANK)


def test_a_start_is_kept_for_when_those_that_run_probably_end():
    """Two equal jobs have run for half an hour; of one nobody knows more than that."""
    busy = a_node("a", gpus=1, busy=[0])
    ends = ends_of(TEN, NOW - 30 * MINUTE, NONE)
    work = running("on-a", "a", (0,), ends_in=-20 * MINUTE, ends=ends, vram_per_gpu=80)
    waits = [a_job("waits", 1)]
    (decision,) = plan(waits, [busy], [work], PackingPolicy(), NOW).decisions
    assert decision.estimated_start == NOW + 30 * MINUTE
    # A cycle that keeps its nodes sees the new end without reading them again.
    kept = NodeCache()
    kept.update(["a"], [busy], [work])
    for minutes, starts in ((5, 30), (29, 30), (31, 570)):
        now = NOW + minutes * MINUTE
        (decision,) = plan_cached(waits, kept, PackingPolicy(), now).decisions
        assert decision.estimated_start == NOW + starts * MINUTE, minutes
        assert plan(waits, [busy], [work], PackingPolicy(), now).decisions == (decision,)


def test_what_has_run_for_longer_than_any_before_runs_on_for_as_long_as_it_has():
    job, expected = a_job("j", **SILENT), NOW + 7 * MINUTE
    work = a_work("j", {"a": (0,)}, ran=HOUR, request=job, expected_end=expected)
    assert probable_end(work, RULES, NOW, in_class=True) == NOW + HOUR
    learnt = work.model_copy(update={"request": with_learnt(job, TEN)})
    assert probable_end(learnt, RULES, NOW, in_class=True) == expected
    over = learnt.model_copy(update={"expected_end": NOW - MINUTE})
    assert probable_end(over, RULES, NOW, in_class=True) == NOW + HOUR


def test_shapes_tell_apart_what_may_run_differently_long():
    def shape(**fields: Any) -> str | None:
        return shape_of(JobSpec.model_validate({"name": "j", "command": "true", **fields}))

    assert shape(gpus=8, gpu_type="H100") == "8 x H100"
    assert shape(gpus=16, gang={"group_gpus": 8}) == "16 x GPU, 8 a group"
    assert shape(gpus=16, gang={}) == "16 x GPU"
    assert shape(gpus=4, malleable={"min": 2, "max": 8}) is None, "each size takes another time"


def test_it_is_told_in_words():
    assert says_learnt(TEN) == "learnt from 20 runs: 10m, 9 in 10 under 1h"


@pytest.mark.parametrize("seconds", [(), (2, 1), (0, 1), (1, 10**12)])
def test_what_is_no_distribution_is_refused(seconds: tuple[int, ...]):
    with pytest.raises(ValidationError):
        Learnt(runs=20, seconds=seconds)


def test_a_request_keeps_it_out_of_what_is_stored_with_the_rest():
    job = with_learnt(a_job("j", **SILENT), TEN)
    assert "learnt" not in job.model_dump_json()
    assert hash(job) == hash(JobRequest.model_validate(job.__dict__))
