"""The GPUs of nodes while the groups and the spares of a gang take them."""

from collections import Counter
from collections.abc import Mapping, Sequence

from longshore.models.gang import GangPacking, NodeShare, PlannedGroup
from longshore.models.placement import PackingPolicy
from longshore.models.topology import Gang, SameConformance
from longshore.scheduling.gangs.offers import Offer
from longshore.scheduling.gangs.packing import Assigned, Shelf, fewest_gpus
from longshore.scheduling.gangs.rooms import total
from longshore.scheduling.placement.links import choose_gpus
from longshore.scheduling.topology import DomainKey, rack_of


class Filling:
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
