"""Gangs as one writes them down from docs/topology.md and decision 16, for the plain packer.

Every node is asked for each number of GPUs, every group for each domain.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from longshore.models.gang import DomainRoom, GangPacking, GangPlan, NodeShare, PlannedGroup
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import Node, NodeState
from longshore.models.placement import (
    Decision,
    Member,
    PackingPolicy,
    PlacementKind,
    RejectionCode,
)
from longshore.models.topology import (
    FABRIC_LABELS,
    FLAVOR_LABEL,
    RACK_LABEL,
    Gang,
    SameConformance,
)
from longshore.scheduling.placement.state import without_jobs
from tests.support.reference_machine import (
    HOST_CODES,
    TINY,
    GPUs,
    Machine,
    cannot_fetch,
    choice,
    end_of,
    ends_too_soon,
    instants,
    labelled_otherwise,
    machine_of,
    misfit,
    nobody_there,
    taken_by_others,
    wants,
)

Key = tuple[str, str, str]
MOST_WAYS = 16
LOOKS = 32


@dataclass
class Offer:
    """What a node could give, while groups and spares take it."""

    machine: Machine
    domain: Key
    gpus: int
    usable: set[int]
    free: set[int]

    @property
    def node(self) -> Node:
        return self.machine.node


@dataclass
class Way:
    """Groups and spares on offers of their own."""

    domains: list[Key]
    ranks: list[list[tuple[Offer, GPUs]]]
    spares: list[list[tuple[Offer, GPUs]]]
    room: dict[Key, int]

    @property
    def nodes(self) -> dict[str, Node]:
        return {offer.node.id: offer.node for shares in self.ranks for offer, _ in shares}

    def spare_count(self) -> int:
        return sum(len(gpus) for shares in self.spares for _, gpus in shares)

    def fingerprints(self) -> set[str | None]:
        return {node.conformance for node in self.nodes.values()}

    def wish(self, gang: Gang) -> tuple[int, bool, int, int, str]:
        """Fewest domains, then one fingerprint, most spares, fewest nodes, names."""
        alike = self.fingerprints() - {None} and len(self.fingerprints()) == 1
        mixed = gang.same_conformance is SameConformance.PREFER and not alike
        spares = self.spare_count()
        return len(set(self.domains)), mixed, -spares, len(self.nodes), min(self.nodes)


@dataclass
class First:
    """When a gang that waits can start, and what it has of each node then."""

    moment: datetime
    held: tuple[tuple[str, GPUs], ...]


def gang_decision(machines: Sequence[Machine], job: JobRequest, policy: PackingPolicy) -> Decision:
    """The decision without its sentence, and without why it does not fit."""
    way, offers, failed = best_way(machines, job, policy, None)
    if way is None:
        at_best = best_way([at_its_best(machine) for machine in machines], job, policy, None)
        if at_best[0] is None:  # it can never fit: what runs there is no reason
            _, offers, failed = at_best
    counts = Counter(failed)
    if way is None:
        counts[RejectionCode.DOMAIN] += len(offers)
    fast = job.tier is Tier.FAST
    waits = PlacementKind.REQUEST_MORE_CAPACITY if fast else PlacementKind.QUEUE_FOR_FLEX
    members = members_of(way.ranks) if way else ()
    return Decision(
        job_id=job.id,
        kind=PlacementKind.EXISTING_NODE if way else waits,
        node_id=members[0].node_id if members else None,
        gpu_indices=members[0].gpu_indices if members else (),
        provider_hint=None if way else ("sfcompute" if job.gpus >= 8 else "prime"),
        rejected={code: counts[code] for code in RejectionCode if counts[code]},
        members=members,
        spares=members_of(way.spares) if way else (),
        gang=plan_of(way, machines, job, policy) if way else None,
    )


def at_its_best(machine: Machine) -> Machine:
    """A machine that is ready, empty and has time left; one that is gone does not come back."""
    if machine.node.state is NodeState.GONE:
        return machine
    ready = {"state": NodeState.READY, "expires_at": None}
    return machine_of(without_jobs(machine.node).model_copy(update=ready), (), machine.now)


def first_gang(
    machines: Sequence[Machine], job: JobRequest, policy: PackingPolicy
) -> First | None:
    """When it fits first, as `gangs/start.py` looks for it: halving the ends of holds, and where
    that finds nothing at some of them."""
    ends = {span.end for machine in machines for span in machine.held + machine.reserved}
    times = sorted(end for end in ends if end > machines[0].now) if machines else []
    low, high = 0, len(times)
    while low < high:
        middle = (low + high) // 2
        if best_way(machines, job, policy, times[middle])[0] is None:
            low = middle + 1
        else:
            high = middle
    looks = times[low : low + 1] or times[:: max(-(-len(times) // LOOKS), 1)]
    for moment in looks:
        way = best_way(machines, job, policy, moment)[0]
        if way is not None:
            held: dict[str, list[int]] = defaultdict(list)
            for ranks, spares in zip(way.ranks, way.spares, strict=True):
                for offer, gpus in ranks + spares:
                    held[offer.node.id] += gpus
            return First(moment, tuple((name, tuple(sorted(gpus))) for name, gpus in held.items()))
    return None


def best_way(
    machines: Sequence[Machine], job: JobRequest, policy: PackingPolicy, moment: datetime | None
) -> tuple[Way | None, list[Offer], list[RejectionCode]]:
    """The best way to place the gang now, or at a moment to come; and what nodes answer."""
    assert job.gang is not None
    answers = [offer_of(machine, job, policy, moment) for machine in machines]
    failed = [found for found in answers if isinstance(found, RejectionCode)]
    offers = [found for found in answers if isinstance(found, Offer)]
    offers.sort(key=lambda offer: offer.node.id)
    wanted = job.gang.spares_of(job.gpus) if job.gang.spares_required else 0
    found: list[Way] = []
    for alike in sets_of(offers, job.gang):
        ways = ways_on(alike, job, job.gang, policy)
        found += [way for way in ways if way.spare_count() >= wanted][:1]
    gang = job.gang
    return min(found, key=lambda way: way.wish(gang), default=None), offers, failed


def offer_of(
    machine: Machine, job: JobRequest, policy: PackingPolicy, later: datetime | None
) -> Offer | RejectionCode:
    """What the node could give, or the first constraint that fails."""
    assert job.gang is not None
    node, gang = machine.node, job.gang
    moment = later or machine.now
    domain = domain_of(node, gang)
    named = (job.gpu_type or "").casefold()
    if node.state is not NodeState.READY:
        return RejectionCode.STATE
    if node.tier is not job.tier:
        return RejectionCode.TIER
    if named and named not in (node.gpu_type.casefold(), flavor_of(node)):
        same = flavor_of(node) == node.gpu_type.casefold()
        return RejectionCode.GPU_TYPE if same else RejectionCode.FLAVOR
    if job.needs_container and node.container_runtime is None:
        return RejectionCode.CONTAINER_RUNTIME
    if cannot_fetch(node, job):
        return RejectionCode.FETCHING
    if labelled_otherwise(node, job.constraints):
        return RejectionCode.CONSTRAINT
    if domain is None:
        return RejectionCode.LABELS
    if gang.same_conformance is SameConformance.REQUIRE and node.conformance is None:
        return RejectionCode.CONFORMANCE
    if (failed := misfit(node, job)) is not None:
        return failed
    if ends_too_soon(node, job, policy, moment):
        return RejectionCode.EXPIRY
    if later is None and (failed := short_now(machine, job)) is not None:
        return failed
    for count in range(len(machine.room), 0, -1):
        usable = open_for(machine, job, count, moment, idle_only=later is None)
        if len(usable) >= count:
            free = machine.idle if later is None else usable
            return Offer(machine, domain, count, set(usable), set(free))
    return RejectionCode.RESERVED if later is None else RejectionCode.GPUS_BUSY


def short_now(machine: Machine, job: JobRequest) -> RejectionCode | None:
    for number, code in enumerate(HOST_CODES):
        if wants(job, machine.node)[number] / job.gpus > machine.free(number) + TINY:
            return code
    roomy = machine.with_memory(job)
    if not machine.room:
        return RejectionCode.GPU_COUNT
    if not roomy:
        return RejectionCode.VRAM
    if job.sensitive and not nobody_there(machine):
        return RejectionCode.NOT_ALONE
    return None if roomy & machine.idle else RejectionCode.GPUS_BUSY


def open_for(
    machine: Machine, job: JobRequest, count: int, moment: datetime, *, idle_only: bool
) -> set[int]:
    """The GPUs for so many of the job from this moment to its end; none where cores run short."""
    end = end_of(job, moment)
    others = [s for s in machine.held + machine.reserved if s.start < end and s.end > moment]
    for instant in instants(moment, others):
        then = [span for span in others if span.start <= instant < span.end]
        for number, amount in enumerate(wants(job, machine.node)):
            used = machine.unexplained[number] + sum(span.host[number] for span in then)
            if used + amount * count / job.gpus > machine.size(number) + TINY:
                return set()
    if taken_by_others(machine, job, others):
        return set()
    gpus = machine.with_memory(job) - machine.stuck
    if idle_only:
        gpus &= machine.idle
    return gpus - {index for span in others for index in span.gpus}


def sets_of(offers: Sequence[Offer], gang: Gang) -> list[list[Offer]]:
    """The nodes that one gang may be made of: one flavor, and where asked one fingerprint."""

    def by(*facts: str) -> list[list[Offer]]:
        def key(offer: Offer) -> tuple[str, ...]:
            node = {"flavor": flavor_of(offer.node), "print": str(offer.node.conformance)}
            return tuple(node[fact] for fact in facts)

        return [list(group) for _, group in groupby(sorted(offers, key=key), key)]

    match gang.same_conformance:
        case SameConformance.IGNORE:
            return by("flavor")
        case SameConformance.REQUIRE:
            return by("flavor", "print")
        case SameConformance.PREFER:
            return by("flavor", "print") + by("flavor")


def ways_on(offers: list[Offer], job: JobRequest, gang: Gang, policy: PackingPolicy) -> list[Way]:
    """The ways on these nodes. Where spares are needed, a domain that had too few of them for its
    groups is asked for a GPU less than those took, until they fit no more."""
    room: dict[Key, int] = Counter()
    for offer in offers:
        room[offer.domain] += offer.gpus
    full = dict(room)
    needs_all = gang.spares_required and gang.spares_per_group > 0
    ways: list[Way] = []
    for _ in range(MOST_WAYS if needs_all else 1):
        homes = [homes_of(room, job.gpus, gang, policy.gang_packing)]
        if needs_all:
            homes.append(homes_with_spares(room, job.gpus, gang))
        new = [fill(chosen, offers, full, job, gang, policy) for chosen in homes if chosen]
        ways += new
        short = (
            [n for n, s in enumerate(new[0].spares) if total(s) < gang.spares_per_group]
            if (new)
            else []
        )
        if not short:
            break
        key = new[0].domains[short[0]]
        taken = sum(
            total(shares)
            for domain, shares in zip(new[0].domains, new[0].ranks, strict=True)
            if domain == key
        )
        room[key] = taken - 1
    return ways


def homes_of(
    room: dict[Key, int], gpus: int, gang: Gang, packing: GangPacking
) -> list[tuple[Key, int]] | None:
    """A domain for each group."""
    sizes = gang.group_sizes(gpus)
    seed = packing is GangPacking.PACK_TO_EMPTY
    if not gang.allow_cross_group_spread:
        spares = gang.spares_per_group * len(sizes)
        fitting = sorted(key for key in room if room[key] >= gpus)
        if not fitting:
            return None
        fitting.sort(key=lambda key: -room[key] if seed else room[key])
        if not seed:
            fitting.sort(key=lambda key: room[key] < gpus + spares)
        return [(fitting[0], size) for size in sizes]
    if gang.group_gpus is None:
        return chunks(room, gpus, seed)
    if seed:
        return emptiest_first(room, sizes)
    plain = fewest_domains(room, sizes)
    roomy = homes_with_spares(room, gpus, gang) if gang.spares_per_group else None
    if plain and roomy and count_of(roomy) <= count_of(plain):
        return roomy
    return plain


def homes_with_spares(room: dict[Key, int], gpus: int, gang: Gang) -> list[tuple[Key, int]] | None:
    """The same, best fit, where each group is with its spares."""
    more = gang.spares_per_group
    sizes = [size + more for size in gang.group_sizes(gpus)]
    if gang.allow_cross_group_spread:
        found = fewest_domains(room, sizes)
    else:
        fitting = [key for key in room if room[key] >= sum(sizes)]
        least = min(fitting, key=lambda key: (room[key], key), default=None)
        found = [(least, size) for size in sizes] if least else None
    return [(key, size - more) for key, size in found] if found else None


def chunks(room: dict[Key, int], gpus: int, seed: bool) -> list[tuple[Key, int]] | None:
    """The emptiest domains whole; the rest in the next, by best fit in the least that has it."""
    found: list[tuple[Key, int]] = []
    left = {key: room[key] for key in sorted(room) if room[key] > 0}
    while left:
        suffice = [key for key in left if left[key] >= gpus]
        if suffice:
            by_room = sorted(suffice, key=lambda key: -left[key] if seed else left[key])
            return [*found, (by_room[0], gpus)]
        key = max(left, key=lambda key: left[key])
        found.append((key, left[key]))
        gpus -= left.pop(key)
    return None


def emptiest_first(room: dict[Key, int], sizes: list[int]) -> list[tuple[Key, int]] | None:
    """The document's: a domain in use already, else the emptiest."""
    left, found = dict(room), list[tuple[Key, int]]()
    for size in sizes:
        fitting = sorted(key for key in left if left[key] >= size)
        if not fitting:
            return None
        used = {key for key, _ in found}
        fitting.sort(key=lambda key: (key not in used, -left[key]))
        left[fitting[0]] -= size
        found.append((fitting[0], size))
    return found


