"""`keep-room` and `fgd`: what a placement costs the jobs that are to be expected.

docs/decisions/0015-packing-policies.md says why it is so, and what differs here from a fleet
without expiry, tiers and memory: docs/decisions/0020-live-packing.md.
"""

from typing import NamedTuple

import numpy as np

from models.job import format_wish
from scheduling.columns import Columns, Floats, Layout
from scheduling.gpus import Chosen
from scheduling.mix import Kind, Mix
from scheduling.parts import Part, with_part
from scheduling.room import Rests, Room, RoomTable
from scheduling.state import Need

EMPTIER = 0.02, 1e-3, 1e-6
"""Thousandths that each free thousandth, core and GB of RAM costs: of nearly equal nodes the
fullest is taken."""


class Outlook(NamedTuple):
    """What room is worth. `pressure` and `demand` have an entry for each kind."""

    pressure: Floats
    """Of a thousandth that the kind could use now: more for kinds that find little."""
    demand: Floats
    """Of a job of the kind that finds room when others have ended: its share of the demand."""
    churn: float

    def worth(self, room: Room) -> Floats:
        """Return what rests are worth, in thousandths of a GPU."""
        worth = room.now @ self.pressure - (1.0 - self.churn) * room.stranded
        return worth + self.churn * (room.lasting @ self.demand)

    def by_kind(self, room: Room) -> Floats:
        """Return the worth of rests without what is stranded: rows are rests, columns kinds."""
        return room.now * self.pressure + self.churn * room.lasting * self.demand


class RoomKeeper:
    """The rests of all classes of a plan, and what they are worth."""

    def __init__(self, columns: Columns, mix: Mix) -> None:
        self.columns = columns
        self.mix = mix
        self.table = RoomTable(mix.kinds, columns.makes, mix.cpus_per_milli, mix.ram_per_milli)
        self.version = 0
        """Counts up when the outlook changes."""
        self.rest_of: list[int] = []
        """The rest of each class."""
        self.gpus_of: list[int] = []
        """What jobs find on the GPUs of each rest, by number."""
        self._numbers: dict[tuple[int, int, float, float, int], int] = {}
        nothing = np.zeros((0, len(mix.kinds)))
        self.room = Room(nothing, nothing, np.zeros(0))
        """Of each rest."""
        self.worth: Floats = np.zeros(0)
        self.outlook = Outlook(np.zeros(0), demand_of(mix.kinds), mix.churn)
        self._due = 0

    def refresh(self) -> None:
        """Take in what is new; make the outlook anew when an eighth of what was idle is taken."""
        self._learn()
        if self.columns.version < self._due:
            return
        columns, rests = self.columns, np.array(self.rest_of, np.intp)
        nodes = columns.size[: len(rests)] * columns.makes.ready[columns.make[: len(rests)]]
        usable = nodes @ self.room.now[rests]
        idle = int(nodes @ self.table.idle[np.array(self.gpus_of, np.intp)[rests]])
        pressure = pressure_of(self.mix.kinds, usable, idle, self.mix.churn)
        self.outlook = self.outlook._replace(pressure=pressure)
        self.worth = self.outlook.worth(self.room)
        typical = sum(kind.frequency * kind.milli for kind in self.mix.kinds)
        self._due = columns.version + max(1, int(idle / (8 * typical)))
        self.version += 1

    def _learn(self) -> None:
        """Measure the classes that are new since the last call."""
        columns, table = self.columns, self.table
        new: list[tuple[int, int, float, float, int]] = []
        for number in range(len(self.rest_of), columns.class_count):
            of = columns.classes[number]
            gpus = table.gpus_number(columns.layouts[of.layout])
            size = int(table.size_of_make[of.make])
            key = size, gpus, of.cpus_free, of.ram_free, of.jobs
            rest = self._numbers.setdefault(key, len(self._numbers))
            if rest == len(self.gpus_of):
                self.gpus_of.append(gpus)
                new.append(key)
            self.rest_of.append(rest)
        if new:
            room = table.measure(rests_of(new))
            self.room = joined(self.room, room)
            if self.version:
                self.worth = np.append(self.worth, self.outlook.worth(room))


