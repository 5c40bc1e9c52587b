"""What would have somebody pay for a job for which nobody does: each has been tried."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from longshore.models.funding import Envelope, FundingCode, FundingTerms, WhenUnfunded
from longshore.models.job_request import JobRequest
from longshore.scheduling.funding.asked import LENDER, SPONSOR, Asked, all_asked
from longshore.scheduling.funding.cover import Cover, cover, start
from longshore.scheduling.funding.facts import Charge, Facts, Owned, Use
from longshore.scheduling.funding.ladder import OWN as ITSELF
from longshore.scheduling.funding.ladder import WORDS, lends_to
from longshore.scheduling.funding.room import Room, lends, milli

_MOST_OPENINGS = 5
_MOST_SPONSORS = 50
_MOST_LENDERS = 5
_MOST_ENDS = 200
OWN = WORDS[ITSELF]


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
    LENDING = "lending"
    """To have a sponsor lend so many GPUs of an envelope in all."""
    BUDGET = "budget"
    """To give an envelope of its own tenant so many GPUs in all, or a new one so many."""
    CAP = "cap"
    """A cap that is higher by so many GPUs at least."""
    PREEMPTIBLE = "preemptible"
    """To say that it may be preempted: relatives would pay."""
    ENDS = "ends"
    """To wait for jobs to end that have the room of envelopes."""
    RUN_UNFUNDED = "unfunded"
    """To run on idle GPUs, with `unfunded: run`."""


class Remedy(NamedTuple):
    """One thing that would help by itself: it has been tried."""

    what: Helps
    gpus: float | None = None
    at: datetime | None = None
    tenants: tuple[str, ...] = ()
    cap: int | None = None
    envelope: int | None = None
    """Which; None of a new one, for GPUs of `gpu_type`."""
    gpu_type: str | None = None


def for_gang(job: JobRequest, helps: Iterable[Remedy]) -> Iterable[Remedy]:
    """Return what helps a job that waits: a gang can ask for as many GPUs only as are paid for
    with the spares of its groups."""
    gang = job.gang
    for each in helps:
        if gang is None or each.what is not Helps.FEWER or each.gpus is None:
            yield each
            continue
        sizes = range(min(job.gpus - 1, int(each.gpus)), (gang.group_gpus or 1) - 1, -1)
        fits = (size for size in sizes if size + gang.spares_of(size) <= each.gpus)
        if (fewer := next(fits, None)) is not None:
            yield each._replace(gpus=fewer)


def every_asked(room: Room, use: Use) -> Iterable[Asked]:
    """Return the envelopes for the GPUs of a job, in the order in which they are asked."""
    for share in use.shares:
        yield from all_asked(room, use, share.where)


def remedies(
    room: Room, use: Use, found: Cover, gets: int, ends: Mapping[str, datetime]
) -> Iterable[Remedy]:
    """Return what would have somebody pay for a job that gets so much of what it asks for."""
    if gets >= 1000:
        yield Remedy(Helps.FEWER, gpus=gets / 1000)
    yield from _borrowing(room, use, found)
    yield from _budget(room, use, gets)
    if found.code is FundingCode.NO_ROOM:
        yield from _lending(room, use, gets)
    if found.code is FundingCode.CAP:
        yield from _caps(room, use)
    if not use.preemptible and cover(room, use._replace(preemptible=True)).funded:
        yield Remedy(Helps.PREEMPTIBLE)
    yield from _ends(room, use, ends)
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


def _lending(room: Room, use: Use, gets: int) -> Iterable[Remedy]:
    """Return which sponsor's envelope has unused GPUs that it may not lend, and how many in all it
    would have to."""
    wants = sum(share.amount for share in use.shares)
    tried: set[int] = set()
    for asked in every_asked(room, use):
        place = asked.place
        owned = room.owned[place]
        most = lends(owned) + wants - gets
        if (
            asked.rung != SPONSOR or asked.code or place in tried
            or not room.lendable[place] < room.free[place] or most > milli(owned.spec.gpus)
        ):  # fmt: skip
            continue
        if len(tried) == _MOST_LENDERS:
            return
        tried.add(place)
        assert owned.spec.lending is not None
        lending = owned.spec.lending.model_copy(update={"max": most / 1000})
        larger = owned._replace(spec=owned.spec.model_copy(update={"lending": lending}))
        if _covered_with(room, use, larger):
            yield Remedy(Helps.LENDING, gpus=most / 1000, envelope=owned.id)
            return


def _covered_with(room: Room, use: Use, envelope: Owned) -> bool:
    """Return whether somebody would pay if an envelope were so."""
    facts = _now(room)
    envelopes = {**facts.envelopes, envelope.id: envelope}
    return cover(Room(facts._replace(envelopes=envelopes), room.now), use).funded


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
        for asked in every_asked(room, use)
        if asked.rung != LENDER and (at := room.owned[asked.place].spec.start) is not None
    }
    facts = _now(room)
    later = sorted(at for at in starts if at > room.now)
    for at in islice(later, _MOST_OPENINGS):
        then = Room(facts, at)
        if cover(then, use).funded:
            yield Remedy(Helps.LATER, at=at)
            return


def _now(room: Room) -> Facts:
    """Return the facts as they are at the job's turn."""
    charges = [paid.charge for held in room.held.values() for paid in held.values()]
    return room.facts._replace(uses=tuple(room.uses.values()), charges=charges)


def _budget(room: Room, use: Use, gets: int) -> Iterable[Remedy]:
    """Return how large an envelope of its own tenant would have to be."""
    wants = sum(share.amount for share in use.shares)
    own = next((one for one in every_asked(room, use) if one.rung == OWN and not one.code), None)
    gpu_type = use.shares[0].where.gpu_type
    new = Owned(
        max(room.ids, default=0) + 1, use.tenant,
        Envelope(name="new", gpus=0, gpu_type=gpu_type, end=None),
    )  # fmt: skip
    owned = room.owned[own.place] if own is not None else new
    for more in dict.fromkeys((wants - gets, wants)):
        gpus = owned.spec.gpus + more / 1000
        larger = owned._replace(spec=owned.spec.model_copy(update={"gpus": gpus}))
        if _covered_with(room, use, larger):
            if owned is new:
                yield Remedy(Helps.BUDGET, gpus, tenants=(use.tenant,), gpu_type=gpu_type)
            else:
                yield Remedy(Helps.BUDGET, gpus, envelope=owned.id)
            return


def _ends(room: Room, use: Use, ends: Mapping[str, datetime]) -> Iterable[Remedy]:
    """Return when somebody would pay, if jobs ended as expected and nothing else changed."""
    then = Room(_now(room), room.now)
    back: dict[datetime, list[Charge]] = {}
    for place in {one.place for one in every_asked(then, use) if one.code is None}:
        for paid in then.on[place].values():
            end = ends.get(paid.charge.job_id)
            if end is not None:
                back.setdefault(max(end, room.now), []).append(paid.charge)
    for end in sorted(back)[:_MOST_ENDS]:
        for charge in back[end]:
            then.remove(charge)
        if cover(then, use).funded:
            yield Remedy(Helps.ENDS, at=end)
            return
