"""The room that envelopes and caps have left, and who has the rest.

It changes as charges come and go, and counts in thousandths of a GPU. Envelopes and caps are told
by their place in lists: what is asked for each job that waits has to be fast.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from longshore.models.funding import GPUs
from longshore.scheduling.funding.facts import Charge, Facts, Use, Where
from longshore.scheduling.funding.holding import holding
from longshore.scheduling.funding.ladder import (
    OWN,
    Tree,
    is_for,
    is_open,
    most_specific_first,
    shares_with,
)

Attempt = tuple[str, int]
"""The id of a job, and the number of its attempt."""
_Key = tuple[str, int, int, int]


class Paid(NamedTuple):
    """A charge, and how far from the envelope's owner the tenant is that it is for."""

    charge: Charge
    steps: int
    """`OWN` also where it is lent, or for a tenant that nothing is known of: nobody recalls it."""


class Group:
    """Envelopes that are asked one after the other, without those that are used up."""

    __slots__ = ("dead", "everything", "live", "seen")

    def __init__(self, everything: list[int]) -> None:
        self.everything = everything
        self.live = everything
        self.seen = 0
        """How often room had been given back when `live` was made."""
        self.dead = 0
        """How many of `live` were found used up."""

    def renew(self, given_back: int) -> None:
        """Have everything again where room has been given back."""
        if self.seen != given_back:
            self.live, self.seen, self.dead = self.everything, given_back, 0


def milli(gpus: GPUs) -> int:
    """Return a number of GPUs in thousandths."""
    return round(gpus * 1000)


class Room:
    """What is left, from charges that hold."""

    def __init__(
        self, facts: Facts, now: datetime, charges: Iterable[Charge] | None = None
    ) -> None:
        """`charges` are those that hold; worked out here when left out."""
        self.facts = facts
        self.now = now
        self.tree = Tree(facts.tenants)
        self.uses: dict[Attempt, Use] = {(use.job_id, use.attempt): use for use in facts.uses}
        self.ids = sorted(facts.envelopes)
        self.place = {id: place for place, id in enumerate(self.ids)}
        self.owned = [facts.envelopes[id] for id in self.ids]
        self.owner = [owned.tenant for owned in self.owned]
        self.above = [self.tree.parent(owner) for owner in self.owner]
        self.open = [is_open(owned.spec, now) for owned in self.owned]
        self.free = [milli(owned.spec.gpus) for owned in self.owned]
        self.lendable = [
            milli(owned.spec.lending.max) if owned.spec.lending else 0 for owned in self.owned
        ]
        self.members = [
            sorted(self.place[id] for id in cap.envelopes if id in self.place)
            for cap in facts.caps
        ]
        self.cap_free = [milli(cap.spec.gpus) for cap in facts.caps]
        caps: dict[int, list[int]] = {}
        for cap, members in enumerate(self.members):
            for envelope in members:
                caps.setdefault(envelope, []).append(cap)
        self.caps = [tuple(caps.get(place, ())) for place in range(len(self.ids))]
        self.farther: list[dict[int, int]] = [{} for _ in self.ids]
        """By envelope: how much relatives have of it, by their steps."""
        self.cap_farther: list[dict[int, int]] = [{} for _ in facts.caps]
        self.shared: list[dict[_Key, Paid]] = [{} for _ in self.ids]
        """By envelope: what relatives have of it."""
        self.held: dict[Attempt, dict[_Key, Paid]] = {}
        self.given_back = 0
        """How often there has come to be more room than before."""
        self._of: dict[tuple[str, Where], list[int]] = {}
        self._groups: dict[tuple[int, str, Where], Group] = {}
        self._by_owner: dict[str, list[int]] = {}
        for place, owner in enumerate(self.owner):
            self._by_owner.setdefault(owner, []).append(place)
        self.changes = 0
        """How often any has changed."""
        self.ladders: dict[object, Any] = {}
        """What `cover` keeps from one job to the next."""
        for charge in holding(facts, now).kept if charges is None else charges:
            self.add(charge)

    # --- charges

    def add(self, charge: Charge) -> None:
        """Have an envelope pay."""
        attempt = charge.job_id, charge.attempt
        use = self.uses.get(attempt)
        steps = OWN
        place = self.place[charge.envelope]
        if use is not None and not charge.lent and use.tenant != self.owner[place]:
            steps = self.tree.steps(use.tenant, self.owner[place]) or OWN
        self.add_paid(place, Paid(charge, steps))

    def add_paid(self, place: int, paid: Paid) -> None:
        """Have an envelope pay for a tenant that is so many steps away."""
        charge, steps = paid
        self.changes += 1
        self.pay(place, charge.amount, charge.lent)
        key = key_of(charge)
        attempt = charge.job_id, charge.attempt
        held = self.held.get(attempt)
        if held is None:
            held = self.held[attempt] = {}
        held[key] = paid
        if steps:
            self.shared[place][key] = paid
            self._count(place, steps, charge.amount)

    def remove(self, charge: Charge) -> None:
        """Have an envelope pay no longer."""
        attempt, key = (charge.job_id, charge.attempt), key_of(charge)
        held = self.held[attempt]
        paid = held.pop(key)
        if not held:
            del self.held[attempt]
        place = self.place[charge.envelope]
        self.pay(place, -paid.charge.amount, charge.lent)
        if paid.steps:
            del self.shared[place][key]
            self._count(place, paid.steps, -paid.charge.amount)
        self.given_back += 1
        self.changes += 1

    def pay(self, place: int, amount: int, lent: bool) -> None:
        """Take room from an envelope and from the caps over it; give it back where negative."""
        self.free[place] -= amount
        if lent:
            self.lendable[place] -= amount
        for cap in self.caps[place]:
            self.cap_free[cap] -= amount

    def _count(self, place: int, steps: int, amount: int) -> None:
        for counts in (self.farther[place], *(self.cap_farther[cap] for cap in self.caps[place])):
            left = counts.get(steps, 0) + amount
            if left:
                counts[steps] = left
            else:
                del counts[steps]

    # --- envelopes

    def of(self, owner: str, where: Where) -> list[int]:
        """Return the open envelopes of a tenant for GPUs there, the most specific first."""
        found = self._of.get((owner, where))
        if found is None:
            found = [
                place
                for place in self._by_owner.get(owner, ())
                if self.open[place] and is_for(self.owned[place].spec, where)
            ]
            found.sort(key=lambda place: most_specific_first(self.owned[place]))
            self._of[owner, where] = found
        return found

    def places_of(self, owner: str) -> Sequence[int]:
        """Return all envelopes of a tenant, those too that are not open."""
        return self._by_owner.get(owner, ())

    def group(self, steps: int, anchor: str, owners: Iterable[str], where: Where) -> Group:
        """Return the envelopes that tenants below or at `anchor` share, at so many steps."""
        key = steps, anchor, where
        group = self._groups.get(key)
        if group is None:
            found = [
                place
                for owner in owners
                for place in self.of(owner, where)
                if shares_with(self.owned[place].spec, steps)
            ]
            found.sort(key=lambda place: most_specific_first(self.owned[place]))
            group = self._groups[key] = Group(found)
        return group


def key_of(charge: Charge) -> _Key:
    """Return what tells a charge from others that are open: no GPU is paid for twice."""
    return charge.job_id, charge.attempt, charge.rank, charge.gpus[0]
