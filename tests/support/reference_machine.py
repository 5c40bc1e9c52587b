"""A node of the plain packer (`reference_packer`): what is held there, and what is open from when.

Every question is asked anew, moment by moment and GPU by GPU: slow, and plain to read.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from itertools import combinations, groupby, pairwise

from longshore.models.constraints import Constraint
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import GPUChoice, PackingPolicy, RejectionCode, RunningJob
from longshore.models.topology import LinkClass, NodeTopology

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

    def size(self, number: int) -> float:
        node = self.node
        limit = (node.cpus, node.ram, node.storage_bandwidth, node.power)[number]
        return math.inf if limit is None else limit

    def free(self, number: int) -> float:
        used = self.unexplained[number] + sum([span.host[number] for span in self.held])
        return self.size(number) - used

    def with_memory(self, job: JobRequest) -> set[int]:
        return {index for index, room in self.room.items() if room + TINY >= job.vram_per_gpu}


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
        # Who is overdue runs on for as long again as it has overrun, and a minute at least.
        overrun = now - job.expected_end
        least = timedelta(minutes=1)
        end = job.expected_end if job.expected_end > now else now + max(overrun, least)
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


def cannot_fetch(node: Node, job: JobRequest) -> bool:
    fetched = any(name.startswith("data ") for name in job.data)
    return (fetched and not node.fetches) or (job.serves and not node.serves)


def labelled_otherwise(node: Node, constraints: Iterable[Constraint]) -> bool:
    """Whether a label is not what the job asks for; without the label `!=` and `notin` hold."""
    for key, values, negated in constraints:
        label = node.labels.get(key)
        if negated:
            if label is not None and (not values or label in values):
                return True
        elif label is None or (values and label not in values):
            return True
    return False


def misfit(node: Node, job: JobRequest) -> RejectionCode | None:
    """What the job has against the node's fingerprint."""
    if job.conformance is None and not job.sensitive:
        return None
    if not node.conformance:
        return RejectionCode.CONFORMANCE
    allowed = (job.conformance and job.conformance.allowed) or [node.conformance]
    if node.conformance not in allowed:
        return RejectionCode.NOT_ALLOWED
    return RejectionCode.CHANGED if job.sensitive and node.changed else None


def nobody_there(machine: Machine) -> bool:
    """Whether a job could hold the machine alone now; what is in MIG mode is never idle."""
    return machine.idle == {gpu.index for gpu in machine.node.gpus}


def all_of(machine: Machine, job: JobRequest, gpus: GPUs) -> GPUs:
    """The GPUs that a job holds there, with those that it does not use."""
    return tuple(gpu.index for gpu in machine.node.gpus) if job.sensitive else gpus


def taken_by_others(machine: Machine, job: JobRequest, others: Sequence[Span]) -> bool:
    """Whether a job that is alone on its nodes is not so here."""
    in_mig = any(gpu.mig is not None for gpu in machine.node.gpus)
    return job.sensitive and bool(others or machine.stuck or in_mig)


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
            if used + amount > machine.size(number) + TINY:
                return None
    if taken_by_others(machine, job, others):
        return None
    if job.mig is not None:
        places = instances(machine, job, others)
        return best_instance(machine, places, others, by) if places else None
    if job.milli < 1000:
        found = left(machine, job, moment, others)
        if len(found) < job.gpus:
            return None
        return fullest(found, free, by, job.gpus, machine.node.topology), 0
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


def fullest(
    found: dict[int, tuple[int, float]],
    free: set[int] | None,
    by: GPUChoice,
    count: int,
    topology: NodeTopology | None,
) -> GPUs:
    """The GPUs with the least left; of equal ones, as empty ones are, those that a whole job would
    get."""
    if by is GPUChoice.FIRST_FREE:
        return tuple(sorted(found))[:count]
    level = {index: of if of[0] < 1000 else (1000, 0.0) for index, of in found.items()}
    options = [
        option
        for option in combinations(sorted(found), count)
        if sorted(level[i] for i in option) == sorted(level.values())[:count]
    ]
    empty = set(found) if free is None else free
    return best_of(options, empty, topology if count > 1 else None)


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


def taken(machine: Machine, index: int, others: Sequence[Span]) -> frozenset[int]:
    slices = bits(machine.slices_stuck[index])
    return slices.union(*(bits(span.slices) for span in others if index in span.gpus))


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
    return best_of(list(combinations(sorted(usable), count)), free, topology)


def best_of(options: list[GPUs], free: set[int], topology: NodeTopology | None) -> GPUs:
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


def start(machine: Machine, job: JobRequest, gpus: GPUs, slices: int) -> None:
    machine.held.append(span_of(machine, job, gpus, slices, machine.now))
    machine.idle -= set(all_of(machine, job, gpus))
    machine.vram_used += memory_of(machine, job, gpus, slices)


def with_job(machine: Machine, job: JobRequest, gpus: GPUs, slices: int) -> Machine:
    after = replace(machine, held=list(machine.held), idle=set(machine.idle))
    start(after, job, gpus, slices)
    return after


def span_of(machine: Machine, job: JobRequest, gpus: GPUs, slices: int, moment: datetime) -> Span:
    milli, vram = (0, 0.0) if job.mig else (job.milli, job.vram_per_gpu)
    end = end_of(job, moment)
    gpus = all_of(machine, job, gpus)
    return Span(gpus, wants(job, machine.node), moment, end, milli, vram, slices)


def memory_of(machine: Machine, job: JobRequest, gpus: GPUs, slices: int) -> float:
    """The GB in use once the job has these GPUs; a MIG instance has an eighth for each slice."""
    if job.mig is None:
        return job.vram_per_gpu * job.gpus
    size = next(gpu.vram for gpu in machine.node.gpus if gpu.index == gpus[0])
    return round(size * 1000) * len(bits(slices)) // 8 / 1000


def end_of(job: JobRequest, moment: datetime) -> datetime:
    return moment + max(job.expected_duration, timedelta(seconds=1))


def ends_too_soon(node: Node, job: JobRequest, policy: PackingPolicy, start: datetime) -> bool:
    """Whether a job that starts then should not end there in time, or does too little before it is
    asked to leave: it has to end, or to do as much as it costs to come, to save and to go."""
    if node.expires_at is None:
        return False
    end, publish = policy.margins.end, policy.margins.publish
    done = start + job.expected_duration
    if done + policy.safety_margin > node.expires_at or done + end > node.expires_at:
        return True
    grace = min(job.grace, timedelta(days=365))
    asked = node.expires_at - end - grace - (publish if job.saves else timedelta(0))
    return asked < done and not (job.saves and asked - start >= publish + grace + publish)


@cache
def bits(mask: int) -> frozenset[int]:
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