class RoomLost:
    """What one need costs on each class of nodes."""

    def __init__(self, keeper: RoomKeeper, need: Need) -> None:
        self._keeper = keeper
        self._need = need
        self._numbers: dict[tuple[int, int], int] = {}
        nothing = np.zeros((0, len(keeper.mix.kinds)))
        self.before: list[int] = []
        """The rest before, and"""
        self.after = Room(nothing, nothing, np.zeros(0))
        """the room after the placement, by number of the change."""
        self.gpus_after: list[int] = []
        """What jobs find on the GPUs after each change, by number."""
        self.change_of: list[int] = []
        """Of each class that was asked; -1 where the job does not fit."""
        self._gpus_after: dict[tuple[int, Chosen], int] = {}

    def ask(self, first: int, chosen: list[Chosen | None]) -> None:
        """Learn of the classes from `first` on what the job would take there."""
        keeper, need = self._keeper, self._need
        del self.change_of[first:]
        new: list[tuple[int, int, float, float, int]] = []
        for number, gpus in enumerate(chosen, first):
            if gpus is None:
                self.change_of.append(-1)
                continue
            of = keeper.columns.classes[number]
            rest, after = keeper.rest_of[number], self._gpus_with(of.layout, gpus)
            change = self._numbers.setdefault((rest, after), len(self._numbers))
            if change == len(self.before):
                self.before.append(rest)
                self.gpus_after.append(after)
                size = int(keeper.table.size_of_make[of.make])
                left = of.cpus_free - need.cpus, of.ram_free - need.ram
                new.append((size, after, *left, of.jobs + 1))
            self.change_of.append(change)
        if new:
            self.after = joined(self.after, keeper.table.measure(rests_of(new)))

    def lost(self) -> Floats:
        """Return the worth that each change costs, in thousandths of a GPU."""
        before = self._keeper.worth[np.array(self.before, np.intp)]
        return before - self._keeper.outlook.worth(self.after)

    def fragmented(self) -> Floats:
        """Return by how many idle thousandths that a usual job cannot use each change adds."""
        keeper = self._keeper
        often = np.array([kind.frequency for kind in keeper.mix.kinds])
        often = often / max(float(often.sum()), 1e-9)
        before = np.array(self.before, np.intp)
        idle_before = keeper.table.idle[np.array(keeper.gpus_of, np.intp)[before]]
        idle_after = keeper.table.idle[np.array(self.gpus_after, np.intp)]
        cost = idle_after - self.after.now @ often - idle_before
        return cost + keeper.room.now[before] @ often

    def by_kind(self, number: int) -> list[tuple[str, float]]:
        """Return what a class loses, in words and thousandths: room by kind of GPUs, and what
        its cores and RAM could no longer serve."""
        keeper, change = self._keeper, self.change_of[number]
        outlook, rest = keeper.outlook, self.before[change]
        before, after = row_of(keeper.room, rest), row_of(self.after, change)
        lost = (outlook.by_kind(before) - outlook.by_kind(after))[0]
        words: dict[str, float] = {}
        for kind, milli in zip(keeper.mix.kinds, lost.tolist(), strict=True):
            name = f"room for {_words_of(kind.need)}"
            words[name] = words.get(name, 0.0) + milli
        stranded = (1.0 - outlook.churn) * float(after.stranded[0] - before.stranded[0])
        return [*words.items(), ("GPUs left without cores or RAM", stranded)]

    def _gpus_with(self, layout: int, chosen: Chosen) -> int:
        """Return the number of what jobs find on the GPUs of a layout once these are taken."""
        key = layout, chosen
        if key not in self._gpus_after:
            after = layout_with(self._keeper.columns.layouts[layout], chosen, self._need)
            self._gpus_after[key] = self._keeper.table.gpus_number(after)
        return self._gpus_after[key]


def layout_with(layout: Layout, chosen: Chosen, need: Need) -> Layout:
    """Return the layout once a job has these GPUs, or its part of one."""
    parts = layout.parts
    if not need.whole:
        milli, vram = (0, 0.0) if need.mig else (need.milli, need.vram)
        parts = with_part(parts, Part(chosen.indices[0], milli, vram, chosen.slices))
    return Layout(layout.rooms, layout.free & ~chosen.mask, parts)


def demand_of(kinds: tuple[Kind, ...]) -> Floats:
    """Return what a job of each kind that finds room is worth: its milli times its share of the
    demand. Wide kinds count by the root of their size more."""
    demand = np.array([kind.frequency * _width(kind) * kind.milli for kind in kinds])
    total = float(demand.sum())
    return demand / total * [kind.milli for kind in kinds] if total else demand


def pressure_of(kinds: tuple[Kind, ...], usable: Floats, idle: int, churn: float) -> Floats:
    """Return frequency x root of size x scarcity of each kind, scaled to a sum of 1.

    Scarcity is what is idle over what the kind can use; one that can use nothing has no pressure:
    there is nothing left to keep for it. With churn the pressure of kinds of whole GPUs fades,
    since lasting room counts for them.
    """
    least = np.array([kind.need.gpus * 1000.0 for kind in kinds])
    scarcity = np.where(usable > 0, idle / np.maximum(usable, np.maximum(least, 1.0)), 0.0)
    pressure = scarcity * [kind.frequency * _width(kind) for kind in kinds]
    total = float(pressure.sum())
    if total > 0:
        pressure = pressure / total
    whole = np.array([kind.need.whole for kind in kinds], np.bool_)
    return np.where(whole, pressure * (1.0 - churn), pressure)


def rests_of(keys: list[tuple[int, int, float, float, int]]) -> Rests:
    size, gpus, cpus, ram, jobs = zip(*keys, strict=True)
    return Rests(
        np.array(size, np.intp), np.array(gpus, np.intp), np.array(cpus), np.array(ram),
        np.array(jobs, np.float64),
    )  # fmt: skip


def joined(room: Room, more: Room) -> Room:
    return Room(*(np.concatenate(pair) for pair in zip(room, more, strict=True)))


def row_of(room: Room, row: int) -> Room:
    return Room(*(column[row : row + 1] for column in room))


def _width(kind: Kind) -> float:
    return (kind.milli / 1000.0) ** 0.5


def _words_of(need: Need) -> str:
    wish = format_wish(need.gpus, need.gpu_type.upper() or None, need.vram, need.milli, need.mig)
    return wish.replace(" x GPU", " GPU" if need.gpus == 1 else " GPUs")
