"""Who would pay for a job: all of its GPUs, or none.

A job looks at envelopes rung by rung (`ladder`): at what nobody uses first, then, where it is
nearer to the owner than a relative that has it, at what that one gives back.
"""

from collections.abc import Sequence
from typing import NamedTuple

from longshore.models.funding import FundingCode
from longshore.scheduling.funding.facts import Charge, Use
from longshore.scheduling.funding.holding import age
from longshore.scheduling.funding.ladder import COUSIN, OWN
from longshore.scheduling.funding.room import Attempt, Paid, Room, key_of
from longshore.scheduling.funding.rungs import Ladder, Rung, ladder_of


class Recall(NamedTuple):
    """GPUs of a relative that an envelope pays for no longer, since somebody nearer wants it."""

    charge: Charge
    """As it was. It ends."""
    lost: tuple[int, ...]

    @property
    def left(self) -> Charge | None:
        """The charge for the others of its GPUs, that begins in its place."""
        lost = set(self.lost)
        gpus = tuple(gpu for gpu in self.charge.gpus if gpu not in lost)
        return self.charge._replace(gpus=gpus, id=0) if gpus else None


class Cover(NamedTuple):
    """Who pays for a job, or why nobody does."""

    funded: bool
    charges: tuple[Charge, ...] = ()
    """To open. None for a tenant without a budget, which pays for itself."""
    recalls: tuple[Recall, ...] = ()
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
        """How much is a sponsor's, in thousandths."""
        return sum(charge.amount for charge in self.charges if charge.lent)


class Taken(NamedTuple):
    """What an envelope gives."""

    share: int
    place: int
    gpus: int
    each: int
    steps: int
    lent: bool


ITSELF = Cover(True)
"""For a tenant without a budget."""


