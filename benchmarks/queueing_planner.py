"""The planner of the product in a world of `benchmarks.queueing_world`.

Jobs ask for whole GPUs of equal nodes, and nothing else: how much of their memory they use would
decide nothing.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from heapq import nlargest

from benchmarks.live_pool import START, LivePool
from benchmarks.queueing_world import NODE_GPUS, Job, World
from longshore.models.job import ASSUMED_DURATION
from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, Node
from longshore.models.placement import CyclePlan, PackingPolicy
from longshore.models.preemption import (
    GainedGPUs,
    PreemptionPlan,
    PreemptionPolicy,
    RunningWork,
    WorkCheckpoint,
)
from longshore.models.topology import Gang
from longshore.scheduling.durations import MOST_RUNS, end_at, learn, with_learnt
from longshore.scheduling.long_queue import LongQueue
from longshore.scheduling.placement.mix import Mix
from longshore.scheduling.preemption.plan import plan_preemptions
from longshore.scheduling.preemption.what_if import gains_of

_VRAM = 80.0
"""GB of each GPU."""
_MIX_FOR = 600.0
"""Seconds for which what the queue asks for is not learnt anew. A live pool learns it in each
cycle, and of a long queue twice a minute: here that took longer than all else."""
_USAGE_EVERY = 600.0
"""Seconds after which what tenants have had is reckoned anew, where a score asks for it."""
_GANG = Gang(group_gpus=NODE_GPUS, unlabelled_nodes=True)
"""Each node is a domain of its own: a group of 8 GPUs takes a whole one."""
_NOTHING = timedelta(0)


@dataclass(frozen=True)
class Policies:
    """What a pool is told."""

    packing: PackingPolicy
    preemption: PreemptionPolicy
    within_class: bool = False
    """Whether jobs may be stopped for others of their class: else nobody is asked where all
    that runs is of the class of what waits, or of a higher one."""


class Shipped(World):
    """The planner of the product: a cycle at each moment, and then preemption."""

    def __init__(
        self,
        jobs: Sequence[Job],
        nodes: int,
        restart: float,
        policies: Policies,
        *,
        exact: bool = True,
        learns: bool = False,
        check: bool = False,
        plan_every: float = 0.0,
    ) -> None:
        """With `exact` each job says how long it will hold its GPUs, as exactly as it `says` so,
        else nothing; where the pool `learns`, jobs of a tenant with as many GPUs say it of each
        other. Preemption is planned after each cycle, or not sooner than so many seconds after the
        last time that it stopped nobody."""
        super().__init__(jobs, nodes, restart, check=check)
        self.policies = policies
        self.pool = LivePool(idle_nodes(nodes), policies.packing)
        self.plans = 0
        """Times that preemption was planned."""
        self._exact = exact
        self._learns = learns
        self._runs: defaultdict[tuple[str, int], deque[float]] = defaultdict(
            partial(deque[float], maxlen=MOST_RUNS)
        )
        self._plan_every = plan_every
        self._plan_from = 0.0
        self._requests: dict[str, JobRequest] = {}
        """Of what waits, and of what runs as it was placed."""
        self._long = LongQueue()
        self._gpus = nodes * NODE_GPUS
        self._mix: tuple[float, Mix] | None = None
        self._usage = dict.fromkeys((job.tenant for job in jobs), 0.0)
        self._usage_at = 0.0

    @property
    def time(self) -> datetime:
        """The moment of the world, as the planner is told."""
        return _at(self.now)

    def decide(self) -> None:
        self._note_usage()
        while True:
            self._cycle()
            if not self._stop_some():
                return

    def _note_usage(self) -> None:
        """Reckon what each tenant has had, as if it had held what it holds since the last time."""
        score = self.policies.packing.score
        passed = self.now - self._usage_at
        if score is None or not score.by_share or passed < _USAGE_EVERY:
            return
        kept = 0.5 ** (passed / score.half_life.total_seconds())
        self._usage = {tenant: had * kept for tenant, had in self._usage.items()}
        for job in self.running.values():
            self._usage[job.tenant] += job.gpus * passed
        self._usage_at = self.now
        packing = self.policies.packing.model_copy(update={"usage": dict(self._usage)})
        self.policies = replace(self.policies, packing=packing)
        self.pool.policy = packing

    def in_use(self) -> list[int]:
        given = [
            (share.node_id, gpu) for share in self.pool.running() for gpu in share.gpu_indices
        ]
        assert len(given) == len(set(given)), "a GPU is given twice"
        nodes = self.pool.nodes.values()
        return [sum(not gpu.is_free for gpu in node.gpus) for node in nodes]

    def joined(self, job: Job) -> None:
        request = self._request_of(job)
        self._requests[job.id] = request
        self._long.put(request)

    def left(self, job: Job) -> None:
        if self._learns and not job.left:
            self._runs[job.tenant, job.gpus].append(job.seconds)
        self.pool.end(job.id)
        del self._requests[job.id]

    def _request_of(self, job: Job) -> JobRequest:
        """Return a job that begins to wait as its queue has it."""
        expected = ASSUMED_DURATION
        if self._exact:
            restart = self.restart if job.attempt > 1 else 0.0
            expected = timedelta(seconds=(job.left - job.after) * job.says + restart)
        asked = JobRequest(
            id=job.id, gpus=job.gpus, priority=job.priority, tenant=job.tenant,
            submitted_at=_at(job.came), waits_since=_at(self.now - job.waited),
            attempt=job.attempt, saves=job.saves, can_stop=job.saves,
            # A piece takes over all that those before it ran: it comes as they end.
            duration_known=self._exact, attained=timedelta(seconds=job.seconds - job.left),
            gang=_GANG if job.gpus > NODE_GPUS else None, expected_duration=expected,
        )  # fmt: skip
        return (
            with_learnt(asked, learn(self._runs[job.tenant, job.gpus])) if self._learns else asked
        )

    def _cycle(self) -> None:
        """Run a cycle as a live pool does. Where nobody waits or no GPU is free none is run: it
        would start nothing."""
        if not self.waiting or not self.pool.open_gpus:
            return
        self.cycles += 1
        packing, now = self.policies.packing, _at(self.now)
        queue = [self._requests[name] for name in self.waiting]
        mix = self._mix_of(queue)
        later = self.tell_later()
        part = self._long.to_plan(
            self.pool.open_gpus, self._gpus, packing, now, wanted=(), later=later
        )
        made = self.pool.plan(
            part.jobs if part else queue, now, mix=mix, wanted=(), later=later,
            later_until=part.later_until if part else None,
        )  # fmt: skip
        if part and made.rearranged:
            made = self.pool.plan(queue, now, mix=mix, wanted=(), later=later)
        self.planned(made, now)
        for decision in made.placements:
            self._start(decision.job_id, gains_of(decision))

    def tell_later(self) -> int:
        """Return how many jobs without a start kept the next cycle tells when they may start."""
        return 0

    def planned(self, made: CyclePlan, now: datetime) -> None:
        """Hear of the plan of a cycle, before what starts by it does."""

    def _mix_of(self, queue: Sequence[JobRequest]) -> Mix:
        if self._mix is None or self.now - self._mix[0] >= _MIX_FOR:
            self._mix = self.now, self.pool.mix(queue)
        return self._mix[1]

    def _start(self, job_id: str, gains: Iterable[GainedGPUs]) -> None:
        self.pool.start(self._requests[job_id], gains, _at(self.now))
        self._long.remove(job_id)
        self.begin(self.waiting[job_id])

    def _stop_some(self) -> bool:
        """Stop whom the plans name, and start for whom they stop; return whether there was
        anybody."""
        if self.now < self._plan_from or not self._might_help():
            return False
        self.plans += 1
        chosen = [plan for plan in self._plans() if plan.preempts]
        if not chosen:
            self._plan_from = self.now + self._plan_every
        for plan in chosen:
            for victim in plan.victims:
                self.stop(self.running[victim.job_id])
            self._start(plan.job_id, plan.gains)
        return bool(chosen)

    def _might_help(self) -> bool:
        if not self.policies.preemption.enabled or not self.waiting or not self.running:
            return False
        if self.policies.within_class:
            return True
        lowest = min(job.priority for job in self.running.values())
        return any(job.priority > lowest for job in self.waiting.values())

    def _plans(self) -> tuple[PreemptionPlan, ...]:
        now, packing = _at(self.now), self.policies.packing
        saved = WorkCheckpoint.trusted(saved_at=now, write=_NOTHING, saves_while_running=True)
        works = [self._work_of(job, saved) for job in self.running.values()]
        queue = [self._requests[name] for name in self.waiting]
        mix = self._mix_of(queue)
        held = (job.gpus for job in self.running.values())
        freed = sum(nlargest(self.policies.preemption.max_under_way, held))
        to_come = self.pool.open_gpus + freed
        part = self._long.to_plan(to_come, self._gpus, packing, now, wanted=())
        return plan_preemptions(
            part.jobs if part else queue, list(self.pool.nodes.values()), works,
            self.policies.preemption, packing, now, recent=self.pool.recent(), stops_only=True,
            mix=mix,
        )  # fmt: skip

    def _work_of(self, job: Job, saved: WorkCheckpoint) -> RunningWork:
        """Return what runs as a plan sees it."""
        shares = self.pool.shares_of(job.id)
        return RunningWork.trusted(
            request=self._requests[job.id], tenant=job.tenant, shares=shares,
            started_at=_at(job.begins), waited=timedelta(seconds=job.waited),
            expected_end=end_at(shares[0].expected_end, shares[0].ends, self.time),
            checkpoint=saved if job.saves else None, preemptible=job.saves,
            preempted_at=tuple(_at(at) for at in job.stopped_at if at >= job.came),
            price=self.policies.preemption.owned_gpu_price,
        )  # fmt: skip


def idle_nodes(count: int) -> list[Node]:
    """Return equal nodes of a pool."""
    gpus = tuple(GPU(index=i, vram=_VRAM) for i in range(NODE_GPUS))
    return [Node(id=f"node-{row:05}", gpus=gpus, cpus=64, ram=512) for row in range(count)]


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)