def fewest_domains(room: dict[Key, int], sizes: list[int]) -> list[tuple[Key, int]] | None:
    """As many groups as the emptiest domain holds, and so on; what is left goes whole to the least
    domain that has room for it. A last, smaller group alone goes where the gang is already."""
    left, found = {key: room[key] for key in sorted(room)}, list[tuple[Key, int]]()
    order = sorted(left, key=lambda key: -left[key])
    while order:
        rest = sizes[len(found) :]
        if not rest or rest[0] < sizes[0]:
            break
        suffice = [key for key in order if left[key] >= sum(rest)]
        if suffice:
            least = min(suffice, key=lambda key: (left[key], key))
            return found + [(least, size) for size in rest]
        key = order.pop(0)
        for size in rest:
            if size == sizes[0] and left[key] >= size:
                left[key] -= size
                found.append((key, size))
    rest = sizes[len(found) :]
    if not rest:
        return found
    if len(rest) > 1 or rest[0] == sizes[0]:
        return None
    used = {key for key, _ in found}
    fitting = sorted(key for key in left if left[key] >= rest[0])
    fitting.sort(key=lambda key: (key not in used, left[key]))
    return [*found, (fitting[0], rest[0])] if fitting else None


def fill(
    homes: list[tuple[Key, int]],
    offers: Sequence[Offer],
    room: dict[Key, int],
    job: JobRequest,
    gang: Gang,
    policy: PackingPolicy,
) -> Way:
    """GPUs for each group, then spares."""
    own = [Offer(o.machine, o.domain, o.gpus, set(o.usable), set(o.free)) for o in offers]
    if policy.gang_packing is GangPacking.BEST_FIT:
        # Ties: nodes that nobody uses, those of one rack, names.
        own.sort(key=lambda o: (o.free != set(o.machine.room), o.node.labels.get(RACK_LABEL, "")))
    ranks = [group_on(own, key, size, policy) for key, size in homes]
    used = {offer.node.id for shares in ranks for offer, _ in shares}
    spares: list[list[tuple[Offer, GPUs]]] = []
    for (home, _), shares in zip(homes, ranks, strict=True):
        others = [offer for offer in own if offer.node.id not in used]
        found = spares_in(others, home, gang.spares_per_group, policy)
        if len(shares) == 1 and gang.allow_cross_group_spread:
            left = Counter(dict.fromkeys(sorted(room), 0))
            for offer in own:
                left[offer.domain] += offer.gpus
            for key in sorted(left, key=lambda key: -left[key]):
                more = gang.spares_per_group - total(found)
                found += spares_in(others, key, more, policy)
        spares.append(found)
    return Way([key for key, _ in homes], ranks, spares, room)


