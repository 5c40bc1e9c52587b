"""Loads, evictions and kills on a virtual clock, beside a plain ledger: nobody starves."""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random

import pytest

from longshore.models.serving import EngineStage
from longshore.scheduling.serving.slot_plan import plan_slots
from longshore.scheduling.serving.slots import (
    GPUOf,
    ModelSlot,
    ServedModel,
    ServingGPU,
    ServingState,
    SlotKey,
    SlotPlan,
    SlotPolicy,
    SlotReservation,
    WaitingRequests,
)
from tests.support.slots import NOW, POLICY, SECOND, gpus, model

STEP = 5
"""Seconds."""
LOAD, ANSWER = 15, 20
SIZES = (60_000, 50_000, 40_000, 40_000, 30_000, 20_000, 70_000, 70_000)


@dataclass
class Walk:
    """A fleet that does what plans say, and a ledger of its memory."""

    fleet: list[ServingGPU]
    models: list[ServedModel]
    policy: SlotPolicy = POLICY
    now: datetime = NOW
    slots: dict[str, ModelSlot] = field(default_factory=dict[str, ModelSlot])
    waiting: dict[SlotKey, list[tuple[datetime, int]]] = field(
        default_factory=dict[SlotKey, list[tuple[datetime, int]]]
    )
    """When each request came, and its class."""
    drained: dict[SlotKey, datetime] = field(default_factory=dict[SlotKey, datetime])
    """When the last slot of a model began to drain."""
    without: dict[SlotKey, datetime] = field(default_factory=dict[SlotKey, datetime])
    """Since when models wait that have no slot."""
    reservations: tuple[SlotReservation, ...] = ()
    answers: list[tuple[datetime, str]] = field(default_factory=list[tuple[datetime, str]])
    loads: int = 0
    longest: float = 0.0

    def arrives(self, key: SlotKey, priority: int = 5) -> None:
        self.waiting.setdefault(key, []).append((self.now, priority))

    def step(self) -> SlotPlan:
        self.now += STEP * SECOND
        self._engines_go_on()
        known = {each.key: each for each in self.models}
        waiting = tuple(
            WaitingRequests(
                key,
                len(asks),
                max(min(asks)[0], self.drained.get(key, NOW)),
                max(each for _, each in asks),
            )
            for key, asks in self.waiting.items()
        )
        state = ServingState(
            tuple(self.fleet), tuple(self.slots.values()), waiting, known, self.reservations
        )
        plan = plan_slots(state, self.policy, self.now)
        self._carry_out(plan)
        self._check()
        return plan

    def _engines_go_on(self) -> None:
        for _, name in [each for each in self.answers if each[0] <= self.now]:
            if (slot := self.slots.get(name)) is not None:
                left = slot.active - 1
                self.slots[name] = replace(
                    slot, active=left, idle_since=None if left else self.now
                )
        self.answers = [each for each in self.answers if each[0] > self.now]
        for name, slot in list(self.slots.items()):
            loaded = self.now - slot.since >= LOAD * SECOND
            if slot.state is EngineStage.LOADING and loaded:
                self.slots[name] = replace(
                    slot, state=EngineStage.READY, since=self.now, idle_since=self.now
                )
            elif slot.state is EngineStage.DRAINING and not slot.active:
                del self.slots[name]

    def _carry_out(self, plan: SlotPlan) -> None:
        for decision in plan.decisions:
            for name, requests in decision.serve:
                self._serve(decision.key, name, requests)
        for victim in plan.victims:
            slot = self.slots[victim.slot]
            assert slot.state is EngineStage.READY
            self.slots[victim.slot] = replace(slot, state=EngineStage.DRAINING)
            self.drained[slot.key] = self.now
        for load in plan.loads:
            self.loads += 1
            name = f"s{self.loads:05}"
            self.slots[name] = ModelSlot(
                name, load.key, load.memory, EngineStage.LOADING, self.now, priority=load.priority
            )
        self.reservations = plan.reservations

    def _serve(self, key: SlotKey, name: str, requests: int) -> None:
        slot = self.slots[name]
        assert slot.state is EngineStage.READY
        assert slot.key == key
        self.slots[name] = replace(slot, active=slot.active + requests, idle_since=None)
        self.answers += [(self.now + ANSWER * SECOND, name)] * requests
        assert len(self.waiting[key]) >= requests
        del self.waiting[key][:requests]
        if not self.waiting[key]:
            del self.waiting[key]

    def _check(self) -> None:
        taken = Counter[GPUOf]()
        loading = Counter[GPUOf]()
        for slot in self.slots.values():
            for gpu, mb in slot.memory:
                taken[gpu] += mb
                loading[gpu] += slot.state is EngineStage.LOADING
        for gpu in self.fleet:
            at = GPUOf(gpu.node, gpu.index)
            assert taken[at] <= gpu.memory - gpu.held
            assert loading[at] <= 1
        capacity = {each.key: each.concurrency for each in self.models}
        assert all(slot.active <= capacity[slot.key] for slot in self.slots.values())
        has = {each.key for each in self.slots.values() if each.state is not EngineStage.DRAINING}
        self.without = {
            key: self.without.get(key, self.now) for key in self.waiting if key not in has
        }
        for since in self.without.values():
            self.longest = max(self.longest, (self.now - since) / SECOND)


def a_walk(gpus_: int = 2) -> Walk:
    models = [
        model(f"m{number}", mb, load=LOAD, use=400.0 / (number + 1), concurrency=4,
              request_time=ANSWER * SECOND)
        for number, mb in enumerate(SIZES)
    ]  # fmt: skip
    return Walk(gpus(gpus_), models)


@pytest.mark.parametrize("seed", range(4))
def test_every_model_is_served_within_a_bound(seed: int):
    """All ask all the time, on memory for three of eight. Before a model has its turn, each of the
    others may have a drain and a load on one GPU."""
    chance, walk = Random(seed), a_walk()
    for _ in range(600):
        for number, each in enumerate(walk.models):
            if chance.random() < 0.6 / (number + 1):
                walk.arrives(each.key)
        walk.step()
        assert walk.longest <= 60 + len(SIZES) * (LOAD + ANSWER + 2 * STEP)
    assert walk.longest > 60


@pytest.mark.parametrize("seed", range(4))
def test_engines_are_killed_at_any_time(seed: int):
    chance, walk = Random(100 + seed), a_walk(3)
    killed = 0
    for _ in range(500):
        for each in walk.models:
            if chance.random() < 0.05:
                walk.arrives(each.key, chance.choice([4, 5, 6]))
        if walk.slots and chance.random() < 0.1:
            name = chance.choice(sorted(walk.slots))
            del walk.slots[name]
            walk.answers = [each for each in walk.answers if each[1] != name]
            killed += 1
        walk.step()
    for _ in range(200):  # nobody asks any more
        walk.step()
    assert killed > 20
    assert walk.loads > killed
    assert walk.waiting == {}
    assert walk.reservations == ()


def test_a_walk_is_the_same_again():
    def walked() -> list[SlotPlan]:
        chance, walk = Random(7), a_walk()
        plans: list[SlotPlan] = []
        for _ in range(100):
            walk.arrives(chance.choice(walk.models).key)
            plans.append(walk.step())
        return plans

    assert walked() == walked()
