"""What a job takes of a node beside its GPUs, and what a node has of it.

Cores, RAM, storage bandwidth and power are alike to the packer: amounts that are wanted, used and
limited. So they travel as one tuple, and what holds for one holds for all.
"""

from typing import NamedTuple

from longshore.models.mig import SLICES, profile_slices

UNLIMITED = float("inf")
"""What a node has of an amount that nobody limits there."""


class HostAmounts(NamedTuple):
    """Amounts of a node that are not in its GPUs, in the order of the checks."""

    cpus: float = 0.0
    """Cores."""
    ram: float = 0.0
    """GB."""
    storage: float = 0.0
    """GB/s of storage bandwidth."""
    power: float = 0.0
    """Watts."""

    def plus(self, other: "HostAmounts") -> "HostAmounts":
        cpus, ram, storage, power = other
        return HostAmounts(
            self.cpus + cpus, self.ram + ram, self.storage + storage, self.power + power
        )

    def minus(self, other: "HostAmounts") -> "HostAmounts":
        cpus, ram, storage, power = other
        return HostAmounts(
            self.cpus - cpus, self.ram - ram, self.storage - storage, self.power - power
        )


NOTHING = HostAmounts()


def power_of(
    gpus: int, watts: float | None, gpu_power: float, milli: int = 1000, mig: str | None = None
) -> float:
    """Return the watts that a job may draw with so many GPUs.

    `watts` is what it asks for each of them; without it counts what a GPU of the node may draw
    (`gpu_power`, 0 where that is not known), of a GPU that is shared the job's part.
    """
    if watts is not None:
        return gpus * watts
    if mig is not None:
        return gpu_power * profile_slices(mig) / SLICES
    return gpus * gpu_power * milli / 1000
