"""The packer as one writes it down from docs/architecture.md, to hold the real one against.

Every node is asked anew for every job, moment by moment and GPU by GPU: slow, and plain to read.
Decisions come without their sentence.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import combinations, groupby, pairwise

from models.job import Tier
from models.node import Node, NodeState
from models.placement import (
    Candidate,
    CyclePlan,
    Decision,
    GPUChoice,
    JobRequest,
    PackingPolicy,
    PlacementKind,
    RejectionCode,
    Reservation,
    RunningJob,
    ScoreTerms,
    ScoreWeights,
)

TINY = 1e-6
GPUs = tuple[int, ...]


@dataclass
class Span:
    """What a job has of a machine, from when until when."""

    gpus: GPUs
    cpus: float
    ram: float
    start: datetime
    end: datetime


@dataclass
class Machine:
    """A node, what is known to be held there, and what is held without a known end."""

    node: Node
    now: datetime
    held: list[Span] = field(default_factory=list[Span])
    reserved: list[Span] = field(default_factory=list[Span])
    free: set[int] = field(default_factory=set[int])
    stuck: set[int] = field(default_factory=set[int])
    room: dict[int, float] = field(default_factory=dict[int, float])
    """GB that a job could have on each GPU once nobody holds it."""
    unexplained_cpus: float = 0.0
    unexplained_ram: float = 0.0
    vram_used: float = 0.0

    def cpus_free(self) -> float:
        return self.node.cpus - self.unexplained_cpus - sum(span.cpus for span in self.held)

    def ram_free(self) -> float:
        return self.node.ram - self.unexplained_ram - sum(span.ram for span in self.held)

    def with_memory(self, job: JobRequest) -> set[int]:
        return {index for index, room in self.room.items() if room + TINY >= job.vram_per_gpu}


def reference_plan(
    queue: Iterable[JobRequest],
    nodes: Sequence[Node],
    running: Sequence[RunningJob],
    policy: PackingPolicy,
    now: datetime,
) -> CyclePlan:
    machines = [
        machine_of(node, [r for r in running if r.node_id == node.id], now) for node in nodes
    ]
    decisions: list[Decision] = []
    reservations: list[Reservation] = []
    deferred: Counter[Tier] = Counter()
    for job in sorted(queue, key=turn):
        answers = [answer(machine, job, policy) for machine in machines]
        options = [found for found in answers if isinstance(found, Candidate)]
        counts = Counter(found for found in answers if isinstance(found, RejectionCode))
        rejected = {code: counts[code] for code in RejectionCode if counts[code]}
        if options:
            options.sort(key=lambda option: -option.terms.total)  # stable: ties keep the order
            best = options[0]
            machine = next(m for m in machines if m.node.id == best.node_id)
            start(machine, job, best.gpu_indices)
            decisions.append(
                Decision(
                    job_id=job.id,
                    kind=PlacementKind.EXISTING_NODE,
                    node_id=best.node_id,
                    gpu_indices=best.gpu_indices,
                    terms=best.terms,
                    candidates=tuple(options[:4]),
                    rejected=rejected,
                )
            )
            continue
        reservation = None
        if deferred[job.tier] < policy.max_reservations:
            reservation = reserve(machines, job, policy)
        if reservation:
            deferred[job.tier] += 1
            reservations.append(reservation)
        fast = job.tier is Tier.FAST
        decisions.append(
            Decision(
                job_id=job.id,
                kind=PlacementKind.REQUEST_MORE_CAPACITY if fast else PlacementKind.QUEUE_FOR_FLEX,
                provider_hint="sfcompute" if job.gpus >= 8 else "prime",
                rejected=rejected,
                estimated_start=reservation.start if reservation else None,
            )
        )
    return CyclePlan(decisions=tuple(decisions), reservations=tuple(reservations))


def turn(job: JobRequest) -> tuple[int, bool, datetime | None, str, int]:
    """Priority class, then submission (jobs without one last), then id."""
    return -job.priority, job.submitted_at is None, job.submitted_at, job.id, job.attempt


def machine_of(node: Node, jobs: Sequence[RunningJob], now: datetime) -> Machine:
    machine = Machine(node, now, vram_used=sum(gpu.vram_used for gpu in node.gpus))
    holders = {index: job for job in jobs for index in job.gpu_indices}
    for gpu in node.gpus:
        holder = holders.get(gpu.index)
        if holder is None and gpu.job_id is None:
            machine.free.add(gpu.index)
            machine.room[gpu.index] = max(gpu.vram - gpu.vram_used, 0)
        elif holder is None:
            machine.stuck.add(gpu.index)
            machine.room[gpu.index] = gpu.vram
        elif holder.vram_per_gpu:  # what is used beyond its own share stays
            kept = max(gpu.vram_used - holder.vram_per_gpu, 0)
            machine.room[gpu.index] = gpu.vram - kept
        else:
            machine.room[gpu.index] = gpu.vram
    for job in jobs:
        end = job.expected_end if job.expected_end > now else now + timedelta(minutes=1)
        machine.held.append(Span(job.gpu_indices, job.cpus, job.ram, now, end))
    machine.unexplained_cpus = max(node.cpus_used - sum(job.cpus for job in jobs), 0)
    machine.unexplained_ram = max(node.ram_used - sum(job.ram for job in jobs), 0)
    return machine


def answer(machine: Machine, job: JobRequest, policy: PackingPolicy) -> Candidate | RejectionCode:
    """The first constraint that fails, or the GPUs and the score."""
    node, now = machine.node, machine.now
    roomy = machine.with_memory(job)
    usable = roomy & machine.free
    if node.state is not NodeState.READY:
        return RejectionCode.STATE
    if node.tier is not job.tier:
        return RejectionCode.TIER
    if job.gpu_type and node.gpu_type.casefold() != job.gpu_type.casefold():
        return RejectionCode.GPU_TYPE
    if job.needs_container and node.container_runtime is None:
        return RejectionCode.CONTAINER_RUNTIME
    if expires_before(node, now + job.expected_duration + policy.safety_margin):
        return RejectionCode.EXPIRY
    if machine.cpus_free() + TINY < job.cpus:
        return RejectionCode.CPU
    if machine.ram_free() + TINY < job.ram:
        return RejectionCode.RAM
    if len(node.gpus) < job.gpus:
        return RejectionCode.GPU_COUNT
    if len(roomy) < job.gpus:
        return RejectionCode.VRAM
    if len(usable) < job.gpus:
        return RejectionCode.GPUS_BUSY
    if machine.reserved:
        usable = open_gpus(machine, job, now)
        if not usable:
            return RejectionCode.RESERVED
    gpus = choice(usable, machine.free, job.gpus, policy.gpu_choice)
    terms = score(machine, job, gpus, policy.weights)
    return Candidate(node_id=node.id, gpu_indices=gpus, terms=terms)


def score(machine: Machine, job: JobRequest, gpus: GPUs, weights: ScoreWeights) -> ScoreTerms:
    node = machine.node
    vram = sum(gpu.vram for gpu in node.gpus)
    if vram:
        utilization = min((machine.vram_used + job.vram_per_gpu * job.gpus) / vram, 1)
    else:
        utilization = min((len(node.gpus) - len(machine.free) + job.gpus) / len(node.gpus), 1)
    gap = average_gap(gpus)
    expiry = 0.0
    if node.expires_at and job.expected_duration:
        left = (node.expires_at - machine.now) / (2 * job.expected_duration)
        expiry = min(max(1 - left, 0), 1)
    provider = {"sfcompute": 0.2 * (job.gpus >= 8), "prime": 0.1 * (job.gpus < 8)}
    bonus = provider.get(node.provider, 0.0)
    total = (
        weights.utilization * utilization
        + weights.fragmentation * gap
        + weights.expiry * expiry
        + weights.provider * bonus
    )
    return ScoreTerms(
        utilization=utilization,
        fragmentation=gap,
        expiry=expiry,
        provider=bonus,
        total=round(total, 9),
    )


def choice(usable: set[int], free: set[int], count: int, by: GPUChoice) -> GPUs:
    """The fewest gaps; then the longest runs left; then the lowest. Or simply the first."""
    if by is GPUChoice.FIRST_FREE:
        return tuple(sorted(usable))[:count]
    options = list(combinations(sorted(usable), count))
    fewest = min(average_gap(option) for option in options)
    options = [option for option in options if average_gap(option) == fewest]
    longest = max(runs(free - set(option)) for option in options)
    return min(option for option in options if runs(free - set(option)) == longest)


def average_gap(gpus: GPUs) -> float:
    gaps = [after - before - 1 for before, after in pairwise(gpus)]
    return sum(gaps) / len(gaps) if gaps else 0.0


def runs(gpus: set[int]) -> list[int]:
    """Lengths of the runs of neighbours, longest first."""
    numbered = enumerate(sorted(gpus))
    groups = groupby(numbered, key=lambda pair: pair[1] - pair[0])
    return sorted((len(list(group)) for _, group in groups), reverse=True)


def start(machine: Machine, job: JobRequest, gpus: GPUs) -> None:
    machine.held.append(Span(gpus, job.cpus, job.ram, machine.now, end_of(job, machine.now)))
    machine.free -= set(gpus)
    machine.vram_used += job.vram_per_gpu * job.gpus


def reserve(
    machines: Sequence[Machine], job: JobRequest, policy: PackingPolicy
) -> Reservation | None:
    """Keep what the job wants on the machine where it can start first."""
    found: list[tuple[datetime, int]] = []
    for position, machine in enumerate(machines):
        moment = first_moment(machine, job, policy)
        if moment is not None:
            found.append((moment, position))
    if not found:
        return None
    moment, position = min(found)
    machine = machines[position]
    usable = open_gpus(machine, job, moment)
    gpus = choice(usable, usable, job.gpus, policy.gpu_choice)
    end = end_of(job, moment)
    machine.reserved.append(Span(gpus, job.cpus, job.ram, moment, end))
    return Reservation(
        job_id=job.id, node_id=machine.node.id, gpu_indices=gpus, start=moment, end=end
    )


def first_moment(machine: Machine, job: JobRequest, policy: PackingPolicy) -> datetime | None:
    node = machine.node
    if node.state is not NodeState.READY or node.tier is not job.tier:
        return None
    if job.gpu_type and node.gpu_type.casefold() != job.gpu_type.casefold():
        return None
    if job.needs_container and node.container_runtime is None:
        return None
    if sum(gpu.vram + TINY >= job.vram_per_gpu for gpu in node.gpus) < job.gpus:
        return None
    moments = {machine.now} | {span.end for span in machine.held + machine.reserved}
    for moment in sorted(moments):
        lasts = not expires_before(node, moment + job.expected_duration + policy.safety_margin)
        if lasts and open_gpus(machine, job, moment):
            return moment
    return None


def open_gpus(machine: Machine, job: JobRequest, moment: datetime) -> set[int]:
    """The GPUs that the job could have from this moment to its end; none when too little is."""
    end = end_of(job, moment)
    others = [s for s in machine.held + machine.reserved if s.start < end and s.end > moment]
    gpus = machine.with_memory(job) - machine.stuck
    gpus -= {index for span in others for index in span.gpus}
    if len(gpus) < job.gpus:
        return set()
    for instant in [moment, *(span.start for span in others if span.start > moment)]:
        then = [span for span in others if span.start <= instant < span.end]
        cpus = machine.unexplained_cpus + sum(span.cpus for span in then) + job.cpus
        ram = machine.unexplained_ram + sum(span.ram for span in then) + job.ram
        if cpus > machine.node.cpus + TINY or ram > machine.node.ram + TINY:
            return set()
    return gpus


def end_of(job: JobRequest, moment: datetime) -> datetime:
    return moment + max(job.expected_duration, timedelta(seconds=1))


def expires_before(node: Node, moment: datetime) -> bool:
    return node.expires_at is not None and node.expires_at < moment
