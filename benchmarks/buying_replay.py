"""Runs a way to buy through a world on a virtual clock: its money, its waits, its use."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from benchmarks.buying_world import START, STARTUP, STEP, Shop, World, start_by
from models.buying import (
    BuyingPolicy,
    CapacityUnderWay,
    CapsLeft,
    DemandSample,
    PurchasePlan,
    Release,
    Unmet,
    UnmetJob,
)
from models.job import Tier
from models.node import GPU, Node
from models.placement import JobRequest, RunningJob
from models.pool import PoolPacking
from scheduling.buying.plan import decide
from scheduling.cycle import plan

PACKING = PoolPacking()
IDLE_AFTER = BuyingPolicy().idle_after
_LOOK_AGAIN = 6
"""Steps until the same queue is looked at again."""
_REMEMBERED = 36
"""Steps of demand."""


@dataclass(frozen=True)
class Outcome:
    """What a way to buy came to."""

    dollars: float
    fast_wait_minutes: float
    fast_wait_p95: float
    flex_late: int
    """FLEX jobs that started after their latest start."""
    used_share: float
    """GPU-hours of jobs / GPU-hours bought."""
    purchases: int


@dataclass
class Machine:
    """A node that was bought; a pod where its order has no window."""

    node: Node
    plan: PurchasePlan | None
    bought_at: datetime
    ready_at: datetime
    idle_since: datetime


@dataclass
class Pool:
    """What a buyer sees and has at a moment."""

    world: World
    shop: Shop
    now: datetime = START
    step: int = 0
    queue: list[JobRequest] = field(default_factory=list[JobRequest])
    machines: list[Machine] = field(default_factory=list[Machine])
    running: list[RunningJob] = field(default_factory=list[RunningJob])
    demand: list[DemandSample] = field(default_factory=list[DemandSample])
    micro: int = 0
    gpu_hours: float = 0.0
    purchases: int = 0
    started: dict[str, datetime] = field(default_factory=dict[str, datetime])

    def ready(self) -> list[Node]:
        return [machine.node for machine in self.machines if machine.ready_at <= self.now]

    def buy(self, order: PurchasePlan) -> None:
        """Pay for a window at once; what runs until it is stopped is paid then."""
        self.purchases += 1
        if order.window is not None:
            self.micro += self.shop.take(order, self.step)
            self.gpu_hours += order.gpus * order.window.hours
        for number in range(order.nodes):
            name = f"m{self.purchases:04d}-{number}"
            end = order.ends_at(self.now)
            self.add(a_node(name, order.shape.gpus, order.tier, end), order, self.now + STARTUP)

    def add(self, node: Node, order: PurchasePlan | None, ready_at: datetime) -> None:
        self.machines.append(Machine(node, order, self.now, ready_at, ready_at))

    def pay_pod(self, machine: Machine) -> None:
        """Pay a pod until it was idle for as long as is borne; the clock may have gone on."""
        assert machine.plan is not None
        assert machine.node.expires_at is not None
        until = min(machine.idle_since + IDLE_AFTER, machine.node.expires_at, self.now)
        hours = (until - machine.bought_at) / timedelta(hours=1)
        self.gpu_hours += len(machine.node.gpus) * hours
        self.micro += int(machine.plan.limit * len(machine.node.gpus) * hours)


Buyer = Callable[[Pool], None]


def replay(world: World, buyer: Buyer) -> Outcome:
    """Return what a buyer pays until every job has ended."""
    pool = Pool(world, Shop(world))
    arrivals = list(world.jobs)
    seen: tuple[object, ...] = ()
    looked_at = -_LOOK_AGAIN
    for step in range(world.last_step):
        pool.step, pool.now = step, START + step * STEP
        _end_what_is_over(pool)
        while arrivals and arrivals[0].submitted_at <= pool.now:  # pyright: ignore[reportOptionalOperand]
            pool.queue.append(arrivals.pop(0))
        _place(pool)
        _remember(pool)
        now_seen = (*(job.id for job in pool.queue), len(pool.machines))
        again = step - looked_at >= _LOOK_AGAIN or _some_press(pool)
        if step == 0 or (pool.queue and (now_seen != seen or again)):
            buyer(pool)
            seen, looked_at = (*now_seen[:-1], len(pool.machines)), step
        if not arrivals and not pool.queue and not pool.running:
            break
    for machine in pool.machines:
        if machine.plan is not None and machine.plan.window is None:
            pool.pay_pod(machine)
    return _outcome(pool)


def by_policy(policy: BuyingPolicy) -> Buyer:
    """Return the buyer that follows `scheduling.buying.plan.decide`."""

    def buy(pool: Pool) -> None:
        unmet = Unmet(
            jobs=tuple(UnmetJob(request=job, start_by=_latest(job)) for job in pool.queue),
            demand=tuple(pool.demand),
        )
        markets = pool.shop.markets(pool.step)
        decision = decide(
            unmet, _under_way(pool), _releases(pool), markets, policy, CapsLeft(), pool.now,
            PACKING,
        )  # fmt: skip
        for order in decision.plans:
            pool.buy(order)

    return buy


def cheapest_now(policy: BuyingPolicy) -> Buyer:
    """Return the buyer that takes for each job, as it comes, what is cheapest for it alone."""
    served: set[str] = set()

    def buy(pool: Pool) -> None:
        for job in pool.queue:
            if job.id in served:
                continue
            unmet = Unmet(jobs=(UnmetJob(request=job, start_by=pool.now),))
            markets = pool.shop.markets(pool.step)
            decision = decide(unmet, (), (), markets, policy, CapsLeft(), pool.now, PACKING)
            if decision.plans:
                served.add(job.id)
                pool.buy(decision.plans[0])

    return buy


def always_on(world: World, nodes: dict[Tier, int], price: int) -> Outcome:
    """Return what so many nodes cost that are there from the first job to the last."""

    def buy(pool: Pool) -> None:
        if pool.step == 0:
            for tier, count in nodes.items():
                for number in range(count):
                    pool.add(a_node(f"on-{tier}-{number}", 8, tier, None), None, pool.now)

    outcome = replay(world, buy)
    hours = sum(nodes.values()) * world.days * 24
    used = sum(job.gpus * (job.expected_duration / timedelta(hours=1)) for job in world.jobs)
    return Outcome(
        dollars=8 * hours * price / 1e6, fast_wait_minutes=outcome.fast_wait_minutes,
        fast_wait_p95=outcome.fast_wait_p95, flex_late=outcome.flex_late,
        used_share=min(used / (8 * hours), 1.0), purchases=sum(nodes.values()),
    )  # fmt: skip


def a_node(name: str, gpus: int, tier: Tier, end: datetime | None) -> Node:
    return Node(
        id=name, tier=tier, gpu_type="H100", cpus=8 * gpus, ram=64 * gpus, expires_at=end,
        gpus=tuple(GPU(index=index, vram=80) for index in range(gpus)),
    )  # fmt: skip


def _some_press(pool: Pool) -> bool:
    """Return whether a FLEX job has to start soon."""
    soon = pool.now + timedelta(minutes=20)
    return any(job.tier is Tier.FLEX and start_by(job) <= soon for job in pool.queue)


def _end_what_is_over(pool: Pool) -> None:
    ends: dict[str, datetime] = {}
    for job in pool.running:
        ends[job.node_id] = max(job.expected_end, ends.get(job.node_id, START))
    pool.running = [job for job in pool.running if job.expected_end > pool.now]
    kept: list[Machine] = []
    for machine in pool.machines:
        if machine.node.id in ends:
            machine.idle_since = min(ends[machine.node.id], pool.now)
        over = machine.node.expires_at is not None and machine.node.expires_at <= pool.now
        pod = machine.plan is not None and machine.plan.window is None
        idle = pod and pool.now - machine.idle_since >= IDLE_AFTER
        if pod and (over or idle):
            pool.pay_pod(machine)
        if over or idle:
            continue
        kept.append(machine)
    pool.machines = kept


def _place(pool: Pool) -> None:
    if not pool.queue:
        return
    planned = plan(pool.queue, pool.ready(), pool.running, PACKING, pool.now)
    by_id = {job.id: job for job in pool.queue}
    for decision in planned.placements:
        job = by_id.pop(decision.job_id)
        assert decision.node_id is not None
        pool.started[job.id] = pool.now
        pool.running.append(
            RunningJob(
                job_id=job.id, node_id=decision.node_id, gpu_indices=decision.gpu_indices,
                vram_per_gpu=job.vram_per_gpu, cpus=job.cpus, ram=job.ram,
                expected_end=pool.now + job.expected_duration,
            )
        )  # fmt: skip
    pool.queue = list(by_id.values())


def _remember(pool: Pool) -> None:
    if pool.step % 3:
        return
    tiers = {machine.node.id: machine.node.tier for machine in pool.machines}
    for tier in Tier:
        queued = sum(job.gpus for job in pool.queue if job.tier is tier)
        used = sum(len(job.gpu_indices) for job in pool.running if tiers[job.node_id] is tier)
        pool.demand.append(DemandSample(at=pool.now, tier=tier, queued=queued, used=used))
    pool.demand = pool.demand[-_REMEMBERED:]


def _under_way(pool: Pool) -> list[CapacityUnderWay]:
    return [
        CapacityUnderWay(
            id=machine.node.id, tier=machine.node.tier, nodes=1,
            instance_type=f"{len(machine.node.gpus)}xH100-80GB", expected_at=machine.ready_at,
            until=machine.node.expires_at,
        )
        for machine in pool.machines
        if machine.ready_at > pool.now
    ]  # fmt: skip


def _releases(pool: Pool) -> Sequence[Release]:
    return [
        Release(node=node, running=tuple(job for job in pool.running if job.node_id == node.id))
        for node in pool.ready()
    ]


def _latest(job: JobRequest) -> datetime | None:
    return start_by(job) if job.tier is Tier.FLEX else None


def _outcome(pool: Pool) -> Outcome:
    waits, late, used = [0.0], 0, 0.0
    for job in pool.world.jobs:
        assert job.submitted_at is not None
        started = pool.started.get(job.id, pool.now)
        used += job.gpus * (job.expected_duration / timedelta(hours=1))
        if job.tier is Tier.FAST:
            waits.append((started - job.submitted_at) / timedelta(minutes=1))
        elif started > start_by(job):
            late += 1
    return Outcome(
        dollars=pool.micro / 1e6, fast_wait_minutes=statistics.fmean(waits),
        fast_wait_p95=sorted(waits)[int(0.95 * (len(waits) - 1))], flex_late=late,
        used_share=used / pool.gpu_hours if pool.gpu_hours else 0.0, purchases=pool.purchases,
    )  # fmt: skip
