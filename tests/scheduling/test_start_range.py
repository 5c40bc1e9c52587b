"""Between when and when a kept start comes: the last of those in the way to end."""

import random
from datetime import datetime, timedelta
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.durations import Learnt
from longshore.models.job_request import JobRequest
from longshore.models.placement import RunningJob
from longshore.scheduling.cycle import plan
from longshore.scheduling.durations import ends_of, with_learnt
from longshore.scheduling.placement.state import with_job
from longshore.scheduling.start_range import Ends, StartRange, when
from tests.support.gangs import a_gang, in_domain
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node

MINUTE = timedelta(minutes=1)
TEN = tuple(minutes * 60 for minutes in range(10, 101, 10))
"""Ten to a hundred minutes."""


def in_minutes(*minutes: int) -> tuple[datetime, ...]:
    return tuple(NOW + each * MINUTE for each in minutes)


def running(name: str, gpu: int, learnt: Learnt | None, ends_in: timedelta) -> RunningJob:
    return RunningJob(
        job_id=name, node_id="a", gpu_indices=(gpu,), vram_per_gpu=40, cpus=8, ram=64,
        expected_end=NOW + ends_in, ends=ends_of(learnt, NOW, timedelta(0)),
    )  # fmt: skip


def learnt_of(*seconds: int) -> Learnt:
    return Learnt(runs=len(seconds) * 4, seconds=seconds)


def range_of(start: datetime, blockers: list[Ends], now: datetime) -> StartRange | None:
    return when(start, blockers, HOUR, None, timedelta(0), now)[0]


def test_of_one_in_the_way_it_is_its_deciles() -> None:
    found = range_of(NOW + HOUR, [(NOW + HOUR, in_minutes(*range(10, 101, 10)))], NOW)
    assert found is not None
    assert (found.earliest, found.latest) == in_minutes(10, 90)


def test_where_nobody_has_a_spread_one_moment_is_told() -> None:
    assert range_of(NOW + HOUR, [(NOW + HOUR, ()), (NOW, in_minutes(5))], NOW) is None
    assert range_of(NOW + HOUR, [], NOW) is None


def test_who_has_outrun_all_before_it_is_as_planned() -> None:
    over = in_minutes(-20, -10)
    assert range_of(NOW + HOUR, [(NOW + HOUR, over)], NOW) is None
    found = range_of(NOW + HOUR, [(NOW + HOUR, over), (NOW, in_minutes(10, 20))], NOW)
    assert found is not None
    assert (found.earliest, found.latest) == (NOW + HOUR, NOW + HOUR)


@given(
    st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=5), min_size=1, max_size=4),
    st.integers(1, 120),
)
def test_it_is_what_all_combinations_of_ends_give(jobs: list[list[int]], planned: int) -> None:
    start = NOW + planned * MINUTE
    found = range_of(start, [(NOW, in_minutes(*sorted(ends))) for ends in jobs], NOW)
    if all(len(ends) == 1 for ends in jobs):
        assert found is None
        return
    last = sorted(max(ends) for ends in product(*jobs))
    early, late = (
        next(at for at in last if sum(other <= at for other in last) >= part * len(last) - 1e-6)
        for part in (0.1, 0.9)
    )
    assert found is not None
    assert found.earliest == min(NOW + early * MINUTE, start)
    assert found.latest == max(NOW + late * MINUTE, start)


def test_a_plan_tells_it_and_of_a_second_in_line_the_time_of_the_first_counts() -> None:
    learnt = learnt_of(*TEN)
    node = a_node("a", gpus=1)
    at_work = running("old", 0, learnt, HOUR)
    node = with_job(node, a_job("old", 1), (0,))
    first, second = (
        with_learnt(
            a_job(name, 1, duration_known=False, submitted_at=NOW + timedelta(seconds=at)), learnt
        )
        for at, name in enumerate(("first", "second"))
    )
    made = plan([first, second], [node], [at_work], POLICY, NOW)
    one, other = (each.start_range for each in made.decisions)
    assert one is not None
    assert (one.earliest, one.latest) == in_minutes(10, 90)
    assert made.decisions[0].estimated_start == NOW + 80 * MINUTE
    assert made.decisions[1].estimated_start == NOW + 160 * MINUTE
    assert other is not None
    # Of 100 combinations of two ends of ten each one in ten is at most 50 min, and nine at most
    # 160; a few points stand for all of them.
    assert abs((other.earliest - NOW) / MINUTE - 50) <= 10
    assert abs((other.latest - NOW) / MINUTE - 160) <= 10


def test_a_job_that_the_same_plan_places_counts_with_what_is_learnt_of_it() -> None:
    learnt = learnt_of(*TEN)
    placed = with_learnt(a_job("placed", 1, duration_known=False, priority=6), learnt)
    made = plan([placed, a_job("next", 1)], [a_node("a", gpus=1)], [], POLICY, NOW)
    found = made.decisions[1].start_range
    assert found is not None
    assert (found.earliest, found.latest) == in_minutes(10, 90)


def test_a_gang_waits_for_the_last_of_all_its_nodes() -> None:
    nodes = [in_domain("d", name) for name in ("n1", "n2")]
    shares: list[RunningJob] = []
    for number, node in enumerate(nodes):
        old = a_job(f"old-{number}", 8)
        nodes[number] = with_job(node, old, tuple(range(8)))
        share = running(old.id, 0, learnt_of(*TEN), HOUR)
        every = {"node_id": node.id, "gpu_indices": tuple(range(8))}
        shares.append(share.model_copy(update=every))
    (decision,) = plan([a_gang(16)], nodes, shares, POLICY, NOW).decisions
    assert decision.start_range is not None
    # Of a hundred pairs nine end within half an hour, and 81 within an hour and a half.
    assert decision.start_range.earliest == NOW + 40 * MINUTE
    assert decision.start_range.latest == NOW + 100 * MINUTE


def test_plans_are_the_same_whatever_is_learnt_of_ranges() -> None:
    chance = random.Random(7)
    node = a_node("a", gpus=8)
    at_work: list[RunningJob] = []
    for gpu in range(8):
        at_work.append(running(f"old-{gpu}", gpu, learnt_of(*TEN), HOUR))
        node = with_job(node, a_job(f"old-{gpu}", 1), (gpu,))
    queue = [a_job(f"j{n}", chance.choice([1, 2, 4])) for n in range(12)]
    for compiled in (False, True):
        with_ranges = plan(queue, [node], at_work, POLICY, NOW, compiled=compiled)
        planned = [
            job.model_copy(update={"ends": (), "expected_end": NOW + 80 * MINUTE})
            for job in at_work
        ]
        without = plan(queue, [node], planned, POLICY, NOW, compiled=compiled)
        assert with_ranges.reservations == without.reservations
        assert any(each.start_range for each in with_ranges.decisions)
        assert not any(each.start_range for each in without.decisions)


def test_an_own_time_that_is_not_known_as_more_than_one_has_no_ends() -> None:
    job: JobRequest = a_job("j", 1)
    blockers = [(NOW + HOUR, ())]
    args = (job.expected_duration, None, timedelta(0), NOW)
    assert when(NOW + HOUR, blockers, *args) == (None, ())
    spread = [(NOW + HOUR, in_minutes(30, 60))]
    _, ends = when(NOW + HOUR, spread, *args)
    assert set(ends) == set(in_minutes(90, 120))
