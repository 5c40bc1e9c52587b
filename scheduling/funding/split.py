"""Of what class the GPUs of a job are, and who pays for them."""

from collections.abc import Iterable
from typing import NamedTuple

from longshore.models.funding import FundingClass
from longshore.scheduling.funding.facts import Charge, Facts, Use


class Split(NamedTuple):
    """How much of an attempt is of each class, in thousandths of a GPU."""

    owned: int = 0
    shared: int = 0
    borrowed: int = 0
    unfunded: int = 0
    payers: tuple[tuple[str, FundingClass, int], ...] = ()
    """Tenants that pay, of what class that is, and how much. In order."""

    @property
    def loses_first(self) -> FundingClass:
        """Return of which class those of its GPUs are that it would lose first."""
        if self.unfunded:
            return FundingClass.UNFUNDED
        if self.shared:
            return FundingClass.SHARED
        return FundingClass.BORROWED if self.borrowed else FundingClass.OWNED

    @property
    def owners(self) -> frozenset[str]:
        """Return the tenants that pay."""
        return frozenset(tenant for tenant, _, _ in self.payers)


def class_of(charge: Charge, use: Use, facts: Facts) -> FundingClass:
    """Return of what class the GPUs are that a charge pays for."""
    if charge.lent:
        return FundingClass.BORROWED
    if facts.envelopes[charge.envelope].tenant == use.tenant:
        return FundingClass.OWNED
    return FundingClass.SHARED


def split_of(use: Use, charges: Iterable[Charge], facts: Facts) -> Split:
    """Return the split of an attempt that these charges pay for."""
    whole = sum(share.amount for share in use.shares)
    branch = facts.tenants.get(use.tenant)
    if branch is None or branch.budget_since is None:
        payers = ((use.tenant, FundingClass.OWNED, whole),) if whole else ()
        return Split(owned=whole, payers=payers)
    found: dict[tuple[str, FundingClass], int] = {}
    sums = dict.fromkeys(FundingClass, 0)
    for charge in charges:
        of = class_of(charge, use, facts)
        sums[of] += charge.amount
        payer = facts.envelopes[charge.envelope].tenant, of
        found[payer] = found.get(payer, 0) + charge.amount
    owned, shared = sums[FundingClass.OWNED], sums[FundingClass.SHARED]
    borrowed = sums[FundingClass.BORROWED]
    payers = tuple((tenant, of, found[tenant, of]) for tenant, of in sorted(found))
    return Split(owned, shared, borrowed, whole - owned - shared - borrowed, payers)


def classes_of(
    use: Use, charges: Iterable[Charge], facts: Facts
) -> dict[tuple[int, int], FundingClass]:
    """Return the class of each GPU of an attempt, by rank and index."""
    branch = facts.tenants.get(use.tenant)
    itself = branch is None or branch.budget_since is None
    rest = FundingClass.OWNED if itself else FundingClass.UNFUNDED
    found = {(share.rank, gpu): rest for share in use.shares for gpu in share.gpus}
    if not itself:
        for charge in charges:
            of = class_of(charge, use, facts)
            found.update(((charge.rank, gpu), of) for gpu in charge.gpus)
    return found
