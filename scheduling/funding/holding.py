"""Which open charges still hold. What holds is never moved.

Where an envelope or a cap has become too small, it pays for contracts first, then for its owner,
then for relatives by their steps, of each for who has it longest.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from longshore.models.funding import FundingCode
from longshore.scheduling.funding.facts import Charge, Facts, Owned, Use, Where
from longshore.scheduling.funding.ladder import OWN, Tree, is_for, is_open, shares_with

Attempt = tuple[str, int]
"""The id of a job, and the number of its attempt."""


class Paid(NamedTuple):
    """A charge, and how far from the envelope's owner the tenant is that it is for."""

    charge: Charge
    steps: int
    """`OWN` also where it is lent, or for a tenant that nothing is known of: nobody recalls it."""

    @property
    def attempt(self) -> Attempt:
        return self.charge.job_id, self.charge.attempt


class Cut(NamedTuple):
    """A charge for which there is room in part, or not at all."""

    paid: Paid
    keeps: int
    """How many of its GPUs, the first ones."""
    code: FundingCode


class Ended(NamedTuple):
    """A charge that ends, or goes on for a part of its GPUs as one of its own."""

    charge: Charge
    lost: tuple[int, ...]
    """The GPUs that the envelope pays for no longer."""
    code: FundingCode
    for_job: str | None = None
    """The job that has taken the room, where one has."""


class Limit(NamedTuple):
    """An envelope or a cap that pays for more than it has."""

    milli: int
    envelopes: Iterable[int]
    code: FundingCode
    """Why a charge ends that it has no room for."""


class Holding(NamedTuple):
    """Which charges hold."""

    kept: list[Paid]
    """One that holds in part has fewer GPUs, and its id."""
    ended: list[Ended]


class Validity:
    """Whether a charge holds, however many others there are."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._steps: dict[tuple[str, str], int | None] = {}
        self._is_for: dict[tuple[int, Where], bool] = {}

    def forget(self) -> None:
        """Forget what envelopes were for."""
        self._is_for = {}

    def steps(self, charge: Charge, use: Use | None, owner: str) -> int:
        """Return how far the tenant is from the owner, as `Paid` has it."""
        if use is None or charge.lent or use.tenant == owner:
            return OWN
        return self._between(use.tenant, owner) or OWN

    def why_not(self, charge: Charge, use: Use | None, owned: Owned) -> FundingCode | None:
        """Return why a charge on an open envelope does not hold."""
        if use is None:
            return None  # of a job that is not looked at: nothing says that it has ended
        if not self._tree.has_budget(use.tenant):
            return FundingCode.NO_ENVELOPE
        if not charge.lent and use.tenant != owned.tenant:
            steps = self._between(use.tenant, owned.tenant)
            if steps is None or not shares_with(owned.spec, steps):
                return FundingCode.ACL_DENIED
        for share in use.shares:
            if share.rank == charge.rank:
                if share.gpus != charge.gpus and not set(share.gpus).issuperset(charge.gpus):
                    continue
                return None if self.fits(owned, share.where) else FundingCode.NO_ENVELOPE
        return FundingCode.NO_ENVELOPE

    def fits(self, owned: Owned, where: Where) -> bool:
        """Return whether an envelope is for GPUs there."""
        key = owned.id, where
        found = self._is_for.get(key)
        if found is None:
            found = self._is_for[key] = is_for(owned.spec, where)
        return found

    def _between(self, tenant: str, owner: str) -> int | None:
        pair = tenant, owner
        if pair not in self._steps:
            self._steps[pair] = self._tree.steps(tenant, owner)
        return self._steps[pair]


def holding(facts: Facts, now: datetime) -> Holding:
    """Return which of the open charges hold."""
    valid = Validity(Tree(facts.tenants))
    uses = {(use.job_id, use.attempt): use for use in facts.uses}
    opens = {id: is_open(owned.spec, now) for id, owned in facts.envelopes.items()}
    kept: list[Paid] = []
    ended: list[Ended] = []
    sums: dict[int, int] = {}
    for charge in facts.charges:
        is_opened = opens.get(charge.envelope)
        if not is_opened:
            code = FundingCode.NO_ENVELOPE if is_opened is None else FundingCode.NOT_OPEN
            ended.append(Ended(charge, charge.gpus, code))
            continue
        use = uses.get((charge.job_id, charge.attempt))
        owned = facts.envelopes[charge.envelope]
        code = valid.why_not(charge, use, owned)
        if code is not None:
            ended.append(Ended(charge, charge.gpus, code))
            continue
        kept.append(Paid(charge, valid.steps(charge, use, owned.tenant)))
        sums[charge.envelope] = sums.get(charge.envelope, 0) + charge.amount
    limits = _over(facts, sums)
    if limits:
        kept = _within(kept, limits, ended)
    return Holding(kept, ended)


def _over(facts: Facts, sums: Mapping[int, int]) -> list[Limit]:
    limits: list[Limit] = []
    for id, amount in sums.items():
        milli = round(facts.envelopes[id].spec.gpus * 1000)
        if amount > milli:
            limits.append(Limit(milli, (id,), FundingCode.NO_ROOM))
    for cap in facts.caps:
        milli = round(cap.spec.gpus * 1000)
        if sum(sums.get(id, 0) for id in cap.envelopes) > milli:
            limits.append(Limit(milli, cap.envelopes, FundingCode.CAP))
    return limits


def _within(kept: list[Paid], limits: list[Limit], ended: list[Ended]) -> list[Paid]:
    """Return what there is room for."""
    cuts = {cut.paid.charge: cut for cut in too_much(limits, kept)}
    held: list[Paid] = []
    for paid in kept:
        cut = cuts.get(paid.charge)
        if cut is None:
            held.append(paid)
            continue
        gpus = paid.charge.gpus
        ended.append(Ended(paid.charge, gpus[cut.keeps :], cut.code))
        if cut.keeps:
            held.append(Paid(paid.charge._replace(gpus=gpus[: cut.keeps]), paid.steps))
    return held


def too_much(limits: Iterable[Limit], held: Iterable[Paid]) -> list[Cut]:
    """Return what limits have no room for, of all that their envelopes pay for."""
    over: dict[int, list[int]] = {}
    left: list[int] = []
    codes: list[FundingCode] = []
    for number, limit in enumerate(limits):
        left.append(limit.milli)
        codes.append(limit.code)
        for id in limit.envelopes:
            over.setdefault(id, []).append(number)
    cuts: list[Cut] = []
    for paid in sorted((paid for paid in held if paid.charge.envelope in over), key=_first):
        charge = paid.charge
        numbers = over[charge.envelope]
        tight = min(numbers, key=left.__getitem__)
        count = min(max(left[tight], 0) // charge.milli, len(charge.gpus))
        if charge.lent:
            count = len(charge.gpus)  # a contract: nobody may cut below it
        if count < len(charge.gpus):
            cuts.append(Cut(paid, count, codes[tight]))
        for number in numbers:
            left[number] -= count * charge.milli
    return cuts


def _first(paid: Paid) -> tuple[bool, int, tuple[datetime, str, int, int, tuple[int, ...]]]:
    return not paid.charge.lent, paid.steps, age(paid.charge)


def age(charge: Charge) -> tuple[datetime, str, int, int, tuple[int, ...]]:
    """Return the key that puts charges in order, those first that have been paid for longest."""
    return charge.since, charge.job_id, charge.attempt, charge.rank, charge.gpus