def group_on(
    offers: list[Offer], key: Key, size: int, policy: PackingPolicy
) -> list[tuple[Offer, GPUs]]:
    """The node with most left, whole, and so on; by best fit the last is the least that has it."""
    best_fit = policy.gang_packing is GangPacking.BEST_FIT
    shares: list[tuple[Offer, GPUs]] = []
    while size:
        here = [offer for offer in offers if offer.domain == key and offer.gpus]
        enough = [offer for offer in here if offer.gpus >= size] if best_fit else []
        largest = max(here, key=lambda offer: offer.gpus)
        offer = min(enough, key=lambda offer: offer.gpus) if enough else largest
        gpus = min(size, offer.gpus)
        shares.append((offer, give(offer, gpus, policy)))
        size -= gpus
    return shares


def spares_in(
    offers: list[Offer], key: Key, wanted: int, policy: PackingPolicy
) -> list[tuple[Offer, GPUs]]:
    """The least node that suffices, or those with most left."""
    here = [offer for offer in offers if offer.domain == key and offer.gpus]
    here.sort(key=lambda o: (o.gpus < wanted, o.gpus if o.gpus >= wanted else -o.gpus))
    found: list[tuple[Offer, GPUs]] = []
    for offer in here:
        gpus = min(offer.gpus, wanted - total(found))
        if gpus > 0:
            found.append((offer, give(offer, gpus, policy)))
    return found


