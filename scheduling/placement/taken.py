"""What a plan has given to jobs on nodes, what a node would be without some of it, and who goes
first."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.resources import HostAmounts
from longshore.scheduling.placement.gpus import Chosen, mask_of
from longshore.scheduling.placement.mix import SLICE_MILLI
from longshore.scheduling.placement.parts import Parts, with_parts, without_parts
from longshore.scheduling.placement.state import Hold, Need, Rooms


class Taken(NamedTuple):
    """What a plan gave to a job on one node."""

    job: JobRequest
    need: Need
    position: int
    """Of the node."""
    hold: Hold
    chosen: Chosen | None
    """None for a gang's share, which stays."""

    @property
    def indices(self) -> tuple[int, ...]:
        """Its GPUs; none are named of a share that stays."""
        return self.chosen.indices if self.chosen else ()

    @property
    def vram(self) -> float:
        """GB of each of its GPUs."""
        return self.chosen.vram if self.chosen and self.need.mig else self.need.vram

    @property
    def size(self) -> tuple[int, float, float]:
        """Its GPUs in thousandths, cores and RAM: what is large is placed first."""
        return self.need.milli * self.need.gpus, self.need.cpus, self.need.ram


class Place(NamedTuple):
    """A node as it would be."""

    takes: tuple[Taken, ...]
    """What the plan would have there."""
    free: int
    parts: Parts
    host: HostAmounts
    """What nobody would have of it; parts are those of all jobs."""

    def without(self, taken: Taken, rooms: Rooms) -> "Place":
        hold = taken.hold
        takes = tuple(one for one in self.takes if one is not taken)
        freed, parts = hold.mask & rooms.all_gpus, self.parts
        if hold.parts:
            parts = without_parts(parts, hold.parts)
            freed &= ~mask_of(part.gpu for part in parts)
        return Place(takes, self.free | freed, parts, self.host.plus(hold.host))

    def beside(self, taken: Taken) -> "Place":
        hold = taken.hold
        parts = with_parts(self.parts, hold.parts) if hold.parts else self.parts
        return Place(
            (*self.takes, taken), self.free & ~hold.mask, parts, self.host.minus(hold.host)
        )


def hold_of(job: JobRequest, need: Need, node: Node, chosen: Chosen, start: datetime) -> Hold:
    """Return what a job has of a node that gives it these GPUs, or its part of them."""
    parts = need.parts(chosen.indices, chosen.slices)
    end = need.end_from(start)
    idle = chosen.mask & ~mask_of(chosen.indices)
    host = need.host(node.gpu_power)
    return Hold(job.id, chosen.mask, host, start, end, parts, idle=idle)


def may_go(taken: Taken, fixed: frozenset[str]) -> bool:
    return taken.chosen is not None and taken.job.id not in fixed


def cost(rooms: Rooms, place: Place, movable: Sequence[Taken], need: Need) -> int | None:
    """Return about how many thousandths have to leave a node; None where that does not help."""
    if not movable:
        return None
    loads = _loads(movable)
    if not need.whole:
        return sum(sorted(loads.values())[: need.gpus])
    if need.alone:
        return sum(loads.values())
    roomy = rooms.roomy(need.vram)
    missing = need.gpus - (place.free & roomy).bit_count()
    others = {part.gpu: part.milli for part in place.parts}
    costs = sorted(
        load for gpu, load in loads.items() if roomy >> gpu & 1 and others.get(gpu, load) == load
    )
    return sum(costs[: max(missing, 0)]) if len(costs) >= missing else None


def order_to_go(movable: Sequence[Taken], rooms: Rooms, place: Place, need: Need) -> list[Taken]:
    """Return jobs in the order in which they leave: GPU by GPU, the one with the least load first;
    for a job that does not lack whole GPUs, who has most cores first."""
    if need.whole and (place.free & rooms.roomy(need.vram)).bit_count() >= need.gpus:
        return sorted(movable, key=lambda taken: (-taken.need.cpus, -taken.need.ram))
    loads = _loads(movable)

    def by_gpus(taken: Taken) -> tuple[tuple[int, int], int]:
        return max((loads[gpu], gpu) for gpu in taken.indices), taken.size[0]

    return sorted(movable, key=by_gpus)


def _loads(movable: Sequence[Taken]) -> dict[int, int]:
    """Return by GPU the thousandths that these jobs have of it."""
    loads: dict[int, int] = {}
    for taken in movable:
        milli = SLICE_MILLI if taken.need.mig else taken.need.milli
        for gpu in taken.indices:
            loads[gpu] = loads.get(gpu, 0) + milli
    return loads
