"""The state file of `longshore place`: nodes as they are, written down by hand or by a program."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Self

from pydantic import Field, WithJsonSchema, model_validator

from longshore.models.base import Frozen, Instant
from longshore.models.bounds import Most, Range, Word
from longshore.models.counts import DIGITS
from longshore.models.job import Tier
from longshore.models.mig import SLICES, listed_models, positions_of, slices_gb
from longshore.models.node import GPU, MOST_GPUS, Block, GPUParts, Node, NodeState
from longshore.models.pool import PoolPacking
from longshore.models.text import listed
from longshore.models.topology import LinkClass, NodeTopology
from longshore.models.units import (
    GB,
    MOST_CPUS,
    GBPerSecond,
    Watts,
    format_cores,
    format_gb,
    format_gb_per_second,
    format_watts,
)

MOST_ENTRIES = 100_000
"""Nodes, jobs or the like of a file."""
_MOST_GPUS_IN_ALL = 1_000_000
"""Of all nodes of a file: each takes memory, however short it is said."""
_OF_ITS_GPUS = Most(MOST_GPUS)
Index = Annotated[int, Field(ge=0, lt=MOST_GPUS)]
_IndexKey = Annotated[Index, WithJsonSchema({"type": "string", "maxLength": 4})]
Cores = Annotated[float, Field(ge=0, le=MOST_CPUS)]
NamedWord = Annotated[Word, Field(min_length=1)]


class GPUUse(Frozen):
    """What is in use on one GPU: by a job, by jobs that share it, or kept back."""

    job: NamedWord | None = None
    vram: GB | None = None
    """Memory in use; all of it when left out, and of slices what they have."""
    milli: Annotated[int, Field(ge=1, le=1000), DIGITS] | None = None
    """Thousandths in use by jobs that share it."""
    slices: Annotated[tuple[Annotated[int, Field(ge=0, lt=SLICES)], ...], Most(SLICES)] = ()
    """Of a GPU in MIG mode, the slices in use."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum((self.job is not None, self.milli is not None, bool(self.slices))) > 1:
            raise ValueError("give one of job, milli and slices: a GPU is used in one way")
        if self.milli is not None and self.vram is None:
            raise ValueError("milli needs vram: how much memory is in use")
        return self


class Links(Frozen):
    """What connects a node's GPUs, written short: by islands of GPUs with like links."""

    islands: Annotated[tuple[Annotated[tuple[Index, ...], _OF_ITS_GPUS], ...], _OF_ITS_GPUS]
    """Each GPU in one of them."""
    within: LinkClass = LinkClass.NVSWITCH
    """Between GPUs of one island."""
    between: LinkClass = LinkClass.PCIE5
    """Between those of different ones."""
    nics: Annotated[dict[_IndexKey, Word], _OF_ITS_GPUS] = Field(default_factory=dict[int, str])
    """The network card beside a GPU, by index."""

    @model_validator(mode="after")
    def _gpus_differ(self) -> Self:
        indices = [index for island in self.islands for index in island]
        for index, times in Counter(indices).items():
            if times > 1:
                raise ValueError(f"GPU {index} is in two islands")
        for index in self.nics:
            if index not in indices:
                raise ValueError(f"nics: GPU {index} is in no island")
        return self

    def topology(self) -> NodeTopology:
        home = {index: island for island in self.islands for index in island}
        gpus = tuple(sorted(home))
        return NodeTopology(
            gpus=gpus,
            links=tuple(tuple(self._link(home[a], home[b], a == b) for b in gpus) for a in gpus),
            nics=tuple(self.nics.get(gpu) for gpu in gpus) if self.nics else (),
        )

    def _link(self, one: tuple[int, ...], other: tuple[int, ...], same: bool) -> LinkClass | None:
        if same:
            return None
        return self.within if one == other else self.between


