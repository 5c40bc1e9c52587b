"""What each node could give to a gang: so many GPUs, or the constraint that fails there.

Cores, RAM and storage bandwidth are the whole job's, and shared in proportion to its GPUs: a node
that takes 8 of 16 GPUs takes half of them; power goes with the GPUs anyway. So they limit the GPUs
that a node can give, and a plan need only count GPUs.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from models.host import UNLIMITED, HostAmounts
from models.node import NodeState
from models.placement import JobRequest, PackingPolicy, RejectionCode
from models.topology import Gang, SameConformance
from scheduling.placement.feasibility import HOST_CODES
from scheduling.placement.filters import Attributes, attributes_of, first_failure
from scheduling.placement.reservations import gpus_open_from
from scheduling.placement.state import EPSILON, Need, NodeView
from scheduling.topology import DomainKey, domain_of, flavor_of

_UNLIMITED = 1 << 30
_BEHIND_LABELS = (None, RejectionCode.CONFORMANCE, RejectionCode.NOT_ALLOWED)
"""Failures, and none, before which a reason names that the node has no domain."""


class Offer(NamedTuple):
    """What one node could give."""

    position: int
    """Of its view."""
    view: NodeView
    domain: DomainKey
    gpus: int
    """The most that it could give at one time."""
    usable: int
    """The set of GPUs that it could choose them from."""
    free: int
    """All of its GPUs that no job has at that time, also those that are of no use to this one."""

    @property
    def kind(self) -> tuple[str, str | None]:
        """Flavor and conformance fingerprint."""
        return flavor_of(self.view.node), self.view.node.conformance


class Offers(NamedTuple):
    """The answers of all nodes, each in one of the two."""

    made: list[Offer]
    refused: list[tuple[int, RejectionCode]]
    """Position of the view, and the first constraint that fails there."""


def offers_now(
    job: JobRequest, gang: Gang, views: Sequence[NodeView], policy: PackingPolicy, now: datetime
) -> Offers:
    """Return what the nodes could give at `now`, beside what is reserved there for others."""
    whole = Need.of(job, policy)
    unsuited = _Unsuited(whole, gang)
    offers = Offers([], [])
    for position, view in enumerate(views):
        domain = domain_of(view.node, unlabelled=gang.unlabelled_nodes)
        code = unsuited(view, domain) or _no_time(view, whole, now)
        found = code or _give(view, whole, now)
        if isinstance(found, RejectionCode):
            offers.refused.append((position, found))
        elif domain is not None:
            offers.made.append(Offer(position, view, domain, *found, free=view.free))
    return offers


def offers_from(
    job: JobRequest, gang: Gang, views: Sequence[NodeView], policy: PackingPolicy, start: datetime
) -> Offers:
    """Return what the nodes could give from `start` on, by what is known of the holds there."""
    whole = Need.of(job, policy)
    unsuited = _Unsuited(whole, gang)
    offers = Offers([], [])
    for position, view in enumerate(views):
        domain = domain_of(view.node, unlabelled=gang.unlabelled_nodes)
        found = (
            unsuited(view, domain)
            or _no_time(view, whole, start)
            or _open_from(view, whole, start)
        )
        if isinstance(found, RejectionCode):
            offers.refused.append((position, found))
        elif domain is not None:
            # Whatever runs there now: those that nobody is known to have then.
            offers.made.append(Offer(position, view, domain, *found, free=found[1]))
    return offers


def offers_when_empty(job: JobRequest, gang: Gang, views: Sequence[NodeView]) -> Offers:
    """Return what the nodes could give if they were ready, without any job, and with time left."""
    whole = Need.of(job, PackingPolicy())
    unsuited = _Unsuited(whole, gang)
    offers = Offers([], [])
    for position, view in enumerate(views):
        domain = domain_of(view.node, unlabelled=gang.unlabelled_nodes)
        gone = RejectionCode.STATE if view.node.state is NodeState.GONE else None
        found = (
            gone
            or unsuited.when_ready(view, domain)
            or _give_of(view, whole, view.host, view.rooms.large(whole.vram), view.rooms.all_gpus)
        )
        if isinstance(found, RejectionCode):
            offers.refused.append((position, found))
        elif domain is not None:
            offers.made.append(Offer(position, view, domain, *found, free=view.rooms.all_gpus))
    return offers


def need_of_share(whole: Need, gpus: int) -> Need:
    """Return what one node has to have for so many of the job's GPUs."""
    part = gpus / whole.gpus
    return whole._replace(
        gpus=gpus, cpus=whole.cpus * part, ram=whole.ram * part,
        storage=whole.storage * part,
    )  # fmt: skip