class Taking:
    """One job's way through its rungs. It takes as it goes; `undo` gives all of it back."""

    __slots__ = (
        "attempt",
        "borrowed",
        "cap_cut",
        "ignore_caps",
        "limit",
        "limit_cut",
        "recalled",
        "room",
        "share",
        "taken",
    )  # fmt: skip

    def __init__(
        self, room: Room, attempt: Attempt, limit: int | None, ignore_caps: bool = False
    ) -> None:
        """`limit` is how much it may borrow."""
        self.room = room
        self.attempt = attempt
        self.limit = limit
        self.ignore_caps = ignore_caps
        self.share = 0
        self.borrowed = 0
        self.cap_cut = self.limit_cut = False
        """Whether a cap, or `limit`, has left it less."""
        self.taken: list[Taken] = []
        self.recalled: list[tuple[Paid, int]] = []
        """What relatives had, and how many GPUs of it they have lost."""

    def take(self, ladder: Ladder, want: int, each: int) -> int:
        """Take room for so many GPUs, as thousandths of each; return how many nobody pays for."""
        for rung in ladder.rungs:
            if want:
                want = self._lent(rung, want, each) if rung.lent else self._kept(rung, want, each)
        return want

    def _kept(self, rung: Rung, want: int, each: int) -> int:
        room, steps = self.room, rung.steps
        free, caps, farther = room.free, room.caps, room.farther
        dead, may_recall = 0, False
        live = rung.live(room)
        for place in live:
            found = free[place]
            if farther[place] and steps < COUSIN:
                may_recall = True
            elif found <= 0:
                dead += 1
                continue
            if found < each or rung.skips(room, place):
                continue
            if caps[place]:
                found = self._below_caps(place, found, want * each)
            count = min(found // each, want)
            if count <= 0:
                continue
            room.pay(place, count * each, False)
            self.taken.append(Taken(self.share, place, count, each, steps, False))
            want -= count
            if not want:
                return 0
        rung.note(dead)
        if may_recall:
            for place in live:
                if farther[place] and not rung.skips(room, place):
                    want -= self._recall(place, steps, want, each)
                    if not want:
                        return 0
        return want

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
        left = min(self.room.cap_free[cap] for cap in self.room.caps[place])
        if left < min(found, wanted):
            self.cap_cut = True
            return left
        return found

    def _recall(self, place: int, steps: int, want: int, each: int) -> int:
        """Have relatives who are farther away give back what is wanted; return how many GPUs."""
        room = self.room
        caps = () if self.ignore_caps else room.caps[place]
        alone = room.free[place] + self._farther(room.farther[place], [place], steps)
        found = alone
        for cap in caps:
            below = self._farther(room.cap_farther[cap], room.members[cap], steps)
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

    def _farther(self, counts: dict[int, int], places: Sequence[int], steps: int) -> int:
        found = sum(amount for at, amount in counts.items() if at > steps)
        own = self.room.held.get(self.attempt)
        if found and own:
            here = {self.room.ids[place] for place in places}
            found -= sum(
                paid.charge.amount
                for paid in own.values()
                if paid.steps > steps and paid.charge.envelope in here
            )
        return found

    def _cut(
        self, places: Sequence[int], steps: int, amount: int, free: list[int], index: int
    ) -> None:
        """Have the farthest, of those the youngest, give back until so much is free."""
        room = self.room
        victims = [
            paid
            for place in places
            for paid in room.shared[place].values()
            if paid.steps > steps and (paid.charge.job_id, paid.charge.attempt) != self.attempt
        ]
        victims.sort(key=lambda paid: (paid.steps, age(paid.charge)))
        while free[index] < amount:
            paid = victims.pop()
            charge = paid.charge
            count = min(-((free[index] - amount) // charge.milli), len(charge.gpus))
            room.remove(charge)
            if count < len(charge.gpus):
                left = charge._replace(gpus=charge.gpus[:-count])
                room.add_paid(room.place[charge.envelope], Paid(left, paid.steps))
            self.recalled.append((paid, count))

    def undo(self) -> None:
        """Give all of it back."""
        room = self.room
        for taken in reversed(self.taken):
            room.pay(taken.place, -taken.gpus * taken.each, taken.lent)
        for paid, count in reversed(self.recalled):
            charge = paid.charge
            if count < len(charge.gpus):
                room.remove(charge._replace(gpus=charge.gpus[:-count]))
            room.add_paid(room.place[charge.envelope], paid)

    def keep(self, use: Use) -> tuple[list[Charge], list[Recall]]:
        """Write what was taken down as charges; return them, and what was recalled for them."""
        room, now = self.room, self.room.now
        next_gpu = [0] * len(use.shares)
        charges: list[Charge] = []
        for share_index, place, count, each, steps, lent in self.taken:
            room.pay(place, -count * each, lent)
            share, begin = use.shares[share_index], next_gpu[share_index]
            next_gpu[share_index] = begin + count
            charge = Charge(
                use.job_id, use.attempt, share.rank, room.ids[place],
                share.gpus[begin : begin + count], each, lent, now,
            )  # fmt: skip
            room.add_paid(place, Paid(charge, steps))
            charges.append(charge)
        return charges, self._recalls()

    def _recalls(self) -> list[Recall]:
        """Return each charge once that something was recalled of, as it was before."""
        found: dict[tuple[str, int, int, int], tuple[Charge, int]] = {}
        for paid, count in self.recalled:
            key = key_of(paid.charge)
            charge, before = found.get(key, (paid.charge, 0))
            found[key] = charge, before + count
        return [
            Recall(charge, charge.gpus[len(charge.gpus) - count :])
            for charge, count in found.values()
        ]


def cover(room: Room, use: Use) -> Cover:
    """Return who would pay for a job now. It takes nothing (`take`)."""
    if not room.tree.has_budget(use.tenant):
        return ITSELF
    taking = _taking(room, use)
    missing = _walk(taking, use)
    if missing:
        taking.undo()
        return _refusal(room, use, taking, missing)
    charges, recalls = taking.keep(use)
    for charge in charges:
        room.remove(charge)
    taking.taken = []
    taking.undo()
    return Cover(True, tuple(charges), tuple(recalls))


def take(room: Room, use: Use, found: Cover) -> None:
    """Have a cover hold: the room that it takes is gone, and so are the charges it recalls."""
    room.uses[use.job_id, use.attempt] = use
    for recall in found.recalls:
        room.remove(recall.charge)
        if recall.left is not None:
            room.add(recall.left._replace(id=recall.charge.id))
    for charge in found.charges:
        room.add(charge)


def fund(room: Room, queue: Sequence[Use]) -> dict[str, Cover]:
    """Return who would pay for each job of a queue, by job.

    Each takes its room at its turn, whether it then is placed or not.
    """
    covers: dict[str, Cover] = {}
    for use in queue:
        if not room.tree.has_budget(use.tenant):
            covers[use.job_id] = ITSELF
            continue
        covers[use.job_id] = settle(room, use)
    return covers


def settle(room: Room, use: Use) -> Cover:
    """Return who pays for a job now, and have it hold."""
    taking = _taking(room, use)
    missing = _walk(taking, use)
    if missing:
        taking.undo()
        return _refusal(room, use, taking, missing)
    room.uses[use.job_id, use.attempt] = use
    charges, recalls = taking.keep(use)
    return Cover(True, tuple(charges), tuple(recalls))


def _taking(room: Room, use: Use, ignore_caps: bool = False, unlimited: bool = False) -> Taking:
    limit = use.terms.max_borrow
    attempt = use.job_id, use.attempt
    if limit is None or unlimited:
        return Taking(room, attempt, None, ignore_caps)
    held = room.held.get(attempt, {}).values()
    borrowed = sum(paid.charge.amount for paid in held if paid.charge.lent)
    return Taking(room, attempt, max(limit * 1000 - borrowed, 0), ignore_caps)


def _walk(taking: Taking, use: Use) -> int:
    """Take for all shares; return for how much nobody pays."""
    room, missing = taking.room, 0
    for index, share in enumerate(use.shares):
        ladder = ladder_of(room, use.tenant, share.where, use.terms, use.preemptible)
        taking.share = index
        missing += taking.take(ladder, len(share.gpus), share.milli) * share.milli
    return missing


def _refusal(room: Room, use: Use, taking: Taking, missing: int) -> Cover:
    return Cover(False, code=_why(room, use, taking), missing=missing)


def _why(room: Room, use: Use, taking: Taking) -> FundingCode:
    if taking.limit_cut and _would_do(room, use, unlimited=True):
        return FundingCode.BORROW_LIMIT
    if taking.cap_cut and _would_do(room, use, ignore_caps=True):
        return FundingCode.CAP
    return FundingCode.NO_ROOM


def _would_do(room: Room, use: Use, ignore_caps: bool = False, unlimited: bool = False) -> bool:
    taking = _taking(room, use, ignore_caps, unlimited)
    missing = _walk(taking, use)
    taking.undo()
    return not missing
