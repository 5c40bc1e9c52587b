"""How long a plan of slots takes on a large fleet."""

import random
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from longshore.models.serving import EngineStage
from longshore.scheduling.serving.slot_plan import plan_slots
from longshore.scheduling.serving.slots import (
    GPUOf,
    MemoryOn,
    ModelSlot,
    ServedModel,
    ServingGPU,
    ServingState,
    SlotKey,
    SlotPolicy,
    WaitingRequests,
)

NOW = datetime(2026, 11, 20, tzinfo=UTC)
_OF_A_NODE = 8
_MEMORY = 80_000
_SIZES = ((16,), (8,), (28,), (40,), (20,), (64,), (12,), (60, 60), (50, 50, 50, 50))
"""GB of the models on each GPU, again and again."""


@dataclass(frozen=True)
class Times:
    """Milliseconds of the processor."""

    gpus: int
    models: int
    slots: int
    waiting: int
    first: float
    """The first plan of the process."""
    after_change: float
    """The median after one change."""
    loads: int
    """What the first plan loads, or makes room for."""


def measure(gpus: int, models: int, waiting: int, rounds: int, seed: int = 1) -> Times:
    """Return how long plans take for a full fleet on which so many models wait."""
    chance = random.Random(seed)
    state = full_fleet(gpus, models, chance)
    state = replace(state, waiting=tuple(_waits(state, number) for number in range(waiting)))
    policy = SlotPolicy()
    began = time.process_time()
    plan = plan_slots(state, policy, NOW)
    first = time.process_time() - began
    taken: list[float] = []
    for number in range(rounds):
        state = _changed(state, chance, number)
        began = time.process_time()
        plan_slots(state, policy, NOW)
        taken.append(time.process_time() - began)
    return Times(
        gpus, models, len(state.slots), waiting, 1000 * first,
        1000 * sorted(taken)[len(taken) // 2], len(plan.loads) + len(plan.reservations),
    )  # fmt: skip


def full_fleet(gpus: int, models: int, chance: random.Random) -> ServingState:
    """Return nodes of eight GPUs, filled with slots of which a third is stale."""
    nodes = [f"node-{number:05}" for number in range(-(-gpus // _OF_A_NODE))]
    fleet = tuple(
        ServingGPU(node, index, _MEMORY, price=chance.choice([1_800_000, 2_000_000, 2_600_000]))
        for node in nodes
        for index in range(_OF_A_NODE)
    )
    known = {
        (key := SlotKey(f"m{number:04}", "vllm")): ServedModel(
            key,
            (tuple(1000 * gb for gb in _SIZES[number % len(_SIZES)]),),
            timedelta(seconds=chance.choice([15, 30, 60])),
            concurrency=32,
            use=3600 / (number + 1),
        )
        for number in range(models)
    }
    slots: list[ModelSlot] = []
    keys, use = list(known), [known[key].use for key in known]
    for node in nodes:
        rooms = [_MEMORY] * _OF_A_NODE
        for key in chance.choices(keys[: max(models * 9 // 10, 1)], use[: models * 9 // 10], k=24):
            mbs = known[key].sizes[0]
            fit = [index for index, room in enumerate(rooms) if room >= mbs[0]][: len(mbs)]
            if len(fit) == len(mbs):
                memory = tuple(
                    MemoryOn(GPUOf(node, at), mb) for at, mb in zip(fit, mbs, strict=True)
                )
                for index, mb in zip(fit, mbs, strict=True):
                    rooms[index] -= mb
                slots.append(_slot(f"s{len(slots):06}", key, memory, chance))
    return ServingState(fleet, tuple(slots), (), known)


def _slot(
    name: str, key: SlotKey, memory: tuple[MemoryOn, ...], chance: random.Random
) -> ModelSlot:
    kind = chance.random()
    if kind < 0.02:
        return ModelSlot(name, key, memory, EngineStage.LOADING, NOW - timedelta(seconds=5))
    ready = NOW - timedelta(minutes=30)
    idle = NOW - timedelta(seconds=chance.randint(11, 600)) if kind < 0.35 else None
    return ModelSlot(
        name, key, memory, EngineStage.READY, ready, 0 if idle else 3, idle_since=idle,
        priority=chance.choice([4, 5, 6]),
    )  # fmt: skip


def _waits(state: ServingState, number: int) -> WaitingRequests:
    """Return a model that waits: from the rarest on, of which many have no slot."""
    key = list(state.models)[-1 - number]
    return WaitingRequests(key, 1 + number % 5, NOW - timedelta(seconds=number % 90))


def _changed(state: ServingState, chance: random.Random, number: int) -> ServingState:
    """Return the state after a slot has got a request, or has answered its last."""
    at = chance.randrange(len(state.slots))
    slot = state.slots[at]
    idle = None if slot.idle_since else NOW - timedelta(seconds=number % 60)
    slot = replace(slot, active=0 if idle else 1, idle_since=idle)
    return replace(state, slots=(*state.slots[:at], slot, *state.slots[at + 1 :]))
