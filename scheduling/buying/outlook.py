"""When the jobs of a queue start by what is known, and how that uses each node.

The plan of now says what starts now, and keeps a start for the others: on machines that come at
one time in the order of the machines. But once those are there, a cycle places by the pool's rule,
and may put a short job on the machine that was bought for a long one. So what would start on
machines to come is planned once more, for the moment when they are there.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.node import Node
from longshore.models.placement import CyclePlan, PackingPolicy, RunningJob
from longshore.scheduling.cycle import plan
from longshore.scheduling.placement.state import running_job

MOST_RESERVATIONS = 1_000
_MOST_MOMENTS = 8
"""At which machines come that are planned one by one; for later ones starts are kept."""
_SHORTEST = timedelta(seconds=1)


class Use(NamedTuple):
    """So many GPUs of a node are used from one time to another."""

    job_id: str
    gpus: int
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Outlook:
    """When each job starts, by what is known, and how that uses each node."""

    starts: Mapping[str, datetime | None]
    uses: Mapping[str, Sequence[Use]]
    """By node."""

    def jobs_on(self, nodes: Iterable[str]) -> frozenset[str]:
        return frozenset(use.job_id for node in nodes for use in self.uses.get(node, ()))

    def ends_on(self, node_id: str) -> datetime | None:
        return max((use.end for use in self.uses.get(node_id, ())), default=None)


class ForecastCluster(NamedTuple):
    """The nodes on which jobs are planned, with those to come."""

    nodes: Sequence[Node]
    running: Sequence[RunningJob]
    """With the holds on nodes that are not there yet."""
    ready: Mapping[str, datetime]
    """When each of those nodes comes."""
    packing: PackingPolicy
    recent: tuple[RecentJobs, ...]

    def plan(self, jobs: Iterable[JobRequest], now: datetime) -> CyclePlan:
        packing = self.packing.model_copy(update={"max_reservations": MOST_RESERVATIONS})
        # What a search could start, cycles have started. Nothing is bought on the hope for one.
        nodes, running = self.nodes, self.running
        return plan(jobs, nodes, running, packing, now, self.recent, as_a_set=False)

    def only(self, names: Collection[str]) -> "ForecastCluster":
        nodes = [node for node in self.nodes if node.id in names]
        return self._replace(nodes=nodes, running=[j for j in self.running if j.node_id in names])


class _Share(NamedTuple):
    """What a job has of one node."""

    node_id: str
    gpu_indices: tuple[int, ...]
    slices: int
    start: datetime
    end: datetime


_Shares = dict[str, list[_Share]]
"""By job; none for one that starts at no known time."""


def look_ahead(jobs: Iterable[JobRequest], cluster: ForecastCluster, now: datetime) -> Outlook:
    """Return when each job starts on this cluster, by the packer itself."""
    wanted = {job.id: job for job in jobs}
    if not wanted:
        return _outlook(wanted, {})
    found = _shares(cluster.plan(wanted.values(), now), wanted, now)
    coming = {
        name for name, shares in found.items() if all(s.node_id in cluster.ready for s in shares)
    }
    if not coming:
        return _outlook(wanted, found)
    # What starts at no known time might, where the rule packs more tightly than the order.
    queue = [job for name, job in wanted.items() if name in coming or name not in found]
    there = {name: shares for name, shares in found.items() if name not in coming}
    placed = _as_they_come(queue, cluster.only(cluster.ready), wanted, there)
    if coming - placed.keys():
        rest = [job for name, job in wanted.items() if name not in placed]
        present = cluster.only({node.id for node in cluster.nodes} - cluster.ready.keys())
        there = _shares(present.plan(rest, now), wanted, now)
    return _outlook(wanted, {**there, **placed})


def _as_they_come(
    queue: Iterable[JobRequest],
    coming: ForecastCluster,
    wanted: Mapping[str, JobRequest],
    there: _Shares,
) -> _Shares:
    """Return what jobs get of nodes that come, planned when they are there.

    `there` is what others were given beside; gangs among them may have shares of these nodes.
    """
    nodes = {node.id: node for node in coming.nodes}
    waiting = {job.id: job for job in queue}
    placed: _Shares = {}
    moments = sorted(set(coming.ready.values()))[:_MOST_MOMENTS]
    for moment, following in zip(moments, [*moments[1:], None], strict=True):
        held = [job for job in coming.running if job.expected_end > moment]
        held += [
            running_job(wanted[name], nodes[s.node_id], s.gpu_indices, s.slices, s.end)
            for name, shares in (*there.items(), *placed.items())
            for s in shares
            if s.node_id in nodes and s.start <= moment < s.end
        ]
        planned = coming._replace(running=held).plan(waiting.values(), moment)
        for name, shares in _shares(planned, wanted, moment).items():
            if following is None or all(share.start < following for share in shares):
                placed[name] = shares
                del waiting[name]
        if not waiting:
            break
    return placed


def _shares(planned: CyclePlan, wanted: Mapping[str, JobRequest], now: datetime) -> _Shares:
    """Return what a plan of `now` gives to each job, now or later."""
    found: _Shares = {}
    for decision in planned.placements:
        job = wanted[decision.job_id]
        if job.malleable is not None:  # on fewer GPUs it takes longer
            job = job.at_size(sum(len(gpus) for _, gpus in decision.held))
        end = now + max(job.expected_duration, _SHORTEST)
        found[decision.job_id] = [
            _Share(node_id, gpus, decision.slices, now, end) for node_id, gpus in decision.held
        ]
    for kept in planned.reservations:
        share = _Share(kept.node_id, kept.gpu_indices, kept.slices, kept.start, kept.end)
        found.setdefault(kept.job_id, []).append(share)
    return found


def _outlook(wanted: Iterable[str], found: _Shares) -> Outlook:
    uses: dict[str, list[Use]] = {}
    for name, shares in found.items():
        for share in shares:
            use = Use(name, len(share.gpu_indices), share.start, share.end)
            uses.setdefault(share.node_id, []).append(use)
    return Outlook(
        {name: found[name][0].start if name in found else None for name in wanted}, uses
    )
