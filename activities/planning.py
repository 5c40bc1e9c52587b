"""What a cycle plans with, and what stays of a plan of a whole queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from models.packing import PackingPolicy
from models.placement import CyclePlan, JobRequest, RecentJobs
from scheduling.cycle import mix_kept, plan_kept
from scheduling.placement.kept import KeptNodes
from scheduling.placement.mix import Mix


class WholePlan(NamedTuple):
    """The last plan of a pool's whole queue."""

    at: float
    """By the clock since boot."""
    packing: PackingPolicy
    mix: Mix


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
