"""What each node could give to a gang: so many GPUs, or the constraint that fails there.

Cores, RAM and storage bandwidth are the whole job's, and shared in proportion to its GPUs: a node
that takes 8 of 16 GPUs takes half of them; power goes with the GPUs anyway. So they limit the GPUs
that a node can give, and a plan need only count GPUs.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from longshore.models.job_request import JobRequest
from longshore.models.node import Node, NodeState
from longshore.models.placement import PackingPolicy, RejectionCode
from longshore.models.resources import UNLIMITED, HostAmounts
from longshore.models.topology import Gang, SameConformance
from longshore.scheduling.gangs.nodes import Fact, GangNodes, Kind, domain_for
from longshore.scheduling.placement.feasibility import HOST_CODES
from longshore.scheduling.placement.filters import Attributes, first_failure
from longshore.scheduling.placement.gpus import mask_of
from longshore.scheduling.placement.reservations import gpus_open_from
from longshore.scheduling.placement.state import EPSILON, Hold, Need, NodeView, idle_gpus
from longshore.scheduling.topology import DomainKey

_UNLIMITED = 1 << 30
_Answer = tuple[int, int] | RejectionCode
"""How many GPUs a node can give and the set they are from, or the constraint that fails."""
_BEHIND_LABELS = (
    None, RejectionCode.CONFORMANCE, RejectionCode.NOT_ALLOWED, RejectionCode.CHANGED,
)  # fmt: skip
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
    kind: Kind


class Offers(NamedTuple):
    """The answers of all nodes, each in one of the two."""

    made: list[Offer]
    refused: list[tuple[int, RejectionCode]]
    """Position of the view, and the first constraint that fails there."""


class Answers:
    """What nodes have answered to one job, for those that are alike in all that the answer looks
    at."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, _Answer] = {}

    def of(self, alike: Hashable, ask: Callable[[], _Answer]) -> _Answer:
        found = self._answers.get(alike)
        if found is None:
            found = self._answers[alike] = ask()
        return found


def offers_now(
    job: JobRequest, gang: Gang, nodes: GangNodes, policy: PackingPolicy, now: datetime
) -> Offers:
    """Return what the nodes could give at `now`, beside what is reserved there for others."""
    whole = Need.of(job, policy)
    answers = Answers()

    def give(view: NodeView) -> _Answer:
        if view.reserved:
            return _give(view, whole, now)
        alike = view.rooms, view.free, view.host_free, view.node.gpu_power
        return answers.of(alike, lambda: _give(view, whole, now))

    unsuited = _Unsuited(whole, gang, nodes, now)
    return _offers(nodes, unsuited, give, lambda view, _: view.free)


def offers_from(
    job: JobRequest,
    gang: Gang,
    nodes: GangNodes,
    policy: PackingPolicy,
    start: datetime,
    answers: Answers,
) -> Offers:
    """Return what the nodes could give from `start` on, by what is known of the holds there.

    `answers` are those to this job, of whatever start.
    """
    whole = Need.of(job, policy)

    def give(view: NodeView) -> _Answer:
        if view.reserved:
            return _open_from(view, whole, start)
        # What is held has begun, so all that counts of it is what has not ended by then.
        held = tuple([(hold.mask, hold.host) for hold in view.holds if hold.end > start])
        size = view.rooms, view.stuck, view.host, view.host_stuck, view.node.gpu_power
        return answers.of((*size, held), lambda: _open_from(view, whole, start))

    unsuited = _Unsuited(whole, gang, nodes, start)
    # Whatever runs there now: those that nobody is known to have then.
    return _offers(nodes, unsuited, give, lambda _, usable: usable)


def offers_when_empty(job: JobRequest, gang: Gang, nodes: GangNodes) -> Offers:
    """Return what the nodes could give if they were ready, without any job, and with time left."""
    whole = Need.of(job, PackingPolicy())
    answers = Answers()

    def give(view: NodeView) -> _Answer:
        large, gpus = view.rooms.large(whole.vram), view.rooms.all_gpus
        return answers.of(
            (view.rooms, view.host, view.node.gpu_power),
            lambda: _give_of(view, whole, view.host, large, gpus),
        )

    unsuited = _Unsuited(whole, gang, nodes, None)
    return _offers(nodes, unsuited, give, lambda view, _: view.rooms.all_gpus)


def _offers(
    nodes: GangNodes,
    unsuited: "_Unsuited",
    give: Callable[[NodeView], _Answer],
    free_of: Callable[[NodeView, int], int],
) -> Offers:
    """Return the answers of all nodes, where `free_of` says of a node, and of what it could give,
    which GPUs no job has."""
    offers = Offers([], [])
    for position, (view, fact) in enumerate(nodes.each()):
        found = unsuited(view, fact) or give(view)
        if isinstance(found, RejectionCode):
            offers.refused.append((position, found))
        else:
            free = free_of(view, found[1])
            offers.made.append(Offer(position, view, fact.domain, *found, free, fact.kind))
    return offers


def begins_within(whole: Need, gang: Gang, nodes: GangNodes, now: datetime) -> Iterable[timedelta]:
    """Yield of each node in which time from now on it can begin such a gang, whatever runs there:
    a negative one where it never can."""
    unsuited = _Unsuited(whole, gang, nodes, now)
    for view, fact in nodes.each():
        if unsuited(view, fact):
            yield timedelta(-1)
        else:
            expires_at = view.node.expires_at
            yield timedelta.max if expires_at is None else expires_at - now - whole.must_last


