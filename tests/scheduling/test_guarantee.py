"""Who comes first for having waited long: nobody who could not start takes that from others."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.models.funding import PoolFunding
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.packing import PackingPolicy, QueueOrder
from longshore.models.score import ScorePolicy, TermWeights
from longshore.models.topology import Gang
from longshore.scheduling import cycle
from longshore.scheduling.guarantee import may_come_first
from longshore.scheduling.long_queue import LONG, LongQueue
from longshore.scheduling.order import queue_order
from longshore.scheduling.preemption.plan import plan_preemptions
from tests.support.gangs import in_domain
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node
from tests.support.preemption import MINUTE, RULES, a_work, nodes_with, saved

BY_RANK = POLICY.model_copy(update={"order": QueueOrder.ATTAINED_SERVICE})
HELD = PoolFunding({}, {"stuck": "its quota is used up"}, frozenset({"stuck"}))
NO_FUNDS = BY_RANK.model_copy(update={"funding": HELD})
NODE = a_node(busy=range(1, 8))


def waits(name: str, hours: float, gpus: int = 1, **fields: Any) -> JobRequest:
    """Return a job that can be stopped, and of which nobody knows how long it takes."""
    usual = {"can_stop": True, "duration_known": False, **fields}
    return a_job(name, gpus, submitted_at=NOW - hours * HOUR, **usual)


LONG_WAIT, NEW = waits("long", 40, attained=20 * HOUR), waits("new", 0)


def stuck(gpus: int = 8, **fields: Any) -> JobRequest:
    """Return a job that has waited longest, for more than the half that comes first for that."""
    return waits("stuck", 100, gpus, **fields)


@pytest.mark.parametrize(
    ("job", "policy"),
    [
        (stuck(gpu_type="B300"), BY_RANK),
        (stuck(16), BY_RANK),
        (stuck(16, gang=Gang(unlabelled_nodes=True)), BY_RANK),
        (stuck(vram_per_gpu=1000.0), BY_RANK),
        (stuck(), NO_FUNDS),
    ],
    ids=["no such GPU", "wider than a node", "wider than all", "no such memory", "no funds"],
)
def test_one_that_could_not_start_takes_no_place(job: JobRequest, policy: PackingPolicy):
    queue = [job, LONG_WAIT, NEW]
    ordered = [each.id for each in queue_order(queue, policy, NOW, [NODE])]
    assert ordered.index("long") < ordered.index("new")
    made = cycle.plan(queue, [NODE], (), policy, NOW)
    assert [each.job_id for each in made.placements] == ["long"]


@pytest.mark.parametrize(
    ("gang", "may"),
    [
        (Gang(group_gpus=8), True),
        (Gang(group_gpus=16), True),
        (Gang(group_gpus=32), False),
        (Gang(group_gpus=8, unlabelled_nodes=True), True),
    ],
)
def test_a_gang_takes_no_place_that_its_sum_alone_would_have(gang: Gang, may: bool):
    """Two domains of four nodes with four GPUs each."""
    nodes = [in_domain("ab"[number % 2], f"n{number}", gpus=4) for number in range(8)]
    found = may_come_first(BY_RANK, nodes)
    assert [found(stuck(32, gang=gang)) for _ in range(2)] == [may] * 2


def test_nor_does_one_whose_groups_are_wider_than_its_domains():
    nodes = [a_node(f"n{number}", gpus=4) for number in range(8)]
    job = stuck(16, gang=Gang(group_gpus=8, unlabelled_nodes=True))
    ordered = [each.id for each in queue_order([job, LONG_WAIT, NEW], BY_RANK, NOW, nodes)]
    assert ordered.index("long") < ordered.index("new")


def test_one_that_could_comes_first():
    for job in (stuck(), stuck(8, gang=Gang(unlabelled_nodes=True))):
        ordered = queue_order([job, LONG_WAIT, NEW], BY_RANK, NOW, [NODE])
        assert [each.id for each in ordered] == ["stuck", "new", "long"]


def test_who_is_held_takes_no_place_where_a_queue_is_listed():
    queue = [stuck(), LONG_WAIT, NEW]
    assert [each.id for each in queue_order(queue, BY_RANK, NOW, [NODE], held={"stuck"})] == [
        "long", "stuck", "new",
    ]  # fmt: skip


def test_of_a_long_queue_those_are_planned_that_come_first():
    queue = LongQueue()
    for number in range(LONG):
        queue.put(waits(f"job-{number}", 0))
    for number in range(40):
        queue.put(waits(f"never-{number}", 100, gpu_type="B300"))
    queue.put(LONG_WAIT)
    may = may_come_first(BY_RANK, [NODE])
    part = queue.to_plan(1, 8, BY_RANK, NOW, wanted=(), may_start=may)
    assert part is not None
    assert "long" in {job.id for job in part.jobs}


def test_nobody_is_stopped_for_one_that_the_next_cycle_leaves_waiting():
    """Both count who waits for funds alike: or one is stopped, and starts again at once."""
    work = a_work("runs", {"node-a": [0]}, ran=HOUR, priority=5, checkpoint=saved(5 * MINUTE))
    asked = {"duration_known": False, "can_stop": True}
    work = work.model_copy(update={"request": work.request.model_copy(update=asked)})
    queue = [stuck(), LONG_WAIT]
    busy = nodes_with((work,), (NODE,))
    plans = plan_preemptions(queue, busy, [work], RULES, NO_FUNDS, NOW)
    assert {each.job_id: [v.job_id for v in each.victims] for each in plans}["long"] == ["runs"]
    again = work.request.model_copy(update={"attained": HOUR})
    made = cycle.plan([*queue, again], [NODE], (), NO_FUNDS, NOW + timedelta(seconds=30))
    assert [each.job_id for each in made.placements] == ["long"]


def test_starts_are_kept_for_each_tier_where_jobs_are_stopped_as_in_a_cycle():
    """With those of all tiers counted together another was stopped for one that then waited for
    a start that the cycle keeps for a third, and began again."""
    runs = a_work("runs", {"node-a": range(4)}, preemptible=False, left=3 * HOUR)
    low = a_work("low", {"node-a": range(4, 8)}, priority=2, ran=2 * HOUR, left=170 * MINUTE,
                 checkpoint=saved(MINUTE))  # fmt: skip
    fast = a_work("fast", {"node-f": range(8)}, preemptible=False, left=20 * HOUR)
    works = [runs, low, fast]
    nodes = nodes_with(works, [a_node("node-a", tier=Tier.FLEX), a_node("node-f")])
    queue = [
        a_job("wide", 8, priority=9, tier=Tier.FLEX),
        a_job("narrow", 4, priority=7, tier=Tier.FLEX, expected_duration=10 * HOUR),
    ]
    assert POLICY.starts_kept == 8
    for before in range(9):
        others = [a_job(f"fast-{number}", 8, priority=10) for number in range(before)]
        plans = plan_preemptions([*others, *queue], nodes, works, RULES, POLICY, NOW)
        assert not any(each.preempts for each in plans)


def test_with_next_to_no_weight_of_waiting_there_is_an_order():
    weights = TermWeights(waiting=0.001, data=0.999)
    policy = PackingPolicy(
        order=QueueOrder.ATTAINED_SERVICE, score=ScorePolicy(weights=weights)
    )  # fmt: skip
    far, near = (waits(name, 1, data={name: 1.0}) for name in ("far", "near"))
    node = a_node().model_copy(update={"data": {"near": 1.0}})
    assert [each.id for each in queue_order([far, near], policy, NOW, [node])] == ["near", "far"]
