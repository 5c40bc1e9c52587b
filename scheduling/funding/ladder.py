"""Where a job looks for a payer: its own envelopes, its relatives', those of its sponsors.

The same steps say who keeps an envelope that has become too small: whoever is nearer outranks.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime

from longshore.models.funding import Envelope, Sharing
from longshore.scheduling.funding.facts import Branch, Owned, Where

_ONE_UP = 8
OWN = 0
"""The steps to an own envelope. Others are `_ONE_UP` for each up, and one for each down: so they
are in the order of the ladder as numbers."""
PARENT, SIBLING = _ONE_UP, _ONE_UP + 1
GRANDPARENT, AUNT, COUSIN = 2 * _ONE_UP, 2 * _ONE_UP + 1, 2 * _ONE_UP + 2
RELATIVES = (PARENT, SIBLING, GRANDPARENT, AUNT, COUSIN)
WORDS = {
    OWN: "own", PARENT: "parent", SIBLING: "sibling", GRANDPARENT: "grandparent", AUNT: "aunt",
    COUSIN: "cousin",
}  # fmt: skip


class Tree:
    """The tenants, and how near they are to each other."""

    def __init__(self, tenants: Mapping[str, Branch]) -> None:
        self._tenants = tenants
        self._children: dict[str, list[str]] = {}
        for name in sorted(tenants):
            parent = tenants[name].parent
            if parent is not None:
                self._children.setdefault(parent, []).append(name)

    def has_budget(self, tenant: str) -> bool:
        """Return whether others than the tenant itself have to be asked for what it uses."""
        branch = self._tenants.get(tenant)
        return branch is not None and branch.budget_since is not None

    def parent(self, tenant: str) -> str | None:
        """Return the tenant above."""
        branch = self._tenants.get(tenant)
        return None if branch is None else branch.parent

    def children(self, tenant: str) -> list[str]:
        """Return the tenants below, in order."""
        return self._children.get(tenant, [])

    def steps(self, tenant: str, owner: str) -> int | None:
        """Return how far an owner is from a tenant; None where the tenant may not ask it."""
        if tenant == owner:
            return OWN
        above = self.parent(tenant)
        if above is None:
            return None
        if owner == above:
            return PARENT
        of_owner = self.parent(owner)
        if of_owner == above:
            return SIBLING
        top = self.parent(above)
        if top is None:
            return None
        if owner == top:
            return GRANDPARENT
        if of_owner is None:
            return None
        if of_owner == top:
            return AUNT
        return COUSIN if self.parent(of_owner) == top else None

    def at(self, tenant: str, steps: int) -> Iterator[str]:
        """Return the tenants at some distance, in order."""
        if steps == OWN:
            yield tenant
            return
        above = self.parent(tenant)
        top = above if above is None or steps < GRANDPARENT else self.parent(above)
        if above is None or top is None:
            return
        if steps in (PARENT, GRANDPARENT):
            yield top
        elif steps == SIBLING:
            yield from (name for name in self.children(top) if name != tenant)
        else:
            aunts = (name for name in self.children(top) if name != above)
            for aunt in aunts:
                yield from [aunt] if steps == AUNT else self.children(aunt)


def is_open(envelope: Envelope, now: datetime) -> bool:
    """Return whether an envelope pays at this time."""
    return (envelope.start is None or envelope.start <= now) and (
        envelope.end is None or now < envelope.end
    )


def is_for(envelope: Envelope, where: Where) -> bool:
    """Return whether an envelope is for GPUs there, or could be for those of a job that waits."""
    if envelope.pool is not None and envelope.pool != where.pool:
        return False
    if (
        envelope.gpu_type is not None
        and where.gpu_type is not None
        and envelope.gpu_type.casefold() != where.gpu_type.casefold()
    ):
        return False
    return where.labels is None or where.labels.issuperset(envelope.labels.items())


def most_specific_first(owned: Owned) -> tuple[int, bool, bool, bool, float, int]:
    """Return the key that puts envelopes of a rung in order: what ends sooner is used sooner."""
    spec = owned.spec
    return (
        -len(spec.labels), spec.pool is None, spec.gpu_type is None, spec.end is None,
        spec.end.timestamp() if spec.end else 0.0, owned.id,
    )  # fmt: skip


def shares_with(envelope: Envelope, steps: int) -> bool:
    """Return whether a tenant so many steps away may use an envelope without a contract."""
    return steps == OWN or envelope.sharing is Sharing.FAMILY


def lends_to(envelope: Envelope, tenant: str) -> bool:
    """Return whether an envelope may be lent to a tenant."""
    return envelope.lending is not None and tenant in envelope.lending.to
