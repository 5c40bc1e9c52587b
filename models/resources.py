"""What a job takes of a node: its GPUs, and the amounts beside them that a node has.

Cores, RAM, storage bandwidth and power are alike to the packer: amounts that are wanted, used and
limited. So they travel as one tuple, and what holds for one holds for all.
"""

from typing import NamedTuple

from longshore.models.mig import SLICES, profile_gb, profile_slices
from longshore.models.topology import Gang
from longshore.models.units import format_gb

WHOLE = 1000
"""Thousandths of a GPU that a job has for itself."""

UNLIMITED = float("inf")
"""What a node has of an amount that nobody limits there."""


class GPURequest(NamedTuple):
    """What a job asks of GPUs, but for their type."""

    gpus: int
    vram: float = 0.0
    """GB of each."""
    milli: int = WHOLE
    """Thousandths of each; below `WHOLE` the job shares them with others."""
    mig: str | None = None
    """The MIG profile that it wants an instance of."""
    alone: bool = False
    """Whether the job holds its nodes alone, with the GPUs there that it does not use."""
    by_memory: bool = False
    """Whether its part of a GPU follows from its memory, as an engine's: it is told by that."""

    @property
    def whole(self) -> bool:
        """Whether the job wants its GPUs for itself."""
        return self.milli == WHOLE and self.mig is None

    def text(self, gpu_type: str | None) -> str:
        """Return ``2 x H100 with 40GB``, ``500/1000 of an H100 with 40GB``, ``500/1000 of each of
        2 H100 with 40GB``, ``757MB of a GPU`` or ``1g.10gb of a GPU``."""
        memory = f" with {format_gb(self.vram)}" if self.vram else ""
        if self.whole:
            return f"{self.gpus} x {gpu_type or 'GPU'}{memory}"
        part = f"{self.milli}/1000"
        if self.by_memory:
            part, memory = format_gb(self.vram), ""
        if self.gpus > 1:
            return f"{part} of each of {self.gpus} {gpu_type or 'GPUs'}{memory}"
        of = f"an {gpu_type}" if gpu_type and gpu_type[0] in "AH" else f"a {gpu_type or 'GPU'}"
        return f"{self.mig or part} of {of}{memory}"

    def check(self, gang: Gang | None) -> None:
        """Raise ValueError where a job cannot have such groups, or such a part of GPUs."""
        if gang is not None:
            gang.check_total(self.gpus)
        if self.whole:
            return
        what = f"milli is {self.milli}" if self.mig is None else f"mig is {self.mig}"
        if gang is not None:
            raise ValueError(f"{what}, but a gang takes whole GPUs: leave out one of the two")
        if self.mig is None:
            if not self.vram:
                of = "the GPU" if self.gpus == 1 else "each GPU"
                raise ValueError(f"{what}: say with vram_per_gpu how much memory of {of} it needs")
            return
        if self.gpus != 1:
            raise ValueError(f"{what}, a part of one GPU: gpus must be 1, not {self.gpus}")
        if self.milli != WHOLE:
            raise ValueError(f"{what}, which says its size: leave out milli")
        if self.vram > profile_gb(self.mig):
            raise ValueError(
                f"{what}, which has {profile_gb(self.mig):g}GB: vram_per_gpu cannot be "
                f"{self.vram:g}GB"
            )

    def power(self, watts: float | None, gpu_power: float) -> float:
        """Return the watts that the job may draw.

        `watts` is what it asks for each GPU; without it counts what a GPU of the node may draw
        (`gpu_power`, 0 where that is not known), of a GPU that is shared the job's part.
        """
        if watts is not None:
            return self.gpus * watts
        if self.mig is not None:
            return gpu_power * profile_slices(self.mig) / SLICES
        return self.gpus * gpu_power * self.milli / WHOLE


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
