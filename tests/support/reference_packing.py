"""The packing policies once more, in plain Python, to hold the compiled ones against.

Each function looks at one node at a time and returns the score of each possible set of GPUs there.
The sums run in the order of the compiled code, so that equal scores are equal to the last bit.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from scheduling.packing.fleet import WHOLE, Choice, Fleet, Request, Stay
from scheduling.packing.outlook import Outlook
from scheduling.packing.shapes import Typical


@dataclass(frozen=True)
class Rest:
    """What a node is and what it has left."""

    cpu_total: int
    ram_total: int
    vram_total: int
    model: int
    cpu: int
    ram: int
    milli: tuple[int, ...]
    vram: tuple[int, ...]
    jobs: int
    stays: tuple[Stay, ...] = ()
    """Of the jobs that have said how long they stay."""

    @property
    def free(self) -> int:
        return sum(self.milli)

    def with_room(self, request: Request) -> list[int]:
        return [
            gpu
            for gpu, (milli, vram) in enumerate(zip(self.milli, self.vram, strict=True))
            if milli >= request.milli and vram >= request.vram
        ]

    def fits(self, request: Request) -> bool:
        if self.cpu < request.cpu or self.ram < request.ram:
            return False
        if not request.gpus:
            return True
        if request.models and not request.models >> self.model & 1:
            return False
        return len(self.with_room(request)) >= request.gpus

    def after(self, request: Request, gpus: Iterable[int], stay: Stay | None = None) -> "Rest":
        taken = set(gpus)
        return Rest(
            self.cpu_total, self.ram_total, self.vram_total, self.model,
            self.cpu - request.cpu, self.ram - request.ram,
            tuple(m - request.milli * (g in taken) for g, m in enumerate(self.milli)),
            tuple(v - request.vram * (g in taken) for g, v in enumerate(self.vram)),
            self.jobs + 1, (*self.stays, stay) if stay else self.stays,
        )  # fmt: skip


Options = Iterable[tuple[float, tuple[int, ...]]]
"""Scores, higher is better, each with the GPUs that it is for."""


def rests(fleet: Fleet) -> list[Rest]:
    c = fleet.columns
    return [
        Rest(
            int(c.cpu_total[n]), int(c.ram_total[n]), int(c.vram_total[n]), int(c.model[n]),
            int(c.cpu[n]), int(c.ram[n]),
            tuple(int(m) for m in c.milli[n, : c.gpus[n]]),
            tuple(int(v) for v in c.vram[n, : c.gpus[n]]),
            int(c.jobs[n]),
            tuple(Stay(float(c.since[n, i]), float(c.until[n, i])) for i in range(c.known[n])),
        )
        for n in range(len(fleet))
    ]  # fmt: skip


def best(fleet: Fleet, request: Request, options: Callable[[Rest], Options]) -> Choice | None:
    """Return the choice with the highest score; the first node and the first GPUs among equals."""
    found: tuple[float, Choice] | None = None
    for n, rest in enumerate(rests(fleet)):
        if not rest.fits(request):
            continue
        for score, gpus in options(rest):
            if found is None or score > found[0]:
                found = (score, Choice(n, gpus))
    return found[1] if found else None


def reference_rule(name: str, fleet: Fleet, request: Request) -> Choice | None:
    def options(rest: Rest) -> Options:
        if name == "seed-score":
            gpus = tuple(rest.with_room(request)[: request.gpus])
            return [(_seed_score(rest, request, gpus), gpus)]
        gpus = _fullest(rest, request)
        if name == "tight":
            return [(-float(rest.free) - rest.cpu * 1e-6, gpus)]
        if name == "best-fit":
            left = 0.5 * (rest.cpu - request.cpu) / 128_000
            left += 0.5 * (rest.free - request.gpu_milli) / 8_000
            return [(math.floor(100 * (1 - left)), gpus)]
        return [(_pack_to_empty(rest, request, gpus), gpus)]

    return best(fleet, request, options)


def reference_fgd(shapes: Typical, fleet: Fleet, request: Request) -> Choice | None:
    def options(rest: Rest) -> Options:
        before = _fragmentation(rest, shapes)
        for gpus in _tries(rest, request):
            less = before - _fragmentation(rest.after(request, gpus), shapes)
            yield math.floor(100.0 / (1.0 + math.exp(-less / 1000.0))), gpus

    return best(fleet, request, options)


def reference_keep_room(
    outlook: Outlook, fleet: Fleet, request: Request, stay: Stay | None = None
) -> Choice | None:
    now = stay.start if stay else None

    def options(rest: Rest) -> Options:
        before = reference_worth(rest, outlook, now)
        for gpus in _tries(rest, request):
            loss = before - reference_worth(rest.after(request, gpus, stay), outlook, now)
            yield -(loss + (0.02 * rest.free + 1e-6 * rest.cpu + 1e-9 * rest.ram)), gpus

    return best(fleet, request, options)


def reference_worth(rest: Rest, outlook: Outlook, now: float | None = None) -> float:
    value = 0.0
    for need, pressure in zip(outlook.need, outlook.pressure, strict=True):
        if pressure > 0:
            value += pressure * _usable(rest, Request(*(int(part) for part in need)))
    if outlook.churn < 1:
        served = min(rest.cpu / outlook.cpu_per_milli, rest.ram / outlook.ram_per_milli)
        value -= (1 - outlook.churn) * max(0.0, rest.free - served)
    if outlook.churn > 0:
        value += outlook.churn * reference_lasting_room(rest, outlook, now)
    return value


def reference_lasting_room(rest: Rest, outlook: Outlook, now: float | None = None) -> float:
    room, load = 0.0, float(rest.jobs) if now is None else _load(rest, outlook.seconds, now)
    for row, demand in zip(outlook.need, outlook.demand, strict=True):
        need = Request(*(int(part) for part in row))
        if need.gpus > len(rest.milli) or need.vram > rest.vram_total:
            continue
        if need.models and not need.models >> rest.model & 1:
            continue
        copies = 0.0
        for i in range(1, len(rest.milli) // need.gpus + 1):
            if i * need.cpu > rest.cpu_total or i * need.ram > rest.ram_total:
                break
            copies += _staying(rest, need, i, load)
        room += demand * copies * need.gpus * need.milli
    return room


def _load(rest: Rest, usual: float, now: float) -> float:
    """Jobs by how long they stay; one that has run for an hour stays 15 minutes at least."""
    left = [max(stay.end - now, 0.25 * (now - stay.start)) for stay in rest.stays]
    return sum(left) / usual + (rest.jobs - len(rest.stays))


def _staying(rest: Rest, need: Request, copies: int, load: float) -> float:
    free = len(rest.with_room(need))
    leave = 0.0
    if copies * need.gpus > free:
        leave = (copies * need.gpus - free) / (len(rest.milli) - free)
    if copies * need.cpu > rest.cpu:
        leave = max(leave, (copies * need.cpu - rest.cpu) / (rest.cpu_total - rest.cpu))
    if copies * need.ram > rest.ram:
        leave = max(leave, (copies * need.ram - rest.ram) / (rest.ram_total - rest.ram))
    return (rest.jobs * (1 - leave) + 0.5) / (rest.jobs + 0.5 + leave * (load - rest.jobs))


def _usable(rest: Rest, need: Request) -> int:
    if not rest.fits(need):
        return 0
    return sum(rest.milli[gpu] for gpu in rest.with_room(need))


def _tries(rest: Rest, request: Request) -> Iterable[tuple[int, ...]]:
    if request.gpus == 1 and request.milli < WHOLE:
        return [(gpu,) for gpu in rest.with_room(request)]
    return [_fullest(rest, request)]


def _fullest(rest: Rest, request: Request) -> tuple[int, ...]:
    ranked = sorted(rest.with_room(request), key=lambda gpu: (rest.milli[gpu], gpu))
    return tuple(sorted(ranked[: request.gpus])) if request.gpus else ()


def _seed_score(rest: Rest, request: Request, gpus: tuple[int, ...]) -> float:
    each, asked, free = WHOLE, request.milli, rest.free
    if request.vram:
        each, asked, free = rest.vram_total, request.vram, sum(rest.vram)
    total = len(rest.milli) * each
    use = min((total - free + request.gpus * asked) / total, 1.0) if total else 0.0
    gaps = sum(later - sooner - 1 for sooner, later in pairwise(gpus))
    gap = gaps / (len(gpus) - 1) if len(gpus) > 1 else 0.0
    bonus = 0.2 if request.gpus >= 8 and len(rest.milli) >= 8 else 0.0
    if request.gpus < 8 and len(rest.milli) < 8:
        bonus = 0.1
    return use - 0.5 * gap + 0.2 * bonus


def _pack_to_empty(rest: Rest, request: Request, gpus: tuple[int, ...]) -> float:
    if not request.gpus:
        return 0.0
    idle = sum(milli == WHOLE for milli in rest.milli)
    if idle == len(rest.milli):
        return max(33 - idle, idle)
    opened = sum(rest.milli[gpu] == WHOLE for gpu in gpus)
    if opened:
        return max(50 - opened, 33)
    return max(100 - sum(rest.milli[gpu] * 100 // WHOLE for gpu in gpus) // 10, 50)


def _fragmentation(rest: Rest, shapes: Typical) -> float:
    lost = 0.0
    if not rest.free:
        return lost
    for row, weight in zip(shapes.need, shapes.weight, strict=True):
        need = Request(*(int(part) for part in row))
        small = sum(milli for milli in rest.milli if milli < need.milli)
        usable = need.gpus > 0 and rest.fits(need)
        lost += weight * (small if usable else rest.free)
    return lost
