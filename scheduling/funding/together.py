"""On which nodes the jobs of a queue are paid for beside each other, whichever of its nodes each
of them gets: nodes are bought, and others stopped, for what is paid for."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache

from longshore.models.funding import PaidOn
from longshore.models.job_request import JobRequest
from longshore.scheduling.funding.cover import Cover, Recall, cover, take
from longshore.scheduling.funding.facts import Charge, Use
from longshore.scheduling.funding.kinds import Kinds, at_kind
from longshore.scheduling.funding.ladder import COUSIN, OWN
from longshore.scheduling.funding.room import Attempt, Room
from longshore.scheduling.funding.where_paid import narrow, one_type_each

NOBODY = COUSIN + 1
"""Farther away than anybody of whom something is taken back."""


def together_on(
    room: Room, queue: Iterable[JobRequest], paid: Sequence[Use], covers: Mapping[str, Cover]
) -> dict[str, PaidOn]:
    """Return on which nodes jobs of a queue are paid for beside each other, by job, where that is
    so on fewer than somebody would pay for it on: nodes are not to be bought, nor others stopped,
    for two of them by one envelope. Each keeps the nodes that its cover is for, and others as far
    as there is room beside all covers; that room is its own then.
    """
    several = {use.job_id: use for use in paid if len(covers[use.job_id].on) > 1}
    taken = {(use.job_id, use.attempt) for use in paid}
    nearest = _nearest(room, paid, covers)
    found: dict[str, PaidOn] = {}
    for job in queue if several and len(paid) > 1 else ():
        use = several.get(job.id)
        if use is None:
            continue
        on = covers[job.id].on
        groups = on if job.gang is None else one_type_each(on)
        kept = list(_beside_others(room, use, covers[job.id], groups, taken, nearest))
        if len(kept) < len(groups):
            some = [where for group in kept for where in group]
            found[job.id] = narrow(use.kinds, kept[0], some)._replace(must=use.must_be_funded)
    return found


def _beside_others(
    room: Room,
    use: Use,
    found: Cover,
    groups: Sequence[Kinds],
    taken: set[Attempt],
    nearest: Callable[[int], int],
) -> Iterator[Kinds]:
    """Yield the nodes of these on which a job is paid for beside the covers of all others, and
    have that hold. It is on one kind of them in the end: what holds for it on one is not in its
    own way on another."""
    own = {(use.job_id, use.attempt): found}
    known = {_amounts(found)}
    yield groups[0]
    for number, group in enumerate(groups[1:], 1):
        other = at_kind(use, group[0])._replace(attempt=-number)
        more = _covered_without(room, other, own, taken)
        lost = {(each.charge.job_id, each.charge.attempt) for each in more.recalls}
        if not more.funded or not taken.isdisjoint(lost):
            continue
        if _amounts(more) not in known:
            if _taken_back(room, use, more, nearest):
                continue
            known.add(_amounts(more))
            # Of what the job's own cover has recalled no more is.
            some = tuple(one for one in more.recalls if room.holds(one.charge))
            more = more._replace(recalls=some)
            take(room, other, more)
            own[other.job_id, other.attempt] = more
            taken.add((other.job_id, other.attempt))
        yield group


def _covered_without(
    room: Room, use: Use, own: Mapping[Attempt, Cover], waiting: Collection[Attempt]
) -> Cover:
    """Return who would pay for a job if these covers did not hold: neither what they pay for, nor
    what jobs that run lose to them. What those that are `waiting` lost is settled."""
    charges = [paid.charge for attempt in own for paid in room.held.get(attempt, {}).values()]
    for charge in charges:
        room.remove(charge)
    lost = (one for each in own.values() for one in each.recalls)
    running = [one for one in lost if (one.charge.job_id, one.charge.attempt) not in waiting]
    back = [charge for one in running for charge in _given_back(room, one)]
    for charge in back:
        room.add(charge)
    found = cover(room, use)
    for charge in back:
        room.remove(charge)
    for charge in charges:
        room.add(charge)
    return found


def _nearest(room: Room, paid: Iterable[Use], covers: Mapping[str, Cover]) -> Callable[[int], int]:
    """Return what says of an envelope how many steps away those jobs that wait are at most that
    would take back what it pays for, or the caps over it leave: they look for more than what is as
    near as that. `NOBODY` where there are none.
    """
    reach: dict[str, int] = {}
    for use in paid:
        found = covers[use.job_id]
        farthest = max((_steps(room, use, each) for each in found.charges), default=OWN)
        reach[use.tenant] = max(reach.get(use.tenant, OWN), farthest + bool(found.recalls))

    @cache
    def of_owner(owner: str) -> int:
        steps = ((room.tree.steps(tenant, owner), most) for tenant, most in reach.items())
        return min((near for near, most in steps if near is not None and near < most),
                   default=NOBODY)  # fmt: skip

    @cache
    def of_place(place: int) -> int:
        below = {place, *(one for cap in room.caps[place] for one in room.members[cap])}
        return min(of_owner(room.owner[one]) for one in below)

    return of_place


def _steps(room: Room, use: Use, charge: Charge) -> int:
    """Return how many steps away an envelope is that would pay; a sponsor's comes last."""
    if charge.lent:
        return NOBODY
    return room.tree.steps(use.tenant, room.owner[room.place[charge.envelope]]) or OWN


def _taken_back(room: Room, use: Use, found: Cover, nearest: Callable[[int], int]) -> bool:
    """Return whether another job that waits would take back what would pay for this one."""
    return any(
        _steps(room, use, charge) > nearest(room.place[charge.envelope])
        for charge in found.charges
        if not charge.lent
    )


def _given_back(room: Room, recall: Recall) -> Iterator[Charge]:
    """Yield a charge for what was recalled of one, and that nobody else has come to pay for."""
    charge = recall.charge
    held = room.held.get((charge.job_id, charge.attempt), {}).values()
    paid = {gpu for one in held if one.charge.rank == charge.rank for gpu in one.charge.gpus}
    gpus = tuple(gpu for gpu in recall.lost if gpu not in paid)
    if gpus:
        yield charge._replace(gpus=gpus, id=0)


def _amounts(found: Cover) -> tuple[tuple[int, int], ...]:
    """Return how much which envelopes pay."""
    return tuple(sorted((charge.envelope, charge.amount) for charge in found.charges))
