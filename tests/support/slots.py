"""Values for tests of slots: GPUs of 80 GB, models, slots, requests."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from longshore.models.serving import EngineStage
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
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
POLICY = SlotPolicy(wait_price=2_000_000)
"""The worked cases count a request's hour as $2."""
Place = tuple[str, int, int]
"""A node, the index of a GPU, MB."""


def key(name: str, lora: str = "") -> SlotKey:
    return SlotKey(name, "vllm", lora)


def gpus(count: int = 2, node: str = "a", memory: int = 80_000, **fields: Any) -> list[ServingGPU]:
    return [ServingGPU(node, index, memory, **fields) for index in range(count)]


def model(name: str, *mbs: int | tuple[int, ...], load: float = 60, **fields: Any) -> ServedModel:
    """Return a model that needs so many MB on one GPU, or on each of several."""
    sizes = tuple((mb,) if isinstance(mb, int) else mb for mb in mbs)
    return ServedModel(key(name), sizes, load * SECOND, **fields)


def slot(
    name: str, of: str, *places: Place, idle: float | None = None, **fields: Any
) -> ModelSlot:
    """Return a slot that is ready for an hour, idle for so many seconds; None: in use."""
    given: dict[str, Any] = {
        "active": 1 if idle is None else 0,
        "idle_since": None if idle is None else NOW - idle * SECOND,
        "state": EngineStage.READY,
        "since": NOW - HOUR,
    }
    memory = tuple(MemoryOn(GPUOf(node, index), mb) for node, index, mb in places)
    return ModelSlot(name, key(of), memory, **{**given, **fields})


def waits(of: str, requests: int = 1, seconds: float = 0, **fields: Any) -> WaitingRequests:
    return WaitingRequests(key(of), requests, NOW - seconds * SECOND, **fields)


def state(
    fleet: Sequence[ServingGPU],
    models: Sequence[ServedModel],
    waiting: Sequence[WaitingRequests] = (),
    slots: Sequence[ModelSlot] = (),
    **fields: Any,
) -> ServingState:
    known = {each.key: each for each in models}
    return ServingState(tuple(fleet), tuple(slots), tuple(waiting), known, **fields)
