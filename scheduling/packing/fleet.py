"""The fleet in columns: what each node and each of its GPUs has left.

Whole numbers throughout: thousandths of a core, MiB, thousandths of a GPU ("milli").
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WHOLE = 1000
"""Milli of one GPU."""

MIN_WIDTH = 8
Column = NDArray[np.int64]
Times = NDArray[np.float64]


class NodeSize(NamedTuple):
    """What an idle node has: milli-cores, MiB of RAM, GPUs, MiB of VRAM of each, model number."""

    cpu: int
    ram: int
    gpus: int
    vram: int
    model: int = 0


class Request(NamedTuple):
    """What a job asks of one node. `milli` and `vram` are of each of its `gpus`.

    `models` is a mask with one bit for each allowed model number; 0 allows all.
    """

    cpu: int
    ram: int
    gpus: int = 0
    milli: int = 0
    vram: int = 0
    models: int = 0

    @property
    def gpu_milli(self) -> int:
        return self.gpus * self.milli


class Stay(NamedTuple):
    """When a job comes, and when it expects to end: seconds of any one clock."""

    start: float
    end: float


class Choice(NamedTuple):
    """A node by its row, and the indices of the GPUs taken there."""

    node: int
    gpus: tuple[int, ...]


class Columns(NamedTuple):
    """The arrays that the kernels read: one row a node, one column a GPU where there are two."""

    cpu_total: Column
    ram_total: Column
    gpus: Column
    vram_total: Column
    model: Column
    cpu: Column
    ram: Column
    milli: Column
    vram: Column
    jobs: Column
    version: Column
    """Grows with every change of the node; never the same for two states of a node."""
    since: Times
    until: Times
    """When jobs came, and expect to end: one row a node, its first `known` entries."""
    known: Column
    """Jobs that have said when they expect to end."""


@dataclass
class Fleet:
    """Nodes and what is left of them. Changed by `take` and `give_back` alone."""

    columns: Columns
    taken: int = 0
    given_back: int = 0
    total_milli: int = field(init=False)

    def __post_init__(self) -> None:
        self.total_milli = int(self.columns.gpus.sum()) * WHOLE

    @classmethod
    def of(cls, nodes: Iterable[NodeSize]) -> "Fleet":
        """Return an idle fleet, nodes in the order given."""
        table = np.array([tuple(node) for node in nodes], np.int64).reshape(-1, 5)
        cpu, ram, gpus, vram, model = (table[:, i].copy() for i in range(5))
        width = max(MIN_WIDTH, int(gpus.max(initial=0)))
        present = np.arange(width) < gpus[:, None]
        return cls(
            Columns(
                cpu_total=cpu,
                ram_total=ram,
                gpus=gpus,
                vram_total=vram,
                model=model,
                cpu=cpu.copy(),
                ram=ram.copy(),
                milli=np.where(present, WHOLE, 0).astype(np.int64),
                vram=np.where(present, vram[:, None], 0).astype(np.int64),
                jobs=np.zeros_like(cpu),
                version=np.zeros_like(cpu),
                since=np.zeros((len(cpu), MIN_WIDTH)),
                until=np.zeros((len(cpu), MIN_WIDTH)),
                known=np.zeros_like(cpu),
            )
        )

    def __len__(self) -> int:
        return len(self.columns.cpu)

    def copy(self) -> "Fleet":
        """Return a fleet that shares nothing with this one."""
        columns = self.columns
        columns = columns._replace(**{k: v.copy() for k, v in columns._asdict().items()})
        return Fleet(columns, self.taken, self.given_back)

    def free_milli(self) -> int:
        return int(self.columns.milli.sum())

    def fits(self, request: Request, choice: Choice) -> bool:
        """Say whether the node has what the request asks, on the GPUs chosen."""
        at, c = choice.node, self.columns
        if c.cpu[at] < request.cpu or c.ram[at] < request.ram:
            return False
        if len(set(choice.gpus)) != request.gpus:
            return False
        if request.gpus and request.models and not request.models >> int(c.model[at]) & 1:
            return False
        return all(
            0 <= gpu < c.gpus[at]
            and c.milli[at, gpu] >= request.milli
            and c.vram[at, gpu] >= request.vram
            for gpu in choice.gpus
        )

    def take(self, request: Request, choice: Choice, stay: Stay | None = None) -> None:
        """Take what the request asks, for so long where that is known.

        Raises `ValueError` when it is not there.
        """
        if not self.fits(request, choice):
            raise ValueError(f"{request} does not fit at {choice}")
        self._change(request, choice, -1)
        if stay is not None:
            self._expect(choice.node, stay)
        self.taken += 1

    def give_back(self, request: Request, choice: Choice, stay: Stay | None = None) -> None:
        """Undo a `take`, `stay` included: the job has ended.

        Raises `ValueError` when nothing such was taken.
        """
        at, c, gpus = choice.node, self.columns, list(choice.gpus)
        if (
            c.jobs[at] < 1
            or c.cpu[at] + request.cpu > c.cpu_total[at]
            or c.ram[at] + request.ram > c.ram_total[at]
            or (c.milli[at, gpus] + request.milli > WHOLE).any()
            or (c.vram[at, gpus] + request.vram > c.vram_total[at]).any()
        ):
            raise ValueError(f"{request} was not taken at {choice}")
        if stay is not None:
            self._forget(at, stay)
        self._change(request, choice, 1)
        self.given_back += 1

    def _expect(self, at: int, stay: Stay) -> None:
        c = self.columns
        slot = int(c.known[at])
        if slot == c.until.shape[1]:
            since, until = (
                np.concatenate([old, np.zeros_like(old)], 1) for old in (c.since, c.until)
            )
            c = self.columns = c._replace(since=since, until=until)
        c.since[at, slot], c.until[at, slot] = stay
        c.known[at] += 1

    def _forget(self, at: int, stay: Stay) -> None:
        c = self.columns
        last = int(c.known[at]) - 1
        mine = (c.since[at] == stay.start) & (c.until[at] == stay.end)
        slots = np.flatnonzero(mine[: last + 1])
        if not len(slots):
            raise ValueError(f"nothing was taken for {stay} at {at}")
        c.since[at, slots[0]], c.until[at, slots[0]] = c.since[at, last], c.until[at, last]
        c.known[at] = last

    def _change(self, request: Request, choice: Choice, sign: int) -> None:
        at, c = choice.node, self.columns
        c.cpu[at] += sign * request.cpu
        c.ram[at] += sign * request.ram
        c.jobs[at] -= sign
        c.version[at] += 1
        for gpu in choice.gpus:
            c.milli[at, gpu] += sign * request.milli
            c.vram[at, gpu] += sign * request.vram
