"""What is bought for jobs is what the pool's cycles then place them on."""

import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import pytest

from longshore.models.buying import BuyDecision, BuyingPolicy, MarketView, Release, UnmetJob
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import PackingPolicy, PackingRule, RunningJob
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.scheduling.buying.fleet import Fleet, fleet_of
from longshore.scheduling.cycle import plan
from longshore.scheduling.placement.state import running_job, without_job
from tests.support.buying import NOW, a_job, a_release, cloud, decided, exchange
from tests.support.searches import seeds

HOUR = timedelta(hours=1)
BOOK = exchange(("1.90", 16), ("2.05", 32), bids=(("1.50", 64),))


def bought(decision: BuyDecision, packing: PackingPolicy) -> list[tuple[datetime, Node]]:
    """Return the machines of a decision, with when they come."""
    found: list[tuple[datetime, Node]] = []
    for number, order in enumerate(decision.plans):
        fleet = Fleet(packing).with_bought(order, f"new-{number}", order.ends_at(NOW))
        found += [(order.ready_at, node) for node in fleet.nodes]
    return found


def started_by_cycles(
    jobs: Iterable[UnmetJob],
    releases: Sequence[Release],
    coming: Sequence[tuple[datetime, Node]],
    packing: PackingPolicy,
    moments: Iterable[datetime],
) -> dict[str, datetime]:
    """Return when cycles at these moments start the jobs on the pool's nodes and on what comes."""
    fleet = fleet_of(releases, (), packing)
    nodes, running = {node.id: node for node in fleet.nodes}, list(fleet.running)
    queue = {job.request.id: job.request for job in jobs}
    started: dict[str, datetime] = {}
    at_first = {id(job) for job in running}
    for moment in sorted(set(moments)):
        for job in [job for job in running if job.expected_end <= moment]:
            running.remove(job)
            if id(job) in at_first:
                nodes[job.node_id] = without_job(nodes[job.node_id], job)
        nodes |= {node.id: node for ready_at, node in coming if ready_at <= moment}
        planned = plan(queue.values(), list(nodes.values()), running, packing, moment)
        for decision in planned.placements:
            request = queue.pop(decision.job_id)
            started[request.id] = moment
            running += _holds(request, decision.held, nodes, moment)
    return started


def _holds(
    request: JobRequest,
    held: Iterable[tuple[str, tuple[int, ...]]],
    nodes: dict[str, Node],
    start: datetime,
) -> list[RunningJob]:
    end = start + request.expected_duration
    return [running_job(request, nodes[name], gpus, 0, end) for name, gpus in held]


def starts_of(decision: BuyDecision) -> dict[str, datetime]:
    """Return when the decision says that each job starts."""
    return {
        served.job_id: served.start
        for option in decision.options
        if option.chosen
        for served in option.starts
        if served.start is not None
    }


@pytest.mark.parametrize("rule", [PackingRule.SEED_SCORE, PackingRule.KEEP_ROOM])
def test_no_short_job_takes_the_machine_that_was_bought_for_a_long_one(rule: PackingRule):
    # By age the short job chooses first; the score would send it to the node that lasts.
    jobs = [
        a_job("short", 8, 1, submitted_at=NOW - HOUR),
        a_job("long", 8, 6),
    ]
    decision = decided(jobs, BOOK, packing=PackingPolicy(rule=rule))
    assert {job for order in decision.plans for job in order.serves} == {"short", "long"}
    coming = bought(decision, PackingPolicy(rule=rule))
    moments = [NOW, *(ready_at for ready_at, _ in coming), *starts_of(decision).values()]
    started = started_by_cycles(jobs, (), coming, PackingPolicy(rule=rule), moments)
    assert started == starts_of(decision)


@pytest.mark.parametrize(
    "rule", [PackingRule.KEEP_ROOM, PackingRule.SEED_SCORE, PackingRule.TIGHT]
)
@pytest.mark.parametrize("seed", seeds(3))
def test_cycles_start_each_job_on_what_was_bought_when_the_decision_says(
    rule: PackingRule, seed: int
):
    draw = random.Random(seed)
    jobs = [
        a_job(
            f"q{number:02}", draw.choice((1, 1, 2, 4, 8)), draw.choice((0.5, 1, 3, 6)),
            cpus=draw.choice((1, 4, 8)), priority=draw.choice((3, 5, 7)),
            submitted_at=NOW - timedelta(minutes=draw.randrange(30)),
        )
        for number in range(draw.randrange(2, 8))
    ]  # fmt: skip
    releases = [
        a_release(
            f"n{number}", busy_hours=draw.choice((None, 0.02, 1, 5)),
            expires_at=draw.choice((None, NOW + 3 * HOUR, NOW + 8 * HOUR)),
        )
        for number in range(draw.randrange(3))
    ]  # fmt: skip
    packing = PoolPacking(rule=rule)
    offers = cloud(*draw.sample([("2.10", 1), ("2.2", 2), ("2.3", 4), ("2.5", 8)], 2))
    decision = decided(jobs, BOOK, offers, releases=releases, packing=packing)
    coming = bought(decision, packing)
    said = starts_of(decision)
    moments = [NOW, *(ready_at for ready_at, _ in coming), *said.values()]
    started = started_by_cycles(jobs, releases, coming, packing, moments)
    served = {job for order in decision.plans for job in order.serves}
    assert served <= started.keys()
    assert all(started[job] <= said[job] for job in served)


def test_what_is_bought_lasts_as_long_as_the_pools_packer_asks():
    packing = PoolPacking(safety_margin=timedelta(minutes=50))
    pool = PoolSpec(packing=packing, buying=BuyingPolicy(enabled=True))
    assert pool.buying.safety_margin < packing.safety_margin == pool.purchasing.safety_margin
    jobs = [a_job(gpus=8, hours=2)]
    decision = decided(
        jobs, BOOK, packing=packing, policy={"safety_margin": pool.purchasing.safety_margin}
    )
    (order,) = decision.plans
    assert order.window is not None
    assert order.window.end - order.ready_at >= 2 * HOUR + packing.safety_margin
    coming = bought(decision, packing)
    assert started_by_cycles(jobs, (), coming, packing, [order.ready_at]) == {"a": order.ready_at}


@pytest.mark.parametrize("market", [BOOK, cloud(("2.50", 8))])
def test_what_is_bought_lets_a_job_end_that_takes_long_to_leave(market: MarketView):
    """35 minutes of work, and 30 to save: asked 31.5 minutes before the end, when it has ended."""
    packing = PoolPacking(safety_margin=timedelta(0))
    jobs = [a_job(gpus=8, hours=35 / 60, saves=True, grace=timedelta(minutes=30))]
    policy = {"safety_margin": "0s", "window_step": "1m", "shortest_window": "1m"}
    decision = decided(jobs, market, packing=packing, policy=policy)
    (order,) = decision.plans
    ends_at = order.ends_at(NOW)
    assert ends_at - order.ready_at >= timedelta(minutes=66.5)
    assert ends_at - order.ready_at < timedelta(minutes=80)
    coming = bought(decision, packing)
    assert started_by_cycles(jobs, (), coming, packing, [order.ready_at]) == {"a": order.ready_at}


def test_a_longer_margin_of_its_own_stays():
    pool = PoolSpec(buying=BuyingPolicy(safety_margin=timedelta(minutes=20)))
    assert pool.purchasing == pool.buying
