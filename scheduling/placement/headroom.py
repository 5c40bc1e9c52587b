"""What the free GPUs of a node are good for: by kind of job, now and once some jobs have ended.

A node counts here as a *residual*: what kinds of jobs find on its GPUs, its cores and RAM, and how
many jobs it has. Nodes with other sets of free GPUs have the same one when jobs find the same.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.models.resources import GPURequest
from longshore.scheduling.placement.classes import Layout, Numbers
from longshore.scheduling.placement.columns import Bools, Floats, TraitSets, microseconds
from longshore.scheduling.placement.mix import SLICE_MILLI, Kind
from longshore.scheduling.placement.parts import WHOLE, MigGPU, free_positions, lefts_now
from longshore.scheduling.placement.state import EPSILON

_AT_ONE_TIME = 4096
"""Residuals that are measured together: bounds memory, not results."""
TINY = 1e-9


class Found(NamedTuple):
    """What jobs with one request find on the GPUs of a node."""

    free: int
    """GPUs that have room for one now, or for one of its GPUs."""
    usable: int
    """Thousandths that are idle there; 0 where these GPUs are too few."""
    total: int
    """GPUs that would have room without any job."""


class Residuals(NamedTuple):
    """Residuals as columns."""

    size: Numbers
    """Number of what the node has when empty."""
    gpus: Numbers
    """Number of what jobs find on its GPUs."""
    cpus: Floats
    ram: Floats
    """What is left."""
    jobs: Floats

    def part(self, first: int, end: int) -> "Residuals":
        new = slice(first, end)
        return Residuals(
            self.size[new], self.gpus[new], self.cpus[new], self.ram[new], self.jobs[new]
        )


class Headroom(NamedTuple):
    """What residuals are good for: rows are residuals, columns kinds."""

    now: Floats
    """Idle thousandths that a kind could use now."""
    lasting: Floats
    """Jobs of the kind that find room, now or when some jobs have ended: see `_lasting`."""
    stranded: Floats
    """Of each residual: idle thousandths that its cores and RAM could not serve."""


class HeadroomTable:
    """Measures residuals for the kinds of one mix."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        trait_sets: TraitSets,
        cpus_per_milli: float,
        ram_per_milli: float,
    ) -> None:
        self._needs = [kind.need for kind in kinds]
        self._requests = [need.gpu for need in self._needs]
        self.per_milli = max(cpus_per_milli, TINY), max(ram_per_milli, TINY)
        self._wide = _floats([need.gpus for need in self._needs])
        self._cpus = _floats([need.cpus for need in self._needs])
        self._ram = _floats([need.ram for need in self._needs])
        self._gpus_seen: dict[tuple[Found | int, ...], int] = {}
        self._gpus_of_layout: dict[Layout, int] = {}
        self.found = np.zeros((0, len(kinds), len(Found._fields)), np.intp)
        """What each kind finds, by number of what jobs find on the GPUs."""
        self.idle: NDArray[np.intp] = np.zeros(0, np.intp)
        """Idle thousandths, by number of what jobs find on the GPUs."""
        self._take_sizes(trait_sets)

    def gpus_number(self, layout: Layout) -> int:
        """Return the number of what jobs find on the GPUs of a layout."""
        number = self._gpus_of_layout.get(layout)
        if number is None:
            found = [found_by(layout, request) for request in self._requests]
            idle = idle_milli(layout)
            number = self._gpus_seen.setdefault((idle, *found), len(self._gpus_seen))
            self._gpus_of_layout[layout] = number
            if number == len(self.idle):
                row = np.array(found, np.intp).reshape(1, len(self._requests), len(Found._fields))
                self.found = np.concatenate([self.found, row])
                self.idle = np.append(self.idle, idle)
        return number

    def measure(self, residuals: Residuals) -> Headroom:
        """Return what residuals are good for; at least one."""
        parts = [
            self._measure(residuals.part(first, first + _AT_ONE_TIME))
            for first in range(0, len(residuals.size), _AT_ONE_TIME)
        ]
        return Headroom(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _take_sizes(self, trait_sets: TraitSets) -> None:
        """Number the trait sets by all that matters here; most differ in their expiry alone."""
        suits = np.ones((len(trait_sets), len(self._needs)), np.bool_) & trait_sets.ready[:, None]
        for column, need in enumerate(self._needs):
            for _, failed in trait_sets.mismatches(need):
                suits[:, column] &= ~failed
            suits[:, column] &= trait_sets.left >= microseconds(need.must_last)
        seen: dict[tuple[float, float, bytes], int] = {}
        first: list[int] = []
        numbers: list[int] = []
        sizes = zip(trait_sets.host[0].tolist(), trait_sets.host[1].tolist(), suits, strict=True)
        for traits, (cpus, ram, row) in enumerate(sizes):
            number = seen.setdefault((cpus, ram, row.tobytes()), len(seen))
            if number == len(first):
                first.append(traits)
            numbers.append(number)
        self.size_of_traits: NDArray[np.intp] = np.array(numbers, np.intp)
        self.suits: Bools = suits[first]
        self.cpus_total, self.ram_total = trait_sets.host[0][first], trait_sets.host[1][first]

    def _measure(self, residuals: Residuals) -> Headroom:
        found = self.found[residuals.gpus]
        suits = self.suits[residuals.size]
        enough = (residuals.cpus[:, None] + EPSILON >= self._cpus) & (
            residuals.ram[:, None] + EPSILON >= self._ram
        )
        idle = self.idle[residuals.gpus]
        served = np.minimum(residuals.cpus / self.per_milli[0], residuals.ram / self.per_milli[1])
        return Headroom(
            now=np.where(enough & suits, found[:, :, 1], 0.0),
            lasting=self._lasting(residuals, found[:, :, 0], found[:, :, 2] * suits),
            stranded=np.maximum(idle - served, 0.0),
        )

    def _lasting(self, residuals: Residuals, free: Numbers, total: Numbers) -> Floats:
        """Return how many jobs of each kind find room, now or when some jobs have ended.

        The first copy of a job may fit now; the next one may need a third of the node's jobs to
        end first. A copy counts by the share of the jobs that may stay: where all end alike, that
        is about how soon the others have ended.
        """
        most = int((total // self._wide).max(initial=0))
        copies = np.arange(1, most + 1, dtype=np.float64)
        gpus, cpus, ram = (copies * need[:, None] for need in (self._wide, self._cpus, self._ram))
        cpus_total, ram_total = self.cpus_total[residuals.size], self.ram_total[residuals.size]
        possible = gpus <= total[:, :, None]
        possible &= cpus <= (cpus_total + EPSILON)[:, None, None]
        possible &= ram <= (ram_total + EPSILON)[:, None, None]
        leave = _missing(gpus, free[:, :, None], total[:, :, None])
        for wanted, left, all_of_it in (
            (cpus, residuals.cpus, cpus_total),
            (ram, residuals.ram, ram_total),
        ):
            there, whole = left[:, None, None], all_of_it[:, None, None]
            np.maximum(leave, _missing(wanted, there, whole), out=leave)
        jobs = residuals.jobs[:, None, None]
        stay = (jobs * (1.0 - np.minimum(leave, 1.0)) + 0.5) / (jobs + 0.5)
        return (stay * possible).sum(axis=2)


def idle_milli(layout: Layout) -> int:
    """Return the thousandths of the GPUs of a node that nobody has; a slice is an eighth."""
    shared = sum(WHOLE - part.milli for part in layout.parts if not _in_mig(layout, part.gpu))
    taken = {part.gpu: part.slices for part in layout.parts}
    slices = sum(
        (_slices_of(gpu) & ~taken.get(gpu.gpu, 0)).bit_count() for gpu in layout.rooms.migs
    )
    return WHOLE * layout.free.bit_count() + shared + SLICE_MILLI * slices


@lru_cache(maxsize=1 << 15)
def found_by(layout: Layout, request: GPURequest) -> Found:
    """Return what jobs with this request find on these GPUs."""
    rooms = layout.rooms
    if request.mig is not None:
        return _found_instances(layout, request.mig)
    large = rooms.large(request.vram).bit_count()
    if request.alone:
        return _found_alone(layout, request, large)
    if request.milli == WHOLE:
        free = (rooms.roomy(request.vram) & layout.free).bit_count()
        return Found(free, WHOLE * free if free >= request.gpus else 0, large)
    lefts = [
        left.milli
        for left in lefts_now(rooms.room, layout.free, layout.parts)
        if left.milli >= request.milli and left.vram + EPSILON >= request.vram
    ]
    return Found(len(lefts), sum(lefts) if len(lefts) >= request.gpus else 0, large)


def _found_alone(layout: Layout, request: GPURequest, large: int) -> Found:
    """One job or none: it takes the node, however many GPUs it wants."""
    rooms = layout.rooms
    possible = large >= request.gpus and rooms.for_one(rooms.all_gpus)
    if not possible or not rooms.for_one(layout.free):
        return Found(0, 0, request.gpus if possible else 0)
    return Found(request.gpus, WHOLE * rooms.count, request.gpus)


def _found_instances(layout: Layout, profile: str) -> Found:
    taken = {part.gpu: part.slices for part in layout.parts}
    free = slices = 0
    able = [gpu for gpu in layout.rooms.migs if gpu.of(profile)]
    for gpu in able:
        open_slices = 0
        for mask in free_positions(gpu, taken.get(gpu.gpu, 0), profile):
            open_slices |= mask
        free += open_slices > 0
        slices += open_slices.bit_count()
    return Found(free, SLICE_MILLI * slices, len(able))


def _in_mig(layout: Layout, index: int) -> bool:
    return any(gpu.gpu == index for gpu in layout.rooms.migs)


def _slices_of(gpu: MigGPU) -> int:
    slices = 0
    for _, masks in gpu.positions:
        for mask in masks:
            slices |= mask
    return slices


def _missing(wanted: Floats, left: Floats | Numbers, total: Floats | Numbers) -> Floats:
    """Return what is missing now, as a share of what is in use; 0 where nothing is."""
    return np.maximum((wanted - left) / np.maximum(total - left, TINY), 0.0)


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)
