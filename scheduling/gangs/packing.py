"""The arithmetic of gangs: groups onto domains, and a group onto the nodes of its domain.

Everything here is whole numbers of GPUs; what a node can give has been settled before.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping

from longshore.models.gang import GangPacking
from longshore.models.topology import Gang
from longshore.scheduling.topology import DomainKey

Assigned = list[tuple[DomainKey, int]]
"""The domain of each group and its size, in the order of the groups' numbers."""


def assign(
    room: Mapping[DomainKey, int], gpus: int, gang: Gang, packing: GangPacking
) -> Assigned | None:
    """Return a domain for each group, none over its `room`; None where it cannot be done."""
    room = {key: room[key] for key in sorted(room) if room[key] > 0}
    sizes = gang.group_sizes(gpus)
    seed = packing is GangPacking.PACK_TO_EMPTY
    if not gang.allow_cross_group_spread:
        return _in_one_domain(room, sizes, sum(sizes) + gang.spares_per_group * len(sizes), seed)
    if gang.group_gpus is None:
        return _chunks(room, gpus, seed)
    if seed:
        return _emptiest_first(room, sizes)
    plain = _fewest_domains(room, sizes)
    if not gang.spares_per_group or plain is None:
        return plain
    # Domains that hold the spares as well are better, unless they are more.
    roomy = assign_with_spares(room, gpus, gang)
    return plain if roomy is None or _domains(roomy) > _domains(plain) else roomy


def assign_with_spares(room: Mapping[DomainKey, int], gpus: int, gang: Gang) -> Assigned | None:
    """Return a domain with room for its spares too for each group; None where there are none."""
    spares = gang.spares_per_group
    sizes = [size + spares for size in gang.group_sizes(gpus)]
    if not gang.allow_cross_group_spread:
        roomy = _in_one_domain(room, sizes, sum(sizes), seed=False)
    else:
        roomy = _fewest_domains(room, sizes)
    return roomy and [(key, size - spares) for key, size in roomy]


class Shelf:
    """The nodes of one domain by what each has left, to take GPUs from.

    Nodes are numbers; of nodes with equally much left the lowest number goes first.
    """

    def __init__(self, left: Iterable[tuple[int, int]], packing: GangPacking) -> None:
        self._seed = packing is GangPacking.PACK_TO_EMPTY
        self._by_left: dict[int, list[int]] = {}
        for node, gpus in left:
            if gpus:
                self._by_left.setdefault(gpus, []).append(node)
        for nodes in self._by_left.values():
            heapq.heapify(nodes)

    def take(self, gpus: int) -> list[tuple[int, int]]:
        """Return nodes with the GPUs taken from each, in the order of taking.

        The largest goes first, whole, so the nodes are as few as can be; the last is the smallest
        that suffices, or as the seed has it the largest too. There must be enough.
        """
        taken: list[tuple[int, int]] = []
        while gpus:
            left = self._size_for(gpus)
            nodes = self._by_left[left]
            node, share = heapq.heappop(nodes), min(left, gpus)
            if not nodes:
                del self._by_left[left]
            if left > share:
                heapq.heappush(self._by_left.setdefault(left - share, []), node)
            taken.append((node, share))
            gpus -= share
        return taken

    def _size_for(self, gpus: int) -> int:
        largest = max(self._by_left)
        if self._seed or largest < gpus:
            return largest
        return min(left for left in self._by_left if left >= gpus)


def fewest_gpus(left: Iterable[tuple[int, int]], gpus: int) -> list[tuple[int, int]]:
    """Return the nodes that have as few GPUs as can be of which `gpus` can be taken, of few nodes
    where several have as few: what a gang leaves whole for its spares is most then.

    Nodes are given with what each has left, and of those with equally much the first go first.
    There must be enough.
    """
    by_left: dict[int, list[int]] = {}
    for node, free in left:
        if free:
            by_left.setdefault(free, []).append(node)
    # Sums of nodes that are alike, by powers of two of them: bit n of a number is the sum of n.
    items = [
        (size, some)
        for size in sorted(by_left, reverse=True)
        for some in _parts(len(by_left[size]))
    ]
    reached = [1]
    for size, some in items:
        reached.append(reached[-1] | reached[-1] << size * some)
    above = reached[-1] >> gpus
    rest = gpus + (above & -above).bit_length() - 1
    taken: Counter[int] = Counter()
    for (size, some), before in zip(reversed(items), reversed(reached[:-1]), strict=True):
        if not before >> rest & 1:
            taken[size] += some
            rest -= size * some
    return [(node, size) for size in taken for node in by_left[size][: taken[size]]]