def offers_by_time(whole: Need, views: Iterable[NodeView]) -> list[NodeView]:
    """Return those of the nodes where what is kept for others decides what they could give, and
    so for how long: the others give it, or refuse, whatever is kept there."""
    return [view for view in views if view.reserved and _gives(view, whole)]


def _gives(view: NodeView, whole: Need) -> bool:
    return not isinstance(_at_once(view, whole), RejectionCode)


def gives_now(view: NodeView, whole: Need, now: datetime) -> Hashable:
    """Return what a node that suits could give now, or the constraint that fails there."""
    return _give(view, whole, now)


def need_of_share(whole: Need, gpus: int) -> Need:
    """Return what one node has to have for so many of the job's GPUs."""
    part = gpus / whole.gpus
    return whole._replace(
        gpus=gpus, cpus=whole.cpus * part, ram=whole.ram * part,
        storage=whole.storage * part,
    )  # fmt: skip


def hold_of_share(
    job: JobRequest, whole: Need, node: Node, gpu_indices: Sequence[int], start: datetime
) -> Hold:
    """Return what a gang has of one node."""
    need = need_of_share(whole, len(gpu_indices))
    idle = mask_of(idle_gpus(job, node, gpu_indices))
    mask = mask_of(gpu_indices) | idle
    host = need.host(node.gpu_power)
    return Hold(job.id, mask, host, start, whole.end_from(start), idle=idle)


class _Unsuited:
    """Which constraint fails on a node whatever runs there, in the order of the codes; those on
    its trait set are asked once for nodes of one trait set.

    To a gang a node's label may name its type of GPU too, and a node without a domain is none.
    """

    def __init__(self, whole: Need, gang: Gang, nodes: GangNodes, start: datetime | None) -> None:
        """Without a `start` nodes that are not gone count as ready, and with time left."""
        known = whole.known or gang.same_conformance is SameConformance.REQUIRE
        self._need = whole._replace(known=known)
        self._gang = gang
        self._start = start
        self._codes = [self._code(*traits) for traits in nodes.trait_sets]

    def __call__(self, view: NodeView, fact: Fact) -> RejectionCode | None:
        state = view.node.state
        if state is not NodeState.READY and (self._start or state is NodeState.GONE):
            return RejectionCode.STATE
        code = self._codes[fact.traits]
        if code in _BEHIND_LABELS and domain_for(self._gang, fact.domain) is None:
            return RejectionCode.LABELS
        if code is None and self._start is not None:
            return _no_time(view, self._need, self._start)
        return code

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


def _give(view: NodeView, whole: Need, now: datetime) -> _Answer:
    """Return how many GPUs the node can give, and the set they are from."""
    found = _at_once(view, whole)
    if isinstance(found, RejectionCode) or not view.reserved:
        return found
    return _beside_reserved(view, whole, found[0], now)


def _at_once(view: NodeView, whole: Need) -> _Answer:
    """Return the same as if nothing were kept there."""
    return _give_of(view, whole, view.host_free, view.rooms.roomy(whole.vram), view.free)


def _give_of(view: NodeView, whole: Need, left: HostAmounts, roomy: int, free: int) -> _Answer:
    """Return the same of a node that has this left, and these GPUs with the memory and free."""
    by_amount = _gpus_by_amount(left, view, whole)
    for code, gpus in zip(HOST_CODES, by_amount, strict=True):
        if gpus < 1:
            return code
    if not view.rooms.count:
        return RejectionCode.GPU_COUNT
    if not roomy:
        return RejectionCode.VRAM
    if whole.alone and not view.rooms.for_one(free):
        return RejectionCode.NOT_ALONE
    usable = roomy & free
    if not usable:
        return RejectionCode.GPUS_BUSY
    return min(usable.bit_count(), *by_amount), usable


def _beside_reserved(view: NodeView, whole: Need, gpus: int, now: datetime) -> _Answer:
    """Return the same on a node that is kept for deferred jobs: what delays none of them."""
    for fewer in range(gpus, 0, -1):
        usable = gpus_open_from(view, need_of_share(whole, fewer), now)
        if usable:
            return fewer, usable
    return RejectionCode.RESERVED


def _open_from(view: NodeView, whole: Need, start: datetime) -> _Answer:
    least = gpus_open_from(view, need_of_share(whole, 1), start)
    for gpus in range(least.bit_count(), 0, -1):
        usable = gpus_open_from(view, need_of_share(whole, gpus), start)
        if usable:
            return gpus, usable
    return RejectionCode.GPUS_BUSY


def _gpus_by_amount(left: HostAmounts, view: NodeView, whole: Need) -> list[int]:
    """Return for how many of the job's GPUs each of these amounts of the node suffices."""
    wanted = whole.host(view.node.gpu_power)
    return [
        _gpus_for(amount, request, whole.gpus)
        for amount, request in zip(left, wanted, strict=True)
    ]


def _gpus_for(amount: float, wanted: float, gpus: int) -> int:
    """Return how many GPUs `amount` suffices for, where `gpus` of them want `wanted`."""
    if amount + EPSILON < 0:
        return 0  # what is overdrawn takes nobody, as for jobs on one node
    if not wanted or amount == UNLIMITED:
        return _UNLIMITED
    # EPSILON as for jobs on one node: amounts closer than this are equal.
    return int(min((amount + EPSILON) * gpus / wanted, _UNLIMITED))
