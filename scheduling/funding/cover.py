"""Who would pay for jobs that wait: for all GPUs of one, or for none."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from longshore.models.funding import Foreseen, FundingCode
from longshore.scheduling.funding.asked import why_none
from longshore.scheduling.funding.facts import Charge, Share, Use, Where
from longshore.scheduling.funding.holding import Paid
from longshore.scheduling.funding.kinds import Kinds, alike, at_kind
from longshore.scheduling.funding.ladder import OWN
from longshore.scheduling.funding.room import Room
from longshore.scheduling.funding.rungs import Ladder, Rung, ladder_of
from longshore.scheduling.funding.taking import Recall, Taking

__all__ = ["Cover", "Recall", "cover", "settle", "take"]


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
    on: tuple[Kinds, ...] = ()
    """Of one that may come to nodes of several kinds, and that somebody pays for: on which of
    them, those first for which this cover is; those together that the same envelopes are for."""

    @property
    def deficit(self) -> float:
        """For how many GPUs nobody would pay."""
        return self.missing / 1000

    @property
    def borrowed(self) -> int:
        """How much sponsors pay for, in thousandths."""
        return sum(charge.amount for charge in self.charges if charge.lent)


_FAR_OFF = (
    FundingCode.NO_ROOM,
    FundingCode.NOT_OPEN,
    FundingCode.ACL_DENIED,
    FundingCode.NO_ENVELOPE,
)
"""Why nobody pays on nodes of a kind, where no limit alone is in the way: of several kinds it is
told of the one where the least is."""
ITSELF = Cover(True)
"""For a tenant without a budget."""


def cover(room: Room, use: Use) -> Cover:
    """Return who would pay for a job now. It takes nothing: `take` does."""
    if not room.tree.has_budget(use.tenant):
        return ITSELF
    return at_best(room, use)[1] if use.kinds else _covered(room, use)


def at_best(room: Room, use: Use) -> tuple[Use, Cover]:
    """Return a job that may come to nodes of several kinds as one that comes to the best of them,
    and who would pay for it there. The best is where others are stopped for it, if it is paid for
    there; else what the nearest envelopes pay for, as on a ladder; or where a limit is in the way,
    else for which the least is missing."""
    found: list[tuple[tuple[float, ...], Kinds, Use, Cover]] = []
    for group in alike(room, use):
        one = at_kind(use, group[0])
        cover = _covered(room, one)
        lacks, *nearness = _nearness(room, one, cover)
        away = cover.funded and use.gets not in group
        found.append(((lacks, away, *nearness), group, one, cover))
    found.sort(key=lambda each: each[0])
    _, _, best, cover = found[0]
    return best, cover._replace(on=tuple(group for _, group, _, each in found if each.funded))


def _nearness(room: Room, use: Use, found: Cover) -> tuple[float, ...]:
    """Return the key that has the nearest envelopes first, and what is missing last; of that what
    no envelope is for."""
    if not found.funded:
        far_off = _FAR_OFF.index(found.code) if found.code in _FAR_OFF else -1
        return 1, far_off >= 0, found.missing, far_off
    places = [room.place[charge.envelope] for charge in found.charges]
    steps = [room.tree.steps(use.tenant, room.owner[place]) or OWN for place in places]
    unknown = not all(share.where.there for share in use.shares)
    turns = [room.turns[place] for place in places]
    return (
        0, unknown, found.borrowed, max(steps, default=OWN), bool(found.recalls),
        min(turns, default=0),
    )  # fmt: skip


def _covered(room: Room, use: Use) -> Cover:
    taking = start(room, use)
    missing = taking.walk(use)
    if missing:
        taking.undo()
        return _refused(room, use, taking, missing)
    found = Cover(True, tuple(taking.charges(use)), tuple(taking.recalls()))
    taking.undo()
    lacks = _lost_again(room, use, found) if found.recalls else 0
    return Cover(False, code=FundingCode.NO_ROOM, missing=lacks) if lacks else found


def _lost_again(room: Room, use: Use, found: Cover) -> int:
    """Return for how much nobody would pay once this has been taken (`lost_to_losers`)."""
    before = room.uses.get((use.job_id, use.attempt))
    take(room, use, found)
    lacks = lost_to_losers(room, use, found.recalls)
    take_back(room, found.charges, found.recalls)
    if before is None:
        del room.uses[use.job_id, use.attempt]
    else:
        room.uses[use.job_id, use.attempt] = before
    return lacks


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


def take_back(room: Room, charges: Iterable[Charge], recalls: Iterable[Recall]) -> None:
    """Have charges not hold that were opened last, and those go on that were recalled for them."""
    for charge in charges:
        room.remove(charge)
    for recall in recalls:
        if recall.left is not None:
            room.remove(recall.left._replace(id=recall.charge.id))
        room.add(recall.charge)


def lost_to_losers(room: Room, use: Use, recalls: Sequence[Recall]) -> int:
    """Return for how much of a job nobody pays, in thousandths, though it has its cover: those who
    run and lose to it look for who pays instead, and may have the right to another part of it."""
    held = room.held.get((use.job_id, use.attempt), {})
    if not recalls or all(paid.steps <= OWN for paid in held.values()):
        return 0  # nobody takes back what its own tenant or a sponsor pays for
    for recall in recalls:
        loser = room.uses[recall.charge.job_id, recall.charge.attempt]
        _, taking, missing = claimed(
            room, loser, {(recall.charge.rank, gpu) for gpu in recall.lost}
        )
        lost = {
            (paid.charge.rank, gpu)
            for paid, count in taking.recalled
            if paid.attempt == (use.job_id, use.attempt)
            for gpu in paid.charge.gpus[len(paid.charge.gpus) - count :]
        }
        lacks = 0
        if lost and not missing:
            _, instead, lacks = claimed(room, use, lost)
            instead.undo()
        taking.undo()
        if lacks:
            return lacks
    return 0


def claimed(room: Room, use: Use, gpus: Collection[tuple[int, int]]) -> tuple[Use, Taking, int]:
    """Have a job go through its rungs for some of its GPUs, by rank and index; return it with
    these, its way, and for how much nobody would pay."""
    shares = (
        share._replace(gpus=tuple(gpu for gpu in share.gpus if (share.rank, gpu) in gpus))
        for share in use.shares
    )
    claim = use._replace(shares=tuple(share for share in shares if share.gpus))
    taking = start(room, claim)
    return claim, taking, taking.walk(claim)


def settle(room: Room, use: Use) -> Cover:
    """Return who pays for a job now, and have it hold."""
    if not room.tree.has_budget(use.tenant):
        return ITSELF
    if not use.kinds:
        return _settled(room, use)
    room.uses.pop((use.job_id, use.attempt), None)  # it may be of another kind than before
    best, found = at_best(room, use)
    return _settled(room, best)._replace(on=found.on) if found.funded else found


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
    taking = Taking(room, use.tenant, None if limit is None else limit * 1000)
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
        return Taking(room, use.tenant, None, ignore_caps)
    held = room.held.get(attempt, {}).values()
    borrowed = sum(paid.charge.amount for paid in held if paid.charge.lent)
    return Taking(room, use.tenant, max(limit * 1000 - borrowed, 0), ignore_caps)


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
