"""A pool without a database: every decision is one of `scheduling.cycle`, on nodes that are kept.

What a control worker caches between cycles is cached here (`scheduling.placement.node_cache`), and
what was placed lately is remembered as it is there. Nothing is run; who places a job ends it.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime

from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.node import Node
from longshore.models.placement import CyclePlan, Decision, PackingPolicy, RunningJob
from longshore.models.preemption import GainedGPUs
from longshore.scheduling.cycle import mix_kept, plan_cached
from longshore.scheduling.durations import ends_of
from longshore.scheduling.placement.mix import Mix, remembered
from longshore.scheduling.placement.node_cache import NodeCache
from longshore.scheduling.placement.state import running_job, with_job, without_job
from longshore.scheduling.preemption.what_if import gains_of

START = datetime(2026, 11, 20, tzinfo=UTC)
_DIGITS = 3
"""The database counts thousandths of a core and MB: sums of fractions drift here."""


class LivePool:
    """Nodes with what runs there, changed by cycles and by jobs that end."""

    def __init__(self, nodes: Iterable[Node], policy: PackingPolicy) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.policy = policy
        self._running: dict[str, dict[str, RunningJob]] = {name: {} for name in self.nodes}
        self._nodes_of: dict[str, tuple[str, ...]] = {}
        self._recent: deque[tuple[tuple[object, ...], str]] = deque()
        """The shape of each placement, with the id of its job."""
        self._shapes: dict[tuple[object, ...], JobRequest] = {}
        self._placed: Counter[tuple[object, ...]] = Counter()
        self._going_on: Counter[tuple[object, ...]] = Counter()
        self._counts_in: dict[str, Counter[tuple[object, ...]]] = {}
        """By job: how many of its placements that are remembered have each shape."""
        self._kept = NodeCache()
        self._changed = set(self.nodes)

    @property
    def open_gpus(self) -> int:
        """GPUs that nobody has whole."""
        self._take_in()
        return self._kept.open_gpus

    def place(self, queue: Sequence[JobRequest], now: datetime) -> tuple[Decision, ...]:
        """Run one cycle and return its decisions, in queue order. What it places runs from now
        on."""
        made = self.plan(queue, now)
        by_id = {job.id: job for job in queue}
        for decision in made.placements:
            self.start(by_id[decision.job_id], gains_of(decision), now)
        return made.decisions

    def plan(
        self,
        queue: Collection[JobRequest],
        now: datetime,
        *,
        mix: Mix | None = None,
        wanted: Collection[str] | None = None,
        later: int = 0,
        later_until: str | None = None,
    ) -> CyclePlan:
        """Return what a cycle decides; nothing starts. `mix`, `wanted`, `later` and `later_until`
        are those of `plan_cached`."""
        self._take_in()
        recent = () if mix else self.recent()
        return plan_cached(
            queue, self._kept, self.policy, now, recent, mix=mix, wanted=wanted, later=later,
            later_until=later_until,
        )  # fmt: skip

    def mix(self, queue: Collection[JobRequest]) -> Mix:
        """Return what a cycle of this queue expects to be asked for."""
        self._take_in()
        return mix_kept(queue, self._kept, self.policy, self.recent())

    def start(self, job: JobRequest, gains: Iterable[GainedGPUs], now: datetime) -> None:
        """Give a job these GPUs from now on."""
        end = now + job.expected_duration
        ends = ends_of(job.learnt, now, job.attained)
        names: list[str] = []
        for gain in gains:
            node = self.nodes[gain.node_id]
            self._put(with_job(node, job, gain.gpu_indices, gain.slices))
            run = running_job(job, node, gain.gpu_indices, gain.slices, end)
            if not job.duration_known:
                run = run.model_copy(update={"ends": ends, "since": now - job.attained})
            self._running[node.id][job.id] = run
            names.append(node.id)
        self._nodes_of[job.id] = tuple(names)
        self._remember(job)

    def end(self, job_id: str) -> None:
        """Take a job off its nodes. Raises KeyError for one that does not run."""
        for node_id in self._nodes_of.pop(job_id):
            self._put(without_job(self.nodes[node_id], self._running[node_id].pop(job_id)))
        self._going_on.subtract(self._counts_in.get(job_id, {}))

    def shares_of(self, job_id: str) -> tuple[RunningJob, ...]:
        """Return what a job holds, node by node. Raises KeyError for one that does not run."""
        return tuple(self._running[name][job_id] for name in self._nodes_of[job_id])

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
        return [
            RecentJobs.trusted(
                request=self._shapes[shape], count=count, ended=count - self._going_on[shape]
            )
            for shape, count in self._placed.items()
        ]

    def _remember(self, job: JobRequest) -> None:
        """Note a placement, and forget the oldest where they are too many."""
        shape = _shape_of(job)
        self._shapes.setdefault(shape, job)
        self._recent.append((shape, job.id))
        self._placed[shape] += 1
        shapes = self._counts_in.setdefault(job.id, Counter())
        self._going_on.update(shapes)  # of one that was stopped, and goes on
        shapes[shape] += 1
        self._going_on[shape] += 1
        if len(self._recent) > remembered(len(self.nodes)):
            self._forget(*self._recent.popleft())

    def _forget(self, shape: tuple[object, ...], job_id: str) -> None:
        shapes = self._counts_in[job_id]
        shapes[shape] -= 1
        if not shapes[shape]:
            del shapes[shape]
        if not shapes:
            del self._counts_in[job_id]
        self._going_on[shape] -= job_id in self._nodes_of
        self._placed[shape] -= 1
        if not self._placed[shape]:
            del self._placed[shape], self._going_on[shape], self._shapes[shape]


def _shape_of(job: JobRequest) -> tuple[object, ...]:
    allowed = job.conformance.allowed if job.conformance else ()
    return (
        job.tier, job.gpus, job.gpu_type, job.vram_per_gpu, job.milli, job.cpus, job.ram,
        job.expected_duration, allowed,
    )  # fmt: skip