def give(offer: Offer, count: int, policy: PackingPolicy) -> GPUs:
    gpus = choice(offer.usable, offer.free, count, policy.gpu_choice, offer.node.topology)
    offer.gpus -= count
    offer.usable -= set(gpus)
    offer.free -= set(gpus)
    return gpus


def plan_of(
    way: Way, machines: Sequence[Machine], job: JobRequest, policy: PackingPolicy
) -> GangPlan:
    assert job.gang is not None
    by_domain: dict[Key, list[Machine]] = defaultdict(list)
    for machine in machines:
        if (key := domain_of(machine.node, job.gang)) is not None:
            by_domain[key].append(machine)
    taken: Counter[Key] = Counter()
    for offer, gpus in [share for shares in way.ranks + way.spares for share in shares]:
        taken[offer.domain] += len(gpus)
    rooms: list[DomainRoom] = []
    for key in sorted(by_domain):
        ready = [m for m in by_domain[key] if m.node.state is NodeState.READY]
        free = sum(len(machine.idle) for machine in ready)
        rooms.append(
            DomainRoom(
                domain=name_of(key),
                nodes=len(by_domain[key]),
                gpus=sum(len(machine.room) for machine in by_domain[key]),
                free=free,
                usable=way.room.get(key, 0),
                residual=free - taken[key],
            )
        )
    prints = way.fingerprints()
    return GangPlan(
        gpus=job.gpus,
        packing=policy.gang_packing,
        groups=tuple(
            PlannedGroup(
                number=number,
                domain=name_of(key),
                gpus=total(way.ranks[number]),
                nodes=shares_of(way.ranks[number]),
                spares=shares_of(way.spares[number]),
            )
            for number, key in enumerate(way.domains)
        ),
        domains=tuple(rooms),
        conformance=min(prints, key=str) if len(prints) == 1 else None,
        spares_wanted=job.gang.spares_of(job.gpus),
    )


def members_of(groups: list[list[tuple[Offer, GPUs]]]) -> tuple[Member, ...]:
    return tuple(
        Member(node_id=o.node.id, epoch=o.node.epoch, gpu_indices=gpus, group=number)
        for number, shares in enumerate(groups)
        for o, gpus in shares
    )


def shares_of(shares: list[tuple[Offer, GPUs]]) -> tuple[NodeShare, ...]:
    return tuple(NodeShare(node_id=offer.node.id, gpu_indices=gpus) for offer, gpus in shares)


def total(shares: list[tuple[Offer, GPUs]]) -> int:
    return sum(len(gpus) for _, gpus in shares)


def count_of(homes: list[tuple[Key, int]]) -> int:
    return len({key for key, _ in homes})


def domain_of(node: Node, gang: Gang) -> Key | None:
    region, cluster, domain = (node.labels.get(name) for name in FABRIC_LABELS)
    if region and cluster and domain:
        return region, cluster, domain
    return ("", "", node.id) if gang.unlabelled_nodes else None


def name_of(key: Key) -> str:
    return "/".join(key) if key[0] else key[2]


def flavor_of(node: Node) -> str:
    return (node.labels.get(FLAVOR_LABEL) or node.gpu_type).casefold()