class _Unsuited:
    """Which constraint on the make of a node fails, in the order of the codes: asked once for
    nodes of one make.

    To a gang a node's label may name its type of GPU too, and a node without a domain is none.
    """

    def __init__(self, whole: Need, gang: Gang) -> None:
        known = whole.known or gang.same_conformance is SameConformance.REQUIRE
        self._need = whole._replace(known=known)
        self._codes: dict[tuple[Attributes, str], RejectionCode | None] = {}

    def __call__(self, view: NodeView, domain: DomainKey | None) -> RejectionCode | None:
        if view.node.state is not NodeState.READY:
            return RejectionCode.STATE
        return self.when_ready(view, domain)

    def when_ready(self, view: NodeView, domain: DomainKey | None) -> RejectionCode | None:
        """Return the same whatever the state of the node."""
        node = view.node
        make = attributes_of(node), flavor_of(node)
        if make not in self._codes:
            self._codes[make] = self._code(*make)
        code = self._codes[make]
        return RejectionCode.LABELS if domain is None and code in _BEHIND_LABELS else code

    def _code(self, attributes: Attributes, flavor: str) -> RejectionCode | None:
        flavors = (*attributes.gpu_types, flavor)
        code = first_failure(attributes._replace(gpu_types=flavors), self._need)
        if code is RejectionCode.GPU_TYPE and len(set(flavors)) > 1:
            return RejectionCode.FLAVOR
        return code


def _no_time(view: NodeView, whole: Need, now: datetime) -> RejectionCode | None:
    expires_at = view.node.expires_at
    if expires_at is not None and expires_at - now < whole.must_last:
        return RejectionCode.EXPIRY
    return None


def _give(view: NodeView, whole: Need, now: datetime) -> tuple[int, int] | RejectionCode:
    """Return how many GPUs the node can give, and the set they are from."""
    found = _give_of(view, whole, view.host_free, view.rooms.roomy(whole.vram), view.free)
    if isinstance(found, RejectionCode) or not view.reserved:
        return found
    return _beside_reserved(view, whole, found[0], now)


def _give_of(
    view: NodeView, whole: Need, left: HostAmounts, roomy: int, free: int
) -> tuple[int, int] | RejectionCode:
    """Return the same of a node that has this left, and these GPUs with the memory and free."""
    by_amount = _gpus_by_amount(left, view, whole)
    for code, gpus in zip(HOST_CODES, by_amount, strict=True):
        if gpus < 1:
            return code
    if not view.rooms.count:
        return RejectionCode.GPU_COUNT
    if not roomy:
        return RejectionCode.VRAM
    usable = roomy & free
    if not usable:
        return RejectionCode.GPUS_BUSY
    return min(usable.bit_count(), *by_amount), usable


def _beside_reserved(
    view: NodeView, whole: Need, gpus: int, now: datetime
) -> tuple[int, int] | RejectionCode:
    """Return the same on a node that is kept for deferred jobs: what delays none of them."""
    for fewer in range(gpus, 0, -1):
        usable = gpus_open_from(view, need_of_share(whole, fewer), now)
        if usable:
            return fewer, usable
    return RejectionCode.RESERVED


def _open_from(view: NodeView, whole: Need, start: datetime) -> tuple[int, int] | RejectionCode:
    least = gpus_open_from(view, need_of_share(whole, 1), start)
    for gpus in range(least.bit_count(), 0, -1):
        usable = gpus_open_from(view, need_of_share(whole, gpus), start)
        if usable:
            return gpus, usable
    return RejectionCode.GPUS_BUSY


def _gpus_by_amount(left: HostAmounts, view: NodeView, whole: Need) -> list[int]:
    """Return for how many of the job's GPUs each of these amounts of the node suffices."""
    wanted = whole.host(view.node.gpu_power)
    return [_gpus_for(amount, wish, whole.gpus) for amount, wish in zip(left, wanted, strict=True)]


def _gpus_for(amount: float, wanted: float, gpus: int) -> int:
    """Return how many GPUs `amount` suffices for, where `gpus` of them want `wanted`."""
    if amount + EPSILON < 0:
        return 0  # what is overdrawn takes nobody, as for jobs on one node
    if not wanted or amount == UNLIMITED:
        return _UNLIMITED
    # EPSILON as for jobs on one node: amounts closer than this are equal.
    return int(min((amount + EPSILON) * gpus / wanted, _UNLIMITED))
