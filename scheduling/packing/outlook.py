"""What is to be expected of a stream of requests, and what to keep room for."""

from typing import NamedTuple

import numpy as np

from scheduling.packing.fleet import WHOLE, Column, Fleet, Request
from scheduling.packing.shapes import Kinds, Mix, Weights, size_of

FIRST_INTERVAL, LAST_INTERVAL = 1, 512
"""Requests after which the outlook is made anew: an eighth of those seen, within these."""


class Outlook(NamedTuple):
    """What the kernels read. Rows of `need` are kinds of requests, as `Request` has its parts."""

    need: Column
    pressure: Weights
    """How much a milli that a kind can use is worth: more for kinds that find little of it."""
    demand: Weights
    """Share of the GPU-milli asked for, with the bonus for width. Sums to 1."""
    cpu_per_milli: float
    """Milli-cores asked for with each milli of GPU, on average."""
    ram_per_milli: float
    churn: float
    """Jobs that have ended for each that runs, at most 1: 0 while a fleet only fills."""
    seconds: float
    """For how long jobs expect to stay, on average; 1 where none has said."""


class OutlookKeeper:
    """Learns from requests, and from what the fleet gives back, in the order that they come."""

    def __init__(self) -> None:
        self.mix = Mix()
        self.outlook = _empty()
        self._seen = 0
        self._due = 0

    def observe(self, fleet: Fleet, request: Request, seconds: float | None = None) -> bool:
        """Count a request, with the seconds that it expects to stay where that is known.

        Return whether the outlook has changed with it.
        """
        self.mix.observe(request, seconds)
        self._seen += 1
        if self._seen < self._due:
            return False
        self._due = self._seen + min(max(self._seen // 8, FIRST_INTERVAL), LAST_INTERVAL)
        self.outlook = make_outlook(self.mix, fleet)
        return True


def make_outlook(mix: Mix, fleet: Fleet) -> Outlook:
    """Return what to expect of a mix on a fleet as it is now."""
    from scheduling.packing.room_kernels import usable_by_kind  # pyright: ignore[reportUnknownVariableType]  # compiled

    kinds = mix.kinds()
    if not len(kinds.weight):
        return _empty()
    usable = np.asarray(usable_by_kind(fleet.columns, kinds.need), np.int64)
    running = fleet.taken - fleet.given_back
    churn = min(fleet.given_back / max(1, running), 1.0)
    demand = kinds.weight * size_of(kinds.need) * width_bonus(kinds.need)
    return Outlook(
        need=kinds.need,
        pressure=pressure_of(kinds, usable, fleet.free_milli(), churn),
        demand=demand / demand.sum(),
        cpu_per_milli=max(mix.cpu / mix.gpu_milli, 1e-9),
        ram_per_milli=max(mix.ram / mix.gpu_milli, 1e-9),
        churn=churn,
        seconds=mix.seconds / mix.told if mix.seconds else 1.0,
    )


def pressure_of(kinds: Kinds, usable: Column, free: int, churn: float) -> Weights:
    """Return frequency x root of size x scarcity for each kind, scaled to a sum of 1.

    Scarcity is the free milli of the fleet over those that the kind can use. A kind that can use
    none has no pressure: there is nothing left to keep for it. With churn the pressure of kinds
    of whole GPUs fades, because lasting room counts for them, and wide room comes back.
    """
    least = kinds.need[:, 2] * WHOLE
    scarcity = np.where(usable > 0, free / np.maximum(usable, least), 0.0)
    pressure = kinds.weight * width_bonus(kinds.need) * scarcity
    total = float(pressure.sum())
    if total > 0:
        pressure /= total
    return np.where(kinds.need[:, 3] == WHOLE, pressure * (1.0 - churn), pressure)


def width_bonus(need: Column) -> Weights:
    """Return the root of the size: between counting requests and counting their GPUs."""
    return np.sqrt(size_of(need))


def _empty() -> Outlook:
    nothing = np.zeros(0)
    return Outlook(np.zeros((0, 6), np.int64), nothing, nothing, 1e-9, 1e-9, 0.0, 1.0)
