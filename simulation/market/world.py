"""What every part of the market shares: time, faults, knobs, ids, machines, a journal."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import Field

from longshore.models.base import Frozen
from longshore.simulation.market.clock import Clock
from longshore.simulation.market.faults import Faults

_DAY = 86_400.0


class Knobs(Frozen):
    """What can be set about the market while it runs. Seconds are market seconds."""

    settle_seconds: float = Field(default=1.0, ge=0, le=_DAY)
    """From an order to its match, and from a cancellation to its effect. 0 is the next request."""
    instance_start_seconds: float = Field(default=40.0, ge=0, le=_DAY)
    """From time that is bought and due to an instance that runs."""
    pod_start_seconds: float | None = Field(default=None, ge=0, le=_DAY)
    """From a pod's creation to its use; 1 to 10 minutes by the seed when left out."""
    pod_trouble: float = Field(default=0.04, ge=0, le=1)
    """Share of pods that end in ERROR, and again of those that never get SSH."""
    spot_loss_per_hour: float = Field(default=0.05, ge=0, le=1)
    """Chance that a spot pod is taken away, every hour that it runs."""
    spot_notice_seconds: float = Field(default=0.0, ge=0, le=_DAY)
    """For which a pod that is taken away is DELETING and still runs; 0 gives no notice."""
    slow_seconds: float = Field(default=5.0, ge=0, le=_DAY)
    """Real seconds that the fault `slow` takes."""
    pod_cap: int = Field(default=50, ge=0)
    """Pods that may live at one time."""


QUICK = Knobs(
    instance_start_seconds=2.0, pod_start_seconds=5.0, pod_trouble=0.0, spot_loss_per_hour=0.0
)
"""Machines come up in seconds, and none fails: for people who look on."""


class MachineRoom(Protocol):
    """Where machines are switched on and off."""

    def start(self, name: str, script: str | None, hardware: str) -> None:
        """Switch a machine on; it runs its start-up script. `hardware` is as 8xH100-80GB."""
        ...

    def end(self, name: str, *, notice: bool) -> None:
        """Switch a machine off; with notice, ask it to stop first."""
        ...


class NoMachines:
    """Machines that nobody has: they are remembered as running, and run nothing."""

    def __init__(self) -> None:
        self.running: dict[str, str | None] = {}
        """Start-up scripts by name."""

    def start(self, name: str, script: str | None, hardware: str) -> None:
        self.running[name] = script

    def end(self, name: str, *, notice: bool) -> None:
        self.running.pop(name, None)


@dataclass
class World:
    """Given to every part: `run` makes ids of one market differ from those of the next."""

    clock: Clock
    run: str = "0"
    seed: int = 1
    knobs: Knobs = field(default_factory=Knobs)
    faults: Faults = field(default_factory=Faults)
    machines: MachineRoom = field(default_factory=NoMachines)
    say: Callable[[str], object] = lambda line: None
    """Takes one line for people per trade and per machine."""
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{self.run}{next(self._numbers):06d}"
