"""The GPUs and slots of a state as columns: what is free where, and what could be."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longshore.models.serving import EngineStage
from longshore.scheduling.serving.slots import (
    GPUOf,
    MemoryOn,
    ModelSlot,
    Promise,
    ServedModel,
    ServingState,
    SlotKey,
    SlotPolicy,
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
    yields,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_HOUR = timedelta(hours=1)


class Board:
    """A state while a plan is made: what was decided already has its memory.

    A row is the place of a GPU among those of the state, by node and index.
    """

    def __init__(self, state: ServingState, policy: SlotPolicy, now: datetime) -> None:
        self.state, self.policy, self.now = state, policy, now
        self.gpus = sorted(state.gpus, key=lambda gpu: (gpu.node, gpu.index))
        self.slots = sorted(state.slots, key=lambda slot: slot.id)
        self.rows = {(gpu.node, gpu.index): row for row, gpu in enumerate(self.gpus)}
        self.capacity = _ints(max(gpu.memory - gpu.held, 0) for gpu in self.gpus)
        self.price = _ints(gpu.price or policy.gpu_price for gpu in self.gpus)
        numbers: dict[str, int] = {}
        self.node_of = _ints(numbers.setdefault(gpu.node, len(numbers)) for gpu in self.gpus)
        """A number for each node."""
        self.ends: Floats = np.array(
            [math.inf if gpu.ends is None else (gpu.ends - now).total_seconds()
             for gpu in self.gpus]
        )  # fmt: skip
        """Seconds until the time of a node ends."""
        self.free_at: dict[int, datetime] = {}
        """When a GPU has loaded what it loads, or was promised for."""
        self.busy: Bools = np.zeros(len(self.gpus), bool)
        self.by_id = {slot.id: place for place, slot in enumerate(self.slots)}
        self.leaving: set[str] = set()
        self.loading = 0
        self._pairs()
        self._yielding: dict[tuple[int, bool], tuple[Ints, Floats]] = {}
        self._reloads: dict[str, int] = {}

    def _pairs(self) -> None:
        rows: list[int] = []
        places: list[int] = []
        mbs: list[int] = []
        row_of, loading = self.rows.get, EngineStage.LOADING
        of_key = defaultdict[SlotKey, list[ModelSlot]](list)
        for place, slot in enumerate(self.slots):
            of_key[slot.key].append(slot)
            for gpu, mb in slot.memory:
                if (row := row_of(gpu)) is not None:
                    rows.append(row)
                    places.append(place)
                    mbs.append(mb)
            if slot.state is loading:
                self.loading += 1
                self._is_busy(self.rows_of(slot.memory), self.ready_at(slot))
        self.of_key = dict(of_key)
        self._row, self._place, self._mb = (_ints(column) for column in (rows, places, mbs))
        taken = np.bincount(self._row, self._mb, len(self.gpus)) if rows else 0
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
        return [is_stale(slot, policy, now) for slot in self.slots]

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

    def yielding(self, asker: Asker) -> tuple[Ints, Floats]:
        """Return for each GPU the MB of slots that yield to such an asker, and what the cheapest
        of them costs in an hour (infinite where none does); of its own key, too."""
        at = (asker.priority, asker.due)
        if at not in self._yielding:
            ready, stale, priority, price = self._columns
            lower = priority <= asker.priority if asker.due else priority < asker.priority
            pairs = (ready & (stale | lower))[self._place]
            row, count = self._row[pairs], len(self.gpus)
            mb = np.bincount(row, self._mb[pairs], count) if len(row) else np.zeros(count)
            least = np.full(count, math.inf)
            np.minimum.at(least, row, price[self._place[pairs]])
            self._yielding[at] = mb.astype(np.int64), least
        return self._yielding[at]

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
        candidates: list[Candidate] = []
        for slot in (self.slots[place] for place in places):
            if slot.id in self.leaving or not yields(slot, asker, self.policy, self.now):
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
        self._is_busy(rows, until + load)
        self.loading += 1

    def keep(self, promise: Promise) -> None:
        """Let a promise of before stand."""
        self.take(promise.memory, promise.waits_for, self.load_time(promise.key))

    def can_load(self, promise: Promise) -> bool:
        """Return whether all have left, and nothing else loads there."""
        if any(slot_id in self.by_id for slot_id in promise.waits_for):
            return False
        rows = self.rows_of(promise.memory)
        fits = all(self.room[row] >= mb for row, (_, mb) in zip(rows, promise.memory, strict=True))
        return fits and not self.busy[rows].any()

    def holds(self, promise: Promise) -> bool:
        """Return whether the GPUs of a promise are there, and large enough still."""
        rows = [self.rows.get(gpu) for gpu, _ in promise.memory]
        return all(
            row is not None and self.capacity[row] >= mb
            for row, (_, mb) in zip(rows, promise.memory, strict=True)
        )


def _ints(values: Iterable[Any]) -> Ints:
    return np.array(list(values), np.int64)