class NodeEntry(Frozen):
    """One node. What its block says need not be said again; what is said here goes first."""

    id: NamedWord
    block: Word | None = None
    """The block that it belongs to, for provider, tier and expiry."""
    provider: NamedWord | None = None
    tier: Tier | None = None
    gpu_type: Word = ""
    gpus: (
        Annotated[int, Range(0, MOST_GPUS, on_arrival=False), DIGITS]
        | Annotated[tuple[GPU, ...], _OF_ITS_GPUS]
    )
    """How many GPUs, or each of them in full."""
    vram: GB = 80.0
    """Memory of each GPU, where `gpus` is a number."""
    used: Annotated[dict[_IndexKey, Word | GPUUse], _OF_ITS_GPUS] = Field(
        default_factory=dict[int, str | GPUUse]
    )
    """GPUs in use by index: the job, or `{job: ..., vram: ...}`, `{milli: ..., vram: ...}`,
    `{slices: [...]}`; where `gpus` is a number."""
    mig: Annotated[tuple[Index, ...], _OF_ITS_GPUS] = ()
    """GPUs in MIG mode, by index; `gpu_type` and `vram` say which instances they can have."""
    cpus: Cores = 64.0
    cpus_used: Cores = 0.0
    ram: GB = 512.0
    ram_used: GB = 0.0
    storage_bandwidth: GBPerSecond | None = None
    """Not limited when left out."""
    storage_used: GBPerSecond = 0.0
    power: Watts | None = None
    """What its jobs may draw together; not limited when left out."""
    power_used: Watts = 0.0
    gpu_power: Watts = 0.0
    """What one of its GPUs may draw; 0 where that is not known."""
    expires_at: Instant | None = None
    state: NodeState = NodeState.READY
    container_runtime: Word | None = None
    labels: Annotated[dict[Word, Word], Most(1000)] = Field(default_factory=dict[str, str])
    """For gangs: region, cluster and fabric.domain; rack and gpu.flavor where they matter."""
    links: Links | None = None
    """What connects its GPUs."""
    conformance: NamedWord | None = None
    """Equal on nodes with the same driver, firmware and kernel parameters."""
    data: Annotated[tuple[Word, ...], Most(10_000)] = ()
    """Names of data that the node holds."""

    @model_validator(mode="after")
    def _gpus_agree(self) -> Self:
        if isinstance(self.gpus, tuple):
            if self.used or self.mig:
                raise ValueError("give `used` and `mig`, or a full list of `gpus`, not both")
            indices = [gpu.index for gpu in self.gpus]
            if len(set(indices)) != len(indices):
                raise ValueError(f"GPU indices must differ, got {indices}")
            return self
        for index in self.used:
            if not 0 <= index < self.gpus:
                raise ValueError(f"used: there is no GPU {index} among {self.gpus}")
        self._check_mig(self.gpus)
        return self

    def _check_mig(self, gpus: int) -> None:
        for index in self.mig:
            if not 0 <= index < gpus:
                raise ValueError(f"mig: there is no GPU {index} among {gpus}")
        if self.mig and positions_of(self.gpu_type, self.vram) is None:
            known = ", ".join(listed_models())
            what = f"{self.gpu_type or 'a GPU'} of {format_gb(self.vram)}"
            raise ValueError(f"mig: {what} is none of {known}")
        for index, use in self.used.items():
            in_slices = isinstance(use, GPUUse) and bool(use.slices)
            if in_slices and index not in self.mig:
                raise ValueError(f"used: GPU {index} has slices in use: name it in mig as well")
            if index in self.mig and not in_slices:
                raise ValueError(
                    f"used: GPU {index} is in MIG mode: give the slices in use, "
                    f"as in {{{index}: {{slices: [0, 1]}}}}"
                )

    @model_validator(mode="after")
    def _no_more_used_than_there_is(self) -> Self:
        amounts = (
            ("cpus", self.cpus_used, self.cpus, format_cores),
            ("ram", self.ram_used, self.ram, format_gb),
            ("storage", self.storage_used, self.storage_bandwidth, format_gb_per_second),
            ("power", self.power_used, self.power, format_watts),
            *((f"GPU {index}: vram", *sizes, format_gb) for index, *sizes in self._memory()),
        )
        for name, used, size, shown in amounts:
            if size is not None and used > size:
                what = f"{name}_used is {shown(used)}"
                raise ValueError(f"{what}, more than the {shown(size)} that there is")
        return self

    @model_validator(mode="after")
    def _links_are_of_its_gpus(self) -> Self:
        gpus = self.gpus
        numbers = range(gpus) if isinstance(gpus, int) else [gpu.index for gpu in gpus]
        there = set(numbers)
        islands = self.links.islands if self.links else ()
        for index in (index for island in islands for index in island):
            if index not in there:
                raise ValueError(f"links: there is no GPU {index} among {len(there)}")
        return self

    def _memory(self) -> Iterator[tuple[int, float, float]]:
        """Yield index, memory in use and memory of each GPU of which that is said."""
        if isinstance(self.gpus, tuple):
            yield from ((gpu.index, gpu.vram_used, gpu.vram) for gpu in self.gpus)
        for index, use in self.used.items():
            if isinstance(use, GPUUse) and use.vram is not None:
                yield index, use.vram, self.vram

    def node(self, block: Block | None) -> Node:
        """Return the node as the packer sees it."""
        return Node(
            id=self.id,
            block_id=self.block,
            provider=self.provider or (block.provider if block else "own"),
            tier=self.tier or (block.tier if block else Tier.FAST),
            gpu_type=self.gpu_type,
            gpus=self.gpus if isinstance(self.gpus, tuple) else self._gpus_in_full(self.gpus),
            cpus=self.cpus,
            cpus_used=self.cpus_used,
            ram=self.ram,
            ram_used=self.ram_used,
            storage_bandwidth=self.storage_bandwidth,
            storage_used=self.storage_used,
            power=self.power,
            power_used=self.power_used,
            gpu_power=self.gpu_power,
            expires_at=self.expires_at or (block.end if block else None),
            state=self.state,
            container_runtime=self.container_runtime,
            labels=self.labels,
            topology=self.links.topology() if self.links else None,
            conformance=self.conformance,
            data=self.data,
            price=(block.price_micro_per_gpu_hour or None) if block else None,
        )

    def _gpus_in_full(self, count: int) -> tuple[GPU, ...]:
        return tuple(self._gpu(index, self.used.get(index)) for index in range(count))

    def _gpu(self, index: int, use: str | GPUUse | None) -> GPU:
        mig = positions_of(self.gpu_type, self.vram) if index in self.mig else None
        if use is None:
            return GPU(index=index, vram=self.vram, parts=GPUParts(mig=mig) if mig else None)
        if isinstance(use, str):
            use = GPUUse(job=use)
        used = self.vram if use.vram is None else use.vram
        parts = None
        if use.slices:
            taken = sum(1 << number for number in set(use.slices))
            parts = GPUParts(mig=mig, slices_used=taken)
            used = slices_gb(self.vram, taken) if use.vram is None else use.vram
        elif use.milli is not None:
            parts = GPUParts(milli_used=use.milli)
        return GPU(index=index, vram=self.vram, vram_used=used, job_id=use.job, parts=parts)


