"""Who would pay for jobs that wait: for all GPUs of one, or for none."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from longshore.models.funding import Foreseen, FundingCode
from longshore.scheduling.bulk.collector import paused
from longshore.scheduling.funding.asked import why_none
from longshore.scheduling.funding.facts import Charge, Share, Use, Where
from longshore.scheduling.funding.holding import Attempt, Paid
from longshore.scheduling.funding.ladder import OWN
from longshore.scheduling.funding.room import Key, Room
from longshore.scheduling.funding.rungs import Ladder, Rung, ladder_of
from longshore.scheduling.funding.taking import Recall, Taking

__all__ = ["Cover", "Recall", "cover", "fund", "settle", "take"]


class Cover(NamedTuple):
    """Who pays for a job, or why nobody does."""

    funded: bool
    charges: tuple[Charge, ...] = ()
    """To open. None for a tenant without a budget, which pays for itself."""
    recalls: tuple[Recall, ...] = ()
    """What relatives lose for it, of charges that are open."""
    code: FundingCode | None = None
    """Why nobody pays."""
    missing: int = 0
    """For how much nobody would pay, in thousandths."""

    @property
    def deficit(self) -> float:
        """For how many GPUs nobody would pay."""
        return self.missing / 1000

    @property
    def borrowed(self) -> int:
        """How much sponsors pay for, in thousandths."""
        return sum(charge.amount for charge in self.charges if charge.lent)


ITSELF = Cover(True)
"""For a tenant without a budget."""


def cover(room: Room, use: Use) -> Cover:
    """Return who would pay for a job now. It takes nothing: `take` does."""
    if not room.tree.has_budget(use.tenant):
        return ITSELF
    taking = start(room, use)
    missing = taking.walk(use)
    if missing:
        taking.undo()
        return _refused(room, use, taking, missing)
    charges = taking.charges(use)
    recalls = taking.recalls()
    taking.undo()
    return Cover(True, tuple(charges), tuple(recalls))


def take(room: Room, use: Use, found: Cover) -> None:
    """Have a cover hold: what it takes is gone from the room, and what it recalls is nobody's."""
    if not found.charges:
        return
    room.uses[use.job_id, use.attempt] = use
    for recall in found.recalls:
        room.remove(recall.charge)
        if recall.left is not None:
            room.add(recall.left._replace(id=recall.charge.id))
    for charge in found.charges:
        room.add(charge)


def settle(room: Room, use: Use) -> Cover:
    """Return who pays for a job now, and have it hold."""
    return _settled(room, use) if room.tree.has_budget(use.tenant) else ITSELF


def _settled(room: Room, use: Use) -> Cover:
    shares, attempt = use.shares, (use.job_id, use.attempt)
    if len(shares) != 1 or attempt in room.held:
        return _settle(room, use)
    share = shares[0]
    place = _own(room, use.tenant, share)
    if place is not None:
        charge = Charge(
            use.job_id, use.attempt, share.rank, room.ids[place], share.gpus, share.milli, False,
            room.now,
        )  # fmt: skip
        room.uses.setdefault(attempt, use)
        room.add_paid(place, Paid(charge, OWN))
        return Cover(True, (charge,))
    limit = use.terms.max_borrow
    ladder = ladder_of(room, use.tenant, share.where, use.terms, use.preemptible)
    asks = len(share.gpus), share.milli, limit
    known = ladder.refused.get(asks)
    if known is not None and known[0] == room.changes:
        return known[1]
    taking = Taking(room, attempt, None if limit is None else limit * 1000)
    missing = taking.take(ladder, asks[0], asks[1]) * asks[1]
    if missing:
        taking.undo()
        refused = _refused(room, use, taking, missing)
        ladder.refused[asks] = room.changes, refused
        return refused
    return _kept(room, use, taking)


def _own(room: Room, tenant: str, share: Share) -> int | None:
    """Return the own envelope that pays for all of a share, where it is the first one asked that
    has anything: most jobs need to look no further."""
    each = share.milli
    amount = len(share.gpus) * each
    for place in room.of(tenant, share.where):
        found = room.free[place]
        if room.caps[place] or (each <= found < amount):
            return None
        if found >= amount > 0:
            return place
    return None


def _settle(room: Room, use: Use) -> Cover:
    taking = start(room, use)
    missing = taking.walk(use)
    if missing:
        taking.undo()
        return _refused(room, use, taking, missing)
    return _kept(room, use, taking)


