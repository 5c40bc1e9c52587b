"""A small world of budgets: jobs come, run and end, budgets are edited, time passes.

What is decided is decided by the product: who would pay and who comes first (`pool_funding`,
`queue_order`), who may be stopped for whom (`right_over`), and who pays for what runs (`settled`).
The world itself is a number of GPUs of one kind. After each event all that must hold is looked
at; who pays is counted by a plain implementation beside.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from copy import copy
from datetime import datetime, timedelta
from graphlib import TopologicalSorter
from typing import Any, NamedTuple, Self

from longshore.models.funding import FundingTerms, Lending, PoolFunding, Sharing, WhenUnfunded
from longshore.models.job_request import JobRequest
from longshore.scheduling.funding.evaluate import evaluate
from longshore.scheduling.funding.facts import Branch, Charge, Facts, Owned, Share, Use
from longshore.scheduling.funding.kept import Funded
from longshore.scheduling.funding.pool import Asks, pool_funding, settled
from longshore.scheduling.order import queue_order
from longshore.scheduling.preemption.payers import Right, right_over
from tests.support.funding_scenes import H100, NOW, borrowing, capped, facts_of, owned
from tests.support.packing import POLICY, a_job
from tests.support.preemption import RULES
from tests.support.reference_funding import Plain, payers_of

GRACE = timedelta(seconds=30)
"""For which one that is stopped keeps its GPUs."""
COOLDOWN = RULES.cooldown
"""For which a class alone does not have one stopped again."""
_NEXT = timedelta(microseconds=20)
"""Until the next cycle: who has begun runs for longer than who begins then."""
NAMES = "abcdef"
MINUTE = timedelta(minutes=1)


class Job(NamedTuple):
    request: JobRequest
    asks: Asks


class World:
    def __init__(self, seed: int, *, loans: bool = False) -> None:
        """With `loans` most envelopes lend, and most jobs borrow."""
        self.chance = random.Random(seed)
        self._loans = (0.8, 0.8) if loans else (0.4, 0.3)
        self.now = NOW
        self.gpus = self.chance.randint(4, 12)
        self.waiting: dict[str, Job] = {}
        self.running: dict[str, Job] = {}
        self.leaving: dict[str, datetime] = {}
        """Who has been stopped, and when it has left."""
        self.stopped_at: dict[str, datetime] = {}
        self.winner: dict[str, str] = {}
        """For whom."""
        self.given_way: set[str] = set()
        """For whom others were stopped for who pays for them."""
        self.stops: list[tuple[str, str]] = []
        """Who was stopped for whom, since the last event from outside."""
        self.counted: dict[str, float] = defaultdict(float)
        """GPU-seconds by class, from who pays at each time; with `held` of all that is held."""
        self.paid = 0.0
        """GPU-seconds of charges, from when they began and ended."""
        self.seen: Counter[str] = Counter()
        """How often something has happened."""
        self._opened: dict[int, datetime] = {}
        self._since: dict[str, tuple[object, datetime]] = {}
        self._number = 0
        self.facts = self._budgets()

    @classmethod
    def of(cls, facts: Facts, gpus: int) -> Self:
        """Return a world with these budgets and GPUs, in which nothing has happened yet."""
        world = cls(0)
        world.facts, world.gpus = facts, gpus
        return world

    def copy(self) -> Self:
        """Return a world in which the same has happened, and that goes on by itself."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | set | list):
                setattr(other, name, copy(value))
        return other

    def _budgets(self) -> Facts:
        chance = self.chance
        names = NAMES[: chance.randint(3, 6)]
        tenants = {
            name: Branch(
                chance.choice([None, *names[:place], *names[:place]]),
                None if place and chance.random() < 0.1 else NOW,
            )
            for place, name in enumerate(names)
        }
        count = chance.randint(2, 6)
        owners = [name for name in names if tenants[name].budget_since]
        envelopes = [
            self._envelope(id, chance.choice(owners), names) for id in range(1, count + 1)
        ]
        over = {one.id for one in envelopes[::2]}
        caps = [capped(1, names[0], chance.randint(2, 6), over)] * chance.choice([0, 0, 1])
        return facts_of(tenants, envelopes, caps)

    def _envelope(self, id: int, owner: str, names: str) -> Owned:
        chance = self.chance
        to = tuple(chance.sample(names, 2)) if chance.random() < self._loans[0] else ()
        return owned(
            id, owner, chance.randint(1, 5),
            lending=Lending(to=to, max=chance.randint(1, 3)) if to else None,
            start=NOW + chance.choice([0, 0, 5]) * MINUTE,
            end=chance.choice([None, None, NOW + chance.randint(6, 40) * MINUTE]),
            sharing=chance.choice([Sharing.FAMILY, Sharing.FAMILY, Sharing.NONE]),
        )  # fmt: skip

    # --- what happens

    def happen(self) -> None:
        """Have something happen, some time after what was before."""
        chance = self.chance
        self.pass_time(timedelta(seconds=chance.choice([1, 5, 20, 60, 200])))
        self.stops = []
        what = chance.choice(("submit",) * 6 + ("end",) * 3 + ("withdraw", "edit", "edit"))
        if what == "submit" and len(self.waiting) < 6:
            self._submit()
        elif what == "end" and self.running:
            self.end(chance.choice(sorted(self.running)))
        elif what == "withdraw" and self.waiting:
            del self.waiting[chance.choice(sorted(self.waiting))]
        elif what == "edit":
            self._edit()
        self.cycle()

    def settle_down(self) -> None:
        """Let nothing happen until nobody leaves any more."""
        for _ in range(2 * len({*self.waiting, *self.running}) + 2):
            if not self.leaving:
                return
            self.pass_time(GRACE)
        raise AssertionError(f"jobs are stopped for each other without end: {self.stops}")

    def pass_time(self, time: timedelta) -> None:
        """Go on to a later time, with a cycle whenever somebody has left, or an envelope begins
        or ends."""
        until = self.now + time
        specs = [owned.spec for owned in self.facts.envelopes.values()]
        edges = {at for spec in specs for at in (spec.start, spec.end) if at is not None}
        while times := [
            at
            for at in (*(at for at in edges if at > self.now), *self.leaving.values())
            if at <= until
        ]:
            at = min(times)
            self._count(at)
            if at in edges:
                self.stops = []
            for name in [name for name, left in self.leaving.items() if left <= at]:
                del self.leaving[name]
                self.waiting[name] = self.running[name]
                self._leave(name)
            self.cycle()
        self._count(until)

    def _count(self, until: datetime) -> None:
        """Have it be later: until then those pay who do now."""
        until = max(until, self.now)
        seconds = (until - self.now).total_seconds()
        charges = Plain(self.facts, self.now).charges
        for use in self.facts.uses:
            left = whole = use.shares[0].amount / 1000 * seconds
            for charge in charges:
                if charge.job_id == use.job_id:
                    owner = self.facts.envelopes[charge.envelope].tenant
                    of = "BORROWED" if charge.lent else _OWN[owner == use.tenant]
                    self.counted[of] += charge.amount / 1000 * seconds
                    left -= charge.amount / 1000 * seconds
            itself = self.facts.tenants[use.tenant].budget_since is None
            self.counted["itself" if itself else "UNFUNDED"] += left
            self.counted["held"] += whole
            assert left >= -1e-9, f"more is paid for {use.job_id} than it holds"
        self.now = until

    def _submit(self) -> None:
        chance, tenants = self.chance, sorted(self.facts.tenants)
        self._number += 1
        terms = FundingTerms()
        if chance.random() < self._loans[1]:
            terms = borrowing(*chance.sample(tenants, 2), most=chance.choice([None, 1, 2]))
        if chance.random() < 0.15:
            terms = terms.model_copy(update={"unfunded": WhenUnfunded.WAIT})
        request = a_job(
            f"j{self._number}", chance.randint(1, 4), priority=chance.choice([2, 5, 5, 8]),
            tenant=chance.choice(tenants), gpu_type="H100", submitted_at=self.now,
        )  # fmt: skip
        self.waiting[request.id] = Job(request, Asks(terms, chance.random() > 0.15))

    def end(self, name: str) -> None:
        """Have a job end: nobody is demoted by that, but for somebody nearer who has room then."""
        self.leaving.pop(name, None)
        self._leave(name)
        funded = evaluate(self.facts, self.now)
        plain = Plain(self.facts, self.now)
        for one in funded.ended:
            new = [each for each in funded.opened if each.job_id == one.for_job]
            assert new, f"the end of {name} has demoted {one}"
            assert min(map(plain.steps, new)) < plain.steps(one.charge)

    def _leave(self, name: str) -> None:
        """Have a job hold nothing any more: its charges are closed with its placement."""
        del self.running[name]
        self.winner.pop(name, None)
        self._close([one for one in self.facts.charges if one.job_id == name])
        uses = [use for use in self.facts.uses if use.job_id != name]
        self.facts = self.facts._replace(uses=uses)

    def _close(self, charges: Sequence[Charge]) -> None:
        for charge in charges:
            since = self._opened.pop(charge.id)
            self.paid += charge.amount / 1000 * (self.now - since).total_seconds()
        self.facts = self.facts._replace(
            charges=[one for one in self.facts.charges if one not in charges]
        )

    def close_all(self) -> None:
        """Close the charges that are open."""
        self._close(list(self.facts.charges))

    def edit(self, **changed: Any) -> None:
        """Give the budgets other fields than they have."""
        self.facts = self.facts._replace(**changed)

    def _edit(self) -> None:
        """Give an envelope another size or another sharing; never less than it lends."""
        chance, envelopes = self.chance, self.facts.envelopes
        before = envelopes[chance.choice(sorted(envelopes))]
        lent = sum(c.amount for c in self.facts.charges if c.lent and c.envelope == before.id)
        gpus = max(float(chance.randint(0, 6)), lent / 1000)
        update = {"gpus": gpus, "sharing": chance.choice(list(Sharing))}
        after = before._replace(spec=before.spec.model_copy(update=update))
        self.facts = self.facts._replace(envelopes={**envelopes, before.id: after})

    # --- what is decided

    def cycle(self) -> None:
        """Decide, and again as long as that changes who runs: a pool where jobs wait does so."""
        while True:
            before = [*self.running, *self.leaving]
            self._cycle()
            if [*self.running, *self.leaving] == before:
                break
            self._count(self.now + _NEXT)

    def _cycle(self) -> None:
        asks = {name: job.asks for name, job in self.waiting.items()}
        queue = queue_order([job.request for job in self.waiting.values()], POLICY, self.now)
        funding = pool_funding(self.facts, "pool", queue, asks, self.now, freed=self._freed())
        policy = POLICY.model_copy(update={"funding": funding})
        begins = [
            self._use(request, self.now + place * timedelta(microseconds=1))
            for place, request in enumerate(
                self._begin(queue_order(queue, policy, self.now), funding)
            )
        ]
        funded = settled(self.facts, begins, self.now, foreseen=funding.foreseen)
        self._apply(funded)
        self.facts = self.facts._replace(uses=[*self.facts.uses, *begins])
        self._check(begins)

    def _begin(self, order: Sequence[JobRequest], funding: PoolFunding) -> list[JobRequest]:
        """Return who begins; have others stopped for who does not, where it has a right to that.
        What is free is kept for who is paid for and waits for others to leave."""
        free = self.gpus - sum(job.request.gpus for job in self.running.values())
        coming = sum(self.running[name].request.gpus for name in self.leaving)
        begins: list[JobRequest] = []
        for request in order:
            if request.id in funding.held:
                continue
            if request.gpus <= free:
                free -= request.gpus
                begins.append(request)
                continue
            if request.gpus > free + coming:
                coming += self._stop(request, request.gpus - free - coming, funding)
            waits_for = any(winner == request.id for winner in self.winner.values())
            if request.gpus <= free + coming and (funding.of(request.id).funded or waits_for):
                coming, free = coming - (request.gpus - free), 0
        for request in begins:
            self.running[request.id] = self.waiting.pop(request.id)
            self.given_way.discard(request.id)
        return begins

    def _stop(self, asking: JobRequest, wants: int, funding: PoolFunding) -> int:
        """Have jobs stopped for one, if that gives it all that it wants; return how many GPUs."""
        victims: list[JobRequest] = []
        for first in (True, False):
            for name, job in reversed(self.running.items()):
                if name in self.leaving or not job.asks.preemptible:
                    continue
                right = right_over(name, asking.id, funding)
                spared = self.now - self.stopped_at.get(name, NOW - COOLDOWN) < COOLDOWN
                lower = right is Right.CLASS and job.request.priority < asking.priority
                lower = lower and not spared
                if right is Right.FIRST if first else lower:
                    victims.append(job.request)
        stopped: list[JobRequest] = []
        while victims and sum(each.gpus for each in stopped) < wants:
            stopped.append(victims.pop(0))
        gives = sum(each.gpus for each in stopped)
        if gives < wants:
            return 0
        for victim in stopped:
            self.leaving[victim.id] = self.now + GRACE
            self.winner[victim.id] = asking.id
            self.stopped_at[victim.id] = self.now
            self.stops.append((victim.id, asking.id))
            if right_over(victim.id, asking.id, funding) is Right.FIRST:
                self.given_way.add(asking.id)
            self.seen["stopped"] += 1
        return gives

    def _freed(self) -> frozenset[str]:
        return frozenset(self.given_way.intersection(self.waiting))

    def _use(self, request: JobRequest, since: datetime) -> Use:
        asks = self.running[request.id].asks
        share = Share(0, H100, tuple(range(request.gpus)), 1000)
        return Use(
            request.id, 1, request.tenant or "", since, (share,), asks.terms, asks.preemptible
        )

    def _apply(self, funded: Funded) -> None:
        self._close([one.charge for one in funded.ended])
        self.seen["recalled"] += sum(one.for_job is not None for one in funded.ended)
        new: list[Charge] = []
        for charge in funded.opened:
            self._number += 1
            self._opened[self._number] = self.now
            new.append(charge._replace(id=self._number))
            self.seen["lent" if charge.lent else "paid"] += 1
        self.facts = self.facts._replace(charges=[*self.facts.charges, *new])

    # --- what must hold

    def _check(self, begins: Sequence[Use]) -> None:
        plain = Plain(self.facts, self.now)
        assert payers_of(plain.charges) == payers_of(self.facts.charges), "all of it holds"
        for id, envelope in self.facts.envelopes.items():
            assert plain.left(id) >= 0, f"envelope {id} is overdrawn"
            assert envelope.spec.lending is None or plain.lendable(id) >= 0
        assert all(plain.left_below(cap) >= 0 for cap in self.facts.caps)
        assert sum(job.request.gpus for job in self.running.values()) <= self.gpus
        for use in begins:
            paid = sum(one.amount for one in self.facts.charges if one.job_id == use.job_id)
            assert paid in (0, use.shares[0].amount), f"{use.job_id} starts half paid for"
        graph = TopologicalSorter[str]()
        for victim, winner in self.stops:
            graph.add(victim, winner)
        graph.prepare()  # raises where jobs are stopped for each other in a circle
        self._check_waits(plain)

    def _check_waits(self, plain: Plain) -> None:
        """Nobody whose own envelopes pay waits longer than the grace for what others hold who are
        not paid for, or are paid for by it."""
        asks = {name: job.asks for name, job in self.waiting.items()}
        queue = queue_order([job.request for job in self.waiting.values()], POLICY, self.now)
        funding = pool_funding(self.facts, "pool", queue, asks, self.now, freed=self._freed())
        policy = POLICY.model_copy(update={"funding": funding})
        ahead: list[str] = []
        taken = 0
        since: dict[str, tuple[object, datetime]] = {}
        for request in queue_order(queue, policy, self.now):
            job = self.waiting[request.id]
            share = Share(0, H100._replace(labels=None), tuple(range(request.gpus)), 1000)
            itself = self.facts.tenants[request.tenant or ""].budget_since is None
            made = [] if itself else plain.cover(
                Use(request.id, 1, request.tenant or "", self.now, (share,), job.asks.terms,
                    job.asks.preemptible)
            )  # fmt: skip
            if made is None:
                continue
            keeps = {use.job_id for use in self.facts.uses if self._keeps(use, plain)}
            held = sum(self.running[name].request.gpus for name in keeps) + taken
            own = all(self.facts.envelopes[one.envelope].tenant == request.tenant for one in made)
            if own and made and held + request.gpus <= self.gpus:
                beside = frozenset(keeps), tuple(ahead)
                before, at = self._since.get(request.id, (None, self.now))
                since[request.id] = beside, at if before == beside else self.now
                waits = self.now - since[request.id][1]
                assert waits < GRACE, f"{request.id} waits for {waits}, and {keeps} hold {held}"
                self.seen["owners waited"] += 1
            ahead.append(request.id)
            taken += request.gpus
        self._since = since

    def _keeps(self, use: Use, plain: Plain) -> bool:
        paid = sum(one.amount for one in plain.charges if one.job_id == use.job_id)
        itself = self.facts.tenants[use.tenant].budget_since is None
        return itself or not use.preemptible or paid == use.shares[0].amount


_OWN = {True: "OWNED", False: "SHARED"}
