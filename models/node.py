"""Machines: blocks that are bought, nodes of a block, GPUs of a node."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import Field, ValidationInfo, model_validator

from longshore.models.base import Frozen, Instant, Name, Reason, Wire
from longshore.models.bounds import FIRST_MISTAKE, Most, Range, Word, is_given
from longshore.models.job import Tier
from longshore.models.mig import SLICES, MigPositions, MigProfile
from longshore.models.money import MOST as MOST_MICRO
from longshore.models.resources import UNLIMITED, HostAmounts
from longshore.models.topology import MOST_GPUS, GPUIndex, NodeTopology
from longshore.models.units import GB, MOST_CPUS, GBPerSecond, Watts
from longshore.models.visible import brief


class NodeState(StrEnum):
    """Whether a node takes work."""

    READY = "READY"
    DRAINING = "DRAINING"
    """Takes no new job: cordoned; or drained as well, so that what runs there leaves."""
    LOST = "LOST"
    """Its agent is silent; its jobs have gone back to the queue."""
    GONE = "GONE"
    """Its agent left in order, or its time ended."""


class Block(Frozen):
    """A contract with a provider: so many nodes of one type, from start to end, at a price."""

    id: Word
    provider: Word = "own"
    instance_type: Word = ""
    tier: Tier = Tier.FAST
    start: Instant | None = None
    end: Instant | None = None
    price_micro_per_gpu_hour: Annotated[int, Range(0, MOST_MICRO)] = Field(default=0, ge=0)
    """Micro-dollars per GPU-hour."""


_Slices = Annotated[int, Range(0, 2**SLICES - 1)]
_Sets = Annotated[tuple[_Slices, ...], Most(100, on_arrival=True)]
_Positions = Annotated[dict[Word, _Sets], Most(100, on_arrival=True)]


class GPUParts(Frozen):
    """What jobs have of a GPU that they share, or that is in MIG mode."""

    milli_used: int = Field(default=0, ge=0, le=1000)
    """Thousandths in use."""
    mig: _Positions | None = None
    """Set in MIG mode: the profiles that it can have, with their positions."""
    slices_used: int = Field(default=0, ge=0, lt=256)
    """In MIG mode: the set of slices in use."""

    @model_validator(mode="after")
    def _in_one_way(self) -> Self:
        if self.mig is None and self.slices_used:
            raise ValueError("slices are in use, but the GPU is not in MIG mode")
        if self.mig is not None and self.milli_used:
            raise ValueError("the GPU is in MIG mode: jobs have slices of it, no thousandths")
        return self


class GPU(Frozen):
    """One GPU of a node, as the packer sees it."""

    index: int = Field(ge=0, lt=MOST_GPUS)
    vram: GB
    vram_used: GB = 0.0
    """Memory that is not to be had: taken by the jobs there, or kept back on a free GPU."""
    job_id: Word | None = None
    """The job that holds it; a GPU with a job is exclusive."""
    # One field for all that few GPUs have: a cycle reads thousands, and small ones faster.
    parts: GPUParts | None = None
    """Set where jobs share it, or in MIG mode."""

    @model_validator(mode="after")
    def _whole_or_in_parts(self) -> Self:
        if self.job_id and self.parts and (self.parts.mig is not None or self.parts.milli_used):
            raise ValueError(f"GPU {self.index} is held by {self.job_id}, and in parts")
        return self

    @property
    def is_free(self) -> bool:
        """Whether no job has it, or a part of it."""
        return self.job_id is None and not (self.milli_used or self.slices_used)

    @property
    def milli_used(self) -> int:
        return self.parts.milli_used if self.parts else 0

    @property
    def mig(self) -> MigPositions | None:
        return self.parts.mig if self.parts else None

    @property
    def slices_used(self) -> int:
        return self.parts.slices_used if self.parts else 0


class Node(Frozen):
    """One machine as the packer sees it."""

    id: str
    block_id: str | None = None
    provider: str = "own"
    tier: Tier = Tier.FAST
    """A FAST node takes FAST jobs, a FLEX node FLEX jobs."""
    gpu_type: str = ""
    gpus: tuple[GPU, ...]
    cpus: float = Field(ge=0)
    cpus_used: float = Field(default=0.0, ge=0)
    ram: GB
    ram_used: GB = 0.0
    storage_bandwidth: GBPerSecond | None = None
    """Of all storage that its jobs use; not limited when left out."""
    storage_used: GBPerSecond = 0.0
    power: Watts | None = None
    """What its jobs may draw together; not limited when left out."""
    power_used: Watts = 0.0
    gpu_power: Watts = 0.0
    """What one of its GPUs may draw; 0 where that is not known."""
    expires_at: Instant | None = None
    """When its block ends; never when left out."""
    state: NodeState = NodeState.READY
    cordoned: bool = False
    """Of one that is DRAINING, where that is known: its jobs may stay."""
    state_reason: str = Field(default="", exclude_if=lambda reason: not reason)
    """Of one that is DRAINING, where that is known: why."""
    container_runtime: str | None = None
    fetches: bool = True
    """Whether its agent fetches data for jobs, and knows conda: from protocol 10 on."""
    serves: bool = Field(default=True, exclude_if=lambda serves: serves)
    """Whether its agent runs engines: from protocol 15 on."""
    labels: dict[str, str] = Field(default_factory=dict)
    epoch: int = 0
    """Counts the registrations of its agent; a placement carries it (fencing)."""
    topology: NodeTopology | None = None
    """What connects its GPUs, where that is known."""
    conformance: str | None = None
    """Fingerprint of driver, firmware and kernel parameters, where they are known."""
    changed: bool = Field(default=False, exclude_if=lambda changed: not changed)
    """Whether it is another than the one that was accepted for the node."""
    data: tuple[str, ...] = ()
    """Names of data that jobs have used there lately, as far as anybody asks for them."""
    price: int | None = Field(default=None, ge=0)
    """Micro-dollars per GPU-hour of its block; None where it was not bought. For reasons in
    dollars: no node is chosen by it."""

    @model_validator(mode="after")
    def _indices_differ(self) -> Self:
        indices = [gpu.index for gpu in self.gpus]
        if len(set(indices)) != len(indices):
            raise ValueError(f"GPU indices must differ, got {indices}")
        return self

    @property
    def host(self) -> HostAmounts:
        """What it has beside its GPUs."""
        storage, power = self.storage_bandwidth, self.power
        return HostAmounts(
            self.cpus, self.ram,
            UNLIMITED if storage is None else storage, UNLIMITED if power is None else power,
        )  # fmt: skip

    @property
    def host_used(self) -> HostAmounts:
        return HostAmounts(self.cpus_used, self.ram_used, self.storage_used, self.power_used)


_SLICE_SET = Range(1, 2**SLICES - 1)
_PARTS = Most(SLICES, on_arrival=True)
"""Of a GPU, or positions of one profile: an instance has a slice at least."""


class MigInstance(Wire):
    """One MIG instance that a GPU has."""

    profile: MigProfile
    slices: Annotated[int, _SLICE_SET]
    """The set of slices that it takes."""
    uuid: Word


class GPUInventory(Wire):
    """One GPU as the agent found it."""

    index: GPUIndex = Field(ge=0)
    model: Word
    vram: GB
    uuid: Word = ""
    mig: (
        Annotated[
            dict[Word, Annotated[tuple[Annotated[int, _SLICE_SET], ...], _PARTS]],
            Most(100, on_arrival=True),
        ]
        | None
    ) = None
    """Set in MIG mode: where jobs can have instances. Of a real GPU, where they are."""
    mig_instances: Annotated[tuple[MigInstance, ...], _PARTS] = ()
    """Those that are there; none on a simulated GPU, where every position can be had."""
    power: Watts = 0.0
    """The most that it may draw; 0 where that is not known."""


_FIRMWARE_TEXT = Most(4_000, on_arrival=True)
"""As long as a `Reason`. Makers write what they like into it, also control characters."""


class HostFirmware(Wire):
    """One part of a machine's firmware: what of it is in the fingerprint, or why nothing is."""

    part: Annotated[Reason, Most(200, on_arrival=True)]
    """``BIOS`` or ``BMC``."""
    facts: Annotated[
        tuple[Annotated[Reason, _FIRMWARE_TEXT], ...], Most(100, on_arrival=True)
    ] = ()
    """As the fingerprint has them, such as ``bios_version 3.2b``."""
    missing: Annotated[Reason, _FIRMWARE_TEXT] = ""
    """Why it could not be read; empty where it was."""


