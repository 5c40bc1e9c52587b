"""Shapes of requests, and how often they come: known for a list, or learnt from the stream."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduling.packing.fleet import WHOLE, Column, Request

Weights = NDArray[np.float64]
Key = tuple[int, ...]


class Kinds(NamedTuple):
    """Requests for GPUs in a few kinds, as the kernels read them. One row a kind."""

    need: Column
    """cpu, ram, gpus, milli, vram, models, in the order of `Request`; CPU and RAM are means."""
    weight: Weights
    """Share of the requests. Sums to 1 when there is any kind."""


class Typical(NamedTuple):
    """Exact shapes and their frequencies."""

    need: Column
    weight: Weights


@dataclass
class Mix:
    """Requests for GPUs seen so far, by kind.

    A kind is what is asked of the GPUs, exactly, and the cores for each GPU within a factor of the
    square root of 2: so few kinds that every node can be asked about each of them.
    """

    _sums: dict[tuple[int, ...], list[int]] = field(
        default_factory=dict[tuple[int, ...], list[int]]
    )
    cpu: int = 0
    ram: int = 0
    gpu_milli: int = 0
    told: int = 0
    seconds: float = 0.0
    """Requests that have said for how long they expect to stay, and that together."""

    def observe(self, request: Request, seconds: float | None = None) -> None:
        """Count a request, with the seconds that it expects to stay where it says so.

        One that asks no GPU tells nothing about room on GPUs.
        """
        if seconds is not None:
            self.told += 1
            self.seconds += seconds
        if not request.gpu_milli:
            return
        octave = math.floor(2 * math.log2(max(1, request.cpu / request.gpus)))
        key = (request.gpus, request.milli, request.vram, request.models, octave)
        sums = self._sums.setdefault(key, [0, 0, 0])
        sums[0] += 1
        sums[1] += request.cpu
        sums[2] += request.ram
        self.cpu += request.cpu
        self.ram += request.ram
        self.gpu_milli += request.gpu_milli

    def kinds(self) -> Kinds:
        """Return the kinds seen so far, in an order that does not depend on their arrival."""
        keys = sorted(self._sums)
        total = sum(sums[0] for sums in self._sums.values())
        need = np.zeros((len(keys), 6), np.int64)
        weight = np.zeros(len(keys))
        for row, key in enumerate(keys):
            count, cpu, ram = self._sums[key]
            need[row] = (cpu // count, ram // count, *key[:4])
            weight[row] = count / total
        return Kinds(need, weight)


def typical(requests: Iterable[Request], share: float = 0.95) -> Typical:
    """Return the most frequent shapes that cover `share` of the requests, without RAM and VRAM.

    These are the "typical pods" of fragmentation gradient descent: rare shapes are left out.
    """
    seen = Counter(
        (request.cpu, request.milli, request.gpus, request.models) for request in requests
    )
    ranked = sorted(seen.items(), key=lambda item: (-item[1], *(-part for part in item[0])))
    wanted = share * sum(seen.values())
    kept: list[tuple[Key, int]] = []
    covered = 0
    for shape, count in ranked:
        if covered >= wanted:
            break
        kept.append((shape, count))
        covered += count
    need = np.array(
        [(cpu, 0, gpus, milli, 0, models) for (cpu, milli, gpus, models), _ in kept], np.int64
    ).reshape(-1, 6)
    return Typical(need, np.array([count / covered for _, count in kept], np.float64))


def size_of(need: Column) -> Weights:
    """Return the GPUs that each kind asks for, parts of GPUs as parts."""
    return need[:, 2] * need[:, 3] / WHOLE
