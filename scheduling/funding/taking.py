"""One job's way through its rungs.

Of a rung it takes first what nobody uses, then, where it is nearer to the owner than a relative
that has it, what that one gives back.
"""

from collections.abc import Sequence
from typing import NamedTuple

from longshore.scheduling.funding.facts import Charge, Use
from longshore.scheduling.funding.holding import Paid
from longshore.scheduling.funding.ladder import OWN
from longshore.scheduling.funding.room import Key, Room, farther, key_of
from longshore.scheduling.funding.rungs import Ladder, Rung, ladder_of


class Recall(NamedTuple):
    """GPUs of a relative that an envelope pays for no longer, since somebody nearer wants it."""

    charge: Charge
    """As it was. It ends, and one for the others of its GPUs begins with the same `since`."""
    lost: tuple[int, ...]

    @property
    def left(self) -> Charge | None:
        """The charge for the others of its GPUs."""
        lost = set(self.lost)
        gpus = tuple(gpu for gpu in self.charge.gpus if gpu not in lost)
        return self.charge._replace(gpus=gpus, id=0) if gpus else None


class Taken(NamedTuple):
    """What an envelope gives."""

    share: int
    """The place of the share that it is for."""
    place: int
    gpus: int
    each: int
    """Thousandths of each."""
    steps: int
    lent: bool


