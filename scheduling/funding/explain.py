"""Who would pay for a job, envelope by envelope, and what would help where nobody does."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from longshore.models.funding import FundingCode, FundingTerms, WhenUnfunded
from longshore.scheduling.funding.asked import LENDER, Asked, all_asked
from longshore.scheduling.funding.cover import Cover, cover, start
from longshore.scheduling.funding.facts import Use
from longshore.scheduling.funding.ladder import lends_to
from longshore.scheduling.funding.room import Room

_MOST_OPENINGS = 5
_MOST_SPONSORS = 50


class Rung(NamedTuple):
    """An envelope that could have paid, and what it gives. Amounts are thousandths of a GPU."""

    rung: str
    """`own`, a relative, `sponsor`; or `lender`, which the job does not name as a sponsor."""
    tenant: str
    envelope: int
    name: str
    unused: int
    """What nobody has of it, below its caps; of a sponsor's what it may lend of that."""
    recallable: int
    """What relatives have of it who are farther from its owner."""
    gives: int
    code: FundingCode | None
    """Why it does not give more; None where no more is wanted."""
    opens: datetime | None = None
    """When it opens, where it will."""


class Helps(StrEnum):
    """What would have somebody pay for a job."""

    LATER = "later"
    """To wait until an envelope opens."""
    FEWER = "fewer"
    """To ask for fewer GPUs: so many of them are paid for."""
    MAX_BORROW = "max_borrow"
    """To borrow up to so many GPUs."""
    SPONSORS = "sponsors"
    """To borrow of these tenants, who lend to it."""
    CAP = "cap"
    """A cap that is higher by so many GPUs at least."""
    PREEMPTIBLE = "preemptible"
    """To say that it may be preempted: relatives would pay."""
    RUN_UNFUNDED = "unfunded"
    """To run on idle GPUs, with `unfunded: run`."""


class Remedy(NamedTuple):
    """One thing that would help by itself: it has been tried."""

    what: Helps
    gpus: float | None = None
    at: datetime | None = None
    tenants: tuple[str, ...] = ()
    cap: int | None = None


class Explained(NamedTuple):
    """Who would pay for a job, and why no others."""

    cover: Cover
    rungs: tuple[Rung, ...]
    """In the order in which they are asked."""
    remedies: tuple[Remedy, ...] = ()


def explain(room: Room, use: Use) -> Explained:
    """Return who would pay for a job now, envelope by envelope. It takes nothing."""
    found = cover(room, use)
    if not room.tree.has_budget(use.tenant):
        return Explained(found, ())
    taking = start(room, use)
    missing = taking.walk(use)
    gives: dict[tuple[int, bool], int] = {}
    for taken in taking.taken:
        key = taken.place, taken.lent
        gives[key] = gives.get(key, 0) + taken.gpus * taken.each
    taking.undo()
    wants = sum(share.amount for share in use.shares)
    rungs = tuple(_rungs(room, use, gives, wants))
    remedies = () if found.funded else tuple(_remedies(room, use, found, wants - missing))
    return Explained(found, rungs, remedies)


def _rungs(room: Room, use: Use, gives: dict[tuple[int, bool], int], wants: int) -> Iterable[Rung]:
    seen: set[tuple[int, bool]] = set()
    left = wants
    for asked in _all_asked(room, use):
        place, lent = asked.place, asked.lent
        if (place, lent) in seen:
            continue
        seen.add((place, lent))
        owned = room.owned[place]
        gave = gives.get((place, lent), 0)
        left -= gave
        unused = min([room.free[place], *(room.cap_free[cap] for cap in room.caps[place])])
        lendable = room.lendable[place] if lent else unused
        recallable = sum(
            amount
            for steps, amount in room.farther[place].items()
            if steps > asked.steps and not lent and asked.code is None
        )
        opens = owned.spec.start if (owned.spec.start or room.now) > room.now else None
        code = asked.code
        if code is None and left:
            code = _short_of(room, use, asked, gave)
        yield Rung(
            asked.rung, owned.tenant, owned.id, owned.spec.name, max(min(unused, lendable), 0),
            recallable, gave, code, opens,
        )  # fmt: skip


