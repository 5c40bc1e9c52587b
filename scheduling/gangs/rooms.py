"""What nodes offer to a gang, in all: by domain, and of the sets of nodes that are alike."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from longshore.models.job_request import JobRequest
from longshore.models.placement import PackingPolicy
from longshore.models.topology import Gang, SameConformance
from longshore.scheduling.gangs.nodes import GangNodes, Kind
from longshore.scheduling.gangs.offers import Offer, offers_now
from longshore.scheduling.topology import DomainKey


def most_now(
    job: JobRequest, gang: Gang, nodes: GangNodes, policy: PackingPolicy, now: datetime
) -> int:
    """Return a number of GPUs that no size of a malleable gang exceeds on nodes as they are."""
    assert job.malleable is not None
    # The desired size is the largest, and takes the least time: nodes offer most to it.
    largest = job.at_size(job.malleable.target)
    made = offers_now(largest, gang, nodes, policy, now).made
    rooms = (room_by_domain(like) for like in sets_of_like(made, gang))
    return max((most_in(np.array([*room.values()]), gang) for room in rooms), default=0)


def most_in(room: NDArray[np.int64], gang: Gang) -> int:
    """Return a number of GPUs that no size of a gang exceeds where each domain has so many."""
    if not gang.allow_cross_group_spread:
        return int(room.max(initial=0))
    if gang.group_gpus is None:
        return int(room.sum())
    size = gang.group_gpus
    groups = int((room // size).sum())
    return min(int(room.sum()), groups * size + size - 1)  # the last group may be smaller


def room_by_domain(offers: Iterable[Offer]) -> Counter[DomainKey]:
    """Return the GPUs that each domain could give."""
    room: Counter[DomainKey] = Counter()
    for offer in offers:
        room[offer.domain] += offer.gpus
    return room


def sets_of_like(offers: Iterable[Offer], gang: Gang) -> list[list[Offer]]:
    """Return the sets of nodes that a plan may be made on: of one flavor, and one fingerprint."""
    rule = gang.same_conformance
    by_kind: dict[Kind, list[Offer]] = {}
    by_flavor: dict[str, list[Offer]] = {}
    for offer in offers:
        flavor, conformance = offer.kind
        by_kind.setdefault((flavor, conformance), []).append(offer)
        by_flavor.setdefault(flavor, []).append(offer)
    if rule is SameConformance.IGNORE or len(by_kind) == len(by_flavor):
        return list(by_flavor.values())
    if rule is SameConformance.REQUIRE:
        return list(by_kind.values())
    return [*by_kind.values(), *by_flavor.values()]


def total(offers: Sequence[Offer]) -> int:
    return sum(offer.gpus for offer in offers)
