"""All envelopes that could have paid for a job, those too that may not."""

from collections.abc import Iterator
from typing import NamedTuple

from longshore.models.funding import FundingCode
from longshore.scheduling.funding.facts import Use, Where
from longshore.scheduling.funding.ladder import (
    OWN,
    RELATIVES,
    WORDS,
    is_for,
    lends_to,
    shares_with,
)
from longshore.scheduling.funding.room import Room

SPONSOR = "sponsor"
LENDER = "lender"
"""Who would lend, and is no sponsor of the job."""


class Asked(NamedTuple):
    """An envelope, as a job finds it."""

    place: int
    steps: int
    rung: str
    """`own`, a relative, `sponsor`, or `lender`."""
    code: FundingCode | None
    """Why it may not pay, however much room there is."""

    @property
    def lent(self) -> bool:
        """Whether it pays by contract."""
        return self.rung in (SPONSOR, LENDER)


def all_asked(room: Room, use: Use, where: Where) -> Iterator[Asked]:
    """Return the envelopes for GPUs there, in the order of the ladder."""
    seen: set[int] = set()
    for steps in (OWN, *RELATIVES):
        for place in _matching(room, room.tree.at(use.tenant, steps), where):
            seen.add(place)
            yield Asked(place, steps, WORDS[steps], _code(room, use, place, steps))
    for sponsor in use.terms.sponsors:
        for place in _matching(room, (sponsor,), where):
            lends = lends_to(room.owned[place].spec, use.tenant)
            code = FundingCode.ACL_DENIED if not lends else _closed(room, place)
            if lends or place not in seen:
                seen.add(place)
                yield Asked(place, OWN, SPONSOR, code)
    lenders = (place for place, owned in enumerate(room.owned) if owned.spec.lending)
    for place in room.in_order(place for place in lenders if place not in seen):
        spec = room.owned[place].spec
        if lends_to(spec, use.tenant) and is_for(spec, where):
            yield Asked(place, OWN, LENDER, FundingCode.BORROW_LIMIT)


def why_none(room: Room, use: Use, where: Where) -> FundingCode:
    """Return why no envelope may pay for GPUs there."""
    found = {asked.code for asked in all_asked(room, use, where)}
    codes = FundingCode.NOT_OPEN, FundingCode.BORROW_LIMIT, FundingCode.ACL_DENIED
    return next((code for code in codes if code in found), FundingCode.NO_ENVELOPE)


def _matching(room: Room, owners: Iterator[str] | tuple[str, ...], where: Where) -> list[int]:
    return room.in_order(
        place
        for owner in owners
        for place in room.places_of(owner)
        if is_for(room.owned[place].spec, where)
    )


def _code(room: Room, use: Use, place: int, steps: int) -> FundingCode | None:
    if not shares_with(room.owned[place].spec, steps):
        return FundingCode.ACL_DENIED
    if steps != OWN and not use.preemptible:
        return FundingCode.ACL_DENIED
    return _closed(room, place)


def _closed(room: Room, place: int) -> FundingCode | None:
    return None if room.open[place] else FundingCode.NOT_OPEN