def settle_as(room: Room, use: Use, foreseen: Sequence[Foreseen]) -> Cover | None:
    """Have a job that begins be paid for as was foreseen while it waited, and return by whom; None
    where that does not hold on the nodes that it has come to.

    What is nearer may have been foreseen for others that still wait: they would take it back.
    """
    if sum(each.gpus for each in foreseen) != sum(len(share.gpus) for share in use.shares):
        return None
    taking, left = start(room, use), list(foreseen)
    for index, share in enumerate(use.shares):
        taking.share = index
        want = len(share.gpus)
        while want:
            envelope, gpus, lent = left.pop(0)
            if gpus > want:
                left.insert(0, Foreseen(envelope, gpus - want, lent))
            count = min(gpus, want)
            rung = _foreseen_rung(room, use.tenant, share.where, envelope, lent)
            if rung is None or taking.take(Ladder(iter((rung,))), count, share.milli):
                taking.undo()
                return None
            want -= count
    return _kept(room, use, taking)


def _foreseen_rung(
    room: Room, tenant: str, where: Where, envelope: int, lent: bool
) -> Rung | None:
    place = room.place[envelope]
    owned = room.owned[place]
    steps = OWN if lent else room.tree.steps(tenant, owned.tenant)
    if steps is None or not room.open[place] or not room.valid.fits(owned, where):
        return None
    return Rung(steps, [place], lent=lent)


def _kept(room: Room, use: Use, taking: Taking) -> Cover:
    room.uses.setdefault((use.job_id, use.attempt), use)
    charges, recalls = taking.keep(use)
    return Cover(True, tuple(charges), tuple(recalls))


def start(room: Room, use: Use, ignore_caps: bool = False, unlimited: bool = False) -> Taking:
    """Return the way of a job through its rungs, from the beginning."""
    limit, attempt = use.terms.max_borrow, (use.job_id, use.attempt)
    if limit is None or unlimited:
        return Taking(room, attempt, None, ignore_caps)
    held = room.held.get(attempt, {}).values()
    borrowed = sum(paid.charge.amount for paid in held if paid.charge.lent)
    return Taking(room, attempt, max(limit * 1000 - borrowed, 0), ignore_caps)


def _refused(room: Room, use: Use, taking: Taking, missing: int) -> Cover:
    return Cover(False, code=_why(room, use, taking), missing=missing)


def _why(room: Room, use: Use, taking: Taking) -> FundingCode:
    if taking.limit_cut and _would_do(start(room, use, unlimited=True), use):
        return FundingCode.BORROW_LIMIT
    if taking.cap_cut and _would_do(start(room, use, ignore_caps=True), use):
        return FundingCode.CAP
    for share in use.shares:
        ladder = ladder_of(room, use.tenant, share.where, use.terms, use.preemptible)
        if ladder.code is None:
            ladder.code = _code_of(ladder, room, use, share.where)
        if ladder.code is not FundingCode.NO_ROOM:
            return ladder.code
    return FundingCode.NO_ROOM


def _code_of(ladder: Ladder, room: Room, use: Use, where: Where) -> FundingCode:
    if any(rung.envelopes(room) for rung in ladder.rungs):  # all: it was refused on each
        return FundingCode.NO_ROOM
    return why_none(room, use, where)


def _would_do(taking: Taking, use: Use) -> bool:
    missing = taking.walk(use)
    taking.undo()
    return not missing


MOST_TRIES = 4
"""How often a job of a queue is covered anew whose room somebody nearer has taken. Wholes that
take from each other may have no order that all of them are content with."""


def fund(room: Room, queue: Sequence[Use]) -> dict[str, Cover]:
    """Return who would pay for each job of a queue, by job.

    Each takes its room at its turn, whether it then is placed or not. Where one takes back what
    a relative before it in the queue would have had, that one is covered anew at once. What is
    recalled of a job that runs is given up only for the job that it is recalled for: if more is
    given up than that one uses, nobody else is told of it.
    """
    with paused():
        return _funded(room, queue)


def _funded(room: Room, queue: Sequence[Use]) -> dict[str, Cover]:
    covers: dict[str, Cover] = {}
    turns: _Turns | None = None
    has_budget = room.tree.has_budget
    for use in queue:
        if not has_budget(use.tenant):
            covers[use.job_id] = ITSELF
            continue
        found = covers[use.job_id] = _settled(room, use)
        if found.recalls:
            if turns is None:
                turns = _Turns(room, queue, covers)
            turns.sort_out(use)
    return covers


