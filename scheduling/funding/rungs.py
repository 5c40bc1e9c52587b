"""The rungs of a job's ladder with the envelopes on each, kept for all jobs that have the same."""

from collections.abc import Iterator
from typing import Any

from longshore.models.funding import FundingCode, FundingTerms
from longshore.scheduling.funding.facts import Where
from longshore.scheduling.funding.ladder import (
    AUNT,
    GRANDPARENT,
    OWN,
    PARENT,
    RELATIVES,
    SIBLING,
    lends_to,
)
from longshore.scheduling.funding.room import Group, Room


class Rung:
    """Envelopes that are asked one after the other."""

    __slots__ = (
        "_group",
        "_places",
        "_without_above",
        "_without_owner",
        "lent",
        "selective",
        "steps",
    )

    def __init__(
        self,
        steps: int,
        places: list[int] | None = None,
        group: Group | None = None,
        lent: bool = False,
        without_owner: str | None = None,
        without_above: str | None = None,
    ) -> None:
        """`group` is shared with other tenants: what is `without_owner` or below `without_above`
        is not for this one."""
        self.steps = steps
        self.lent = lent
        self._places = places or []
        self._group = group
        self._without_owner = without_owner
        self._without_above = without_above
        self.selective = without_owner is not None or without_above is not None
        """Whether some of the envelopes are another's."""

    def live(self, room: Room) -> list[int]:
        """Return the envelopes, maybe without those that are used up."""
        group = self._group
        if group is None:
            return self._places
        group.renew(room)
        return group.live

    def skips(self, room: Room, place: int) -> bool:
        """Return whether an envelope that this lists is another's."""
        return (self._without_owner is not None and room.owner[place] == self._without_owner) or (
            self._without_above is not None and room.above[place] == self._without_above
        )

    def tidy(self, room: Room) -> None:
        """Forget envelopes that are used up, until room is given back."""
        group = self._group
        if group is not None:
            group.renew(room)
            group.tidy(room)

    def envelopes(self, room: Room) -> list[int]:
        """Return all envelopes that may be asked."""
        places = self._places if self._group is None else self._group.everything
        return [place for place in places if not self.skips(room, place)]


class Ladder:
    """The rungs of all jobs of a tenant that want such GPUs, and name these sponsors."""

    __slots__ = ("_rest", "code", "refused", "rungs")

    def __init__(self, rungs: Iterator[Rung]) -> None:
        self.rungs: list[Rung] = []
        """As far as any job has had to look; `more` has the next."""
        self._rest = rungs
        self.refused: dict[tuple[int, int, int | None], tuple[int, Any]] = {}
        """By GPUs, thousandths of each and how much may be borrowed: in what state of the room
        jobs were refused, and how."""
        self.code: FundingCode | None = None
        """`NO_ROOM`, or why there is no envelope on any rung; once that was looked for."""

    def more(self) -> bool:
        """Add the next rung; return whether there is one."""
        rung = next(self._rest, None)
        if rung is not None:
            self.rungs.append(rung)
        return rung is not None


def ladder_of(
    room: Room, tenant: str, where: Where, terms: FundingTerms, preemptible: bool
) -> Ladder:
    """Return the ladder."""
    key = tenant, where, terms.sponsors, preemptible
    found = room.ladders.get(key)
    if found is None:
        found = room.ladders[key] = Ladder(_rungs(room, tenant, where, terms, preemptible))
    return found


def _rungs(
    room: Room, tenant: str, where: Where, terms: FundingTerms, preemptible: bool
) -> Iterator[Rung]:
    yield Rung(OWN, room.of(tenant, where))
    if preemptible:
        for steps in RELATIVES:
            rung = _relatives(room, tenant, where, steps)
            if rung is not None:
                yield rung
    if terms.allow_borrow:
        for sponsor in terms.sponsors:
            places = room.of(sponsor, where) if sponsor != tenant else []
            lent = [place for place in places if lends_to(room.owned[place].spec, tenant)]
            if lent:
                yield Rung(OWN, lent, lent=True)


def _relatives(room: Room, tenant: str, where: Where, steps: int) -> Rung | None:
    tree = room.tree
    above = tree.parent(tenant)
    top = above if above is None or steps < GRANDPARENT else tree.parent(above)
    if above is None or top is None:
        return None
    if steps in (PARENT, GRANDPARENT):
        owners, without = [top], (None, None)
    elif steps == SIBLING:
        owners, without = tree.children(top), (tenant, None)
    elif steps == AUNT:
        owners, without = tree.children(top), (above, None)
    else:
        owners = [name for aunt in tree.children(top) for name in tree.children(aunt)]
        without = None, above
    group = room.group(steps, top, owners, where)
    if not group.everything:
        return None
    return Rung(steps, group=group, without_owner=without[0], without_above=without[1])
