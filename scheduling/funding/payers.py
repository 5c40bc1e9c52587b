"""Who pays for jobs that run or wait, by the tenants that matter to a plan."""

from collections.abc import Iterable, Mapping

from longshore.models.funding import FundingClass, Payer
from longshore.scheduling.funding.cover import Cover
from longshore.scheduling.funding.facts import Facts, Use
from longshore.scheduling.funding.ladder import OWN, Tree
from longshore.scheduling.funding.room import Room
from longshore.scheduling.funding.split import Split, classes_of

_DEEPEST = 4
"""How many jobs may wait for each other, that share with each other."""


def payer_of(room: Room, use: Use, split: Split) -> Payer:
    """Return who pays for a job that runs."""
    shared = (name for name, of, _ in split.payers if of is FundingClass.SHARED)
    payer = _paid_by(room.tree, use.tenant, split.owners, shared, funded=not split.unfunded)
    keeps = split.owned + split.borrowed + (split.shared if split.unfunded else 0)
    if not keeps or not (split.unfunded or split.shared):
        return payer
    charges = [paid.charge for paid in room.held[use.job_id, use.attempt].values()]
    of_each = classes_of(use, charges, room.facts)
    loses = FundingClass.UNFUNDED if split.unfunded else FundingClass.SHARED
    ranks = tuple(
        (share.node, tuple(gpu for gpu in share.gpus if of_each[share.rank, gpu] is loses))
        for share in use.shares
    )
    return payer._replace(keeps=keeps // 1000, ranks=ranks)


def behind_owners(tree: Tree, waiting: Mapping[str, Payer]) -> dict[str, int]:
    """Return which jobs come behind others, and behind how many: one that others than its own
    tenant would pay for comes after the jobs of its relatives that their own envelopes pay for.

    These may have it stopped, whatever its class: before them it would take the GPUs back that
    were freed for them. Whose envelope pays is only known when it begins.
    """
    guests = {
        job_id: payer.owner
        for job_id, payer in waiting.items()
        if payer.funded and payer.tenants - {payer.owner}
    }
    if not guests:
        return {}
    # All guests of a tenant come behind equally many, so tenants are looked at.
    owners: dict[str, bool] = {}
    """By tenant whose own envelopes pay for a job: whether others pay for one of those, too."""
    for job_id, payer in waiting.items():
        if payer.funded and payer.owner in payer.tenants:
            owners[payer.owner] = owners.get(payer.owner, False) or job_id in guests
    ahead = {
        tenant: [name for name in owners if tree.steps(tenant, name) not in (None, OWN)]
        for tenant in set(guests.values())
    }
    found: dict[str, int] = {}
    for _ in range(_DEEPEST):
        before = dict(found)
        for tenant, near in ahead.items():
            if near:
                deepest = (before.get(name, 0) if owners[name] else 0 for name in near)
                found[tenant] = 1 + max(deepest)
        if found == before:
            break
    return {job_id: found[tenant] for job_id, tenant in guests.items() if tenant in found}


def payer_of_cover(facts: Facts, tree: Tree, use: Use, found: Cover) -> Payer:
    """Return who would pay for a job that waits."""
    owners = [(facts.envelopes[each.envelope].tenant, each.lent) for each in found.charges]
    shared = (owner for owner, lent in owners if not lent and owner != use.tenant)
    return _paid_by(tree, use.tenant, (owner for owner, _ in owners), shared)


def _paid_by(
    tree: Tree, tenant: str, owners: Iterable[str], shared: Iterable[str], *, funded: bool = True
) -> Payer:
    relatives = frozenset(shared)
    far = max((tree.steps(tenant, each) or OWN for each in relatives), default=OWN)
    return Payer(frozenset(owners), funded, tenant, relatives, far)