def _parts(count: int) -> list[int]:
    """Return numbers of which some add up to each one up to `count`: 1, 2, 4 and a rest."""
    parts: list[int] = []
    while count:
        parts.append(min(1 << len(parts), count))
        count -= parts[-1]
    return parts


def _in_one_domain(
    room: Mapping[DomainKey, int], sizes: list[int], with_spares: int, seed: bool
) -> Assigned | None:
    fitting = [key for key in room if room[key] >= sum(sizes)]
    if not fitting:
        return None
    if seed:
        chosen = min(fitting, key=lambda key: (-room[key], key))
    else:
        chosen = min(fitting, key=lambda key: (room[key] < with_spares, room[key], key))
    return [(chosen, size) for size in sizes]


def _chunks(room: Mapping[DomainKey, int], gpus: int, seed: bool) -> Assigned | None:
    """Fill domains from the emptiest on, and by best fit end in the least that holds the rest."""
    chunks: Assigned = []
    order = sorted(room, key=lambda key: (-room[key], key))
    for position, key in enumerate(order):
        if room[key] >= gpus:
            fitting = [other for other in order[position:] if room[other] >= gpus]
            least = min(fitting, key=lambda other: (room[other], other))
            return [*chunks, (key if seed else least, gpus)]
        chunks.append((key, room[key]))
        gpus -= room[key]
    return None


def _emptiest_first(room: Mapping[DomainKey, int], sizes: list[int]) -> Assigned | None:
    """Keep to domains that are in use already while they have room, the emptiest first."""
    left = dict(room)
    used: set[DomainKey] = set()
    assigned: Assigned = []
    for size in sizes:
        fitting = [key for key in left if left[key] >= size]
        if not fitting:
            return None
        again = [key for key in fitting if key in used]
        chosen = min(again or fitting, key=lambda key: (-left[key], key))
        used.add(chosen)
        left[chosen] -= size
        assigned.append((chosen, size))
    return assigned


def _fewest_domains(room: Mapping[DomainKey, int], sizes: list[int]) -> Assigned | None:
    """Spill over the domains that hold most groups, and end in the least that holds the rest."""
    size, last = sizes[0], sizes[-1] if sizes[-1] < sizes[0] else 0
    groups = len(sizes) - (last > 0)
    # Who has more GPUs has room for as many groups at least: so the fewest domains are taken.
    order = sorted(room, key=lambda key: (-room[key], key))
    left = dict(room)
    assigned: Assigned = []
    for position, key in enumerate(order):
        rest = groups * size + last
        if left[key] >= rest:
            fitting = [other for other in order[position:] if left[other] >= rest]
            chosen = min(fitting, key=lambda other: (left[other], other))
            return assigned + [(chosen, each) for each in sizes[len(assigned) :]]
        share = min(groups, left[key] // size)
        assigned += [(key, size)] * share
        left[key] -= share * size
        groups -= share
        if not groups:
            break
    if groups:
        return None
    return _with_last(assigned, left, last)


def _with_last(assigned: Assigned, left: Mapping[DomainKey, int], last: int) -> Assigned | None:
    """Place the last, smaller group: in a domain that is in use already where one has room."""
    used = {key for key, _ in assigned}
    fitting = [key for key in left if left[key] >= last]
    if not fitting:
        return None
    return [*assigned, (min(fitting, key=lambda key: (key not in used, left[key], key)), last)]


def _domains(assigned: Assigned) -> int:
    return len({key for key, _ in assigned})
