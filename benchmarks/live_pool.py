"""A pool without a database: every decision is one of `scheduling.cycle`, on nodes that are kept.

What a control worker caches between cycles is cached here (`scheduling.placement.node_cache`), and
what was placed lately is remembered as it is there. Nothing is run; who places a job ends it.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from longshore.models.node import Node
from longshore.models.placement import Decision, JobRequest, PackingPolicy, RecentJobs, RunningJob
from longshore.scheduling.cycle import plan_cached
from longshore.scheduling.placement.node_cache import NodeCache
from longshore.scheduling.placement.state import running_job, with_job, without_job

START = datetime(2026, 11, 20, tzinfo=UTC)
RECENT = 400
"""Placements that are remembered, as many as a pool's cycle reads."""
_DIGITS = 3
"""The database counts thousandths of a core and MB: sums of fractions drift here."""


class LivePool:
    """Nodes with what runs there, changed by cycles and by jobs that end."""

    def __init__(self, nodes: Iterable[Node], policy: PackingPolicy) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.policy = policy
        self._running: dict[str, dict[str, RunningJob]] = {name: {} for name in self.nodes}
        self._node_of: dict[str, str] = {}
        self._recent: deque[tuple[JobRequest, str]] = deque(maxlen=RECENT)
        """The shape of each placement, with the id of its job."""
        self._kept = NodeCache()
        self._changed = set(self.nodes)

    def place(self, queue: Sequence[JobRequest], now: datetime) -> tuple[Decision, ...]:
        """Run one cycle and return its decisions, in queue order. What it places runs from now
        on."""
        self._take_in()
        made = plan_cached(queue, self._kept, self.policy, now, self.recent())
        by_id = {job.id: job for job in queue}
        for decision in made.placements:
            job = by_id[decision.job_id]
            assert decision.node_id is not None
            node = self.nodes[decision.node_id]
            gpus = decision.gpu_indices
            self._put(with_job(node, job, gpus, decision.slices))
            end = now + job.expected_duration
            run = running_job(job, node, gpus, decision.slices, end)
            self._running[node.id][job.id] = run
            self._node_of[job.id] = node.id
            self._recent.append((job, job.id))
        return made.decisions

    def end(self, job_id: str) -> None:
        """Take a job off its node. Raises KeyError for one that does not run."""
        node_id = self._node_of.pop(job_id)
        self._put(without_job(self.nodes[node_id], self._running[node_id].pop(job_id)))

    def replace(self, node: Node) -> None:
        """Put a node in place of the one with its id; what runs there stays."""
        self._put(node)

    def running(self) -> list[RunningJob]:
        """Return what runs, node by node."""
        return [job for jobs in self._running.values() for job in jobs.values()]

    def _put(self, node: Node) -> None:
        used = {
            "cpus_used": round(node.cpus_used, _DIGITS),
            "ram_used": round(node.ram_used, _DIGITS),
        }
        self.nodes[node.id] = node.model_copy(update=used)
        self._changed.add(node.id)

    def _take_in(self) -> None:
        nodes = [self.nodes[name] for name in self._changed]
        running = [job for name in self._changed for job in self._running[name].values()]
        self._kept.update(self._changed, nodes, running)
        self._changed = set()

    def recent(self) -> list[RecentJobs]:
        """Return what was placed lately, by shape."""
        if not self.policy.rule.learns:
            return []
        placed: Counter[tuple[object, ...]] = Counter()
        ended: Counter[tuple[object, ...]] = Counter()
        shapes: dict[tuple[object, ...], JobRequest] = {}
        for job, job_id in self._recent:
            shape = _shape_of(job)
            shapes.setdefault(shape, job)
            placed[shape] += 1
            ended[shape] += job_id not in self._node_of
        return [
            RecentJobs.trusted(request=job, count=placed[shape], ended=ended[shape])
            for shape, job in shapes.items()
        ]


def _shape_of(job: JobRequest) -> tuple[object, ...]:
    allowed = job.conformance.allowed if job.conformance else ()
    return (
        job.tier, job.gpus, job.gpu_type, job.vram_per_gpu, job.milli, job.cpus, job.ram,
        job.expected_duration, allowed,
    )  # fmt: skip
