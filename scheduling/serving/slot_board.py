"""The GPUs and slots of a state as columns: what is free where, and what could be."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from itertools import chain, compress
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.models.serving import EngineStage
from longshore.scheduling.serving.slots import (
    GPUOf,
    MemoryOn,
    ModelSlot,
    ServedModel,
    ServingState,
    SlotKey,
    SlotPolicy,
    SlotReservation,
    Victim,
)
from longshore.scheduling.serving.victims import (
    Asker,
    Candidate,
    choose_victims,
    is_stale,
    price_of,
    reload_price,
    victim_of,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_HOUR = timedelta(hours=1)
_GONE = -1
"""In place of the row of a GPU that the state does not have."""


class Yielding(NamedTuple):
    """What slots yield on each GPU. Costs are those of an hour."""

    mb: Ints
    """By GPU."""
    least: Floats
    """Of the cheapest slot of a GPU; infinite where none yields."""
    first: Ints
    """Where the slots of a GPU begin in the columns below: by GPU, then by what an MB costs."""
    mbs: Ints
    """MB of all slots before each, and of all."""
    costs: Floats
    each_mb: Floats
    """What an MB of each costs, and 0 after the last."""


class Board:
    """A state while a plan is made: what was decided already has its memory.

    A row is the place of a GPU among those of the state, by node and index.
    """

    def __init__(self, state: ServingState, policy: SlotPolicy, now: datetime) -> None:
        self.state, self.policy, self.now = state, policy, now
        self.gpus = sorted(state.gpus, key=attrgetter("node", "index"))
        self.slots = sorted(state.slots, key=attrgetter("id"))
        self.rows = {(gpu.node, gpu.index): row for row, gpu in enumerate(self.gpus)}
        self.capacity = _ints([max(gpu.memory - gpu.held, 0) for gpu in self.gpus])
        self.price = _ints([gpu.price or policy.gpu_price for gpu in self.gpus])
        numbers: dict[str, int] = {}
        self.node_of = _ints([numbers.setdefault(gpu.node, len(numbers)) for gpu in self.gpus])
        """A number for each node. The rows of a node are neighbours."""
        self.first_of: Ints = np.searchsorted(self.node_of, np.arange(len(numbers) + 1))
        """Where the rows of each node begin; at last their number."""
        self.ends: Floats = np.array(
            [math.inf if gpu.ends is None else (gpu.ends - now).total_seconds()
             for gpu in self.gpus]
        )  # fmt: skip
        """Seconds until the time of a node ends."""
        self.free_at: dict[int, datetime] = {}
        """When a GPU has loaded what it loads, or is reserved for."""
        self.busy: Bools = np.zeros(len(self.gpus), bool)
        self.by_id = {slot.id: place for place, slot in enumerate(self.slots)}
        self.leaving: set[str] = set()
        self.loading = 0
        self._pairs()
        self._may_leave: dict[tuple[int, bool], Bools] = {}
        self._yielding: dict[tuple[int, bool], Yielding] = {}
        self._reloads: dict[str, int] = {}
        self._least: dict[tuple[int, int, bool], tuple[Floats, int]] = {}
        """Least prices of an hour, and how many of the changes of room they know."""
        self._changed: list[int] = []
        """Rows whose room has changed, again and again."""

    def _pairs(self) -> None:
        row_of, loading = self.rows.get, EngineStage.LOADING
        of_key = defaultdict[SlotKey, list[ModelSlot]](list)
        for slot in self.slots:
            of_key[slot.key].append(slot)
        self.of_key = dict(of_key)
        for slot in [slot for slot in self.slots if slot.state is loading]:
            self.loading += 1
            self._is_busy(self.rows_of(slot.memory), self.ready_at(slot))
        memory = [slot.memory for slot in self.slots]
        places = np.repeat(np.arange(len(memory)), _ints(list(map(len, memory))))
        parts = list(chain.from_iterable(memory))
        rows = _ints([row_of(part.gpu, _GONE) for part in parts])
        mbs = _ints([part.mb for part in parts])
        there = rows != _GONE
        self._row, self._place, self._mb = rows[there], places[there], mbs[there]
        taken = np.bincount(self._row, self._mb, len(self.gpus)) if len(self._row) else 0
        self.room: Ints = self.capacity - np.asarray(taken, np.int64)
        by_row = np.argsort(self._row, kind="stable")
        self._on = self._place[by_row]
        self._first = np.searchsorted(self._row[by_row], np.arange(len(self.gpus) + 1))

    def on(self, row: int) -> list[int]:
        """Return the places of the slots that have memory of a GPU."""
        return self._on[self._first[row] : self._first[row + 1]].tolist()

    @cached_property
    def stale(self) -> list[bool]:
        """Whether each slot yields to anybody."""
        policy, now = self.policy, self.now
        # Most are in use, and told at a glance.
        return [
            (slot.idle_since is not None or slot.prewarmed) and is_stale(slot, policy, now)
            for slot in self.slots
        ]

    @cached_property
    def _columns(self) -> tuple[Bools, Bools, Ints, Floats]:
        """For each slot: whether it may yield at all, whether it is stale, its class, and the
        micro-dollars of its reload x its requests in an hour."""
        models = self.state.models
        is_ready = EngineStage.READY
        ready = [slot.state is is_ready and not slot.pinned for slot in self.slots]
        worth = {key: each.load_time.total_seconds() * each.use for key, each in models.items()}
        seconds = [worth.get(slot.key, 0.0) for slot in self.slots]
        price = np.bincount(self._place, self.price[self._row], len(self.slots))
        return (
            np.array(ready, bool), np.array(self.stale, bool),
            _ints([slot.priority for slot in self.slots]), price * np.array(seconds) / 3600,
        )  # fmt: skip

    def may_leave(self, asker: Asker) -> Bools:
        """Return for each slot whether it yields to such an asker (`victims.yields`, for all at
        once); of its own key, too."""
        at = (asker.priority, asker.due)
        if at not in self._may_leave:
            ready, stale, priority, _ = self._columns
            lower = priority <= asker.priority if asker.due else priority < asker.priority
            self._may_leave[at] = ready & (stale | lower)
        return self._may_leave[at]

    def yielding(self, asker: Asker) -> Yielding:
        """Return what yields to such an asker on each GPU; of its own key, too."""
        at = (asker.priority, asker.due)
        if at not in self._yielding:
            pairs = self.may_leave(asker)[self._place]
            row, mb, count = self._row[pairs], self._mb[pairs], len(self.gpus)
            cost = self._columns[-1][self._place[pairs]]
            each_mb = cost / np.maximum(mb, 1)
            order = np.argsort(each_mb)
            order = order[np.argsort(row[order], kind="stable")]
            row, mb, cost = row[order], mb[order], cost[order]
            least = np.full(count, math.inf)
            np.minimum.at(least, row, cost)
            first = np.searchsorted(row, np.arange(count + 1))
            mbs, costs = np.append(0, np.cumsum(mb)), np.append(0.0, np.cumsum(cost))
            self._yielding[at] = Yielding(
                np.diff(mbs[first]), least, first[:-1], mbs, costs, np.append(each_mb[order], 0.0)
            )
        return self._yielding[at]

    def least_prices(self, rows: Ints, mb: int, asker: Asker, meanwhile: timedelta) -> Floats:
        """Return micro-dollars that those who leave cost at least so that each of these GPUs,
        where enough yields, has so many MB: the cheapest slot alone, and what the MB would cost if
        a slot could leave in part."""
        at = (mb, asker.priority, asker.due)
        least, known = self._least.get(at, (None, 0))
        if least is None:
            least = self._hourly(np.arange(len(self.gpus)), mb, asker)
        elif known < len(self._changed):
            changed = np.array(self._changed[known:], np.int64)
            least[changed] = self._hourly(changed, mb, asker)
        self._least[at] = least, len(self._changed)
        return least[rows] * (meanwhile / _HOUR)

    def _hourly(self, rows: Ints, mb: int, asker: Asker) -> Floats:
        yielding, short = self.yielding(asker), mb - self.room[rows]
        begin = yielding.first[rows]
        until = yielding.mbs[begin] + short
        last = np.maximum(np.searchsorted(yielding.mbs, until) - 1, begin)
        parts = (until - yielding.mbs[last]) * yielding.each_mb[last]
        parts += yielding.costs[last] - yielding.costs[begin]
        dearer = np.maximum(yielding.least[rows], parts)
        return np.where(short > 0, dearer, 0.0)

    def lasting(self, model: ServedModel) -> Bools:
        """Return on which GPUs a load would have paid before their nodes end."""
        return self.ends >= model.load_time.total_seconds() * (1 + self.policy.pays_after)

    def rows_of(self, memory: Iterable[MemoryOn]) -> list[int]:
        return [row for gpu, _ in memory if (row := self.rows.get(gpu)) is not None]

    def memory_of(self, rows: Sequence[int], mbs: Sequence[int]) -> tuple[MemoryOn, ...]:
        return tuple(
            MemoryOn(GPUOf(self.gpus[row].node, self.gpus[row].index), mb)
            for row, mb in zip(rows, mbs, strict=True)
        )

    def load_time(self, key: SlotKey) -> timedelta:
        model = self.state.models.get(key)
        return model.load_time if model else timedelta(0)

    def ready_at(self, slot: ModelSlot) -> datetime:
        """Return when a slot that loads is probably ready. What is late will probably be as late
        again: else to wait for it would cost nothing, however long it takes."""
        expected = slot.since + self.load_time(slot.key)
        return expected + 2 * max(self.now - expected, timedelta(0))

    def _is_busy(self, rows: Iterable[int], until: datetime) -> None:
        for row in rows:
            self.busy[row] = True
            self.free_at[row] = max(until, self.free_at.get(row, until))

    def reload(self, slot: ModelSlot) -> int:
        if (known := self._reloads.get(slot.id)) is not None:
            return known
        model = self.state.models.get(slot.key)
        prices = [self.gpus[row].price for row in self.rows_of(slot.memory)]
        price = reload_price(slot, model, prices, self.policy) if model else 0
        self._reloads[slot.id] = price
        return price

    def leaving_on(
        self, rows: Sequence[int], mbs: Sequence[int], asker: Asker, meanwhile: timedelta
    ) -> tuple[Candidate, ...] | None:
        """Return who leaves so that these GPUs have so many MB; None where that does not help."""
        short = {
            row: need for row, mb in zip(rows, mbs, strict=True)
            if (need := mb - int(self.room[row])) > 0
        }  # fmt: skip
        if not short:
            return ()
        places = sorted({place for row in short for place in self.on(row)})
        may_leave = self.may_leave(asker)[places].tolist()
        candidates: list[Candidate] = []
        for slot in (self.slots[place] for place in compress(places, may_leave)):
            if slot.key == asker.key or slot.id in self.leaving:
                continue
            model = self.state.models.get(slot.key)
            price = price_of(self.reload(slot), model.use if model else 0.0, meanwhile)
            frees = {
                row: mb for gpu, mb in slot.memory
                if (row := self.rows.get(gpu)) is not None and row in short
            }  # fmt: skip
            candidates.append(Candidate(price, slot.id, frees))
        return choose_victims(short, candidates)

    def victim(self, leaving: Candidate, asker: Asker, meanwhile: timedelta) -> Victim:
        """Return a slot that leaves, with why and its price in words."""
        slot = self.slots[self.by_id[leaving.slot]]
        model = self.state.models.get(slot.key)
        return victim_of(slot, model, self.reload(slot), meanwhile, asker, self.policy, self.now)

    def drain_time(self, leaving: Iterable[Candidate]) -> timedelta:
        """Return for how long slots that leave probably answer what they have before."""
        slots = [self.slots[self.by_id[each.slot]] for each in leaving]
        times = [
            model.request_time
            for slot in slots
            if (slot.active or slot.queued) and (model := self.state.models.get(slot.key))
        ]
        return max(times, default=timedelta(0))

    def take(self, memory: Sequence[MemoryOn], leaving: Iterable[str], load: timedelta) -> None:
        """Give memory to a slot that loads once these have left."""
        rows, until = self.rows_of(memory), self.now
        for slot_id in leaving:
            self.leaving.add(slot_id)
            if (place := self.by_id.get(slot_id)) is None:
                continue
            slot = self.slots[place]
            model = self.state.models.get(slot.key)
            if slot.active and model:
                until = max(until, self.now + model.request_time)
            for gpu, mb in slot.memory:
                if (row := self.rows.get(gpu)) is not None and row in rows:
                    self.room[row] += mb
        for gpu, mb in memory:
            if (row := self.rows.get(gpu)) is not None:
                self.room[row] -= mb
        self._changed += rows
        self._is_busy(rows, until + load)
        self.loading += 1

    def keep(self, reservation: SlotReservation) -> None:
        """Let a reservation of before stand."""
        self.take(reservation.memory, reservation.waits_for, self.load_time(reservation.key))

    def can_load(self, reservation: SlotReservation) -> bool:
        """Return whether all have left, and nothing else loads there."""
        if any(slot_id in self.by_id for slot_id in reservation.waits_for):
            return False
        rows = self.rows_of(reservation.memory)
        fits = all(
            self.room[row] >= mb for row, (_, mb) in zip(rows, reservation.memory, strict=True)
        )
        return fits and not self.busy[rows].any()

    def holds(self, reservation: SlotReservation) -> bool:
        """Return whether the GPUs of a reservation are there, and large enough still."""
        rows = [self.rows.get(gpu) for gpu, _ in reservation.memory]
        return all(
            row is not None and self.capacity[row] >= mb
            for row, (_, mb) in zip(rows, reservation.memory, strict=True)
        )


def _ints(values: list[int]) -> Ints:
    return np.array(values, np.int64)
