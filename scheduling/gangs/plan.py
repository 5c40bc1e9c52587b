"""Plans a gang: groups onto domains, whole or not at all, and GPUs of nodes for each group.

A group never crosses a domain, and a gang is of one flavor of GPU. Fewest domains come first;
then nodes with one conformance fingerprint, where the job prefers that; then room for spares;
then fewest nodes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from longshore.models.gang import DomainRoom, GangPacking, GangPlan, NodeShare, PlannedGroup
from longshore.models.job_request import JobRequest
from longshore.models.placement import PackingPolicy
from longshore.models.topology import Gang, SameConformance
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.gangs.offers import (
    Answers,
    Offer,
    Offers,
    offers_from,
    offers_now,
    offers_when_empty,
)
from longshore.scheduling.gangs.packing import (
    Assigned,
    Shelf,
    assign,
    assign_with_spares,
    fewest_gpus,
)
from longshore.scheduling.gangs.rooms import room_by_domain, sets_of_like, total
from longshore.scheduling.gangs.words import never, refuse, without_spares
from longshore.scheduling.placement.links import choose_gpus
from longshore.scheduling.placement.state import Need
from longshore.scheduling.topology import Domain, DomainKey, rack_of

_MOST_WAYS = 16
"""Ways over the domains that are tried for a gang that needs all of its spares."""


def plan_gang(
    job: JobRequest,
    nodes: GangNodes,
    policy: PackingPolicy,
    now: datetime,
    *,
    later: Answers | None = None,
) -> tuple[GangPlan, Offers]:
    """Return the plan for a job with a gang on nodes as they are, and what each node offered.

    With `later`, `now` is a time to come, and the nodes are as they will probably be then; what
    they answer is kept there for other times. The order of `nodes` does not matter to the plan.
    Raises ValueError for a job without a gang.
    """
    gang = gang_of(job)
    offers = _offers(job, nodes, policy, now, later)
    domains = nodes.domains(gang)
    # Names settle every tie, so the order of the input does not.
    made = sorted(offers.made, key=lambda offer: offer.view.node.id)
    sets = sets_of_like(made, gang)
    found = [filling for alike in sets if (filling := _fill(job, gang, alike, policy)) is not None]
    if found:
        best = min(found, key=lambda filling: filling.preference(gang))
        return _plan_of(best, job, gang, domains, policy), offers
    return _refused(job, gang, made, domains, policy), offers


def fits_gang(
    job: JobRequest,
    nodes: GangNodes,
    policy: PackingPolicy,
    now: datetime,
    *,
    later: Answers | None = None,
) -> bool:
    """Return whether `plan_gang` finds room for the gang."""
    return could_hold(job, _offers(job, nodes, policy, now, later).made, policy)


def _offers(
    job: JobRequest, nodes: GangNodes, policy: PackingPolicy, now: datetime, later: Answers | None
) -> Offers:
    gang = gang_of(job)
    if later is None:
        return offers_now(job, gang, nodes, policy, now)
    return offers_from(job, gang, nodes, policy, now, later)


def could_ever_hold(job: JobRequest, nodes: GangNodes) -> bool:
    """Return whether the nodes could hold the gang together when empty and with time left."""
    return could_hold(job, offers_when_empty(job, gang_of(job), nodes).made, PackingPolicy())


class Never(NamedTuple):
    """A gang that nodes could not even hold when empty and with time left."""

    plan: GangPlan
    """With its refusal."""
    offers: Offers
    """What each node would offer then."""
    text: str
    """The refusal in a sentence."""


def why_never(job: JobRequest, nodes: GangNodes, policy: PackingPolicy) -> Never | None:
    """Return why the nodes could never hold a gang; None where they could."""
    gang = gang_of(job)
    whole = Need.of(job, PackingPolicy())
    if nodes.hold_when_empty(whole, gang):
        return None
    offers = offers_when_empty(job, gang, nodes)
    if could_hold(job, offers.made, PackingPolicy()):
        nodes.note_held(whole, gang)
        return None
    made = sorted(offers.made, key=lambda offer: offer.view.node.id)
    domains = [domain._replace(free=domain.gpus) for domain in nodes.domains(gang)]
    plan = _refused(job, gang, made, domains, policy)
    needs_no_spares = gang.model_copy(update={"spares_required": False})
    alone = job.model_copy(update={"gang": needs_no_spares})
    return Never(plan, offers, never(plan.refusal, lacks_spares=could_hold(alone, made, policy)))


def _refused(
    job: JobRequest,
    gang: Gang,
    made: Sequence[Offer],
    domains: Sequence[Domain],
    policy: PackingPolicy,
) -> GangPlan:
    """Return why a gang does not fit on what nodes offer, in the order of their names."""
    nothing: list[Offer] = []
    sets = sets_of_like(made, gang)
    most = max(sets, key=total, default=nothing)
    refused = refuse(job, gang, policy.gang_packing, most, domains, len(made))
    alone = [filling for alike in sets for filling in _fillings(job, gang, alike, policy)]
    if not alone:
        return refused
    best = max(alone, key=lambda filling: filling.spares_found)
    return without_spares(refused, best.spares_found, best.planned()[0].domain)


def could_hold(job: JobRequest, offers: Iterable[Offer], policy: PackingPolicy) -> bool:
    """Return whether a gang fits on what nodes offer it."""
    gang = gang_of(job)
    made = sorted(offers, key=lambda offer: offer.view.node.id)
    if gang.spares_per_group and gang.spares_required:
        return any(
            _fill(job, gang, alike, policy) is not None for alike in sets_of_like(made, gang)
        )
    return any(
        assign(room_by_domain(alike), job.gpus, gang, policy.gang_packing) is not None
        for alike in sets_of_like(made, gang)
    )


def gang_of(job: JobRequest) -> Gang:
    if job.gang is None:
        raise ValueError(f"job {job.id} has no gang: it stays on one node")
    return job.gang


def _fill(
    job: JobRequest, gang: Gang, offers: Sequence[Offer], policy: PackingPolicy
) -> "_Filling | None":
    """Return the groups and spares on these nodes, or None where they do not fit together."""
    wanted = gang.spares_of(job.gpus) if gang.spares_required else 0
    found = _fillings(job, gang, offers, policy)
    return next((filling for filling in found if filling.spares_found >= wanted), None)


def _fillings(
    job: JobRequest, gang: Gang, offers: Sequence[Offer], policy: PackingPolicy
) -> "Iterator[_Filling]":
    """Yield the groups on these nodes with the spares that are left for them, the best first.

    After the first way come those for a gang that needs all of its spares: its groups share nodes,
    so that more are left whole; and a domain that had too few for its groups gets a group less,
    until the groups fit no more.
    """
    by_domain: dict[DomainKey, list[Offer]] = {}
    for offer in offers:
        by_domain.setdefault(offer.domain, []).append(offer)
    room = room_by_domain(offers)
    needs_all = gang.spares_per_group and gang.spares_required
    for _ in range(_MOST_WAYS if needs_all else 1):
        ways = [assign(room, job.gpus, gang, policy.gang_packing)]
        if needs_all:
            ways.append(assign_with_spares(room, job.gpus, gang))
        able = [assigned for assigned in ways if assigned]
        found = [_filled(assigned, gang, by_domain, policy) for assigned in able]
        yield from found
        if needs_all:
            yield from (_filled(each, gang, by_domain, policy, tight=True) for each in able)
        if not found or (short := found[0].short_of(gang.spares_per_group)) is None:
            return
        key, gpus = short
        room[key] = gpus - 1


def _filled(
    assigned: Assigned,
    gang: Gang,
    by_domain: Mapping[DomainKey, list[Offer]],
    policy: PackingPolicy,
    *,
    tight: bool = False,
) -> "_Filling":
    filling = _Filling(by_domain, policy)
    filling.place(assigned, tight=tight)
    filling.place_spares(gang)
    return filling


def _plan_of(
    filling: "_Filling",
    job: JobRequest,
    gang: Gang,
    domains: Sequence[Domain],
    policy: PackingPolicy,
) -> GangPlan:
    return GangPlan(
        gpus=job.gpus,
        packing=policy.gang_packing,
        groups=filling.planned(),
        domains=tuple(
            DomainRoom(
                domain=domain.key.name,
                nodes=domain.nodes,
                gpus=domain.gpus,
                free=domain.free,
                usable=filling.room.get(domain.key, 0),
                residual=domain.free - filling.taken[domain.key],
            )
            for domain in domains
        ),
        conformance=filling.conformance(),
        spares_wanted=gang.spares_of(job.gpus),
    )


class _Filling:
    """The GPUs of nodes while groups and spares take them."""

    def __init__(self, by_domain: Mapping[DomainKey, list[Offer]], policy: PackingPolicy) -> None:
        self.room = {key: total(offers) for key, offers in by_domain.items()}
        """GPUs that each domain could give before anything is placed."""
        self.taken: Counter[DomainKey] = Counter()
        self._policy = policy
        self._by_domain = by_domain
        self._offers: list[Offer] = []
        """Those of the domains that were looked at, by number."""
        self._left: list[int] = []
        self._usable: list[int] = []
        self._free: list[int] = []
        self._numbers: dict[DomainKey, range] = {}
        """Of these domains: the numbers of their nodes, in the order of ties."""
        self._groups: list[tuple[DomainKey, list[tuple[int, NodeShare]]]] = []
        self._spares: list[list[NodeShare]] = []

    def place(self, assigned: Assigned, *, tight: bool) -> None:
        """Give each group its GPUs, in the order of their numbers; `tight` on nodes that have no
        more than need be."""
        wanted: Counter[DomainKey] = Counter()
        for key, size in assigned:
            wanted[key] += size
        shelves: dict[DomainKey, Shelf] = {}
        for key, gpus in wanted.items():
            left = [(number, self._left[number]) for number in self._nodes_of(key)]
            nodes = fewest_gpus(left, gpus) if tight else left
            shelves[key] = Shelf(nodes, self._policy.gang_packing)
        for key, size in assigned:
            shares = [
                (number, self._give(number, gpus)) for number, gpus in shelves[key].take(size)
            ]
            self._groups.append((key, shares))
        self._spares = [[] for _ in self._groups]

    def place_spares(self, gang: Gang) -> None:
        """Give each group its spares as far as there are any, those of its own domain first.

        Never on a node of the gang: both would be lost together. In another domain only for a
        group on one node, which then moves there whole: no group crosses domains.
        """
        used = {number for _, shares in self._groups for number, _ in shares}
        for (home, shares), found in zip(self._groups, self._spares, strict=True):
            wanted = gang.spares_per_group
            wanted -= self._spares_in(home, used, wanted, found)
            if not wanted or len(shares) > 1 or not gang.allow_cross_group_spread:
                continue
            for key in self._emptiest_first():
                wanted -= self._spares_in(key, used, wanted, found)

    @property
    def spares_found(self) -> int:
        return sum(len(share.gpu_indices) for found in self._spares for share in found)

    def short_of(self, wanted: int) -> tuple[DomainKey, int] | None:
        """Return the domain of the first group that lacks spares, and the groups' GPUs there."""
        for (key, _), found in zip(self._groups, self._spares, strict=True):
            if sum(len(share.gpu_indices) for share in found) < wanted:
                here = (shares for other, shares in self._groups if other == key)
                return key, sum(len(s.gpu_indices) for shares in here for _, s in shares)
        return None

    def planned(self) -> tuple[PlannedGroup, ...]:
        return tuple(
            PlannedGroup(
                number=number,
                domain=key.name,
                gpus=sum(len(share.gpu_indices) for _, share in shares),
                nodes=tuple(share for _, share in shares),
                spares=tuple(spares),
            )
            for number, ((key, shares), spares) in enumerate(
                zip(self._groups, self._spares, strict=True)
            )
        )

    def preference(self, gang: Gang) -> tuple[int, bool, int, int, str]:
        """Return what to compare with another filling; the least is best."""
        numbers = {number for _, shares in self._groups for number, _ in shares}
        mixed = gang.same_conformance is SameConformance.PREFER and self.conformance() is None
        domains = len({key for key, _ in self._groups})
        first = min(self._offers[number].view.node.id for number in numbers)
        return domains, mixed, -self.spares_found, len(numbers), first

    def conformance(self) -> str | None:
        """Return the fingerprint that all nodes of the groups share; None where they differ."""
        found = {
            self._offers[number].view.node.conformance
            for _, shares in self._groups
            for number, _ in shares
        }
        return found.pop() if len(found) == 1 else None

    def _spares_in(
        self, key: DomainKey, used: set[int], wanted: int, found: list[NodeShare]
    ) -> int:
        """Take spares in one domain, on few nodes, and on none that is `used`."""
        if not wanted:
            return 0

        def worth(number: int) -> tuple[bool, int, int]:
            left = self._left[number]
            return left < wanted, left if left >= wanted else -left, number

        taken = 0
        others = (number for number in self._nodes_of(key) if number not in used)
        for number in sorted(others, key=worth):
            gpus = min(self._left[number], wanted - taken)
            if gpus > 0:
                found.append(self._give(number, gpus))
                taken += gpus
        return taken

    def _nodes_of(self, key: DomainKey) -> range:
        """Return the numbers of the nodes of a domain."""
        if key not in self._numbers:
            offers = _in_order(self._by_domain[key], self._policy.gang_packing)
            first = len(self._offers)
            self._offers += offers
            self._left += [offer.gpus for offer in offers]
            self._usable += [offer.usable for offer in offers]
            self._free += [offer.free for offer in offers]
            self._numbers[key] = range(first, len(self._offers))
        return self._numbers[key]

    def _emptiest_first(self) -> list[DomainKey]:
        """Return the domains, those that have most left first."""
        left = {key: self.room[key] - self.taken[key] for key in self.room}
        return sorted(left, key=lambda key: (-left[key], key))

    def _give(self, number: int, gpus: int) -> NodeShare:
        offer = self._offers[number]
        chosen = choose_gpus(
            offer.view.node.topology,
            self._usable[number],
            self._free[number],
            gpus,
            self._policy.gpu_choice,
        )
        self._left[number] -= gpus
        self._usable[number] &= ~chosen.mask
        self._free[number] &= ~chosen.mask
        self.taken[offer.domain] += gpus
        return NodeShare(node_id=offer.view.node.id, gpu_indices=chosen.indices)


def _in_order(offers: Sequence[Offer], packing: GangPacking) -> list[Offer]:
    """Return the nodes in the order of ties: by name as the seed has it; by best fit those
    without any job first, and those of one rack together."""
    if packing is GangPacking.PACK_TO_EMPTY:
        return list(offers)
    return sorted(offers, key=_best_fit_order)


def _best_fit_order(offer: Offer) -> tuple[bool, str, str]:
    view = offer.view
    return offer.free != view.rooms.all_gpus, rack_of(view.node), view.node.id