class _Turns:
    """What jobs of a queue have taken back from each other and from others."""

    def __init__(self, room: Room, queue: Sequence[Use], covers: dict[str, Cover]) -> None:
        self._room = room
        self._waiting = {(use.job_id, use.attempt): use for use in queue}
        self._covers = covers
        self._tries: dict[str, int] = {}
        self._kept_back: dict[Attempt, tuple[dict[int, int], dict[int, int]]] = {}
        """By whom something was recalled for: what nobody else is told of, by envelope and cap."""

    def sort_out(self, use: Use) -> None:
        """Cover those anew who have lost to a job; and those who lost to them."""
        todo = deque([use])
        while todo:
            one = todo.popleft()
            if one is not use or self._tries.get(one.job_id):
                self._covers[one.job_id] = self._again(one)
            todo.extend(self._losers(one))

    def _again(self, use: Use) -> Cover:
        if self._tries[use.job_id] < MOST_TRIES:
            return settle(self._room, use)
        whole = sum(share.amount for share in use.shares)
        return Cover(False, code=FundingCode.NO_ROOM, missing=whole)

    def _losers(self, use: Use) -> list[Use]:
        found = self._covers[use.job_id]
        recalls: dict[Key, Recall] = {}
        losers: dict[Attempt, Use] = {}
        for recall in found.recalls:
            attempt = recall.charge.job_id, recall.charge.attempt
            if attempt in self._waiting:
                losers[attempt] = self._waiting[attempt]
            else:
                _put(recalls, recall)
        self._keep_back(use, recalls.values(), found)
        for attempt, loser in losers.items():
            for recall in self._revoke(attempt, loser):
                _put(recalls, recall)
            self._tries[loser.job_id] = self._tries.get(loser.job_id, 0) + 1
        if found.recalls:
            self._covers[use.job_id] = found._replace(recalls=tuple(recalls.values()))
        return list(losers.values())

    def _keep_back(self, use: Use, recalls: Iterable[Recall], found: Cover) -> None:
        """Tell nobody else of what is given up for a job beyond what it uses."""
        kept_back = surplus(self._room, recalls, found.charges)
        self._change(kept_back, -1)
        self._kept_back[use.job_id, use.attempt] = kept_back

    def _change(self, amounts: tuple[dict[int, int], dict[int, int]], by: int) -> None:
        for place, amount in amounts[0].items():
            self._room.free[place] += by * amount
            self._room.given_back.append(place)
        for cap, amount in amounts[1].items():
            self._room.cap_free[cap] += by * amount

    def _revoke(self, attempt: Attempt, use: Use) -> list[Recall]:
        """Take a job's cover away; return what cannot be given back of what was recalled for it,
        since the room is now another's."""
        room = self._room
        for paid in list(room.held.get(attempt, {}).values()):
            room.remove(paid.charge)
        self._change(self._kept_back.pop(attempt, ({}, {})), 1)
        recalls = self._covers[use.job_id].recalls
        left = [self._give_back(recall) for recall in recalls]
        return [recall for recall in left if recall.lost]

    def _give_back(self, recall: Recall) -> Recall:
        """Have a charge of a job that runs go on, as far as there is room; return the rest."""
        room, charge = self._room, recall.charge
        place = room.place[charge.envelope]
        left = min([room.free[place], *(room.cap_free[cap] for cap in room.caps[place])])
        count = min(max(left, 0) // charge.milli, len(recall.lost))
        if count:
            gpus = set(recall.lost[:count])
            for paid in list(room.held.get((charge.job_id, charge.attempt), {}).values()):
                one = paid.charge
                if (one.rank, one.envelope) == (charge.rank, charge.envelope):
                    gpus.update(one.gpus)
                    room.remove(one)
            room.add(charge._replace(gpus=tuple(sorted(gpus))))
        return Recall(charge, recall.lost[count:])


def surplus(
    room: Room, recalls: Iterable[Recall], charges: Iterable[Charge]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return what is given up for a job beyond what it uses, by envelope and by cap."""
    places: dict[int, int] = {}
    caps: dict[int, int] = {}
    changes = [(recall.charge, len(recall.lost)) for recall in recalls]
    changes += [(charge, -len(charge.gpus)) for charge in charges]
    for charge, gpus in changes:
        place = room.place[charge.envelope]
        places[place] = places.get(place, 0) + gpus * charge.milli
        for cap in room.caps[place]:
            caps[cap] = caps.get(cap, 0) + gpus * charge.milli
    return _over_zero(places), _over_zero(caps)


def _over_zero(amounts: dict[int, int]) -> dict[int, int]:
    return {place: amount for place, amount in amounts.items() if amount > 0}


def _put(recalls: dict[Key, Recall], recall: Recall) -> None:
    charge = recall.charge
    key = charge.job_id, charge.attempt, charge.rank, charge.envelope
    before = recalls.get(key)
    if before is not None:
        whole = max(charge, before.charge, key=lambda one: len(one.gpus))
        recall = Recall(whole, tuple(sorted({*before.lost, *recall.lost})))
    recalls[key] = recall