Address = Annotated[str, Most(253, on_arrival=True, one_line=True)]


class Inventory(Wire):
    """What an agent says of its machine."""

    gpu_type: Word
    gpus: Annotated[tuple[GPUInventory, ...], FIRST_MISTAKE, Most(MOST_GPUS, on_arrival=True)]
    cpus: Annotated[float, Range(0.001, MOST_CPUS)] = Field(gt=0)
    ram: GB
    storage_bandwidth: GBPerSecond | None = None
    """Of all storage that jobs use there; not limited when left out."""
    power: Watts | None = None
    """What jobs may draw there together; not limited when left out."""
    simulated: bool = False
    """True where the GPUs come from flags; shown wherever the node shows."""
    container_runtime: Word | None = None
    hostname: Word = ""
    address: Address = ""
    """Where other nodes reach it: an IP address, or a name that they can resolve."""
    agent_version: Word = ""
    topology: NodeTopology | None = None
    """What connects the GPUs, where the driver tells."""
    conformance: Word | None = None
    """Fingerprint of driver, firmware and kernel parameters, where they are known."""
    firmware: Annotated[tuple[HostFirmware, ...], FIRST_MISTAKE, Most(100, on_arrival=True)] = ()
    """Which firmware of the host is in that fingerprint; empty where there is no fingerprint, and
    from an agent before protocol 5."""

    @property
    def gpus_in_words(self) -> str:
        """Such as `8 x H100 with 80 GB`; of GPUs of several sizes the least and the most."""
        sizes = sorted(gpu.vram for gpu in self.gpus)
        between = f"{sizes[0]:g} to " if sizes[0] != sizes[-1] else ""
        simulated = " (simulated)" if self.simulated else ""
        return f"{len(sizes)} x {self.gpu_type} with {between}{sizes[-1]:g} GB{simulated}"

    @model_validator(mode="after")
    def _indices_differ(self, info: ValidationInfo) -> Self:
        indices = [gpu.index for gpu in self.gpus]
        if is_given(info) and not indices:
            raise ValueError("needs one GPU at least")
        if is_given(info) and len(set(indices)) != len(indices):
            raise ValueError(f"GPU indices must differ, got {brief(str(indices))}")
        return self


