"""What a cycle plans with, and when it may plan a part of a long queue."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from models.packing import PackingPolicy
from models.placement import CyclePlan, JobRequest, RecentJobs
from models.pool import PoolSpec
from scheduling.cycle import mix_kept, plan_kept
from scheduling.placement.kept import KeptNodes
from scheduling.placement.mix import Mix

WHOLE_EVERY = 10.0
"""Seconds after which a long queue is planned whole again: it is said anew why those wait that
are behind many others that ask alike."""


@dataclass
class Planning:
    """Plans jobs on the nodes of a snapshot."""

    nodes: KeptNodes
    packing: PackingPolicy
    now: datetime
    recent: tuple[RecentJobs, ...]
    given: Mix | None
    """What to expect; None: what the jobs say that are planned."""
    mix: Mix | None = None
    """What the last plan that was made expected."""

    def __call__(self, jobs: Sequence[JobRequest]) -> CyclePlan:
        mix = self.given or mix_kept(jobs, self.nodes, self.packing, self.recent)
        made = plan_kept(jobs, self.nodes, self.packing, self.now, self.recent, mix=mix)
        self.mix = mix
        return made


class WholePlans:
    """What is remembered of each pool's last plan of its whole queue."""

    def __init__(self) -> None:
        self._made: dict[str, _Whole] = {}
        self._in_vain: dict[str, float] = {}
        """When the plan of a part of a pool's queue could not be used, by the clock since boot."""

    def note(self, pool: PoolSpec, mix: Mix) -> None:
        """The pool's whole queue was planned, with this mix."""
        self._made[pool.name] = _Whole(time.monotonic(), pool.packing, mix)

    def note_in_vain(self, pool: PoolSpec) -> None:
        """Jobs changed their places in the plan of a part, and they may do so again."""
        self._in_vain[pool.name] = time.monotonic()

    def mix_of_part(self, pool: PoolSpec) -> Mix | None:
        """Return what a plan of a part of the pool's queue is to expect; None where the whole is
        to be planned: it was not for a while, or the policy is another one or needs all jobs."""
        then = time.monotonic() - WHOLE_EVERY
        made = self._made.get(pool.name)
        if made is None or made.at <= then or self._in_vain.get(pool.name, then) > then:
            return None
        as_before = made.packing == pool.packing and not pool.packing.weights.separation
        return made.mix if as_before else None


class _Whole(NamedTuple):
    at: float
    """By the clock since boot."""
    packing: PackingPolicy
    mix: Mix
