"""The packer as one writes it down from docs/architecture.md, to hold the real one against.

Every node is asked anew for every job, moment by moment and GPU by GPU: slow, and plain to read.
Decisions come without their sentence.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import combinations, groupby, pairwise
from typing import Protocol

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
    ScoreTerm,
    ScoreTerms,
    ScoreWeights,
)
from models.topology import LinkClass, NodeTopology

TINY = 1e-6
GPUs = tuple[int, ...]
Amounts = tuple[float, float, float, float]
"""Cores, GB of RAM, GB/s of storage bandwidth, watts."""
HOST_CODES = (
    RejectionCode.CPU, RejectionCode.RAM, RejectionCode.STORAGE, RejectionCode.POWER,
)  # fmt: skip


@dataclass
class Span:
    """What a job has of a machine, from when until when."""

    gpus: GPUs
    host: Amounts
    start: datetime
    end: datetime
    milli: int = 1000
    vram: float = 0.0
    slices: int = 0
    """Of a part: its thousandths and GB, or its slices."""


@dataclass
class Machine:
    """A node, what is known to be held there, and what is held without a known end."""

    node: Node
    now: datetime
    held: list[Span] = field(default_factory=list[Span])
    reserved: list[Span] = field(default_factory=list[Span])
    idle: set[int] = field(default_factory=set[int])
    stuck: set[int] = field(default_factory=set[int])
    room: dict[int, float] = field(default_factory=dict[int, float])
    """GB that a job could have on each GPU once nobody holds it; none of GPUs in MIG mode."""
    milli_stuck: dict[int, int] = field(default_factory=dict[int, int])
    """Thousandths in use without a known end."""
    vram_stuck: dict[int, float] = field(default_factory=dict[int, float])
    """GB that go with them."""
    slices_stuck: dict[int, int] = field(default_factory=dict[int, int])
    """For each GPU in MIG mode."""
    unexplained: Amounts = (0.0, 0.0, 0.0, 0.0)
    vram_used: float = 0.0

    def size(self) -> list[float]:
        node = self.node
        limits = (node.cpus, node.ram, node.storage_bandwidth, node.power)
        return [math.inf if limit is None else limit for limit in limits]

    def free(self, number: int) -> float:
        used = self.unexplained[number] + sum(span.host[number] for span in self.held)
        return self.size()[number] - used

    def with_memory(self, job: JobRequest) -> set[int]:
        return {index for index, room in self.room.items() if room + TINY >= job.vram_per_gpu}


def reference_plan(
    queue: Iterable[JobRequest],
    nodes: Sequence[Node],
    running: Sequence[RunningJob],
    policy: PackingPolicy,
    now: datetime,
    ranking: "Ranking | None" = None,
) -> CyclePlan:
    """The plan; `ranking` is that of a rule other than the seed's score."""
    machines = [
        machine_of(node, [r for r in running if r.node_id == node.id], now) for node in nodes
    ]
    decisions: list[Decision] = []
    reservations: list[Reservation] = []
    deferred: Counter[Tier] = Counter()
    for job in sorted(queue, key=turn):
        if ranking is not None:
            ranking.look(machines, sum(d.node_id is not None for d in decisions), reservations)
        answers = [answer(machine, job, policy, ranking) for machine in machines]
        options = [found for found in answers if isinstance(found, Candidate)]
        counts = Counter(found for found in answers if isinstance(found, RejectionCode))
        rejected = {code: counts[code] for code in RejectionCode if counts[code]}
        if options:
            options.sort(key=lambda option: -option.terms.total)  # stable: ties keep the order
            if ranking is None:
                options[0] = in_words(options[0], machine_at(machines, options[0]), job, policy)
            best = options[0]
            machine = machine_at(machines, best)
            start(machine, job, best.gpu_indices, best.slices)
            decisions.append(
                Decision(
                    job_id=job.id,
                    kind=PlacementKind.EXISTING_NODE,
                    node_id=best.node_id,
                    gpu_indices=best.gpu_indices,
                    slices=best.slices,
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


def in_words(
    option: Candidate, machine: Machine, job: JobRequest, policy: PackingPolicy
) -> Candidate:
    """The chosen node by the seed's score, with what is added to it."""
    data = policy.weights.locality * held(job, machine.node)
    ends = policy.weights.separation * together(job, machine)
    named = sorted([(-data, "data on the node"), (-ends, "ends with the node's jobs")])
    parts = [ScoreTerm(name=n, value=round(-v, 6)) for v, n in named if -v >= 0.001]
    terms = option.terms.model_copy(update={"parts": tuple(parts)})
    return option.model_copy(update={"terms": terms})


def machine_at(machines: Sequence[Machine], option: Candidate) -> Machine:
    return next(machine for machine in machines if machine.node.id == option.node_id)


def turn(job: JobRequest) -> tuple[int, bool, datetime | None, str, int]:
    """Priority class, then submission (jobs without one last), then id."""
    return -job.priority, job.submitted_at is None, job.submitted_at, job.id, job.attempt


def machine_of(node: Node, jobs: Sequence[RunningJob], now: datetime) -> Machine:
    machine = Machine(node, now, vram_used=sum(gpu.vram_used for gpu in node.gpus))
    holders = {i: job for job in jobs if job.milli == 1000 for i in job.gpu_indices}
    for gpu in node.gpus:
        holder = holders.get(gpu.index)
        here = [job for job in jobs if job.milli < 1000 and gpu.index in job.gpu_indices]
        if gpu.mig is not None:
            known = {bit for job in here for bit in bits(job.slices)}
            machine.slices_stuck[gpu.index] = sum(
                1 << bit for bit in bits(gpu.slices_used) if bit not in known
            )
        elif holder is None and gpu.job_id is not None:
            machine.stuck.add(gpu.index)
            machine.milli_stuck[gpu.index] = 1000
            machine.room[gpu.index] = gpu.vram
        elif holder is None:
            unknown = max(gpu.milli_used - sum(job.milli for job in here), 0)
            machine.milli_stuck[gpu.index] = unknown
            if unknown:
                machine.stuck.add(gpu.index)
            elif not here:
                machine.idle.add(gpu.index)
            beyond = max(gpu.vram_used - sum(job.vram_per_gpu for job in here), 0)
            machine.vram_stuck[gpu.index] = beyond if unknown else 0
            machine.room[gpu.index] = gpu.vram if unknown else max(gpu.vram - beyond, 0)
        elif holder.vram_per_gpu:  # what is used beyond its own share stays
            kept = max(gpu.vram_used - holder.vram_per_gpu, 0)
            machine.room[gpu.index] = gpu.vram - kept
        else:
            machine.room[gpu.index] = gpu.vram
    for job in jobs:
        end = job.expected_end if job.expected_end > now else now + timedelta(minutes=1)
        vram = 0.0 if job.slices else job.vram_per_gpu
        machine.held.append(
            Span(
                job.gpu_indices, (job.cpus, job.ram, job.storage, job.power), now, end, job.milli,
                vram, job.slices,
            )
        )  # fmt: skip
    machine.unexplained = (
        max(node.cpus_used - sum(job.cpus for job in jobs), 0),
        max(node.ram_used - sum(job.ram for job in jobs), 0),
        max(node.storage_used - sum(job.storage for job in jobs), 0),
        max(node.power_used - sum(job.power for job in jobs), 0),
    )
    return machine


def wants(job: JobRequest, node: Node) -> Amounts:
    """What the job takes of the node beside its GPUs."""
    watts = node.gpu_power if job.power_per_gpu is None else job.power_per_gpu
    if job.power_per_gpu is None and job.mig is not None:
        # A profile has so many of eight slices, by the number before its g: 3g has 4, 7g all 8.
        watts *= {"3": 4, "7": 8}.get(job.mig[0], int(job.mig[0])) / 8
    elif job.power_per_gpu is None:
        watts *= job.milli / 1000
    return job.cpus, job.ram, job.storage_bandwidth, watts * job.gpus


class Ranking(Protocol):
    """What a rule makes of a node, without expiry and provider."""

    def look(
        self, machines: Sequence[Machine], placed: int, reservations: Sequence[Reservation]
    ) -> None:
        """See all nodes before a job is decided."""

    def value(self, machine: Machine, after: Machine, gpus: GPUs, job: JobRequest) -> float:
        """The value of a node; `after` is the node with the job."""
        ...


def answer(
    machine: Machine, job: JobRequest, policy: PackingPolicy, ranking: Ranking | None = None
) -> Candidate | RejectionCode:
    """The first constraint that fails, or the GPUs and the score."""
    node, now = machine.node, machine.now
    roomy = machine.with_memory(job)
    usable = roomy & machine.idle
    if node.state is not NodeState.READY:
        return RejectionCode.STATE
    if node.tier is not job.tier:
        return RejectionCode.TIER
    if job.gpu_type and node.gpu_type.casefold() != job.gpu_type.casefold():
        return RejectionCode.GPU_TYPE
    if job.needs_container and node.container_runtime is None:
        return RejectionCode.CONTAINER_RUNTIME
    if (failed := misfit(node, job)) is not None:
        return failed
    if expires_before(node, now + job.expected_duration + policy.safety_margin):
        return RejectionCode.EXPIRY
    for number, (code, amount) in enumerate(zip(HOST_CODES, wants(job, node), strict=True)):
        if machine.free(number) + TINY < amount:
            return code
    if job.mig is not None:
        if not any(gpu.mig and gpu.mig.get(job.mig) for gpu in node.gpus):
            return RejectionCode.MIG_PROFILE
        if not instances(machine, job, machine.held):
            return RejectionCode.MIG_BUSY
    elif len(machine.room) < job.gpus:
        return RejectionCode.GPU_COUNT
    elif len(roomy) < job.gpus:
        return RejectionCode.VRAM
    elif job.milli < 1000:
        if not left(machine, job, now, machine.held):
            return RejectionCode.SHARES_BUSY
    elif len(usable) < job.gpus:
        return RejectionCode.GPUS_BUSY
    found = open_part(machine, job, now, policy.gpu_choice, machine.idle)
    if found is None:
        return RejectionCode.RESERVED
    gpus, slices = found
    terms = score(machine, job, gpus, slices, policy.weights)
    if ranking is not None:
        after = with_job(machine, job, gpus, slices)
        total = ranking.value(machine, after, gpus, job)
        total += policy.weights.expiry * terms.expiry + policy.weights.provider * terms.provider
        total += policy.weights.locality * held(job, node)
        total += policy.weights.separation * together(job, machine)
        terms = terms.model_copy(update={"rule": policy.rule, "total": round(total, 9)})
    link = link_of(gpus, node.topology)
    return Candidate(node_id=node.id, gpu_indices=gpus, slices=slices, link=link, terms=terms)


def misfit(node: Node, job: JobRequest) -> RejectionCode | None:
    """What the job has against the node's fingerprint."""
    if job.conformance is None:
        return None
    if not node.conformance:
        return RejectionCode.CONFORMANCE
    allowed = job.conformance.allowed or [node.conformance]
    return None if node.conformance in allowed else RejectionCode.NOT_ALLOWED


def score(
    machine: Machine, job: JobRequest, gpus: GPUs, slices: int, weights: ScoreWeights
) -> ScoreTerms:
    node = machine.node
    vram = sum(gpu.vram for gpu in node.gpus)
    if vram:
        utilization = min((machine.vram_used + memory_of(machine, job, gpus, slices)) / vram, 1)
    else:
        utilization = min((len(node.gpus) - len(machine.idle) + job.gpus) / len(node.gpus), 1)
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
        + weights.locality * held(job, node)
        + weights.separation * together(job, machine)
    )
    return ScoreTerms(
        utilization=utilization,
        fragmentation=gap,
        expiry=expiry,
        provider=bonus,
        total=round(total, 9),
    )


def held(job: JobRequest, node: Node) -> float:
    """The part of the job's data that is on the node; what names no size counts as 1 GB."""
    sizes = {name: size or 1 for name, size in job.data.items()}
    there = sum(size for name, size in sizes.items() if name in node.data)
    return there / sum(sizes.values()) if sizes else 0.0


def together(job: JobRequest, machine: Machine) -> float:
    """How near the job's end is to that of the last job there."""
    if not machine.held:
        return 0.0
    spans = job.expected_duration, max(span.end for span in machine.held) - machine.now
    return min(spans) / max(spans)


def choice(
    usable: set[int],
    free: set[int],
    count: int,
    by: GPUChoice,
    topology: NodeTopology | None = None,
) -> GPUs:
    """The fastest slowest link, then the most network cards, where they are known; the fewest
    gaps; then the longest runs left; then the lowest. Or simply the first."""
    if by is GPUChoice.FIRST_FREE:
        return tuple(sorted(usable))[:count]
    options = list(combinations(sorted(usable), count))
    if topology is not None:
        fastest = max(speed(option, topology) for option in options)
        options = [option for option in options if speed(option, topology) == fastest]
        most = max(cards(option, topology) for option in options)
        options = [option for option in options if cards(option, topology) == most]
    fewest = min(average_gap(option) for option in options)
    options = [option for option in options if average_gap(option) == fewest]
    longest = max(runs(free - set(option)) for option in options)
    return min(option for option in options if runs(free - set(option)) == longest)


def speed(gpus: GPUs, topology: NodeTopology) -> int:
    """GB/s of the slowest link; 0 where one is not known."""
    link = link_of(gpus, topology)
    return link.gb_per_second if link else 0


def link_of(gpus: GPUs, topology: NodeTopology | None) -> LinkClass | None:
    """The slowest link of several GPUs, where all are known."""
    if topology is None or len(gpus) < 2 or not set(gpus) <= set(topology.gpus):
        return None
    rows = [topology.gpus.index(gpu) for gpu in gpus]
    links = [topology.links[a][b] for a in rows for b in rows if a != b]
    known = [link for link in links if link is not None]
    return min(known, key=lambda k: k.gb_per_second) if len(known) == len(links) else None


def cards(gpus: GPUs, topology: NodeTopology) -> int:
    beside = dict(zip(topology.gpus, topology.nics, strict=False))
    return len({beside.get(gpu) for gpu in gpus} - {None})


def average_gap(gpus: GPUs) -> float:
    gaps = [after - before - 1 for before, after in pairwise(gpus)]
    return sum(gaps) / len(gaps) if gaps else 0.0


def runs(gpus: set[int]) -> list[int]:
    """Lengths of the runs of neighbours, longest first."""
    numbered = enumerate(sorted(gpus))
    groups = groupby(numbered, key=lambda pair: pair[1] - pair[0])
    return sorted((len(list(group)) for _, group in groups), reverse=True)


def memory_of(machine: Machine, job: JobRequest, gpus: GPUs, slices: int) -> float:
    """The GB in use once the job has these GPUs; a MIG instance has an eighth for each slice."""
    if job.mig is None:
        return job.vram_per_gpu * job.gpus
    size = next(gpu.vram for gpu in machine.node.gpus if gpu.index == gpus[0])
    return round(size * 1000) * len(bits(slices)) // 8 / 1000


def start(machine: Machine, job: JobRequest, gpus: GPUs, slices: int) -> None:
    machine.held.append(span_of(machine, job, gpus, slices, machine.now))
    machine.idle -= set(gpus)
    machine.vram_used += memory_of(machine, job, gpus, slices)


def with_job(machine: Machine, job: JobRequest, gpus: GPUs, slices: int) -> Machine:
    after = replace(machine, held=list(machine.held), idle=set(machine.idle))
    start(after, job, gpus, slices)
    return after


def span_of(machine: Machine, job: JobRequest, gpus: GPUs, slices: int, moment: datetime) -> Span:
    milli, vram = (0, 0.0) if job.mig else (job.milli, job.vram_per_gpu)
    end = end_of(job, moment)
    return Span(gpus, wants(job, machine.node), moment, end, milli, vram, slices)


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
    found_then = open_part(machine, job, moment, policy.gpu_choice)
    assert found_then is not None
    gpus, slices = found_then
    span = span_of(machine, job, gpus, slices, moment)
    machine.reserved.append(span)
    return Reservation(
        job_id=job.id, node_id=machine.node.id, gpu_indices=gpus, slices=slices, start=moment,
        end=span.end,
    )  # fmt: skip


def first_moment(machine: Machine, job: JobRequest, policy: PackingPolicy) -> datetime | None:
    node = machine.node
    if node.state is not NodeState.READY or node.tier is not job.tier:
        return None
    if job.gpu_type and node.gpu_type.casefold() != job.gpu_type.casefold():
        return None
    if job.needs_container and node.container_runtime is None:
        return None
    if misfit(node, job) is not None:
        return None
    large = [g for g in node.gpus if g.mig is None and g.vram + TINY >= job.vram_per_gpu]
    if job.mig is None and len(large) < job.gpus:
        return None
    moments = {machine.now} | {span.end for span in machine.held + machine.reserved}
    for moment in sorted(moments):
        lasts = not expires_before(node, moment + job.expected_duration + policy.safety_margin)
        if lasts and open_part(machine, job, moment, policy.gpu_choice):
            return moment
    return None


def open_part(
    machine: Machine,
    job: JobRequest,
    moment: datetime,
    by: GPUChoice,
    free: set[int] | None = None,
) -> tuple[GPUs, int] | None:
    """The GPUs, or the GPU and slices, that the job would get from this moment to its end."""
    end = end_of(job, moment)
    others = [s for s in machine.held + machine.reserved if s.start < end and s.end > moment]
    for instant in instants(moment, others):
        then = [span for span in others if span.start <= instant < span.end]
        for number, amount in enumerate(wants(job, machine.node)):
            used = machine.unexplained[number] + sum(span.host[number] for span in then)
            if used + amount > machine.size()[number] + TINY:
                return None
    if job.mig is not None:
        places = instances(machine, job, others)
        return best_instance(machine, places, others, by) if places else None
    if job.milli < 1000:
        found = left(machine, job, moment, others)
        return ((fullest(found, free, by),), 0) if found else None
    gpus = machine.with_memory(job) - machine.stuck
    gpus -= {index for span in others for index in span.gpus}
    if len(gpus) < job.gpus:
        return None
    topology = machine.node.topology if job.gpus > 1 else None
    return choice(gpus, gpus if free is None else free, job.gpus, by, topology), 0


def instants(moment: datetime, others: Sequence[Span]) -> list[datetime]:
    return [moment, *(span.start for span in others if span.start > moment)]


def left(
    machine: Machine, job: JobRequest, moment: datetime, others: Sequence[Span]
) -> dict[int, tuple[int, float]]:
    """The least thousandths and GB that each GPU has left, of those that suffice throughout."""
    found: dict[int, tuple[int, float]] = {}
    for index, room in machine.room.items():
        millis: list[int] = []
        rooms: list[float] = []
        for instant in instants(moment, others):
            then = [s for s in others if s.start <= instant < s.end and index in s.gpus]
            shares = [span for span in then if span.milli < 1000]
            millis.append(1000 - machine.milli_stuck.get(index, 0) - sum(s.milli for s in then))
            used = machine.vram_stuck.get(index, 0) + sum(span.vram for span in shares)
            rooms.append(round(room - used, 6))
        if min(millis) >= job.milli and min(rooms) + TINY >= job.vram_per_gpu:
            found[index] = min(millis), min(rooms)
    return found


def fullest(found: dict[int, tuple[int, float]], free: set[int] | None, by: GPUChoice) -> int:
    """The GPU with the least left; of empty ones the one that a whole job would get."""
    if by is GPUChoice.FIRST_FREE:
        return min(found)
    best = min(found, key=lambda index: (found[index], index))
    if found[best][0] < 1000:
        return best
    return choice(set(found), set(found) if free is None else free, 1, by)[0]


def instances(machine: Machine, job: JobRequest, others: Sequence[Span]) -> list[tuple[int, int]]:
    """Each GPU in MIG mode with each position of the profile that nobody has a slice of."""
    assert job.mig is not None
    return [
        (gpu.index, position)
        for gpu in machine.node.gpus
        if gpu.mig is not None
        for position in gpu.mig.get(job.mig, ())
        if not bits(position) & taken(machine, gpu.index, others)
    ]


def best_instance(
    machine: Machine,
    places: list[tuple[int, int]],
    others: Sequence[Span],
    by: GPUChoice,
) -> tuple[GPUs, int]:
    """On the GPU with most slices taken: what leaves most positions of the largest profiles."""
    if by is GPUChoice.FIRST_FREE:
        index, position = min(places)
        return (index,), position
    used = {index: taken(machine, index, others) for index, _ in places}
    index = min(used, key=lambda gpu: (-len(used[gpu]), gpu))
    mig = next(gpu.mig for gpu in machine.node.gpus if gpu.index == index)
    assert mig is not None
    profiles = sorted(
        mig, key=lambda name: (max((len(bits(m)) for m in mig[name]), default=0), name)
    )

    def leaves(position: int) -> list[int]:
        after = used[index] | bits(position)
        return [sum(not bits(m) & after for m in mig[name]) for name in reversed(profiles)]

    positions = sorted(position for gpu, position in places if gpu == index)
    return (index,), max(positions, key=leaves)  # the first of equals: the lowest


def taken(machine: Machine, index: int, others: Sequence[Span]) -> set[int]:
    slices = bits(machine.slices_stuck[index])
    return slices.union(*(bits(span.slices) for span in others if index in span.gpus))


def bits(mask: int) -> set[int]:
    return {bit for bit in range(mask.bit_length()) if mask >> bit & 1}


def end_of(job: JobRequest, moment: datetime) -> datetime:
    return moment + max(job.expected_duration, timedelta(seconds=1))


def expires_before(node: Node, moment: datetime) -> bool:
    return node.expires_at is not None and node.expires_at < moment
