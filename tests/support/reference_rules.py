"""What each rule makes of a node, in plain Python from the decisions 15 and 20: node by node, kind
by kind, copy by copy, to hold `scheduling.placement.rules` against."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import NodeState
from longshore.models.placement import PackingRule, Reservation
from longshore.scheduling.placement.mix import Kind, Mix
from tests.support import reference_machine as plain

TINY = 1e-6


@dataclass
class PlainRanking:
    """A rule, with what the jobs to be expected are."""

    rule: PackingRule
    mix: Mix
    pressure: list[float] = field(default_factory=list[float])
    due: int = 0
    most_cpus: float = 1.0
    most_gpus: int = 1

    def look(
        self, machines: Sequence[plain.Machine], placed: int, reservations: Sequence[Reservation]
    ) -> None:
        """Weigh the kinds by what is scarce now, when an eighth of what was idle may be taken."""
        self.most_cpus = max([1.0, *(machine.node.cpus for machine in machines)])
        self.most_gpus = max([1, *(len(machine.node.gpus) for machine in machines)])
        changes = placed + len(reservations)
        if changes < self.due or not self.mix.kinds:
            return
        ready = [machine for machine in machines if machine.node.state is NodeState.READY]
        idle = sum(idle_milli(machine) for machine in ready)
        weights: list[float] = []
        for kind in self.mix.kinds:
            usable = sum(usable_now(machine, kind) for machine in machines)
            scarcity = idle / max(usable, kind.need.gpus * 1000) if usable else 0.0
            weights.append(kind.frequency * math.sqrt(kind.milli / 1000) * scarcity)
        total = sum(weights) or 1.0
        whole = [kind.need.milli == 1000 and kind.need.mig is None for kind in self.mix.kinds]
        self.pressure = [
            weight / total * (1 - self.mix.churn if is_whole else 1)
            for weight, is_whole in zip(weights, whole, strict=True)
        ]
        typical = sum(kind.frequency * kind.milli for kind in self.mix.kinds)
        self.due = changes + max(1, int(idle / (8 * typical)))

    def value(
        self, machine: plain.Machine, after: plain.Machine, gpus: tuple[int, ...], job: JobRequest
    ) -> float:
        match self.rule:
            case PackingRule.TIGHT:
                return -idle_milli(machine) / 1000 - machine.free(0) / 1e6
            case PackingRule.BEST_FIT:
                left = 0.5 * (machine.free(0) - job.cpus) / self.most_cpus
                left += 0.5 * idle_milli(after) / 1000 / self.most_gpus
                return math.floor(100 * (1 - left) + 1e-9) / 100
            case PackingRule.PACK_TO_EMPTY:
                return pack_to_empty(machine, gpus) / 100
            case PackingRule.FGD:
                more = unusable(after, self.mix) - unusable(machine, self.mix)
                return math.floor(100 / (1 + math.exp(more / 1000)) + 1e-9) / 100
            case _:
                lost = worth(machine, self) - worth(after, self)
                lost += 0.02 * idle_milli(machine)
                lost += 1e-3 * machine.free(0) + 1e-6 * machine.free(1)
                return -lost / 1000


def idle_milli(machine: plain.Machine) -> int:
    """Thousandths that nobody has; a slice is an eighth of a GPU."""
    idle = 0
    for index in machine.room:
        here = [span for span in machine.held if index in span.gpus]
        used = machine.milli_stuck.get(index, 0) + sum(span.milli for span in here)
        idle += max(1000 - used, 0)
    for gpu in machine.node.gpus:
        if gpu.mig is not None:
            all_slices = {b for masks in gpu.mig.values() for m in masks for b in plain.bits(m)}
            taken = plain.taken(machine, gpu.index, machine.held)
            idle += 125 * len(all_slices - taken)
    return idle


def usable_now(machine: plain.Machine, kind: Kind) -> int:
    need = kind.need
    short = machine.free(0) + TINY < need.cpus or machine.free(1) + TINY < need.ram
    return 0 if short or not suits(machine, kind) else found(machine, kind)[1]


def found(machine: plain.Machine, kind: Kind) -> tuple[int, int, int]:
    """GPUs with room now, their idle thousandths if they are enough, GPUs with room when empty."""
    need = kind.need
    large = sum(g.mig is None and g.vram + TINY >= need.vram for g in machine.node.gpus)
    if need.mig is not None:
        able = [gpu for gpu in machine.node.gpus if gpu.mig is not None and gpu.mig.get(need.mig)]
        free = {
            gpu.index: {
                bit
                for mask in (gpu.mig or {})[need.mig]
                if not plain.bits(mask) & plain.taken(machine, gpu.index, machine.held)
                for bit in plain.bits(mask)
            }
            for gpu in able
        }
        slices = sum(len(bits) for bits in free.values())
        return sum(bool(bits) for bits in free.values()), 125 * slices, len(able)
    if need.milli == 1000:
        whole = {i for i in machine.idle if machine.room[i] + TINY >= need.vram}
        return len(whole), 1000 * len(whole) if len(whole) >= need.gpus else 0, large
    wish = JobRequest(id="k", gpus=need.gpus, milli=need.milli, vram_per_gpu=need.vram)
    lefts = plain.left(machine, wish, machine.now, machine.held)
    idle = sum(milli for milli, _ in lefts.values()) if len(lefts) >= need.gpus else 0
    return len(lefts), idle, large


def suits(machine: plain.Machine, kind: Kind) -> bool:
    node, need = machine.node, kind.need
    return (
        node.state is NodeState.READY
        and (node.tier is Tier.FAST) == (need.tier is Tier.FAST)
        and (not need.gpu_types or node.gpu_type.casefold() in need.gpu_types)
        and (not need.container or node.container_runtime is not None)
        and (not need.fetches or node.fetches)
        and (not need.serves or node.serves)
        and not plain.labelled_otherwise(node, need.constraints)
        and (not need.known or node.conformance is not None)
        and (not need.allowed or node.conformance in need.allowed)
        and (node.expires_at is None or node.expires_at - machine.now >= need.must_last)
    )


def worth(machine: plain.Machine, ranking: PlainRanking) -> float:
    mix = ranking.mix
    total = 0.0
    for kind, pressure in zip(mix.kinds, ranking.pressure, strict=True):
        total += pressure * usable_now(machine, kind)
    served = min(
        machine.free(0) / max(mix.cpus_per_milli, 1e-9),
        machine.free(1) / max(mix.ram_per_milli, 1e-9),
    )
    total -= (1 - mix.churn) * max(idle_milli(machine) - served, 0)
    demand = [kind.frequency * math.sqrt(kind.milli / 1000) * kind.milli for kind in mix.kinds]
    for kind, share in zip(mix.kinds, demand, strict=True):
        total += mix.churn * share / sum(demand) * kind.milli * lasting(machine, kind)
    return total


def lasting(machine: plain.Machine, kind: Kind) -> float:
    need, node = kind.need, machine.node
    if not suits(machine, kind):
        return 0.0
    free, _, large = found(machine, kind)
    jobs = len(machine.held) + len(machine.stuck)
    copies = 0.0
    for i in range(1, large // need.gpus + 1):
        if i * need.cpus > node.cpus + TINY or i * need.ram > node.ram + TINY:
            break
        leave = max(
            missing(i * need.gpus, free, large),
            missing(i * need.cpus, machine.free(0), node.cpus),
            missing(i * need.ram, machine.free(1), node.ram),
        )
        copies += (jobs * (1 - min(leave, 1)) + 0.5) / (jobs + 0.5)
    return copies


def missing(wanted: float, left: float, total: float) -> float:
    return max((wanted - left) / max(total - left, 1e-9), 0)


def unusable(machine: plain.Machine, mix: Mix) -> float:
    """Idle thousandths that a usual job cannot use, on average."""
    often = sum(kind.frequency for kind in mix.kinds)
    usable = sum(kind.frequency / often * usable_now(machine, kind) for kind in mix.kinds)
    return idle_milli(machine) - usable


def pack_to_empty(machine: plain.Machine, gpus: Iterable[int]) -> float:
    opened = machine.idle & set(gpus)
    if opened and len(machine.idle) == len(machine.room):
        return max(33 - len(machine.idle), len(machine.idle))
    if opened:
        return max(50 - len(opened), 33)
    left = 0
    for index in gpus:  # the emptiest of several
        if index in machine.room:
            here = [span for span in machine.held if index in span.gpus]
            used = machine.milli_stuck.get(index, 0) + sum(span.milli for span in here)
        else:
            used = 125 * len(plain.taken(machine, index, machine.held))
        left = max(left, 1000 - used)
    return max(100 - left // 100, 50)
