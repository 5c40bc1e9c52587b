"""How machines are connected, and what a job that spans several of them wants of that."""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Self

from pydantic import Field, model_validator

from longshore.models.base import Frozen, ShortText, Wire, known_or
from longshore.models.bounds import FIRST_MISTAKE, Most, Range, Word
from longshore.models.counts import DIGITS, Count
from longshore.models.visible import brief

REGION_LABEL = "region"
CLUSTER_LABEL = "cluster"
DOMAIN_LABEL = "fabric.domain"
"""The fast-fabric island: nodes that have this and the two above in common are one domain."""
RACK_LABEL = "rack"
"""Optional; nodes of one rack are taken together where nothing else tells them apart."""
FLAVOR_LABEL = "gpu.flavor"
"""Optional; a finer name than the node's `gpu_type`, such as H100-80GB."""
FABRIC_LABELS = (REGION_LABEL, CLUSTER_LABEL, DOMAIN_LABEL)
"""What a node must name to belong to a domain."""


def labels_of_bought(provider: str, place: str | None, domain: str) -> dict[str, str]:
    """Return the fabric labels of a node that was bought: its market, its place there, its domain.

    `domain` is the block where its nodes share fast fabric, else the node itself.
    """
    return {REGION_LABEL: provider, CLUSTER_LABEL: place or provider, DOMAIN_LABEL: domain}


class Processes(StrEnum):
    """What is started on each member of a gang."""

    NODE = "node"
    """One process, which sees all GPUs of the member."""
    GPU = "gpu"
    """A process for each GPU, which sees that one alone."""


class SameConformance(StrEnum):
    """Whether the nodes of a gang must have the same driver, firmware and kernel parameters."""

    PREFER = "prefer"
    """Where it costs no further domain."""
    REQUIRE = "require"
    """Always; nodes that do not say what they have are refused."""
    IGNORE = "ignore"
    """It does not matter."""


Fingerprints = Annotated[tuple[ShortText, ...], Field(fail_fast=True), Most(1000)]


class Conformance(Frozen):
    """Rules machines out by their fingerprint of driver, firmware and kernel parameters."""

    known: bool = False
    """True: nodes that have not said what they have are ruled out."""
    allowed: Fingerprints = ()
    """Only nodes with one of these fingerprints; `longshore topology` lists those of the nodes."""

    @model_validator(mode="after")
    def _rules_something_out(self) -> Self:
        if not self.known and not self.allowed:
            raise ValueError("say `known: true`, or name the fingerprints that are `allowed`")
        if "" in self.allowed:
            raise ValueError("allowed: an empty text is no fingerprint")
        return self


class Gang(Frozen):
    """Lets a job span nodes, and says how its GPUs must lie. All are placed, or none."""

    group_gpus: Annotated[int, Field(ge=1, le=100_000), DIGITS] | None = None
    """GPUs that must be in one domain together, the last group possibly fewer; when left out,
    the domains decide: one where the job fits, else as few as can be."""
    allow_cross_group_spread: bool = True
    """False: all GPUs of the job in one domain."""
    processes: Processes = Processes.NODE
    """Start one process on each node, or one for each GPU."""
    spares_per_group: Count = Field(default=0, ge=0, le=1024)
    """GPUs to stand by for each group, on nodes where the gang runs nothing: when one of its nodes
    is lost, these take its place at once. The job holds and pays them. Give as many as a node of
    the gang has: fewer cannot stand in for it."""
    spares_required: bool = True
    """False: the job starts without those spares for which there is no room."""
    lend_spares: bool = Field(default=False, exclude_if=lambda lends: not lends)
    """True: a job that no budget pays for may run on a spare. It is stopped, with its grace,
    before the spare takes a place. The gang pays for its spares all the same."""
    same_conformance: SameConformance = SameConformance.PREFER
    """Whether its nodes must have the same driver, firmware and kernel parameters."""
    unlabelled_nodes: bool = False
    """True: nodes that do not name their fabric may serve as well, each a domain of its own."""

    @model_validator(mode="after")
    def _spares_have_groups(self) -> Self:
        if self.spares_per_group and self.group_gpus is None:
            raise ValueError("spares_per_group needs group_gpus: spares stand by for a group")
        return self

    @model_validator(mode="after")
    def _lends_what_it_has(self) -> Self:
        if self.lend_spares and not self.spares_per_group:
            raise ValueError(
                "lend_spares needs spares_per_group: without spares there is nothing to lend"
            )
        return self

    @property
    def per_gpu(self) -> bool:
        """Whether each GPU has a process of its own."""
        return self.processes is Processes.GPU

    def spares_of(self, gpus: int) -> int:
        """Return the GPUs that stand by for a job of so many."""
        return self.spares_per_group * len(self.group_sizes(gpus))

    def group_sizes(self, gpus: int) -> list[int]:
        """Return the size of each group, the last possibly smaller; one where it names no size."""
        if self.group_gpus is None:
            return [gpus]
        full, rest = divmod(gpus, self.group_gpus)
        return [self.group_gpus] * full + [rest] * (rest > 0)

    def check_total(self, gpus: int) -> None:
        """Raise ValueError where a job of so many GPUs cannot have these groups."""
        if self.group_gpus is not None and self.group_gpus > gpus:
            raise ValueError(
                f"gang.group_gpus is {self.group_gpus}, but the job has {gpus} GPUs in all: "
                "make it smaller, or leave it out"
            )