class Taking:
    """It takes as it goes; `undo` gives all of it back."""

    __slots__ = (
        "_began", "borrowed", "cap_cut", "ignore_caps", "limit", "limit_cut",
        "recalled", "room", "share", "stuck", "taken", "tenant",
    )  # fmt: skip

    def __init__(
        self, room: Room, tenant: str, limit: int | None, ignore_caps: bool = False
    ) -> None:
        """`limit` is how much it may borrow, in thousandths."""
        self.room = room
        self.tenant = tenant
        self.limit = limit
        self.ignore_caps = ignore_caps
        self.share = 0
        self.borrowed = 0
        self.cap_cut = self.limit_cut = False
        """Whether a cap, or `limit`, has left it less."""
        self.taken: list[Taken] = []
        self.recalled: list[tuple[Paid, int]] = []
        """What relatives had, and how many GPUs of it they have lost."""
        self.stuck: list[Rung] = []
        """Rungs where many envelopes were found used up."""
        self._began = room.changes

    def walk(self, use: Use) -> int:
        """Take for all shares of a job; return for how much nobody pays."""
        missing = 0
        for index, share in enumerate(use.shares):
            ladder = ladder_of(self.room, use.tenant, share.where, use.terms, use.preemptible)
            self.share = index
            missing += self.take(ladder, len(share.gpus), share.milli) * share.milli
        return missing

    def take(self, ladder: Ladder, want: int, each: int) -> int:
        """Take room for so many GPUs, as thousandths of each; return how many nobody pays for."""
        rungs, next_one = ladder.rungs, 0
        while want and (next_one < len(rungs) or ladder.more()):
            rung = rungs[next_one]
            next_one += 1
            want = self._lent(rung, want, each) if rung.lent else self._kept(rung, want, each)
        return want

    def _kept(self, rung: Rung, want: int, each: int) -> int:
        room, steps, caps_of = self.room, rung.steps, self.room.caps
        free, farthest, selective = room.free, room.farthest, rung.selective
        dead, may_recall = 0, False
        live = rung.live(room)
        for place in live:
            found = free[place]
            if farthest[place] > steps:
                may_recall = True
            elif found <= 0:
                dead += 1
                continue
            if found < each and not caps_of[place]:
                continue
            if selective and rung.skips(room, place):
                continue
            if caps_of[place]:
                may_recall = may_recall or self._recalls_below(place, steps)
                found = self._below_caps(place, found, want * each)
            count = found // each if found > 0 else 0
            if count <= 0:
                continue
            count = min(count, want)
            room.pay(place, count * each, False)
            self.taken.append(Taken(self.share, place, count, each, steps, False))
            want -= count
            if not want:
                break
        if dead > MANY:
            self.stuck.append(rung)
        if want and may_recall:
            for place in live:
                if farthest[place] > steps or self._recalls_below(place, steps):
                    if selective and rung.skips(room, place):
                        continue
                    want -= self._recall(place, steps, want, each)
                    if not want:
                        break
        return want

    def _recalls_below(self, place: int, steps: int) -> bool:
        """Return whether relatives who are farther away have any below the same caps."""
        return any(self.room.cap_farthest[cap] > steps for cap in self.room.caps[place])

    def _lent(self, rung: Rung, want: int, each: int) -> int:
        room = self.room
        for place in rung.live(room):
            found = min(room.free[place], room.lendable[place])
            if found < each:
                continue
            if room.caps[place]:
                found = self._below_caps(place, found, want * each)
            count = min(found // each, want)
            if self.limit is not None and count > (self.limit - self.borrowed) // each:
                self.limit_cut = True
                count = (self.limit - self.borrowed) // each
            if count <= 0:
                continue
            room.pay(place, count * each, True)
            self.borrowed += count * each
            self.taken.append(Taken(self.share, place, count, each, OWN, True))
            want -= count
            if not want:
                return 0
        return want

    def _below_caps(self, place: int, found: int, wanted: int) -> int:
        if self.ignore_caps:
            return found
        left = min([self.room.cap_free[cap] for cap in self.room.caps[place]])
        if left < min(found, wanted):
            self.cap_cut = True
            return left
        return found

    def _recall(self, place: int, steps: int, want: int, each: int) -> int:
        """Have relatives who are farther away give back what is wanted; return how many GPUs."""
        room = self.room
        caps = () if self.ignore_caps else room.caps[place]
        alone = room.free[place] + farther(room.farther[place], steps)
        found = alone
        for cap in caps:
            below = room.farther_below(cap, self.tenant, steps)
            found = min(found, room.cap_free[cap] + below)
        if found < min(alone, want * each):
            self.cap_cut = True
        count = min(found // each, want)
        if count <= 0:
            return 0
        amount = count * each
        if room.free[place] < amount:
            self._cut([place], steps, amount, room.free, place)
        for cap in caps:
            if room.cap_free[cap] < amount:
                self._cut(room.members[cap], steps, amount, room.cap_free, cap)
        room.pay(place, amount, False)
        self.taken.append(Taken(self.share, place, count, each, steps, False))
        return count

    def _cut(
        self, places: Sequence[int], steps: int, amount: int, free: list[int], index: int
    ) -> None:
        """Have the farthest, of those the youngest, give back until so much is free: none of the
        own tenant, which would lose as much as it gets."""
        lacks = amount - free[index]
        victims = self.room.guests(places, steps)
        cuts: list[tuple[Paid, int]] = []
        while lacks > 0:
            paid = next(victims)
            if self.room.tenants[paid.attempt] != self.tenant:
                each = paid.charge.milli
                count = min(-(-lacks // each), len(paid.charge.gpus))
                cuts.append((paid, count))
                lacks -= count * each
        for paid, count in cuts:
            self.room.shorten(paid, len(paid.charge.gpus) - count)
        self.recalled += cuts

    def undo(self) -> None:
        """Give all of it back: nothing has changed."""
        room = self.room
        for taken in reversed(self.taken):
            room.pay(taken.place, -taken.gpus * taken.each, taken.lent)
        for paid, count in reversed(self.recalled):
            charge, keeps = paid.charge, len(paid.charge.gpus) - count
            if keeps:
                room.remove(charge._replace(gpus=charge.gpus[:keeps]))
            room.add_paid(room.place[charge.envelope], paid)
        room.changes = self._began
        self.tidy()

    def charges(self, use: Use) -> list[Charge]:
        """Return as charges what was taken."""
        room, now = self.room, self.room.now
        begin, share_before = 0, -1
        found: list[Charge] = []
        for share_index, place, count, each, _, lent in self.taken:
            share = use.shares[share_index]
            if share_index != share_before:
                begin, share_before = 0, share_index
            gpus = share.gpus
            if count < len(gpus):
                gpus = gpus[begin : begin + count]
                begin += count
            found.append(
                Charge(use.job_id, use.attempt, share.rank, room.ids[place], gpus, each, lent, now)
            )
        return found

    def keep(self, use: Use) -> tuple[list[Charge], list[Recall]]:
        """Have what was taken hold as charges; return them, and what was recalled for them."""
        room = self.room
        charges = self.charges(use)
        for charge, taken in zip(charges, self.taken, strict=True):
            room.pay(taken.place, -taken.gpus * taken.each, taken.lent)
            room.add_paid(taken.place, Paid(charge, taken.steps))
        self.tidy()
        return charges, self.recalls() if self.recalled else []

    def recalls(self) -> list[Recall]:
        """Return each charge once that something was recalled of, as it was before."""
        found: dict[Key, tuple[Charge, int]] = {}
        for paid, count in self.recalled:
            key = key_of(paid.charge)
            charge, before = found.get(key, (paid.charge, 0))
            found[key] = charge, before + count
        return [
            Recall(charge, charge.gpus[len(charge.gpus) - count :])
            for charge, count in found.values()
        ]

    def tidy(self) -> None:
        """Have the next job not look at envelopes that are used up."""
        for rung in self.stuck:
            rung.tidy(self.room)
        self.stuck = []


MANY = 8
"""Envelopes that are used up, for which it pays to forget them."""
