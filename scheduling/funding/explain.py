"""Who would pay for a job, envelope by envelope, and what would help where nobody does."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from longshore.models.funding import FundingCode
from longshore.scheduling.funding.asked import Asked
from longshore.scheduling.funding.cover import ITSELF, Cover, at_best, cover, start
from longshore.scheduling.funding.facts import Use, Where
from longshore.scheduling.funding.kinds import alike, at_kind
from longshore.scheduling.funding.remedies import Helps, Remedy, every_asked, remedies
from longshore.scheduling.funding.room import Room, farther
from longshore.scheduling.funding.tried import GoOn, always

__all__ = ["Explained", "Helps", "Remedy", "Rung", "explain"]


_MOST_KINDS = 8
"""Of nodes of which each is told."""


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
    """What relatives have of it, or of the caps over it, who are farther from its owner."""
    gives: int
    code: FundingCode | None
    """Why it does not give more; None where no more is wanted."""
    opens: datetime | None = None
    """When it opens, where it will."""
    on: str = ""
    """Of which nodes it is asked, where the answer is of others; then it gives that there."""


class Explained(NamedTuple):
    """Who would pay for a job, and why no others."""

    cover: Cover
    rungs: tuple[Rung, ...]
    """In the order in which they are asked."""
    remedies: tuple[Remedy, ...] = ()


def explain(
    room: Room,
    use: Use,
    ends: Mapping[str, datetime] = MappingProxyType({}),
    ahead: Sequence[Use] = (),
    go_on: GoOn = always,
) -> Explained:
    """Return who would pay for a job now, envelope by envelope. It takes nothing. `ends` is when
    jobs that run are expected to end, as far as that is known; `ahead` are those who wait before
    it, and have had their turns in `room`. Raises what `go_on` raises, which is called before
    each try of what would help."""
    if not room.tree.has_budget(use.tenant):
        return Explained(ITSELF, ())
    asks = use
    use, found = at_best(room, use) if use.kinds else (use, cover(room, use))
    rungs = list(_rungs(room, use))
    if asks.kinds:
        rungs += _on_others(room, asks, use, {(rung.envelope, rung.rung) for rung in rungs})
    gets = sum(rung.gives for rung in rungs if not rung.on)
    helps = () if found.funded else tuple(remedies(room, use, found, gets, ends, ahead, go_on))
    return Explained(found, tuple(rungs), helps)


def _on_others(room: Room, asks: Use, best: Use, seen: set[tuple[int, str]]) -> Iterable[Rung]:
    """Yield the envelopes that are for other nodes than those of the answer, kind by kind."""
    for group in alike(room, asks)[:_MOST_KINDS]:
        if best.shares[0].where in group:
            continue
        words = _words(group[0])
        for rung in _rungs(room, at_kind(asks, group[0])):
            if (rung.envelope, rung.rung) not in seen:
                seen.add((rung.envelope, rung.rung))
                yield rung._replace(on=words)


def _words(where: Where) -> str:
    labels = "".join(f", {key}={value}" for key, value in sorted(where.labels or ()))
    return f"{where.gpu_type or 'any type'}{labels}{'' if where.there else ', to be bought'}"


def _rungs(room: Room, use: Use) -> Iterable[Rung]:
    taking = start(room, use)
    taking.walk(use)
    gives: dict[tuple[int, bool], int] = {}
    for taken in taking.taken:
        key = taken.place, taken.lent
        gives[key] = gives.get(key, 0) + taken.gpus * taken.each
    taking.undo()
    seen: set[tuple[int, bool]] = set()
    below_caps: dict[int, int] = {}
    left = sum(share.amount for share in use.shares)
    for asked in every_asked(room, use):
        place, lent = asked.place, asked.lent
        if (place, lent) in seen:
            continue
        seen.add((place, lent))
        owned = room.owned[place]
        gave = gives.get((place, lent), 0)
        left -= gave
        for cap in room.caps[place]:
            below_caps[cap] = below_caps.get(cap, 0) + gave
        unused = min([room.free[place], *(room.cap_free[cap] for cap in room.caps[place])])
        lendable = room.lendable[place] if lent else unused
        recallable = 0 if lent or asked.code else _recallable(room, use, asked) - unused
        opens = owned.spec.start if (owned.spec.start or room.now) > room.now else None
        code = asked.code
        if code is None and left:
            code = _short_of(room, use, asked, gave, below_caps)
        yield Rung(
            asked.rung, owned.tenant, owned.id, owned.spec.name, max(min(unused, lendable), 0),
            max(recallable, 0), gave, code, opens,
        )  # fmt: skip


def _recallable(room: Room, use: Use, asked: Asked) -> int:
    """Return what an envelope could give to a job, with what relatives farther away have of it,
    and of the caps over it."""
    place, steps = asked.place, asked.steps
    limits = [room.free[place] + farther(room.farther[place], steps)]
    limits += [
        room.cap_free[cap] + room.farther_below(cap, use.tenant, steps) for cap in room.caps[place]
    ]
    return min(limits)


def _short_of(
    room: Room, use: Use, asked: Asked, gave: int, below_caps: Mapping[int, int]
) -> FundingCode:
    """Return why an open envelope gives no more, where more is wanted. `below_caps` is what it
    and those asked before it have given, by cap."""
    place, each = asked.place, min(share.milli for share in use.shares)
    one_more = gave + each
    caps = [room.cap_free[cap] - below_caps[cap] for cap in room.caps[place]]
    if caps and min(caps) < each and one_more <= room.free[place]:
        return FundingCode.CAP
    if asked.lent and min(room.free[place], room.lendable[place]) >= one_more:
        return FundingCode.BORROW_LIMIT
    return FundingCode.NO_ROOM
