"""Runs a way to buy through a world on a virtual clock: its money, its waits, its use."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from benchmarks.buying_selling import sell_rests
from benchmarks.buying_troubles import GIVEN_UP, REPLACED
from benchmarks.buying_world import START, STARTUP, STEP, Shop, World, start_by
from longshore.models.buying import (
    BoughtFor,
    BuyingPolicy,
    CapacityUnderWay,
    DemandSample,
    JobEnd,
    PurchasePlan,
    Release,
    Unmet,
    UnmetJob,
)
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, Node
from longshore.models.placement import RunningJob
from longshore.models.pool import PoolPacking
from longshore.scheduling.buying.plan import decide
from longshore.scheduling.buying.state import BuyingState
from longshore.scheduling.cycle import plan

PACKING = PoolPacking()
IDLE_AFTER = BuyingPolicy().idle_after
_REMEMBERED = 36
"""Steps of demand."""
_KNOWN_ENDS = 100
"""Jobs that ended last, of which it is known how long they ran."""
_TRIES = 4
"""Decisions at one step at most: an order that brings too little is decided anew in seconds."""


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
    short: int = 0
    """Orders that brought less than they asked for, since rivals had been there."""
    refused: int = 0
    """Offers that were gone when they were taken."""
    silent: int = 0
    """Machines that no agent came from."""
    sold: int = 0
    """Nodes whose rest was sold again."""


@dataclass
class Machine:
    """A node that was bought; a pod where its order has no window."""

    node: Node
    plan: PurchasePlan | None
    purchase: str
    bought_at: datetime
    ready_at: datetime | None
    """None for a pod that stays silent."""
    idle_since: datetime
    ran: set[str] = field(default_factory=set[str])
    """Jobs."""

    paid: int = 0
    """For a GPU-hour of a window, in micro-dollars."""

    @property
    def is_window(self) -> bool:
        return self.plan is not None and self.plan.window is not None

    @property
    def is_pod(self) -> bool:
        return self.plan is not None and self.plan.window is None

    def is_up(self, now: datetime) -> bool:
        return self.ready_at is not None and self.ready_at <= now


@dataclass
class Purchase:
    """What an order brought."""

    name: str
    serves: tuple[str, ...]
    machines: tuple[Machine, ...]
    ended_at: datetime | None = None

    def for_job(self, job_id: str, now: datetime) -> BoughtFor:
        """Return what the product knows of it for a job that still waits."""
        return BoughtFor(
            purchase_id=self.name,
            by_use=any(machine.is_pod for machine in self.machines),
            ready=all(machine.is_up(now) for machine in self.machines),
            shared=any(machine.ran - {job_id} for machine in self.machines),
            ended_at=self.ended_at,
        )


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
    receipts: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])
    """Micro-dollars and GPU-hours, by order of a window and by pod that has ended."""
    bought: list[Purchase] = field(default_factory=list[Purchase])
    started: dict[str, datetime] = field(default_factory=dict[str, datetime])
    ended: list[JobEnd] = field(default_factory=list[JobEnd])
    orders: int = 0
    short: int = 0
    refused: int = 0
    silent: int = 0
    sold: int = 0

    @property
    def micro(self) -> int:
        return sum(micro for micro, _ in self.receipts.values())

    @property
    def gpu_hours(self) -> float:
        return sum(hours for _, hours in self.receipts.values())

    def ready(self) -> list[Node]:
        return [machine.node for machine in self.machines if machine.is_up(self.now)]

    @property
    def known_ends(self) -> tuple[JobEnd, ...]:
        return tuple(self.ended[-_KNOWN_ENDS:])

    def ends_at(self, job: RunningJob) -> datetime:
        """Return when a job really ends: nobody knows it before."""
        return self.started[job.job_id] + self.world.lasts[job.job_id]

    def buy(self, order: PurchasePlan) -> bool:
        """Pay for a window at once; what runs until it is stopped is paid then.

        Return whether all came that was ordered.
        """
        self.orders += 1
        name = f"m{self.orders:04d}"
        nodes = order.nodes
        if order.window is not None:
            nodes, micro = self.shop.take(order, self.step)
            self.short += nodes < order.nodes
            if nodes:
                hours = nodes * order.gpus_per_node * order.window.hours
                self.receipts[name] = micro, hours
        elif not self.shop.has(order, self.step):
            self.refused += 1
            nodes = 0
        end = order.ends_at(self.now)
        machines = [self._machine(f"{name}-{number}", order, name, end) for number in range(nodes)]
        for machine in machines if name in self.receipts else ():
            micro, hours = self.receipts[name]
            machine.paid = int(micro / hours)
        self.machines += machines
        if machines:
            self.bought.append(Purchase(name, order.serves, tuple(machines)))
        return nodes == order.nodes

    def _machine(
        self, name: str, order: PurchasePlan, purchase: str, end: datetime | None
    ) -> Machine:
        """A silent machine is replaced where its time is paid, and given up where it is not."""
        ready_at: datetime | None = self.now + STARTUP
        if self.world.troubles.is_silent(self.world.seed, name):
            self.silent += 1
            ready_at = self.now + REPLACED + STARTUP if order.window is not None else None
        node = a_node(name, order.shape.gpus, order.tier, end)
        return Machine(node, order, purchase, self.now, ready_at, ready_at or self.now + GIVEN_UP)

    def add(self, node: Node) -> None:
        """Add a node that is there, and that nobody pays here."""
        self.machines.append(Machine(node, None, "", self.now, self.now, self.now))

    def pay_pod(self, machine: Machine) -> None:
        """Pay a pod until it was stopped; the clock may have gone on."""
        assert machine.plan is not None
        assert machine.node.expires_at is not None
        until = min(self.idle_until(machine), machine.node.expires_at, self.now)
        hours = (until - machine.bought_at) / timedelta(hours=1) * len(machine.node.gpus)
        self.receipts[machine.node.id] = int(machine.plan.limit * hours), hours

    def idle_until(self, machine: Machine) -> datetime:
        """Return when a machine is let go if nothing more runs there."""
        if machine.ready_at is None:
            return machine.idle_since  # it is given up
        return machine.idle_since + self.world.troubles.idles(IDLE_AFTER)

    def jobs(self) -> tuple[UnmetJob, ...]:
        """Return the jobs that wait, each with what was bought for it."""
        for purchase in self.bought:
            gone = not any(machine in self.machines for machine in purchase.machines)
            if gone and purchase.ended_at is None:
                purchase.ended_at = self.now
        return tuple(
            UnmetJob(
                request=job, start_by=_latest(job),
                bought=tuple(
                    purchase.for_job(job.id, self.now)
                    for purchase in self.bought if job.id in purchase.serves
                ),
            )
            for job in self.queue
        )  # fmt: skip


Buyer = Callable[[Pool], bool]
"""Buys; returns whether to decide again at once, since an order brought too little."""


def replay(world: World, buyer: Buyer) -> Outcome:
    """Return what a buyer pays until every job has ended."""
    return _outcome(lived(world, buyer))


def lived(world: World, buyer: Buyer) -> Pool:
    """Return the pool of a buyer when every job has ended and all is paid."""
    pool = Pool(world, Shop(world), ended=list(world.before))
    arrivals = list(world.jobs)
    for step in range(world.last_step):
        pool.step, pool.now = step, START + step * STEP
        _end_what_is_over(pool)
        while arrivals and arrivals[0].submitted_at <= pool.now:  # pyright: ignore[reportOptionalOperand]
            pool.queue.append(arrivals.pop(0))
        _place(pool)
        _remember(pool)
        for _ in range(_TRIES if _looks(pool) else 0):
            if not buyer(pool):
                break
        if world.troubles.resale:
            sell_rests(pool, _releases(pool), _under_way(pool))
        if not arrivals and not pool.queue and not pool.running:
            break
    for machine in pool.machines:
        if machine.is_pod:
            pool.pay_pod(machine)
    return pool


def by_policy(policy: BuyingPolicy) -> Buyer:
    """Return the buyer that follows `scheduling.buying.plan.decide`."""

    def buy(pool: Pool) -> bool:
        unmet = Unmet(jobs=pool.jobs(), demand=tuple(pool.demand), ended=pool.known_ends)
        state = BuyingState(
            unmet=unmet, packing=PACKING, under_way=_under_way(pool), releases=_releases(pool),
            markets=pool.shop.markets(pool.step),
        )  # fmt: skip
        decision = decide(state, policy, pool.now)
        came = [pool.buy(order) for order in decision.plans]
        return not all(came)

    return buy


def cheapest_now(policy: BuyingPolicy) -> Buyer:
    """Return the buyer that takes for each job, as it comes, what is cheapest for it alone.

    It buys for a job again when what it bought has gone.
    """

    def buy(pool: Pool) -> bool:
        whole = True
        waiting = pool.jobs()  # which says what has gone
        has = {
            job_id
            for purchase in pool.bought
            if purchase.ended_at is None
            for job_id in purchase.serves
        }
        for job in waiting:
            if job.request.id in has:
                continue
            alone = UnmetJob(request=job.request, start_by=pool.now)
            unmet = Unmet(jobs=(alone,), ended=pool.known_ends)
            markets = pool.shop.markets(pool.step)
            state = BuyingState(unmet=unmet, packing=PACKING, markets=markets)
            decision = decide(state, policy, pool.now)
            if decision.plans:
                whole = pool.buy(decision.plans[0]) and whole
        return not whole

    return buy


def always_on(world: World, nodes: dict[Tier, int], price: int) -> Outcome:
    """Return what so many nodes cost that are there from the first job to the last."""

    def buy(pool: Pool) -> bool:
        if not pool.machines:
            for tier, count in nodes.items():
                for number in range(count):
                    pool.add(a_node(f"on-{tier}-{number}", 8, tier, None))
        return False

    outcome = replay(world, buy)
    hours = sum(nodes.values()) * world.days * 24
    used = sum(job.gpus * (world.lasts[job.id] / timedelta(hours=1)) for job in world.jobs)
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


def _looks(pool: Pool) -> bool:
    """Return whether to decide now: at any time for FAST, and for FLEX that has to start soon."""
    soon = pool.now + timedelta(minutes=20)
    fast = any(job.tier is Tier.FAST or start_by(job) <= soon for job in pool.queue)
    return (
        fast
        or pool.step == 0
        or (bool(pool.queue) and pool.step % pool.world.troubles.flex_looks == 0)
    )


def _end_what_is_over(pool: Pool) -> None:
    ends: dict[str, datetime] = {}
    known = {job.id: job.expected_duration for job in pool.world.jobs}
    pool.ended += [
        JobEnd(expected=known[job.job_id], ran=pool.world.lasts[job.job_id])
        for job in pool.running
        if pool.ends_at(job) <= pool.now
    ]
    for job in pool.running:
        ends[job.node_id] = max(pool.ends_at(job), ends.get(job.node_id, START))
    pool.running = [job for job in pool.running if pool.ends_at(job) > pool.now]
    kept: list[Machine] = []
    for machine in pool.machines:
        if machine.node.id in ends:
            machine.idle_since = min(ends[machine.node.id], pool.now)
        over = machine.node.expires_at is not None and machine.node.expires_at <= pool.now
        idle = machine.is_pod and pool.now >= pool.idle_until(machine)
        if machine.is_pod and (over or idle):
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
    machines = {machine.node.id: machine for machine in pool.machines}
    for decision in planned.placements:
        job = by_id.pop(decision.job_id)
        assert decision.node_id is not None
        pool.started[job.id] = pool.now
        machines[decision.node_id].ran.add(job.id)
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
            instance_type=f"{len(machine.node.gpus)}xH100-80GB",
            # As long as it is waited for it may come at any moment.
            expected_at=max(machine.bought_at + STARTUP, pool.now),
            until=machine.node.expires_at,
        )
        for machine in pool.machines
        if not machine.is_up(pool.now)
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
        used += job.gpus * (pool.world.lasts[job.id] / timedelta(hours=1))
        if job.tier is Tier.FAST:
            waits.append((started - job.submitted_at) / timedelta(minutes=1))
        elif started > start_by(job):
            late += 1
    return Outcome(
        dollars=pool.micro / 1e6, fast_wait_minutes=statistics.fmean(waits),
        fast_wait_p95=sorted(waits)[int(0.95 * (len(waits) - 1))], flex_late=late,
        used_share=used / pool.gpu_hours if pool.gpu_hours else 0.0, purchases=len(pool.bought),
        short=pool.short, refused=pool.refused, silent=pool.silent, sold=pool.sold,
    )  # fmt: skip
