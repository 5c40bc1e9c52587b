"""Who pays for what runs, kept from one change to the next.

`evaluate` works it out at once, from facts. Here a change costs what it concerns.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from longshore.models.funding import Foreseen, FundingCode
from longshore.scheduling.funding.cover import Cover, settle, settle_as, surplus
from longshore.scheduling.funding.facts import Charge, Facts, Owned, Use
from longshore.scheduling.funding.holding import (
    Attempt,
    Ended,
    Limit,
    Paid,
    age,
    holding,
    too_much,
)
from longshore.scheduling.funding.ladder import is_open, lends_to, shares_with
from longshore.scheduling.funding.room import Room, key_of, milli
from longshore.scheduling.funding.split import Split, split_of

_Turn = tuple[datetime, str, int]


class Funded(NamedTuple):
    """Who pays for what runs, and what has to change for that."""

    ended: tuple[Ended, ...]
    """Charges to close."""
    opened: tuple[Charge, ...]
    """Charges to open: also for those GPUs of one in `ended` that its envelope goes on to pay
    for, with its `since`."""
    splits: Mapping[Attempt, Split]
    """Of all that runs; of those that it concerns, where it is told of a change."""


class KeptFunding:
    """Who pays for what runs, while that changes."""

    def __init__(
        self,
        facts: Facts,
        now: datetime,
        foreseen: Mapping[str, Sequence[Foreseen]] = MappingProxyType({}),
    ) -> None:
        """`foreseen` is what pays for jobs that begin, as far as that holds."""
        self._foreseen = foreseen
        found = holding(facts, now)
        self.room = Room(facts, now, found.kept)
        self._told: dict[Attempt, list[Charge]] = {}
        """What was open when changes were told last, of all who have had another change since."""
        self._why: dict[tuple[Attempt, int, int], tuple[FundingCode, str | None]] = {}
        """By GPU: why it was lost."""
        self._uncovered: dict[str, dict[Attempt, int]] = {}
        """By tenant: who has GPUs that nobody pays for, and how many at least have to be freed of
        what it may ask before somebody does; 0 where that is not known."""
        self._times: list[tuple[datetime, int]] = []
        """When envelopes begin and end."""
        concerned = {(one.charge.job_id, one.charge.attempt) for one in found.ended}
        if concerned:
            for charge in facts.charges:
                if (attempt := (charge.job_id, charge.attempt)) in concerned:
                    self._told.setdefault(attempt, []).append(charge)
        for one in found.ended:
            self._lost(one.charge, one.lost, one.code, None)
        for place in range(len(self.room.owned)):
            self._watch(place)
        wanting = [use for use in facts.uses if self._wants(use)]
        self._settle(wanting)

    # --- what changes

    def advance(self, now: datetime) -> None:
        """Have it be later."""
        room = self.room
        room.now = now
        flips: dict[int, bool] = {}
        while self._times and self._times[0][0] <= now:
            place = heapq.heappop(self._times)[1]
            opens = is_open(room.owned[place].spec, now)
            if opens != room.open[place]:
                flips[place] = opens
        if not flips:
            return
        for place, opens in flips.items():
            room.open[place] = opens
        room.forget()
        self._recheck(flips)

    def start(self, use: Use, charges: Sequence[Charge] = ()) -> None:
        """Have a job run, for which these charges have been opened."""
        attempt = use.job_id, use.attempt
        self.room.uses[attempt] = use
        for charge in charges:
            self.room.add(charge)
        self._recheck({self.room.place[charge.envelope] for charge in charges}, (use,))

    def end(self, job_id: str, attempt: int) -> None:
        """Have a job run no longer. Its charges are closed by whoever ends its placement."""
        room, key = self.room, (job_id, attempt)
        use = room.uses.pop(key)
        held = [paid.charge for paid in room.held.get(key, {}).values()]
        freed: dict[int, int] = {}
        for charge in held:
            room.remove(charge)
            place = room.place[charge.envelope]
            freed[place] = freed.get(place, 0) + charge.amount
        self._told.pop(key, None)
        self._covered(use)
        self._settle(self._whom_it_helps(freed))

    def change(self, owned: Owned) -> None:
        """Have an envelope be another than it was. It stays its tenant's."""
        place = self.room.place[owned.id]
        self.room.change(owned)
        self._watch(place)
        self._recheck((place,))

    # --- what is told

    def changes(self) -> Funded:
        """Return what has changed since this was last asked."""
        concerned = list(self._told)
        ended, opened = self._tell()
        uses = [self.room.uses[attempt] for attempt in concerned if attempt in self.room.uses]
        return Funded(ended, opened, self._splits(uses))

    def everything(self) -> Funded:
        """Return what has changed, with the splits of all."""
        ended, opened = self._tell()
        return Funded(ended, opened, self._splits(self.room.uses.values()))

    def _splits(self, uses: Iterable[Use]) -> dict[Attempt, Split]:
        facts, held = self.room.facts, self.room.held
        return {
            (use.job_id, use.attempt): split_of(
                use,
                [paid.charge for paid in held.get((use.job_id, use.attempt), {}).values()],
                facts,
            )
            for use in uses
        }

    def _tell(self) -> tuple[tuple[Ended, ...], tuple[Charge, ...]]:
        ended: list[Ended] = []
        opened: list[Charge] = []
        for attempt, before in self._told.items():
            held = self.room.held.get(attempt, {})
            after = {paid.charge for paid in held.values()}
            for charge in before:
                if charge not in after:
                    why = [self._why.get((attempt, charge.rank, gpu)) for gpu in charge.gpus]
                    lost = tuple(gpu for gpu, one in zip(charge.gpus, why, strict=True) if one)
                    ended.append(Ended(charge, lost, *next(one for one in why if one)))
            for charge in after.difference(before):
                opened.append(new := charge._replace(id=0))
                self.room.rename(charge, new)
        self._told, self._why = {}, {}
        ended.sort(key=lambda one: age(one.charge))
        opened.sort(key=age)
        return tuple(ended), tuple(opened)

    # --- what holds

    def _recheck(self, places: Iterable[int], started: Sequence[Use] = ()) -> None:
        """End what holds no longer of what some envelopes pay for, and cover who lost anything."""
        room, places = self.room, set(places)
        losers: dict[Attempt, Use] = {(use.job_id, use.attempt): use for use in started}
        concerned = set(places)
        for place in places:
            owned = room.owned[place]
            for paid in list(room.on[place].values()):
                use = room.uses.get(paid.attempt)
                code = FundingCode.NOT_OPEN
                if room.open[place]:
                    code = room.valid.why_not(paid.charge, use, owned)
                if code is not None:
                    self._cut(paid, 0, code, losers)
        for cut in too_much(self._over(places), self._paid_at(places)):
            place = room.place[cut.paid.charge.envelope]
            concerned.add(place)
            self._cut(cut.paid, cut.keeps, cut.code, losers)
        wanting = [use for use in losers.values() if self._wants(use)]
        self._settle([*wanting, *self._whom_it_helps(dict.fromkeys(concerned, 0))])

    def _over(self, places: Iterable[int]) -> list[Limit]:
        room = self.room
        limits: list[Limit] = []
        for place in places:
            if room.free[place] < 0:
                size = milli(room.owned[place].spec.gpus)
                limits.append(Limit(size, (room.ids[place],), FundingCode.NO_ROOM))
        for cap in sorted({cap for place in places for cap in room.caps[place]}):
            if room.cap_free[cap] < 0:
                members = [room.ids[place] for place in room.members[cap]]
                size = milli(room.facts.caps[cap].spec.gpus)
                limits.append(Limit(size, members, FundingCode.CAP))
        return limits

    def _paid_at(self, places: Iterable[int]) -> list[Paid]:
        """Return what some envelopes pay for, and others below the same caps."""
        room = self.room
        members = {
            member for place in places for cap in room.caps[place] for member in room.members[cap]
        }
        return [paid for place in {*places, *members} for paid in room.on[place].values()]

    def _cut(self, paid: Paid, keeps: int, code: FundingCode, losers: dict[Attempt, Use]) -> None:
        self._note(paid.attempt)
        self.room.shorten(paid, keeps)
        self._lost(paid.charge, paid.charge.gpus[keeps:], code, None)
        use = self.room.uses.get(paid.attempt)
        if use is not None:
            losers[paid.attempt] = use

    # --- who pays instead

    def _settle(self, uses: Iterable[Use]) -> None:
        """Cover those who have GPUs that nobody pays for: who runs for longest comes first.

        Who loses to another has its turn when it comes, after that one, or from the beginning.
        """
        waiting = {_turn(use) for use in uses}
        for _, job_id, attempt in waiting:
            tenant = self.room.uses[job_id, attempt].tenant
            self._uncovered.setdefault(tenant, {})[job_id, attempt] = 0
        while waiting:
            turns, later = sorted(waiting), set[_Turn]()
            while turns:
                turn = heapq.heappop(turns)
                if turn not in waiting:
                    continue
                waiting.discard(turn)
                for use in self._cover(self.room.uses[turn[1:]]):
                    again = _turn(use)
                    if again <= turn:
                        later.add(again)
                    elif again not in waiting:
                        waiting.add(again)
                        heapq.heappush(turns, again)
            waiting = later

    def _cover(self, use: Use) -> list[Use]:
        """Cover one; return who may be covered now, or has to be anew."""
        room = self.room
        claim = self._claim(use)
        if claim is None:
            self._covered(use)
            return []
        found = None
        if claim is use and use.job_id in self._foreseen:
            found = settle_as(room, use, self._foreseen[use.job_id])
        found = found or settle(room, claim)
        if not found.funded:
            if len(claim.shares) == 1:
                lacks = found.missing // claim.shares[0].milli
                self._uncovered[use.tenant][use.job_id, use.attempt] = lacks
            return []
        self._note_cover((use.job_id, use.attempt), found)
        self._covered(use)
        losers: list[Use] = []
        for recall in found.recalls:
            charge = recall.charge
            self._lost(charge, recall.lost, FundingCode.NO_ROOM, use.job_id)
            loser = room.uses[charge.job_id, charge.attempt]
            losers.append(loser)
            self._uncovered.setdefault(loser.tenant, {})[charge.job_id, charge.attempt] = 0
        if losers:
            freed, below = surplus(room, found.recalls, found.charges)
            freed.update((member, 0) for cap in below for member in room.members[cap])
            losers += self._whom_it_helps(freed) if freed else []
        return losers

    def _claim(self, use: Use) -> Use | None:
        """Return what nobody pays for of what a job has."""
        held = self.room.held.get((use.job_id, use.attempt))
        if not held:
            return use if any(share.gpus for share in use.shares) else None
        paid = {(one.charge.rank, gpu) for one in held.values() for gpu in one.charge.gpus}
        shares = [
            share._replace(gpus=tuple(gpu for gpu in share.gpus if (share.rank, gpu) not in paid))
            for share in use.shares
        ]
        shares = [share for share in shares if share.gpus]
        return use._replace(shares=tuple(shares)) if shares else None

    def _whom_it_helps(self, freed: Mapping[int, int]) -> list[Use]:
        """Return those whom nobody pays for, and who might be paid for now that so much of some
        envelopes is free; where that is 0, or there is a cap, whatever they lack."""
        room = self.room
        # Also of one that has closed: its caps have room for the others below them.
        caps = {cap for place in freed for cap in room.caps[place]}
        freed = {**freed, **dict.fromkeys((m for cap in caps for m in room.members[cap]), 0)}
        freed = {place: amount for place, amount in freed.items() if room.open[place]}
        found: list[Use] = []
        for tenant, attempts in self._uncovered.items():
            places = [place for place in freed if self._may_ask(tenant, place)]
            for attempt, lacks in attempts.items() if places else ():
                use = room.uses[attempt]
                helps = self._helps(use, places, freed)
                if helps is None or helps >= lacks:
                    found.append(use)
                else:
                    attempts[attempt] = lacks - helps
        return found

    def _helps(self, use: Use, places: Iterable[int], freed: Mapping[int, int]) -> int | None:
        """Return with how many more of a job's GPUs that helps at most; None: nobody knows."""
        if len(use.shares) != 1:
            return None
        where, each, sum_of = use.shares[0].where, use.shares[0].milli, 0
        for place in places:
            if self.room.valid.fits(self.room.owned[place], where):
                if not freed[place]:
                    return None
                sum_of += -(-freed[place] // each)
        return sum_of

    def _may_ask(self, tenant: str, place: int) -> bool:
        spec = self.room.owned[place].spec
        steps = self.room.tree.steps(tenant, self.room.owner[place])
        return (steps is not None and shares_with(spec, steps)) or lends_to(spec, tenant)

    def _wants(self, use: Use) -> bool:
        if not self.room.tree.has_budget(use.tenant):
            return False
        held = self.room.held.get((use.job_id, use.attempt), {})
        paid = sum([len(one.charge.gpus) for one in held.values()])
        return paid < sum([len(share.gpus) for share in use.shares])

    def _covered(self, use: Use) -> None:
        attempts = self._uncovered.get(use.tenant)
        if attempts is not None:
            attempts.pop((use.job_id, use.attempt), None)
            if not attempts:
                del self._uncovered[use.tenant]

    # --- what has changed

    def _note(self, attempt: Attempt) -> None:
        """Note what an attempt has before that changes."""
        if attempt not in self._told:
            held = self.room.held.get(attempt, {})
            self._told[attempt] = [paid.charge for paid in held.values()]

    def _note_cover(self, attempt: Attempt, found: Cover) -> None:
        """Note what attempts had before one was covered."""
        held = self.room.held
        if attempt not in self._told:
            new = {key_of(charge) for charge in found.charges}
            self._told[attempt] = [
                paid.charge for key, paid in held[attempt].items() if key not in new
            ]
        recalled: dict[Attempt, list[Charge]] = {}
        for recall in found.recalls:
            charge = recall.charge
            recalled.setdefault((charge.job_id, charge.attempt), []).append(charge)
        for loser, charges in recalled.items():
            if loser not in self._told:
                keys = {key_of(charge) for charge in charges}
                others = [
                    paid.charge for key, paid in held.get(loser, {}).items() if key not in keys
                ]
                self._told[loser] = [*others, *charges]

    def _lost(
        self, charge: Charge, gpus: Iterable[int], code: FundingCode, for_job: str | None
    ) -> None:
        attempt = charge.job_id, charge.attempt
        for gpu in gpus:
            self._why.setdefault((attempt, charge.rank, gpu), (code, for_job))

    def _watch(self, place: int) -> None:
        spec = self.room.owned[place].spec
        for at in (spec.start, spec.end):
            if at is not None and at > self.room.now:
                heapq.heappush(self._times, (at, place))


def _turn(use: Use) -> _Turn:
    return use.since, use.job_id, use.attempt
