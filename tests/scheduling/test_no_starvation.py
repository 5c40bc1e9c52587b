"""Cycle after cycle on a virtual clock: a wide job starts when promised, whoever comes behind."""

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import PackingPolicy, RunningJob
from longshore.scheduling.cycle import plan
from longshore.scheduling.placement.state import with_job, without_job
from tests.support.packing import NOW, POLICY, a_job, a_node
from tests.support.searches import examples

MINUTE = timedelta(minutes=1)


class Clockwork:
    """A cluster that runs what the cycles place, for exactly as long as was expected."""

    def __init__(self, nodes: list[Node], policy: PackingPolicy) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.policy = policy
        self.now = NOW
        self.queue: list[JobRequest] = []
        self.running: list[RunningJob] = []
        self.started: dict[str, datetime] = {}
        self.promised: dict[str, datetime] = {}
        """The first estimate that each job got."""

    def cycle(self) -> None:
        nodes = list(self.nodes.values())
        made = plan(self.queue, nodes, self.running, self.policy, self.now)
        jobs = {job.id: job for job in self.queue}
        for decision in made.decisions:
            if decision.estimated_start is not None:
                self.promised.setdefault(decision.job_id, decision.estimated_start)
        for decision in made.placements:
            job = jobs.pop(decision.job_id)
            assert decision.node_id is not None
            node = self.nodes[decision.node_id]
            self.nodes[node.id] = with_job(node, job, decision.gpu_indices)
            self.started[job.id] = self.now
            self.running.append(self._run(job, node.id, decision.gpu_indices))
        self.queue = list(jobs.values())

    def tick(self) -> None:
        self.now += MINUTE
        for job in [job for job in self.running if job.expected_end <= self.now]:
            self.running.remove(job)
            self.nodes[job.node_id] = without_job(self.nodes[job.node_id], job)

    def _run(self, job: JobRequest, node_id: str, gpus: tuple[int, ...]) -> RunningJob:
        return RunningJob(
            job_id=job.id,
            node_id=node_id,
            gpu_indices=gpus,
            vram_per_gpu=job.vram_per_gpu,
            cpus=job.cpus,
            ram=job.ram,
            expected_end=self.now + job.expected_duration,
        )


def narrow(name: str, gpus: int, minutes: int, priority: int, at: datetime) -> JobRequest:
    return a_job(
        name,
        gpus=gpus,
        cpus=4,
        ram=16,
        priority=priority,
        expected_duration=minutes * MINUTE,
        submitted_at=at,
    )


streams = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 30), st.integers(0, 5)), min_size=1, max_size=12
)


@examples(12)
@given(streams, st.integers(1, 2), st.integers(2, 8))
def test_a_wide_job_starts_when_it_was_promised_under_an_endless_stream(
    stream: list[tuple[int, int, int]], node_count: int, width: int
) -> None:
    world = Clockwork([a_node(f"n{i}") for i in range(node_count)], POLICY)
    for step in range(90):
        if step == 5:
            wide = a_job("wide", gpus=width, cpus=32, ram=256, submitted_at=world.now)
            world.queue.append(wide)
        for lane in range(3):  # more than the cluster can ever serve
            gpus, minutes, priority = stream[(3 * step + lane) % len(stream)]
            name = f"narrow-{step:03}-{lane}"
            at = world.now + timedelta(seconds=1)  # behind the wide job of the same minute
            world.queue.append(narrow(name, gpus, minutes, priority, at))
        world.cycle()
        if "wide" in world.started:
            break
        world.tick()
    assert "wide" in world.started
    if "wide" in world.promised:
        assert world.started["wide"] <= world.promised["wide"]


def test_without_reservations_the_same_stream_starves_the_wide_job() -> None:
    """The stream of the property above is a real threat: this is what it does to a plain queue."""
    starved = Clockwork([a_node()], PackingPolicy(max_reservations=0))
    served = Clockwork([a_node()], POLICY)
    for world in (starved, served):
        for step in range(120):
            if step == 5:
                world.queue.append(a_job("wide", gpus=8, cpus=32, submitted_at=world.now))
            at = world.now + timedelta(seconds=1)
            world.queue.append(narrow(f"narrow-{step:03}", 1, 8, 5, at))
            world.cycle()
            world.tick()
    assert "wide" not in starved.started
    assert served.started["wide"] == served.promised["wide"]
    assert served.started["wide"] - NOW < 15 * MINUTE


def test_narrow_jobs_fill_the_wait_of_a_wide_one() -> None:
    """Backfill: what ends before the reserved start runs meanwhile."""
    world = Clockwork([a_node()], POLICY)
    world.queue = [narrow("first", 4, 60, 5, NOW)]
    world.cycle()
    world.queue = [
        a_job("wide", gpus=8, cpus=32, submitted_at=NOW),
        narrow("filler", 4, 60, 0, NOW),
        narrow("too-long", 4, 61, 5, NOW + MINUTE),
    ]
    world.cycle()
    assert set(world.started) == {"first", "filler"}
    while "wide" not in world.started and world.now < NOW + 120 * MINUTE:
        world.tick()
        world.cycle()
    assert world.started["wide"] == NOW + 60 * MINUTE