Labels = Annotated[
    dict[Word, Annotated[str, Most(1_000, on_arrival=True, one_line=True)]],
    Most(100, on_arrival=True),
]


class NodeIdentity(Wire):
    """Who an agent says that it is, and where its node belongs."""

    node_id: Name
    agent_id: Word
    """Kept in the agent's work folder: the same across restarts on one machine."""
    boot_id: Word
    """New at every start of the agent."""
    pool: Name = "default"
    tier: Tier = Tier.FAST
    provider: Word = "own"
    block_id: Word | None = None
    expires_at: Instant | None = None
    labels: Labels = Field(default_factory=dict)


ENGINE_FENCE: Final = timedelta(minutes=10)
"""For so long engines of services go on by default where their node is cut off
(docs/decisions/0115-engines-outlive.md)."""


class Liveness(Wire):
    """How a node's silence is judged. All follow from one setting, `node_lost_after`.

    A node is declared lost when its agent was silent for `heartbeat_timeout` and did not answer
    a second call within `recall_timeout`. The agent's processes are killed on the machine itself
    `fence_after` the last heartbeat that the server acknowledged, which is earlier: so no process
    can still run when its job starts elsewhere.
    """

    heartbeat_interval: timedelta
    heartbeat_timeout: timedelta
    recall_timeout: timedelta
    fence_after: timedelta

    @classmethod
    def within(cls, lost_after: timedelta) -> Self:
        """Return the times that declare a silent node lost within `lost_after`."""
        return cls(
            heartbeat_interval=lost_after / 8,
            heartbeat_timeout=lost_after / 2,
            recall_timeout=lost_after / 2,
            fence_after=lost_after * 3 / 4,
        )
