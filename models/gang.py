"""Where a gang goes: its groups with their domains and GPUs, or why it goes nowhere."""

from enum import StrEnum

from pydantic import Field

from longshore.models.base import Frozen


class GangPacking(StrEnum):
    """How domains and nodes are chosen for a gang."""

    BEST_FIT = "best-fit"
    """Fewest domains; the one with the least room that suffices, and nodes within it alike."""
    PACK_TO_EMPTY = "pack-to-empty"
    """The domain with the most room first, filled before the next, and nodes within it alike."""


class NodeShare(Frozen):
    """GPUs of one node."""

    node_id: str
    gpu_indices: tuple[int, ...]
    """Ascending."""


class PlannedGroup(Frozen):
    """GPUs of a job in one domain."""

    number: int = Field(ge=0)
    domain: str
    gpus: int = Field(ge=1)
    nodes: tuple[NodeShare, ...]
    """In the order of their ranks: the first GPU of the first node has the lowest rank."""
    spares: tuple[NodeShare, ...] = ()
    """GPUs that stand by on nodes where the gang runs nothing; those of its own domain first."""


class DomainRoom(Frozen):
    """What one domain has, and what is left of it by the plan."""

    domain: str
    nodes: int
    gpus: int
    """All GPUs of its nodes."""
    free: int
    """Those that no job holds now, on nodes that take work."""
    usable: int
    """Those of them that the job could use at one time, by what it wants of each."""
    residual: int
    """Those of the free ones that the plan leaves free, spares taken out."""


class GangPlan(Frozen):
    """The planner's answer for one gang: all of its GPUs, or none and why."""

    gpus: int
    """Those that the job wants, without spares."""
    packing: GangPacking = GangPacking.BEST_FIT
    groups: tuple[PlannedGroup, ...] = ()
    """Empty when it does not fit."""
    domains: tuple[DomainRoom, ...] = ()
    """Every domain of the nodes that were looked at, in the order of their names."""
    conformance: str | None = None
    """The fingerprint that all chosen nodes have; none when they differ or do not say."""
    spares_wanted: int = 0
    refusal: str = ""
    """Why it does not fit, with the numbers of the domains."""
    limiting_domain: str | None = None
    """When it does not fit: the domain that comes closest."""
    missing: int = 0
    """GPUs that are missing there."""

    @property
    def fits(self) -> bool:
        return bool(self.groups)

    @property
    def spares_found(self) -> int:
        return sum(len(share.gpu_indices) for group in self.groups for share in group.spares)

    @property
    def nodes_used(self) -> int:
        """Without those of its spares."""
        return len({share.node_id for group in self.groups for share in group.nodes})

    @property
    def domains_used(self) -> int:
        return len({group.domain for group in self.groups})
