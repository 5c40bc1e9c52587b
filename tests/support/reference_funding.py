"""Who pays for what, as one writes it down from docs/decisions/0097-funding.md.

Every sum is counted anew each time that it is asked for, over lists: slow, and plain to read.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from longshore.models.funding import Sharing
from longshore.scheduling.funding.facts import Capped, Charge, Facts, Owned, Share, Use, Where

RELATIVES = {(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)}
CONTRACT = (-1, 0)
Steps = tuple[int, int]
GPUId = tuple[str, int, int, int]
Payers = dict[GPUId, tuple[int, bool, datetime]]


class Step(NamedTuple):
    """An envelope that may be asked."""

    rung: tuple[int, int, int]
    owned: Owned
    steps: Steps
    lent: bool


def ancestors(facts: Facts, tenant: str) -> list[str]:
    """The tenant itself, and who is above it."""
    found = [tenant]
    while (branch := facts.tenants.get(found[-1])) and branch.parent is not None:
        found.append(branch.parent)
    return found


def steps_between(facts: Facts, tenant: str, owner: str) -> Steps | None:
    """How many steps up, and then down; None where that is too far, or down alone."""
    ups, downs = ancestors(facts, tenant), ancestors(facts, owner)
    common = next((name for name in ups if name in downs), None)
    if common is None:
        return None
    steps = ups.index(common), downs.index(common)
    return steps if steps == (0, 0) or steps in RELATIVES else None


def is_open(owned: Owned, now: datetime) -> bool:
    spec = owned.spec
    return (spec.start or now) <= now and (spec.end is None or spec.end > now)


def is_for(owned: Owned, where: Where) -> bool:
    spec = owned.spec
    types = {(each or "").lower() for each in (spec.gpu_type, where.gpu_type)}
    return (
        spec.pool in (None, where.pool)
        and ("" in types or len(types) == 1)
        and (where.labels is None or all(one in where.labels for one in spec.labels.items()))
    )


def has_budget(facts: Facts, tenant: str) -> bool:
    return tenant in facts.tenants and facts.tenants[tenant].budget_since is not None


class Plain:
    """Who pays at one time."""

    def __init__(self, facts: Facts, now: datetime) -> None:
        self.facts = facts
        self.now = now
        self.uses = {(use.job_id, use.attempt): use for use in facts.uses}
        self.charges: list[Charge] = []
        valid = [charge for charge in facts.charges if self.is_valid(charge)]
        for charge in sorted(valid, key=lambda one: (self.steps(one), self.age(one))):
            gpus = charge.gpus
            while (
                gpus and not charge.lent and self.room(charge.envelope) < len(gpus) * charge.milli
            ):
                gpus = gpus[:-1]
            if gpus:
                self.charges.append(charge._replace(gpus=gpus))

    # --- what holds

    def is_valid(self, charge: Charge) -> bool:
        owned = self.facts.envelopes.get(charge.envelope)
        if owned is None or not is_open(owned, self.now):
            return False
        use = self.uses.get((charge.job_id, charge.attempt))
        if use is None:
            return True
        if not has_budget(self.facts, use.tenant):
            return False
        if not charge.lent:
            steps = steps_between(self.facts, use.tenant, owned.tenant)
            if steps is None or (steps != (0, 0) and owned.spec.sharing is Sharing.NONE):
                return False
        return any(
            share.rank == charge.rank
            and set(charge.gpus) <= set(share.gpus)
            and is_for(owned, share.where)
            for share in use.shares
        )

    def steps(self, charge: Charge) -> Steps:
        use = self.uses.get((charge.job_id, charge.attempt))
        if charge.lent:
            return CONTRACT
        if use is None:
            return 0, 0
        owner = self.facts.envelopes[charge.envelope].tenant
        return steps_between(self.facts, use.tenant, owner) or (0, 0)

    @staticmethod
    def age(charge: Charge) -> tuple[datetime, str, int, int, tuple[int, ...]]:
        return charge.since, charge.job_id, charge.attempt, charge.rank, charge.gpus

    # --- sums

    def caps(self, envelope: int) -> list[Capped]:
        return [cap for cap in self.facts.caps if envelope in cap.envelopes]

    def left(self, envelope: int) -> int:
        size = round(self.facts.envelopes[envelope].spec.gpus * 1000)
        return size - sum(one.amount for one in self.charges if one.envelope == envelope)

    def left_below(self, cap: Capped) -> int:
        paid = sum(one.amount for one in self.charges if one.envelope in cap.envelopes)
        return round(cap.spec.gpus * 1000) - paid

    def room(self, envelope: int) -> int:
        below = (self.left_below(cap) for cap in self.caps(envelope))
        return min([self.left(envelope), *below])

    def lendable(self, envelope: int) -> int:
        lending = self.facts.envelopes[envelope].spec.lending
        assert lending is not None
        lent = (one.amount for one in self.charges if one.lent and one.envelope == envelope)
        return round(lending.max * 1000) - sum(lent)

    # --- who may be asked

    def ladder(self, use: Use, where: Where) -> list[list[Step]]:
        """The envelopes on each rung."""
        steps = sorted(self.may_ask(use, where), key=self.order)
        rungs = sorted({step.rung for step in steps})
        return [[step for step in steps if step.rung == rung] for rung in rungs]

    def may_ask(self, use: Use, where: Where) -> Iterator[Step]:
        for owned in self.facts.envelopes.values():
            if not is_open(owned, self.now) or not is_for(owned, where):
                continue
            steps = steps_between(self.facts, use.tenant, owned.tenant)
            shared = owned.spec.sharing is Sharing.FAMILY and use.preemptible
            if steps is not None and (steps == (0, 0) or shared):
                yield Step((0, *steps), owned, steps, lent=False)
            lending = owned.spec.lending
            if use.terms.allow_borrow and lending and use.tenant in lending.to:
                sponsors = use.terms.sponsors
                if owned.tenant in sponsors and owned.tenant != use.tenant:
                    rung = 1, sponsors.index(owned.tenant), 0
                    yield Step(rung, owned, CONTRACT, lent=True)

    @staticmethod
    def order(step: Step) -> tuple[object, ...]:
        spec = step.owned.spec
        end = spec.end.timestamp() if spec.end else float("inf")
        unnamed = spec.pool is None, spec.gpu_type is None
        return step.rung, -len(spec.labels), *unnamed, end, step.owned.id

    # --- who pays for a job

    def cover(self, use: Use) -> list[Charge] | None:
        """Have somebody pay for all of a job; None, and nothing has changed, where nobody does."""
        before = list(self.charges)
        found: list[Charge] = []
        for share in use.shares:
            gpus = list(share.gpus)
            for rung in self.ladder(use, share.where):
                for step in rung:
                    found += self.take_unused(use, share, step, gpus)
                for step in rung:
                    found += self.take_back(use, share, step, gpus)
            if gpus:
                self.charges = before
                return None
        return found

    def take_unused(self, use: Use, share: Share, step: Step, gpus: list[int]) -> list[Charge]:
        room = self.room(step.owned.id)
        if step.lent:
            room = min(room, self.lendable(step.owned.id))
            if use.terms.max_borrow is not None:
                own = [
                    one.amount
                    for one in self.charges
                    if one.lent and (one.job_id, one.attempt) == (use.job_id, use.attempt)
                ]
                room = min(room, use.terms.max_borrow * 1000 - sum(own))
        return self.pay(use, share, step, gpus, max(room, 0) // share.milli)

    def take_back(self, use: Use, share: Share, step: Step, gpus: list[int]) -> list[Charge]:
        if step.lent:
            return []
        limits = self.limits(step.owned.id)
        room = min(
            left() + sum(one.amount for one in self.victims(use, step, envelopes))
            for left, envelopes in limits
        )
        count = min(max(room, 0) // share.milli, len(gpus))
        for left, envelopes in limits if count else ():
            while left() < count * share.milli:
                last = self.victims(use, step, envelopes)[-1]
                self.charges.remove(last)
                if len(last.gpus) > 1:
                    self.charges.append(last._replace(gpus=last.gpus[:-1]))
        return self.pay(use, share, step, gpus, count)

    def limits(self, id: int) -> list[tuple[Callable[[], int], frozenset[int]]]:
        """What an envelope and the caps over it have left, and over which envelopes those are."""
        own = partial(self.left, id), frozenset({id})
        return [own, *((partial(self.left_below, cap), cap.envelopes) for cap in self.caps(id))]

    def victims(self, use: Use, step: Step, envelopes: frozenset[int]) -> list[Charge]:
        """Who is farther from an owner, of other tenants; the farthest last, and of those the
        youngest."""
        found = [
            one
            for one in self.charges
            if one.envelope in envelopes
            and self.steps(one) > step.steps
            and self.uses[one.job_id, one.attempt].tenant != use.tenant
        ]
        return sorted(found, key=lambda one: (self.steps(one), self.age(one)))

    def pay(self, use: Use, share: Share, step: Step, gpus: list[int], count: int) -> list[Charge]:
        taken, gpus[:] = tuple(gpus[:count]), gpus[count:]
        if not taken:
            return []
        made = Charge(
            use.job_id, use.attempt, share.rank, step.owned.id, taken, share.milli, step.lent,
            self.now,
        )  # fmt: skip
        self.charges.append(made)
        return [made]

    # --- who pays for what runs

    def settle(self) -> None:
        """Cover who has no payer, who runs for longest first, until nothing changes."""
        order = sorted(self.uses.values(), key=lambda use: (use.since, use.job_id, use.attempt))
        changed = True
        while changed:
            changed = False
            for use in order:
                claim = self.claim(use)
                if claim.shares and has_budget(self.facts, use.tenant):
                    changed = self.cover(claim) is not None or changed

    def claim(self, use: Use) -> Use:
        paid = self.payers()
        shares = [
            share._replace(
                gpus=tuple(
                    gpu
                    for gpu in share.gpus
                    if (use.job_id, use.attempt, share.rank, gpu) not in paid
                )
            )
            for share in use.shares
        ]
        return use._replace(shares=tuple(share for share in shares if share.gpus))

    def payers(self) -> Payers:
        """By GPU: the envelope, whether it is lent, and since when."""
        return payers_of(self.charges)


def payers_of(charges: Sequence[Charge]) -> Payers:
    found: Payers = {}
    for one in charges:
        for gpu in one.gpus:
            key = one.job_id, one.attempt, one.rank, gpu
            assert key not in found, "a GPU is paid for twice"
            found[key] = one.envelope, one.lent, one.since
    return found


def plain_payers(facts: Facts, now: datetime) -> Payers:
    """Who pays for each GPU that runs."""
    plain = Plain(facts, now)
    plain.settle()
    return plain.payers()
