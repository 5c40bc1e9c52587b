"""The inputs of a cycle's plan and its result, and how much of a long queue it reads."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.funding.planning import Settlement
from longshore.activities.preemption import Looked
from longshore.activities.queue_cache import WaitingJobs
from longshore.activities.snapshot import load_recent
from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.node import Node
from longshore.models.packing import PackingPolicy
from longshore.models.placement import CyclePlan
from longshore.models.pool import PoolSpec
from longshore.scheduling.cycle import mix_kept, plan_cached
from longshore.scheduling.funding.facts import Wall
from longshore.scheduling.funding.planned_anew import left_out
from longshore.scheduling.funding.quotas import Refused, refused, without
from longshore.scheduling.packer import may_not_start
from longshore.scheduling.placement.mix import Mix
from longshore.scheduling.placement.node_cache import NodeCache

_MOST_ANEW = 3
"""How often a plan is made anew without those that a hard quota refuses."""
ANEW_IN = 30.0
"""Seconds in which each job of a long queue is told anew why it waits: a cycle tells as many as
the time since the one before it is of this. So often all are looked at for what to expect, too."""
_RECENT_FOR = 20.0
"""Seconds that the jobs placed lately are kept: what to expect changes slowly."""
_VAIN_FOR = 10.0
"""Seconds in which no part of a queue is tried after one that could not be used."""


@dataclass
class Planning:
    """Plans jobs on the nodes of a snapshot."""

    nodes: NodeCache
    packing: PackingPolicy
    now: datetime
    recent: tuple[RecentJobs, ...]
    wanted: Collection[str] | None
    """Those that are to be told why they wait; None: all."""
    given: Mix | None
    """What to expect; None: what the jobs say that are planned."""
    later: int = 0
    """Jobs without a start kept that are to be told when they may start."""
    walls: Sequence[Wall] = ()
    """Hard quotas: a plan that the database would refuse in part is made without that part."""
    later_until: str | None = None
    """Nobody behind this one is."""
    mix: Mix | None = None
    """What the last plan that was made expected."""

    def __call__(self, jobs: Sequence[JobRequest]) -> CyclePlan:
        mix = self.given or mix_kept(jobs, self.nodes, self.packing, self.recent)
        made = self._made(jobs, self.packing, mix)
        if self.walls:
            made = self._within_walls(jobs, made, mix)
        self.mix = mix
        return made

    def _within_walls(self, jobs: Sequence[JobRequest], made: CyclePlan, mix: Mix) -> CyclePlan:
        """Return a plan of which no hard quota refuses a part."""
        by_id = {job.id: job for job in jobs}
        packing = self.packing
        for left in range(_MOST_ANEW, -1, -1):
            over = refused(self.walls, made.placements, by_id, self._nodes_of(made))
            if not over:
                break
            if not left or packing.funding is None:
                return _without(made, over, by_id)
            placed = {decision.job_id for decision in made.placements}
            out = left_out(over, placed, jobs, last=left == 1)
            packing = packing.model_copy(update={"funding": without(packing.funding, out)})
            made = self._made(jobs, packing, mix)
        return made

    def _made(self, jobs: Sequence[JobRequest], packing: PackingPolicy, mix: Mix) -> CyclePlan:
        return plan_cached(
            jobs, self.nodes, packing, self.now, self.recent, mix=mix, wanted=self.wanted,
            later=self.later, later_until=self.later_until,
        )  # fmt: skip

    def _nodes_of(self, made: CyclePlan) -> dict[str, Node]:
        used = {node_id for decision in made.placements for node_id, _ in decision.held}
        return {node.id: node for node in self.nodes.named(used)}


def _without(
    made: CyclePlan, over: Mapping[str, Refused], jobs: Mapping[str, JobRequest]
) -> CyclePlan:
    """Return a plan in which these jobs wait."""
    decisions = tuple(
        may_not_start(jobs[each.job_id], over[each.job_id].why) if each.job_id in over else each
        for each in made.decisions
    )
    return made.model_copy(update={"decisions": decisions})


class Turn(NamedTuple):
    """What a cycle is to do about a long queue."""

    share: float
    """Of the jobs that wait so many are told anew why."""
    mix: Mix | None
    """What to expect; None: what all jobs say."""
    whole: bool
    """Whether all jobs may start, and not only the first of those that ask alike."""


_FIRST = Turn(1.0, None, whole=True)


class Turns:
    """What is remembered of the last plans of each pool, by the clock since boot."""

    def __init__(self) -> None:
        self._planned: dict[str, _Planned] = {}
        self._in_vain: dict[str, float] = {}

    def of(self, pool: PoolSpec, *, whole: bool = False) -> Turn:
        """Return what the next cycle of a pool is to do. Under a new policy all is said anew."""
        now = time.monotonic()
        last = self._planned.get(pool.name)
        if last is None or last.packing != pool.packing or pool.packing.weights.separation:
            return _FIRST
        mix = last.mix if now - last.learnt < ANEW_IN else None
        in_vain = now - self._in_vain.get(pool.name, -_VAIN_FOR) < _VAIN_FOR
        share = min((now - last.at) / ANEW_IN, 1.0)
        return Turn(share, mix, whole=whole or in_vain or mix is None)

    def note(self, pool: PoolSpec, mix: Mix, *, learnt: bool) -> None:
        """The pool's queue was planned with this mix, `learnt` from all that wait."""
        now = time.monotonic()
        since = now if learnt else self._planned[pool.name].learnt
        self._planned[pool.name] = _Planned(now, pool.packing, mix, since)

    def note_in_vain(self, pool: PoolSpec) -> None:
        """Jobs changed their places in the plan of a part, and they may do so again."""
        self._in_vain[pool.name] = time.monotonic()


class _Planned(NamedTuple):
    at: float
    packing: PackingPolicy
    mix: Mix
    learnt: float
    """When the mix was."""


class RecentlyPlaced:
    """The jobs that were placed lately in each pool."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[float, tuple[RecentJobs, ...]]] = {}
        """With when they were read."""

    async def of(self, connection: AsyncConnection, pool: PoolSpec) -> tuple[RecentJobs, ...]:
        """Return the jobs that the pool placed lately, as they were some seconds ago."""
        if not pool.packing.rule.learns:
            return ()
        read_at, recent = self._read.get(pool.name, (-_RECENT_FOR, ()))
        if time.monotonic() - read_at >= _RECENT_FOR:
            recent = await load_recent(connection, pool.name)
            self._read[pool.name] = time.monotonic(), recent
        return recent


class PoolGPUs(NamedTuple):
    """Of a pool's nodes, before a plan."""

    there: int
    free: int


class Decided(NamedTuple):
    """A plan, and what it was made from."""

    pool: PoolSpec
    waiting: WaitingJobs
    queue: list[JobRequest]
    """The jobs that it was made of, with the checkpoints that they go on from."""
    nodes: tuple[Node, ...]
    """Those that the plan uses."""
    plan: CyclePlan
    now: datetime
    gpus: PoolGPUs
    took: tuple[float, float]
    """Seconds on the clock: reading, and planning."""
    mix: Mix | None = None
    """What the plan expected to be asked for."""
    seconds: float = 0.0
    """What the plan took of the processor."""
    settlement: Settlement | None = None
    """What is to change of who pays."""
    packing: PackingPolicy | None = None
    """The pool's, with what tenants have had; None where nothing was planned."""

    @property
    def looked(self) -> Looked:
        return Looked({decision.job_id for decision in self.plan.decisions}, self.mix)