class ClusterState(Frozen):
    """A whole state file."""

    now: Instant | None = None
    """The time to decide at; the clock's when left out."""
    policy: PoolPacking = PoolPacking()
    """As a pool that names none packs, where nothing is said."""
    blocks: Annotated[tuple[Block, ...], Most(MOST_ENTRIES)] = ()
    nodes: Annotated[tuple[NodeEntry, ...], Most(MOST_ENTRIES)] = ()

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        blocks = {block.id: None for block in self.blocks}
        refuse_repeated(block.id for block in self.blocks)
        refuse_repeated(entry.id for entry in self.nodes)
        refuse_many_gpus(self.nodes)
        for entry in self.nodes:
            if entry.block is not None and entry.block not in blocks:
                known = listed([*blocks], 10) or "none"
                raise ValueError(f"node {entry.id}: no block {entry.block} (blocks: {known})")
        return self

    def packer_nodes(self) -> tuple[Node, ...]:
        """Return the nodes as the packer sees them, in the order of the file."""
        blocks = {block.id: block for block in self.blocks}
        return tuple(
            entry.node(blocks[entry.block] if entry.block else None) for entry in self.nodes
        )


def refuse_repeated(names: Iterable[str], what: str = "the id ") -> None:
    """Raise ValueError for the first name that is given twice."""
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{what}{name} is given twice")


def refuse_many_gpus(nodes: Iterable[NodeEntry]) -> None:
    """Raise ValueError where nodes have more GPUs in all than a file may have."""
    counts = (each.gpus if isinstance(each.gpus, int) else len(each.gpus) for each in nodes)
    if (gpus := sum(counts)) > _MOST_GPUS_IN_ALL:
        raise ValueError(f"nodes: have {gpus:,} GPUs in all; {_MOST_GPUS_IN_ALL:,} is the most")