def _all_asked(room: Room, use: Use) -> Iterable[Asked]:
    for share in use.shares:
        yield from all_asked(room, use, share.where)


def _short_of(room: Room, use: Use, asked: Asked, gave: int) -> FundingCode:
    """Return why an open envelope gives no more, where more is wanted."""
    place, one_more = asked.place, gave + min(share.milli for share in use.shares)
    caps = [room.cap_free[cap] for cap in room.caps[place]]
    if caps and min(caps) < one_more <= room.free[place]:
        return FundingCode.CAP
    if asked.lent and min(room.free[place], room.lendable[place]) >= one_more:
        return FundingCode.BORROW_LIMIT
    return FundingCode.NO_ROOM


def _remedies(room: Room, use: Use, found: Cover, gets: int) -> Iterable[Remedy]:
    if gets >= 1000:
        yield Remedy(Helps.FEWER, gpus=gets / 1000)
    yield from _borrowing(room, use, found)
    if found.code is FundingCode.CAP:
        yield from _caps(room, use)
    if not use.preemptible and cover(room, use._replace(preemptible=True)).funded:
        yield Remedy(Helps.PREEMPTIBLE)
    yield from _openings(room, use)
    if use.terms.unfunded is WhenUnfunded.WAIT and use.preemptible:
        yield Remedy(Helps.RUN_UNFUNDED)


def _borrowing(room: Room, use: Use, found: Cover) -> Iterable[Remedy]:
    if found.code is FundingCode.BORROW_LIMIT and use.terms.max_borrow is not None:
        unlimited = cover(room, use._replace(terms=_terms(use, use.terms.sponsors)))
        if unlimited.funded:
            yield Remedy(Helps.MAX_BORROW, gpus=unlimited.borrowed / 1000)
            return
    lenders = {
        owned.tenant: None
        for place, owned in enumerate(room.owned)
        if room.open[place]
        and lends_to(owned.spec, use.tenant)
        and owned.tenant not in (use.tenant, *use.terms.sponsors)
    }
    if not lenders:
        return
    sponsors = (*use.terms.sponsors, *lenders)[:_MOST_SPONSORS]
    borrowed = cover(room, use._replace(terms=_terms(use, sponsors)))
    if borrowed.funded:
        pay = {
            room.owner[room.place[charge.envelope]] for charge in borrowed.charges if charge.lent
        }
        names = tuple(name for name in sponsors if name in pay)
        yield Remedy(Helps.SPONSORS, gpus=borrowed.borrowed / 1000, tenants=names)


def _terms(use: Use, sponsors: tuple[str, ...]) -> FundingTerms:
    return FundingTerms(allow_borrow=True, sponsors=sponsors, unfunded=use.terms.unfunded)


def _caps(room: Room, use: Use) -> Iterable[Remedy]:
    taking = start(room, use, ignore_caps=True)
    taking.walk(use)
    over = [(cap, -left) for cap, left in enumerate(room.cap_free) if left < 0]
    taking.undo()
    for cap, by in over:
        yield Remedy(Helps.CAP, gpus=by / 1000, cap=room.facts.caps[cap].id)


def _openings(room: Room, use: Use) -> Iterable[Remedy]:
    """Return when somebody would pay, if nothing else changed until then."""
    starts = {
        at
        for asked in _all_asked(room, use)
        if asked.rung != LENDER and (at := room.owned[asked.place].spec.start) is not None
    }
    charges = [paid.charge for held in room.held.values() for paid in held.values()]
    facts = room.facts._replace(uses=tuple(room.uses.values()), charges=charges)
    later = sorted(at for at in starts if at > room.now)
    for at in islice(later, _MOST_OPENINGS):
        then = Room(facts, at)
        if cover(then, use).funded:
            yield Remedy(Helps.LATER, at=at)
            return
