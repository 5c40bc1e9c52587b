"""`keep-room` and `fgd`: what a placement costs the jobs that are to be expected.

docs/decisions/0015-packing-policies.md says why it is so, and what differs here from a fleet
without expiry, tiers and memory: docs/decisions/0020-live-packing.md.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from longshore.scheduling.placement.classes import Layout, Numbers
from longshore.scheduling.placement.columns import Bools, Columns, Floats
from longshore.scheduling.placement.gpus import Chosen
from longshore.scheduling.placement.headroom import Headroom, HeadroomTable, Residuals
from longshore.scheduling.placement.mix import Kind, Mix
from longshore.scheduling.placement.parts import with_parts
from longshore.scheduling.placement.state import Need

EMPTIER = 0.02, 1e-3, 1e-6
"""Thousandths that each free thousandth, core and GB of RAM costs: of nearly equal nodes the
fullest is taken."""

ResidualKey = tuple[int, int, float, float, int]
"""Of a residual: the numbers of its size and its GPUs, cores, RAM and jobs."""
_MOST_GPUS = 1 << 32
"""A change is one number: the residual times this, and that of what is found on GPUs after."""
_NEW = -2


class Outlook(NamedTuple):
    """The value of headroom. `pressure` and `demand` have an entry for each kind."""

    pressure: Floats
    """Of a thousandth that the kind could use now: more for kinds that find little."""
    demand: Floats
    """Of a job of the kind that finds room when others have ended: its share of the demand."""
    churn: float

    def worth(self, headroom: Headroom) -> Floats:
        """Return what residuals are worth, in thousandths of a GPU."""
        worth = headroom.now @ self.pressure - (1.0 - self.churn) * headroom.stranded
        return worth + self.churn * (headroom.lasting @ self.demand)

    def by_kind(self, headroom: Headroom) -> Floats:
        """Return the worth by residual (rows) and kind (columns), less what is stranded."""
        return headroom.now * self.pressure + self.churn * headroom.lasting * self.demand


class HeadroomKeeper:
    """The residuals of all classes of a plan, and what they are worth."""

    def __init__(self, columns: Columns, mix: Mix) -> None:
        self.columns = columns
        self.mix = mix
        self.table = HeadroomTable(
            mix.kinds, columns.trait_sets, mix.cpus_per_milli, mix.ram_per_milli
        )
        self.version = 0
        """Counts up when the outlook changes."""
        self.residual_of: Numbers = np.zeros(0, np.intp)
        """The residual of each class."""
        self.gpus_of: Numbers = np.zeros(0, np.intp)
        """What jobs find on the GPUs of each residual, by number."""
        self._numbers: dict[ResidualKey, int] = {}
        nothing = np.zeros((0, len(mix.kinds)))
        self.headroom = Headroom(nothing, nothing, np.zeros(0))
        """Of each residual."""
        self.worth: Floats = np.zeros(0)
        self.outlook = Outlook(np.zeros(0), demand_of(mix.kinds), mix.churn)
        self._due = 0
        names = [f"room for {_words_of(kind.need)}" for kind in mix.kinds]
        self.names = list(dict.fromkeys(names))
        """What room is for, in words; kinds that differ in cores or time share one."""
        self.name_of_kind = np.array([self.names.index(name) for name in names], np.intp)

    def refresh(self, *, reweigh: bool = True) -> None:
        """Take in what is new; make the outlook anew when an eighth of what was idle is taken,
        unless it is to stay."""
        self._learn()
        if not reweigh or self.columns.version < self._due:
            return
        columns, residuals = self.columns, self.residual_of
        ready = columns.trait_sets.ready[columns.traits[: len(residuals)]]
        nodes = columns.size[: len(residuals)] * ready
        usable = nodes @ self.headroom.now[residuals]
        idle = int(nodes @ self.table.idle[self.gpus_of[residuals]])
        self.reweigh(usable, idle, columns.version)

    @property
    def due(self) -> int:
        """The version of the columns at which the outlook is made anew."""
        return self._due

    def reweigh(self, usable: Floats, idle: int, version: int) -> int:
        """Make the outlook, by what each kind could use now and what is idle, in thousandths.

        Returns the version of the columns at which it is due again.
        """
        pressure = pressure_of(self.mix.kinds, usable, idle, self.mix.churn)
        self.outlook = self.outlook._replace(pressure=pressure)
        self.worth = self.outlook.worth(self.headroom)
        typical = sum(kind.frequency * kind.milli for kind in self.mix.kinds)
        self._due = version + max(1, int(idle / (8 * (typical or 1000.0))))
        self.version += 1
        return self._due

    def _learn(self) -> None:
        """Measure the classes that are new since the last call."""
        columns, table = self.columns, self.table
        if len(self.residual_of) == columns.class_count:
            return
        residuals: list[int] = []
        new: list[ResidualKey] = []
        for number in range(len(self.residual_of), columns.class_count):
            of = columns.classes[number]
            gpus = table.gpus_number(columns.layouts[of.layout])
            size = int(table.size_of_traits[of.traits])
            key = size, gpus, of.host_free.cpus, of.host_free.ram, of.jobs
            residual = self._numbers.setdefault(key, len(self._numbers))
            if residual == len(self.gpus_of) + len(new):
                new.append(key)
            residuals.append(residual)
        self.residual_of = np.concatenate([self.residual_of, np.array(residuals, np.intp)])
        if new:
            gpus = np.array([key[1] for key in new], np.intp)
            self.gpus_of = np.concatenate([self.gpus_of, gpus])
            headroom = table.measure(residuals_of(new))
            self.headroom = joined(self.headroom, headroom)
            if self.version:
                self.worth = np.append(self.worth, self.outlook.worth(headroom))


class HeadroomLost:
    """What one need costs on each class of nodes."""

    def __init__(self, keeper: HeadroomKeeper, need: Need) -> None:
        self._keeper = keeper
        self._need = need
        self._numbers = {-1: -1}
        """Of each change, by its code: the residual before and the GPUs after."""
        nothing = np.zeros((0, len(keeper.mix.kinds)))
        self.before: list[int] = []
        """The residual before, and"""
        self.after = Headroom(nothing, nothing, np.zeros(0))
        """the room after the placement, by number of the change."""
        self.gpus_after: list[int] = []
        """What jobs find on the GPUs after each change, by number."""
        self.change_of: Numbers = np.zeros(0, np.intp)
        """Of each class that was asked; -1 where the job does not fit."""
        self._gpus_after: dict[int, int] = {}
        """By layout."""

    def ask(
        self,
        first: int,
        fits: Bools,
        chosen: Callable[[int], Chosen],
        beside: Iterable[tuple[int, Chosen]],
    ) -> None:
        """Learn of the classes from `first` on what the job would take there.

        `fits` has an entry for each; `chosen` says which GPUs it would get of a layout that fits,
        and `beside` those of classes where reservations decide.
        """
        keeper, columns = self._keeper, self._keeper.columns
        new = slice(first, first + len(fits))
        for layout in np.unique(columns.layout[new][fits]).tolist():
            if layout not in self._gpus_after:
                self._gpus_after[layout] = self._gpus_with(layout, chosen(layout))
        most = len(columns.layouts)
        by_layout = np.zeros(most, np.intp)
        known = list(self._gpus_after)
        by_layout[known] = list(self._gpus_after.values())
        after = by_layout[columns.layout[new]]
        for number, gpus in beside:
            if number >= first:
                layout = columns.classes[number].layout
                after[number - first] = self._gpus_with(layout, gpus)
        codes = np.where(fits, keeper.residual_of[new] * _MOST_GPUS + after, -1)
        changes = [self._numbers.get(code, _NEW) for code in codes.tolist()]
        if _NEW in changes:
            self._measure(first, changes, codes.tolist())
        self.change_of = np.concatenate([self.change_of[:first], np.array(changes, np.intp)])

    def _measure(self, first: int, changes: list[int], codes: list[int]) -> None:
        """Put the numbers of new changes into `changes`, and measure what they leave."""
        keeper, need = self._keeper, self._need
        new: list[ResidualKey] = []
        for at, code in enumerate(codes):
            if changes[at] != _NEW:
                continue
            changes[at] = self._numbers.setdefault(code, len(self._numbers) - 1)
            if changes[at] < len(self.before):
                continue
            residual, after = divmod(code, _MOST_GPUS)
            of = keeper.columns.classes[first + at]
            size = int(keeper.table.size_of_traits[of.traits])
            left = of.host_free.cpus - need.cpus, of.host_free.ram - need.ram
            self.before.append(residual)
            self.gpus_after.append(after)
            new.append((size, after, *left, of.jobs + 1))
        self.after = joined(self.after, keeper.table.measure(residuals_of(new)))

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
        idle_before = keeper.table.idle[keeper.gpus_of[before]]
        idle_after = keeper.table.idle[np.array(self.gpus_after, np.intp)]
        cost = idle_after - self.after.now @ often - idle_before
        return cost + keeper.headroom.now[before] @ often

    def by_kind(self, number: int) -> list[tuple[str, float]]:
        """Return what a class loses, in words and thousandths: room by kind of GPUs, and what
        its cores and RAM could no longer serve."""
        keeper, change = self._keeper, int(self.change_of[number])
        outlook, residual = keeper.outlook, self.before[change]
        before, after = row_of(keeper.headroom, residual), row_of(self.after, change)
        lost = (outlook.by_kind(before) - outlook.by_kind(after))[0]
        milli = np.bincount(keeper.name_of_kind, lost, len(keeper.names)).tolist()
        stranded = (1.0 - outlook.churn) * float(after.stranded[0] - before.stranded[0])
        parts = zip(keeper.names, milli, strict=True)
        return [*parts, ("GPUs left without cores or RAM", stranded)]

    def _gpus_with(self, layout: int, chosen: Chosen) -> int:
        """Return the number of what jobs find on the GPUs of a layout once these are taken."""
        after = layout_with(self._keeper.columns.layouts[layout], chosen, self._need)
        return self._keeper.table.gpus_number(after)


def layout_with(layout: Layout, chosen: Chosen, need: Need) -> Layout:
    """Return the layout once a job has these GPUs, or its part of them."""
    parts = layout.parts
    if more := need.parts(chosen.indices, chosen.slices):
        parts = with_parts(parts, more)
    return layout._replace(free=layout.free & ~chosen.mask, parts=parts)


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


def residuals_of(keys: list[ResidualKey]) -> Residuals:
    size, gpus, cpus, ram, jobs = zip(*keys, strict=True)
    return Residuals(
        np.array(size, np.intp), np.array(gpus, np.intp), np.array(cpus), np.array(ram),
        np.array(jobs, np.float64),
    )  # fmt: skip


def joined(headroom: Headroom, more: Headroom) -> Headroom:
    return Headroom(*(np.concatenate(pair) for pair in zip(headroom, more, strict=True)))


def row_of(headroom: Headroom, row: int) -> Headroom:
    return Headroom(*(column[row : row + 1] for column in headroom))


def _width(kind: Kind) -> float:
    return (kind.milli / 1000.0) ** 0.5


def _words_of(need: Need) -> str:
    request = need.gpu.text(need.types_text)
    return request.replace(" x GPU", " GPU" if need.gpus == 1 else " GPUs")
