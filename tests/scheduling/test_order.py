"""The order of a queue: class, then submission; and classes that rise with the wait."""

import itertools
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job_request import JobRequest
from longshore.models.packing import PackingPolicy, ScoreWeights
from longshore.models.placement import PlacementKind
from longshore.scheduling.cycle import foresee, plan, plan_cached
from longshore.scheduling.order import before, by_age, counted_as, queue_order
from longshore.scheduling.placement.node_cache import NodeCache
from longshore.scheduling.preemption.plan import plan_preemptions
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node, running
from tests.support.preemption import RULES, a_work, nodes_with, saved

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
NEVER = PackingPolicy(class_rises_every=timedelta(0))
PATHS = PackingPolicy(weights=ScoreWeights(critical_path=2))


def names(queue: list[JobRequest], policy: PackingPolicy = POLICY) -> list[str]:
    return [job.id for job in queue_order(queue, policy, NOW)]


def waiting(name: str, priority: int, days: float) -> JobRequest:
    return a_job(name, 8, priority=priority, submitted_at=NOW - days * DAY)


def test_the_order_is_class_then_time_then_id() -> None:
    queue = [
        a_job("late", submitted_at=NOW + MINUTE),
        a_job("b"),
        a_job("a"),
        a_job("urgent", priority=9, submitted_at=NOW + HOUR),
        a_job("undated", submitted_at=None),
    ]
    assert names(queue) == ["urgent", "a", "b", "late", "undated"]


@pytest.mark.parametrize(
    ("priority", "days", "counts"),
    [(4, 0, 4), (4, 29.99, 4), (4, 30, 5), (4, 59.9, 5), (4, 60, 6), (0, 299, 9), (0, 300, 10),
     (0, 3000, 10), (10, 90, 10), (9, 90, 10)],
)  # fmt: skip
def test_each_thirty_days_count_as_a_class_and_no_class_is_above_the_highest(
    priority: int, days: float, counts: int
) -> None:
    assert counted_as(waiting("job", priority, days), POLICY, NOW) == counts
    assert counted_as(waiting("job", priority, days), NEVER, NOW) == priority


def test_a_job_of_class_4_that_is_30_days_old_goes_before_a_new_one_of_class_5() -> None:
    queue = [waiting("new", 5, 0), waiting("old", 4, 30)]
    assert names(queue) == ["old", "new"]
    assert names(queue, NEVER) == ["new", "old"]
    made = plan(queue, [a_node()], [], POLICY, NOW)
    assert [decision.job_id for decision in made.placements] == ["old"]
    assert [decision.counted_as for decision in made.decisions] == [5, None]


def test_it_goes_behind_one_of_that_class_which_is_older() -> None:
    assert names([waiting("old", 4, 31), waiting("older", 5, 32)]) == ["older", "old"]


def test_what_counts_is_the_wait_and_not_the_age() -> None:
    """One that ran for a month and was preempted has waited since then."""
    back = a_job("back", 8, priority=4, submitted_at=NOW - 40 * DAY, waits_since=NOW - MINUTE)
    assert names([back, waiting("new", 5, 0)]) == ["new", "back"]
    # Within its class it has kept its place.
    assert names([waiting("younger", 4, 20), back]) == ["back", "younger"]


def test_the_first_start_that_is_kept_is_that_of_the_job_that_has_risen() -> None:
    at_work = [running("w", "node-a", range(8), HOUR)]
    queue = [waiting("new", 5, 0), waiting("old", 4, 30)]
    busy = [a_node(busy=range(8))]
    old, new = plan(queue, busy, at_work, POLICY, NOW).decisions
    assert (old.job_id, old.estimated_start) == ("old", NOW + HOUR)
    assert (new.job_id, new.estimated_start) == ("new", NOW + 2 * HOUR)
    new, old = plan(queue, busy, at_work, NEVER, NOW).decisions
    assert (new.estimated_start, old.estimated_start) == (NOW + HOUR, NOW + 2 * HOUR)


@pytest.mark.parametrize("compiled", [False, True])
def test_every_way_to_plan_says_the_same_of_what_a_job_counted_as(compiled: bool) -> None:
    queue = [waiting("new", 5, 0), waiting("old", 4, 30), waiting("second", 5, 1)]
    made = plan(queue, [a_node()], [], POLICY, NOW, compiled=compiled)
    counted = {decision.job_id: decision.counted_as for decision in made.decisions}
    assert counted == {"old": 5, "second": None, "new": None}
    kept = NodeCache()
    kept.update(["node-a"], [a_node()], [])
    assert plan_cached(queue, kept, POLICY, NOW, compiled=compiled) == made
    seen = foresee(queue[1], [queue[0]], [a_node()], [], POLICY, NOW)
    assert (seen.decision.kind, seen.decision.counted_as) == (PlacementKind.EXISTING_NODE, 5)


def jobs_up_to(highest: int) -> st.SearchStrategy[JobRequest]:
    days = st.floats(0, 149) | st.sampled_from([0, 30, 60])
    return st.builds(
        lambda number, priority, days, since, path: a_job(
            f"job-{number}", priority=priority, submitted_at=NOW - days * DAY,
            waits_since=None if since is None else NOW - min(since, days) * DAY,
            path_behind=path,
        ),
        st.integers(0, 99), st.integers(0, highest), days, st.none() | st.floats(0, 149),
        st.floats(0, 1) | st.sampled_from([0, 1]),
    )  # fmt: skip


