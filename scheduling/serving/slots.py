"""Slots of models that are served: the state that a plan is made of, and the plan.

A slot is an engine that has a model in the memory of named GPUs. Memory is in whole MB for each
GPU, as the capacity database counts it; money in micro-dollars, prices for a GPU-hour.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from longshore.models.serving import STALE_AFTER, EngineStage
from longshore.models.topology import NodeTopology


class SlotKey(NamedTuple):
    """What a slot serves: requests for another model, runtime or adapter need another slot."""

    model: str
    runtime: str
    lora: str = ""

    def __str__(self) -> str:
        return f"{self.model} with {self.lora}" if self.lora else self.model


class GPUOf(NamedTuple):
    """A GPU of a node."""

    node: str
    gpu_index: int


class MemoryOn(NamedTuple):
    """MB of a GPU."""

    gpu: GPUOf
    mb: int


@dataclass(frozen=True, slots=True)
class ServingGPU:
    """A GPU on which slots may be. What loads on it, its slots say."""

    node: str
    index: int
    memory: int
    """MB that it has."""
    held: int = 0
    """MB that jobs hold, or that are kept back; all where a job has it whole."""
    price: int = 0
    """Micro-dollars for a GPU-hour; 0 where nobody knows it: the policy's price counts then."""
    ends: datetime | None = None
    """When the time of its node ends."""


@dataclass(frozen=True, slots=True)
class ModelSlot:
    """An engine with its model."""

    id: str
    key: SlotKey
    memory: tuple[MemoryOn, ...]
    state: EngineStage
    since: datetime
    """When it came into this state."""
    active: int = 0
    queued: int = 0
    """Requests that it answers, and that wait in it."""
    idle_since: datetime | None = None
    """When its last request ended, or when it was ready if it had none; None while it has one."""
    priority: int = 5
    """The highest class of its requests, or of the last that it had."""
    pinned: bool = False
    prewarmed: bool = False
    """Loaded for nobody, and nobody has asked for it so far."""


@dataclass(frozen=True, slots=True)
class WaitingRequests:
    """Requests for a key that no slot has. Several of one key count as one."""

    key: SlotKey
    requests: int
    since: datetime
    """Since when the oldest waits; not before the last slot of the key began to drain. Else models
    with a long queue had their turn again and again, ahead of those with a short one."""
    priority: int = 5
    """Their highest class."""


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """How a runtime spreads a model over GPUs layer by layer, not necessarily evenly."""

    layers: int
    mb: int
    """MB of a layer, with its part of the cache."""
    fixed: int
    """MB that each GPU needs beside."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a slot of a key needs, and what it is worth."""

    key: SlotKey
    sizes: tuple[tuple[int, ...], ...]
    """MB on each GPU, for each number of GPUs that is possible, fewest first."""
    load_time: timedelta
    concurrency: int = 1
    use: float = 0.0
    """Requests that are expected in an hour."""
    request_time: timedelta = timedelta(seconds=5)
    """For how long a request has its place."""
    split: LayerSplit | None = None
    """Set where layers are spread: for more GPUs than `sizes` has, as their room allows."""
    prewarm: int = 0
    """Copies that fill free memory."""


@dataclass(frozen=True, slots=True)
class SlotReservation:
    """GPUs that a key gets once the slots that leave for it are gone."""

    key: SlotKey
    priority: int
    memory: tuple[MemoryOn, ...]
    waits_for: tuple[str, ...]
    """Ids of the slots that leave."""


@dataclass(frozen=True, slots=True)
class ServingState:
    """All that a plan is made of. No order of these matters."""

    gpus: tuple[ServingGPU, ...]
    slots: tuple[ModelSlot, ...]
    waiting: tuple[WaitingRequests, ...]
    models: Mapping[SlotKey, ServedModel]
    reservations: tuple[SlotReservation, ...] = ()
    topologies: Mapping[str, NodeTopology] = field(default_factory=lambda: MappingProxyType({}))
    """What connects the GPUs of a node, by its id."""


@dataclass(frozen=True, slots=True)
class SlotPolicy:
    """The settings of the rules."""

    stale_after: timedelta = STALE_AFTER
    """A slot without a request for so long yields to anybody."""
    max_wait: timedelta = timedelta(seconds=60)
    """A model that has waited for so long has a slot of its own class drained."""
    wait_loads: float = 4.0
    """It waits for so many of its load times at least before that: drained sooner, slots would
    mostly load."""
    overdue_after: float = 6.0
    """Who has waited for so many times as long comes first in its class."""
    wait_price: int = 700_000
    """Micro-dollars that an hour of a request's waiting costs; for one that has waited already,
    as much again for each load time."""
    gpu_price: int = 2_000_000
    """Micro-dollars for a GPU-hour where nobody knows a price."""
    pays_after: float = 1.0
    """A slot has to be ready for so many of its load times before its node ends."""
    loads_at_once: int | None = None
    """The most that load at a time in all; None: one on each GPU."""


class SlotAction(StrEnum):
    """What a plan decides for a key."""

    SERVE = "SERVE"
    """Slots that are there have room, or will when they are loaded."""
    LOAD = "LOAD"
    """A slot is loaded now."""
    YIELD = "YIELD"
    """Others leave; then a slot is loaded."""
    WAIT = "WAIT"
    """Nothing for now."""
    NEVER = "NEVER"
    """No GPU that there is could ever hold it."""
    PREWARM = "PREWARM"
    """A slot is loaded for nobody, in memory that is free."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A slot that leaves for another, or for a job."""

    slot: str
    drained: bool
    """It is in use, and answers the requests that it has first."""
    turn: bool
    """It is of the class that asks: it yields only since that has waited for too long."""
    price: int
    """Micro-dollars."""
    reason: str


@dataclass(frozen=True, slots=True)
class SlotOption:
    """One way to give a key a slot, with what it costs."""

    memory: tuple[MemoryOn, ...]
    victims: tuple[Victim, ...]
    evictions: int
    """Micro-dollars of the victims."""
    waiting: int
    """Micro-dollars of the wait until the GPUs load nothing else."""
    free_at: datetime | None
    """When that is; None: now."""
    reason: str

    @property
    def price(self) -> int:
        return self.evictions + self.waiting


@dataclass(frozen=True, slots=True)
class SlotDecision:
    """What becomes of the requests for a key."""

    key: SlotKey
    action: SlotAction
    reason: str
    chosen: SlotOption | None = None
    rejected: tuple[SlotOption, ...] = ()
    """The next best, cheapest first."""
    serve: tuple[tuple[str, int], ...] = ()
    """How many requests go to which ready slots."""
    again_at: datetime | None = None
    """When time alone changes the answer."""


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """A slot to load now."""

    key: SlotKey
    memory: tuple[MemoryOn, ...]
    priority: int
    prewarmed: bool = False


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """What is to be done now."""

    decisions: tuple[SlotDecision, ...]
    """One for each key that waits, in their order, then those that are prewarmed."""
    loads: tuple[SlotLoad, ...]
    victims: tuple[Victim, ...]
    """Slots that leave now."""
    reservations: tuple[SlotReservation, ...]
    """What holds from now on, in place of the reservations of the state."""
    again_at: datetime | None
    """When time alone changes an answer, at the earliest."""
