"""Running jobs that save yield to others of their class by attained service: worked cases."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.funding import PoolFunding
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.packing import PackingPolicy, QueueOrder
from longshore.models.preemption import (
    BuyQuote,
    PreemptionLevels,
    PreemptionPlan,
    RunningWork,
    WayKind,
)
from longshore.scheduling.preemption.plan import plan_preemption, plan_preemptions
from longshore.scheduling.preemption.stoppable import Stoppable
from longshore.scheduling.preemption.yielding import Yielding
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node
from tests.support.preemption import MINUTE, RULES, a_work, busy_pools, nodes_with, saved

BY_RANK = POLICY.model_copy(update={"order": QueueOrder.ATTAINED_SERVICE})
DAY = 24 * HOUR


def works_for(ran: timedelta = 5 * HOUR, name: str = "long", **fields: Any) -> RunningWork:
    """Return a job of class 5 on all GPUs of node-a of which nobody knows how long it takes."""
    gpus = fields.pop("gpus", {"node-a": range(8)})
    usual: dict[str, Any] = {"checkpoint": saved(5 * MINUTE), "priority": 5, **fields}
    work = a_work(name, gpus, ran=ran, **usual)
    asked = {"duration_known": False, "can_stop": usual["checkpoint"] is not None}
    return work.model_copy(update={"request": work.request.model_copy(update=asked)})


def newcomer(name: str = "new", gpus: int = 1, **fields: Any) -> JobRequest:
    usual: dict[str, Any] = {"can_stop": True, "duration_known": False, **fields}
    return a_job(name, gpus, **usual)


def planned(
    job: JobRequest, *works: RunningWork, packing: PackingPolicy = BY_RANK,
    quote: BuyQuote | None = None, nodes: tuple[Node, ...] = (),
) -> PreemptionPlan:  # fmt: skip
    busy = nodes_with(works, nodes or (a_node(),))
    return plan_preemption(job, busy, works, RULES, packing, NOW, quote)


def stopped(plan: PreemptionPlan) -> list[str]:
    return [victim.job_id for victim in plan.victims]


def test_a_newcomer_counts_as_much_as_in_the_queue_where_its_tenant_is_over_its_quota():
    """Else the one that was stopped for it would start again in its place."""
    factors = PoolFunding({}, {}, frozenset(), factors={"red": 0.05})
    packing = BY_RANK.model_copy(update={"funding": factors})
    for tenant, yields in (("blue", ["long"]), ("red", [])):
        plan = planned(newcomer(tenant=tenant), works_for(HOUR), packing=packing)
        assert stopped(plan) == yields


def test_what_has_run_for_hours_yields_to_a_newcomer_of_its_class():
    plan = planned(newcomer(), works_for())
    assert stopped(plan) == ["long"]
    assert plan.reason.startswith("stop long, which yields to twice its rank: it loses $")
    waiting = next(way for way in plan.ways if way.kind is WayKind.WAIT)
    assert (waiting.chosen, waiting.lost) == (
        False, "those that are stopped have less than 1/2 of its rank",
    )  # fmt: skip
    # Not where the pool goes by age.
    assert not planned(newcomer(), works_for(), packing=POLICY).preempts


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ran": 9 * MINUTE}, "was placed 9m ago, and yields once it has run for 18m20s"),
        # A save of a minute and 90 s of restart: ten times that.
        (
            {"ran": 20 * MINUTE, "checkpoint": saved(MINUTE, MINUTE, grace=HOUR)},
            "was placed 20m ago, and yields once it has run for 25m",
        ),
        # What it needs to begin is no work: its image, its data.
        (
            {"begun": False},
            "was placed 5h ago and has not saved since, so it may not have begun: it yields "
            "18m20s after it has",
        ),
        (
            {"begun_at": NOW - 18 * MINUTE},
            "saved first 18m ago there, and yields once that is 18m20s ago",
        ),
        ({"checkpoint": None}, "cannot save, and is of the same class"),
        (
            {"checkpoint": saved(MINUTE, write=timedelta(minutes=9))},
            "has not saved in time yet, and is of the same class",
        ),
        ({"preemptible": False}, "says that it is not preemptible"),
        ({"no_store": "no answer"}, "cannot save now: no answer"),
        (
            {"preempted_at": (NOW - 9 * MINUTE,)},
            "was preempted 9m ago",
        ),
    ],
)
def test_who_does_not_yield(fields: dict[str, Any], reason: str):
    plan = planned(newcomer(gpus=8), works_for(**fields))
    assert not plan.preempts
    assert [one.reason for one in plan.rejected] == [reason]


def test_a_job_yields_to_one_of_twice_its_rank_and_to_no_other():
    # rank = 1 / (time run + 600 s): 5 h are 18,600 s.
    for attained, yields in ((timedelta(seconds=8_600), True), (timedelta(seconds=8_800), False)):
        plan = planned(newcomer(attained=attained), works_for(gpus={"node-a": [0]}),
                       nodes=(a_node(busy=range(1, 8)),))  # fmt: skip
        assert plan.preempts is yields
    assert "1 of more than half its rank" in plan.reason


def test_who_states_the_end_is_left_alone_near_it():
    work = works_for(ran=9 * HOUR, left=30 * MINUTE)
    known = work.request.model_copy(
        update={"duration_known": True, "expected_duration": 9.5 * HOUR}
    )
    assert stopped(planned(newcomer(), work)) == ["long"]
    nearly = work.model_copy(update={"request": known})
    # 30 minutes are left: it ranks as if it had run for so long.
    assert not planned(newcomer(gpus=1, attained=10 * MINUTE), nearly).preempts


def test_the_fewest_gpus_are_stopped_and_of_equal_ones_what_loses_least():
    wide = works_for(name="wide", gpus={"node-a": range(8)})
    narrow = works_for(name="narrow", gpus={"node-b": range(4)})
    fresh = works_for(name="fresh", gpus={"node-b": range(4, 8)}, checkpoint=saved(MINUTE))
    stale = works_for(name="stale", gpus={"node-c": range(4)}, checkpoint=saved(HOUR))
    nodes = (a_node(), a_node("node-b"), a_node("node-c", busy=range(4, 8)))
    assert stopped(planned(newcomer(), wide, narrow, fresh, stale, nodes=nodes)) == ["fresh"]


def test_a_machine_that_is_cheaper_than_the_stop_is_bought_in_its_place():
    cheap = BuyQuote(cost=1, ready_at=NOW)
    plan = planned(newcomer(), works_for(), quote=cheap)
    assert not plan.preempts
    assert plan.ways[0].kind is WayKind.BUY
    dear = BuyQuote(cost=10**9, ready_at=NOW)
    assert planned(newcomer(), works_for(), quote=dear).preempts


def test_what_is_freed_beyond_the_need_goes_to_the_next_in_order():
    """No third is stopped while there is room."""
    works = [works_for(), works_for(name="other", gpus={"node-b": range(8)})]
    queue = [newcomer(f"new-{number}") for number in range(8)]
    nodes = nodes_with(works, (a_node(), a_node("node-b")))
    plans = plan_preemptions(queue, nodes, works, RULES, BY_RANK, NOW)
    assert len([plan for plan in plans if plan.preempts]) == 1


def test_higher_classes_keep_their_ladder():
    assert not planned(newcomer(priority=4), works_for()).preempts
    assert planned(newcomer(priority=6, expected_duration=9 * DAY), works_for(priority=2)).preempts


@given(
    busy_pools(),
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 4, 8]), st.integers(0, 3), st.floats(0, 1e5), st.floats(0, 4e5)
        ),
        min_size=1, max_size=6,
    ),
)  # fmt: skip
def test_nobody_is_stopped_for_nothing_and_nobody_for_less_than_twice_its_rank(
    pool: tuple[list[Node], list[RunningWork]], waiting: list[tuple[int, int, float, float]]
):
    nodes, works = pool
    queue = [
        newcomer(
            f"q{number}", gpus, priority=priority, attained=timedelta(seconds=ran),
            submitted_at=NOW - timedelta(seconds=waited),
        )
        for number, (gpus, priority, ran, waited) in enumerate(waiting)
    ]  # fmt: skip
    plans = plan_preemptions(queue, nodes, works, RULES, BY_RANK, NOW)
    by_id = {job.id: job for job in queue}
    running = {work.id: work for work in works}
    yielding = Yielding(works, queue, nodes, RULES, BY_RANK, NOW)
    taken: list[str] = []
    for plan in plans:
        if not plan.preempts:
            continue
        assert plan.gains, "whoever others are stopped for starts in the same plan"
        job = by_id[plan.job_id]
        for name in stopped(plan):
            taken.append(name)
            work = running[name]
            if work.request.priority == job.priority:
                assert yielding.why_not(work, job) is None
                assert work.checkpoint is not None
            else:
                assert work.request.priority < job.priority
    assert len(taken) == len(set(taken))
    again = plan_preemptions(queue[::-1], nodes[::-1], works[::-1], RULES, BY_RANK, NOW)
    assert again == plans


@given(
    busy_pools(),
    st.lists(st.tuples(st.sampled_from([1, 2, 8]), st.integers(0, 10), st.floats(0, 1e5)),
             min_size=1, max_size=6),
    st.sampled_from([POLICY, BY_RANK]),
    st.sampled_from(PreemptionLevels),
)  # fmt: skip
def test_who_may_be_stopped_is_the_same_told_with_and_without_words(
    pool: tuple[list[Node], list[RunningWork]],
    waiting: list[tuple[int, int, float]],
    packing: PackingPolicy,
    levels: PreemptionLevels,
):
    nodes, works = pool
    rules = RULES.model_copy(update={"levels": levels})
    queue = [
        newcomer(f"q{number}", gpus, priority=priority, attained=timedelta(seconds=ran))
        for number, (gpus, priority, ran) in enumerate(waiting)
    ]
    yielding = None
    if packing.by_rank:
        yielding = Yielding(works, queue, nodes, rules, packing, NOW)
    stoppable = Stoppable(works, rules, NOW, yielding)
    for job in queue:
        free = [place for place in range(len(works)) if stoppable.why_not(place, job) is None]
        assert stoppable.whom(job) == free
    plans = plan_preemptions(queue, nodes, works, rules, packing, NOW)
    stops = plan_preemptions(queue, nodes, works, rules, packing, NOW, stops_only=True)
    assert stops == tuple(plan for plan in plans if plan.preempts)