def queues(jobs: st.SearchStrategy[JobRequest]) -> st.SearchStrategy[list[JobRequest]]:
    return st.lists(jobs, max_size=12, unique_by=lambda job: job.id)


@given(queues(jobs_up_to(5)), st.sampled_from([NEVER, POLICY]))
def test_nobody_goes_behind_a_younger_job_of_its_class_or_of_a_lower_one_that_waits_no_longer(
    queue: list[JobRequest], policy: PackingPolicy
) -> None:
    ordered = queue_order(queue, policy, NOW)
    assert queue_order(list(reversed(queue)), policy, NOW) == ordered
    for place, job in enumerate(ordered):
        for first in ordered[:place]:
            risen = _waits_since(first) < _waits_since(job) and policy is POLICY
            older = (first.submitted_at or NOW) <= (job.submitted_at or NOW)
            assert (
                first.priority > job.priority
                or risen
                or (first.priority == job.priority and older)
            )


@given(queues(jobs_up_to(10)), st.sampled_from([NEVER, POLICY, PATHS]))
def test_those_before_a_job_can_be_counted_without_the_order(
    queue: list[JobRequest], policy: PackingPolicy
) -> None:
    for place, job in enumerate(queue_order(queue, policy, NOW)):
        classes = {each.priority: each for each in before(job, policy, NOW)}
        ahead = 0
        for other in queue:
            at, since = classes[other.priority], _waits_since(other)
            more = at.more is not None and since <= at.more
            level = at.as_much is not None and since <= at.as_much
            ahead += more or (level and by_age(other, policy) < by_age(job, policy))
        assert ahead == place


def test_the_path_behind_a_job_counts_as_waiting_within_its_class() -> None:
    """With 2 hours for the whole path, a job with three quarters behind it goes before those that
    came up to an hour and a half sooner; of another class it overtakes nobody."""
    path = a_job("path", submitted_at=NOW, path_behind=0.75)
    sooner = a_job("sooner", submitted_at=NOW - 89 * MINUTE)
    soonest = a_job("soonest", submitted_at=NOW - 91 * MINUTE)
    higher = a_job("higher", submitted_at=NOW + HOUR, priority=6)
    queue = [sooner, path, soonest, higher]
    assert names(queue, PATHS) == ["higher", "soonest", "path", "sooner"]
    assert names(queue) == ["higher", "soonest", "sooner", "path"], "by default it counts nothing"
    made = plan([each.model_copy(update={"gpus": 8}) for each in queue[:2]], [a_node()], [], PATHS,
                NOW)  # fmt: skip
    assert [decision.job_id for decision in made.placements] == ["path"]


@given(queues(jobs_up_to(0)))
def test_a_weight_moves_nobody_by_more_than_it_says(queue: list[JobRequest]) -> None:
    weighed = [job.model_copy(update={"waits_since": NOW}) for job in queue]
    ordered = queue_order(weighed, PATHS, NOW)
    for first, second in itertools.combinations(ordered, 2):
        overtaken = (first.submitted_at or NOW) - (second.submitted_at or NOW)
        assert overtaken <= 2 * HOUR * first.path_behind + timedelta(milliseconds=1)


def _waits_since(job: JobRequest) -> datetime:
    return job.waits_since or job.submitted_at or NOW


def test_a_stream_of_higher_classes_holds_a_job_up_for_a_month_a_class_and_no_longer() -> None:
    """A new job of class 5 each hour, and one node that runs one of them an hour: class 3 comes
    through after two months, to the hour; without the rise never."""
    low = a_job("low", 8, priority=3, submitted_at=NOW)
    for policy, comes in ((POLICY, timedelta(days=60)), (NEVER, None)):
        started = None
        for hour in range(0, 61 * 24, 8):
            now = NOW + hour * HOUR
            new = a_job("new", 8, priority=5, submitted_at=now)
            (first, *_) = plan([low, new], [a_node()], [], policy, now).placements
            if first.job_id == "low":
                started = now - NOW
                break
        assert started == comes


def test_a_risen_job_stops_nobody_of_its_own_class() -> None:
    work = a_work("at-work", {"node-a": range(8)}, priority=4, checkpoint=saved(MINUTE))
    busy = nodes_with([work], [a_node()])
    (made,) = plan_preemptions([waiting("old", 4, 90)], busy, [work], RULES, POLICY, NOW)
    assert not made.preempts
    assert "1 not of a lower class" in made.reason


def test_a_start_that_is_kept_for_a_risen_job_is_not_taken_by_a_stop_for_one_behind_it() -> None:
    """One of class 5 could stop the job that runs, and would then be in the way of the risen."""
    work = a_work(
        "at-work", {"node-a": range(8)}, priority=4, left=3 * HOUR, checkpoint=saved(MINUTE)
    )
    busy = nodes_with([work], [a_node()])
    new = a_job("new", 8, priority=5, expected_duration=4 * HOUR)
    queue = [new, waiting("old", 4, 30)]
    made = plan_preemptions(queue, busy, [work], RULES, POLICY, NOW)
    assert [(each.job_id, each.preempts) for each in made] == [("old", False), ("new", False)]
    alone = plan_preemptions(queue[:1], busy, [work], RULES, POLICY, NOW)
    assert [each.preempts for each in alone] == [True]