class LinkClass(StrEnum):
    """What connects two GPUs of a node."""

    NVSWITCH = "nvswitch"
    NVLINK = "nvlink"
    PCIE5 = "pcie5"
    PCIE4 = "pcie4"

    @property
    def gb_per_second(self) -> int:
        return _GB_PER_SECOND[self]


_GB_PER_SECOND = {
    LinkClass.NVSWITCH: 900,
    LinkClass.NVLINK: 450,
    LinkClass.PCIE5: 64,
    LinkClass.PCIE4: 32,
}


MOST_GPUS = 1_024
"""Of a node."""
_GPUS = Most(MOST_GPUS, on_arrival=True)
GPUIndex = Annotated[int, Range(0, MOST_GPUS - 1)]
_Links = Annotated[
    tuple[Annotated[LinkClass | None, known_or(LinkClass, None)], ...], FIRST_MISTAKE, _GPUS
]


class NodeTopology(Wire):
    """What connects the GPUs of a node, pair by pair."""

    gpus: Annotated[tuple[GPUIndex, ...], FIRST_MISTAKE, _GPUS]
    """Indices of the GPUs, in the order of the rows."""
    links: Annotated[tuple[_Links, ...], FIRST_MISTAKE, _GPUS]
    """A row for each GPU, with an entry for each; null with itself and where none is known."""
    nics: Annotated[tuple[Word | None, ...], FIRST_MISTAKE, _GPUS] = ()
    """The network card beside each GPU, null where there is none; empty when not known."""

    @cached_property
    def digest(self) -> int:
        return hash((self.gpus, self.links, self.nics))

    def __hash__(self) -> int:
        # A cycle looks up answers by topology many times over, and this is 64 links and more.
        return self.digest

    @model_validator(mode="after")
    def _rows_agree(self) -> Self:
        count = len(self.gpus)
        if len(set(self.gpus)) != count:
            raise ValueError(f"GPU indices must differ, got {brief(str(list(self.gpus)))}")
        if len(self.links) != count or any(len(row) != count for row in self.links):
            raise ValueError(f"links must have {count} rows of {count} entries")
        if self.nics and len(self.nics) != count:
            raise ValueError(f"nics must have {count} entries, got {len(self.nics)}")
        for i, row in enumerate(self.links):
            for j in range(i):
                if row[j] is not self.links[j][i]:
                    a, b = self.gpus[i], self.gpus[j]
                    raise ValueError(f"links: GPU {a} to {b} differs from {b} to {a}")
        return self


def fingerprint(driver: str, firmware: str = "", kernel: Mapping[str, str] | None = None) -> str:
    """Return the conformance fingerprint of a machine: 16 hexadecimal digits.

    `firmware` is of its network cards and board where known, `kernel` the parameters that the
    kernel was started with. Equal machines have equal fingerprints, whatever the order.
    """
    facts = json.dumps([driver, firmware, sorted((kernel or {}).items())])
    return hashlib.sha256(facts.encode()).hexdigest()[:16]
