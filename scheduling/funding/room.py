"""The room that envelopes and caps have left, and who has the rest.

It changes as charges come and go, and counts in thousandths of a GPU. Envelopes and caps are told
by their place in lists: what is asked for each job that waits has to be fast.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge
from typing import Any

from longshore.scheduling.funding.facts import Charge, Facts, Owned, Use, Where
from longshore.scheduling.funding.holding import Attempt, Paid, Validity, age, holding
from longshore.scheduling.funding.ladder import (
    OWN,
    RELATIVES,
    Tree,
    is_for,
    is_open,
    most_specific_first,
    shares_with,
)

Key = tuple[str, int, int, int]
_Guest = tuple[int, datetime, str, int, int, tuple[int, ...]]
"""How many steps away a relative is, and the age of its charge."""


class Group:
    """Envelopes that are asked one after the other, without those that are used up."""

    __slots__ = ("dead", "everything", "live", "seen", "steps")

    def __init__(self, everything: list[int], steps: int, seen: int) -> None:
        self.everything = everything
        self.steps = steps
        self.live = everything
        self.dead: set[int] = set()
        """Those that are used up."""
        self.seen = seen
        """How often room had been given back when `live` was made."""

    def renew(self, room: "Room") -> None:
        """Have those again of which some has been given back."""
        if self.seen < len(room.given_back):
            if self.dead:
                again = self.dead.intersection(room.given_back[self.seen :])
                if again:
                    self.live = room.in_order([*self.live, *again])
                    self.dead -= again
            self.seen = len(room.given_back)

    def tidy(self, room: "Room") -> None:
        """Leave out those that are used up."""
        free, farthest, steps = room.free, room.farthest, self.steps
        live = [place for place in self.live if free[place] > 0 or farthest[place] > steps]
        if len(live) < len(self.live):
            self.dead.update(place for place in self.live if free[place] <= 0)
            self.dead.difference_update(live)
            self.live = live


class Room:
    """What is left, from charges that hold."""

    def __init__(self, facts: Facts, now: datetime, held: Iterable[Paid] | None = None) -> None:
        """`held` are the charges that hold; worked out here when left out."""
        self.now = now
        self.tree = Tree(facts.tenants)
        self.valid = Validity(self.tree)
        self.uses: dict[Attempt, Use] = {(use.job_id, use.attempt): use for use in facts.uses}
        self.facts = facts
        self.ids = sorted(facts.envelopes)
        self.place = {id: place for place, id in enumerate(self.ids)}
        self.owned = [facts.envelopes[id] for id in self.ids]
        self.open = [is_open(owned.spec, now) for owned in self.owned]
        self.owner = [owned.tenant for owned in self.owned]
        self.above = [self.tree.parent(owner) for owner in self.owner]
        self.free = [milli(owned.spec.gpus) for owned in self.owned]
        self.lendable = [lends(owned) for owned in self.owned]
        self.members = [
            sorted(self.place[id] for id in cap.envelopes if id in self.place)
            for cap in facts.caps
        ]
        """By cap: its envelopes."""
        self.cap_free = [milli(cap.spec.gpus) for cap in facts.caps]
        self.caps: list[tuple[int, ...]] = [()] * len(self.ids)
        for cap, members in enumerate(self.members):
            for place in members:
                self.caps[place] = (*self.caps[place], cap)
        self.farther: list[dict[int, int]] = [{} for _ in self.ids]
        """By envelope: how much relatives have of it, by their steps."""
        self.cap_farther: list[dict[int, int]] = [{} for _ in facts.caps]
        self.cap_guests: list[dict[tuple[str, int], int]] = [{} for _ in facts.caps]
        """By cap: the same by tenant, too."""
        self.tenants: dict[Attempt, str] = {}
        """Of whom attempts are that relatives pay for."""
        self.farthest = [OWN] * len(self.ids)
        """By envelope: how many steps away those are of them that are farthest."""
        self.cap_farthest = [OWN] * len(facts.caps)
        self.on: list[dict[Key, Paid]] = [{} for _ in self.ids]
        """By envelope: what it pays for."""
        self.held: dict[Attempt, dict[Key, Paid]] = {}
        self._guests: dict[int, list[_Guest]] = {}
        """By envelope from which relatives had to give back: what all of them have, the nearest
        and oldest first. A long queue asks for the last ones again and again."""
        self.given_back: list[int] = []
        """The envelopes that have come to have more room than before, one after the other."""
        self.changes = 0
        """How often any has changed."""
        self.ladders: dict[object, Any] = {}
        """What `cover` keeps from one job to the next."""
        self._of: dict[tuple[str, Where], list[int]] = {}
        self._groups: dict[tuple[int, str, Where], Group] = {}
        self._by_owner: dict[str, list[int]] = {}
        self.turns: list[int] = []
        """By envelope: where it comes when all are in order."""
        self._put_in_order()
        for paid in holding(facts, now).kept if held is None else held:
            self.add_paid(self.place[paid.charge.envelope], paid)

    # --- charges

    def add(self, charge: Charge) -> None:
        """Have an envelope pay."""
        place = self.place[charge.envelope]
        use = self.uses.get((charge.job_id, charge.attempt))
        steps = self.valid.steps(charge, use, self.owner[place])
        self.add_paid(place, Paid(charge, steps))

    def add_paid(self, place: int, paid: Paid) -> None:
        """Have an envelope pay for a tenant that is so many steps away."""
        charge, steps = paid
        job_id, number, rank, _, gpus, each, lent, _, _ = charge  # at once: each job comes by here
        amount = len(gpus) * each
        self.changes += 1
        self.pay(place, amount, lent)
        key, attempt = (job_id, number, rank, gpus[0]), (job_id, number)
        held = self.held.get(attempt)
        if held is None:
            self.held[attempt] = {key: paid}
        else:
            held[key] = paid
        self.on[place][key] = paid
        if steps:
            if attempt in self.uses:
                self.tenants[attempt] = self.uses[attempt].tenant
            self._count(place, paid, amount)
            if place in self._guests:
                insort(self._guests[place], _guest(paid))

    def remove(self, charge: Charge) -> None:
        """Have an envelope pay no longer."""
        key, place = key_of(charge), self.place[charge.envelope]
        attempt = charge.job_id, charge.attempt
        held = self.held[attempt]
        paid = held.pop(key)
        if not held:
            del self.held[attempt]
        del self.on[place][key]
        self.pay(place, -paid.charge.amount, charge.lent)
        if paid.steps:
            self._count(place, paid, -paid.charge.amount)
            if (guests := self._guests.get(place)) is not None:
                del guests[bisect_left(guests, _guest(paid))]
        self.given_back.append(place)
        self.changes += 1

    def holds(self, charge: Charge) -> bool:
        """Return whether an envelope pays, as this charge says."""
        paid = self.held.get((charge.job_id, charge.attempt), {}).get(key_of(charge))
        return paid is not None and paid.charge == charge

    def shorten(self, paid: Paid, keeps: int) -> None:
        """Have an envelope pay for the first GPUs of a charge only."""
        charge = paid.charge
        self.remove(charge)
        if keeps:
            left = Paid(charge._replace(gpus=charge.gpus[:keeps]), paid.steps)
            self.add_paid(self.place[charge.envelope], left)

    def rename(self, charge: Charge, new: Charge) -> None:
        """Have a charge be another for the same GPUs."""
        key, place = key_of(charge), self.place[charge.envelope]
        held = self.held[charge.job_id, charge.attempt]
        held[key] = self.on[place][key] = held[key]._replace(charge=new)

    def pay(self, place: int, amount: int, lent: bool) -> None:
        """Take room from an envelope and from the caps over it; give it back where negative."""
        self.free[place] -= amount
        if lent:
            self.lendable[place] -= amount
        for cap in self.caps[place]:
            self.cap_free[cap] -= amount

    def _count(self, place: int, paid: Paid, amount: int) -> None:
        steps = paid.steps
        self.farthest[place] = _add(self.farther[place], steps, amount)
        for cap in self.caps[place]:
            self.cap_farthest[cap] = _add(self.cap_farther[cap], steps, amount)
            guests, key = self.cap_guests[cap], (self.tenants[paid.attempt], steps)
            guests[key] = guests.get(key, 0) + amount

    def farther_below(self, cap: int, tenant: str, steps: int) -> int:
        """Return how much others than a tenant have below a cap who are more steps away from its
        envelopes: what it has itself there would be lost to itself, for nothing."""
        guests = self.cap_guests[cap]
        found = farther(self.cap_farther[cap], steps)
        return found - sum(guests.get((tenant, at), 0) for at in RELATIVES if at > steps)

    def guests(self, places: Iterable[int], steps: int) -> Iterator[Paid]:
        """Yield what relatives have who are more steps away: the farthest first, of those the
        youngest. Nothing may change meanwhile."""
        each = [self._last_guests(place) for place in places if self.farthest[place] > steps]
        for guest, place in merge(*each, reverse=True):
            if guest[0] <= steps:
                return
            _, _, job_id, attempt, rank, gpus = guest
            yield self.on[place][job_id, attempt, rank, gpus[0]]

    def _last_guests(self, place: int) -> Iterator[tuple[_Guest, int]]:
        guests = self._guests.get(place)
        if guests is None:
            found = (_guest(paid) for paid in self.on[place].values() if paid.steps)
            guests = self._guests[place] = sorted(found)
        return ((guest, place) for guest in reversed(guests))

    # --- envelopes

    def change(self, owned: Owned) -> None:
        """Have an envelope be another than it was. It has the same tenant and caps."""
        place = self.place[owned.id]
        before = self.owned[place]
        self.free[place] += milli(owned.spec.gpus) - milli(before.spec.gpus)
        self.lendable[place] += lends(owned) - lends(before)
        self.owned[place] = owned
        self.open[place] = is_open(owned.spec, self.now)
        self.forget()

    def forget(self) -> None:
        """Forget which envelopes are asked by whom: one has changed."""
        self.ladders, self._of, self._groups = {}, {}, {}
        self._put_in_order()
        self.valid.forget()
        self.changes += 1

    def of(self, owner: str, where: Where) -> list[int]:
        """Return the open envelopes of a tenant for GPUs there, the most specific first."""
        found = self._of.get((owner, where))
        if found is None:
            found = self._of[owner, where] = [
                place
                for place in self._by_owner.get(owner, ())
                if self.open[place] and is_for(self.owned[place].spec, where)
            ]
        return found

    def places_of(self, owner: str) -> Sequence[int]:
        """Return all envelopes of a tenant in order, those too that are not open."""
        return self._by_owner.get(owner, ())

    def in_order(self, places: Iterable[int]) -> list[int]:
        """Return envelopes, the most specific first."""
        return sorted(places, key=self.turns.__getitem__)

    def _put_in_order(self) -> None:
        order = sorted(range(len(self.owned)), key=lambda at: most_specific_first(self.owned[at]))
        self.turns, self._by_owner = [0] * len(order), {}
        for turn, place in enumerate(order):
            self.turns[place] = turn
            self._by_owner.setdefault(self.owner[place], []).append(place)

    def group(self, steps: int, anchor: str, owners: Iterable[str], where: Where) -> Group:
        """Return the envelopes that tenants below or at `anchor` share, at so many steps."""
        key = steps, anchor, where
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(
                self.in_order(
                    place
                    for owner in owners
                    for place in self.of(owner, where)
                    if shares_with(self.owned[place].spec, steps)
                ),
                steps,
                len(self.given_back),
            )
        return group


def farther(amounts: Mapping[int, int], steps: int) -> int:
    """Return how much those have who are more steps away."""
    return sum([amount for away, amount in amounts.items() if away > steps])


def milli(gpus: float) -> int:
    """Return a number of GPUs in thousandths."""
    return round(gpus * 1000)


def lends(owned: Owned) -> int:
    """Return how much of an envelope may be lent, in thousandths."""
    return milli(owned.spec.lending.max) if owned.spec.lending else 0


def key_of(charge: Charge) -> Key:
    """Return what tells a charge from others that are open: no GPU is paid for twice."""
    return charge.job_id, charge.attempt, charge.rank, charge.gpus[0]


def _guest(paid: Paid) -> _Guest:
    return paid.steps, *age(paid.charge)


def _add(counts: dict[int, int], steps: int, amount: int) -> int:
    """Add to what relatives have; return how many steps away the farthest of them are."""
    left = counts.get(steps, 0) + amount
    if left:
        counts[steps] = left
    else:
        del counts[steps]
    return max(counts, default=OWN)
