"""What part of a pool each tenant is to have, by the shares of the tree of tenants.

A tenant's target is its part among its siblings that have work, which ran of late or waits, times
the target of its parent. Tenants without a parent are siblings of each other. What a tenant does
that has others below it counts beside these as one more with one share, as processes in a control
group do beside its groups.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from math import prod
from typing import NamedTuple

from longshore.models.packing import PackingPolicy
from longshore.models.score import LEAST_SHARES, MOST_SHARES, InTree, TenantPart
from longshore.models.text import count

_SELF = 1.0
"""Shares of what a tenant with others below it does itself."""
_LEAST, _MOST = 0.5, 2.0
"""Within a family who has had less than its part counts as having had half of it at least, and who
has had more as twice at most: families come before what is so within them."""


class Level(NamedTuple):
    """A tenant, or one above it, among its siblings with work."""

    name: str
    parent: str | None
    shares: float
    of: float
    """All shares of these siblings."""
    target: float
    """The part that it is to have of what they have."""
    actual: float
    """The part that it had, with all below it."""
    from_pool: bool
    """Whether the pool says its shares, and not the tree."""
    itself: bool = False
    """It is what a tenant does beside those below it."""


class FairTree:
    """The tenants with work in a pool, each below its parents."""

    def __init__(
        self,
        usage: Mapping[str, float],
        tree: Mapping[str, InTree],
        shares: Mapping[str, float],
    ) -> None:
        """`usage` are those with work, with what they had; `shares` are those that a pool says in
        place of the tree's."""
        self._usage = usage
        self._tree = tree
        self._shares = shares
        self._had: dict[str | None, float] = {}
        """By tenant: what it had, with all below it."""
        self._below: dict[str | None, list[str]] = {}
        for tenant, had in usage.items():
            self._add(tenant, had)
        self._had[None] = sum(usage.values())

    def _add(self, tenant: str, had: float) -> None:
        name: str | None = tenant
        while name is not None:
            parent = self._parent(name)
            if name not in self._had:
                self._below.setdefault(parent, []).append(name)
            self._had[name] = self._had.get(name, 0.0) + had
            name = parent

    def _parent(self, name: str) -> str | None:
        return self._tree[name].parent if name in self._tree else None

    def _shares_of(self, name: str) -> float:
        told = self._shares.get(name)
        if told is None:
            told = self._tree[name].shares if name in self._tree else 1.0
        return min(max(told, LEAST_SHARES), MOST_SHARES)  # a version without bounds took others

    @cached_property
    def _sums(self) -> dict[str | None, float]:
        """By parent: the shares of those below it that have work."""
        found: dict[str | None, float] = {}
        for parent, names in self._below.items():
            found[parent] = sum([self._shares_of(name) for name in names])
            if parent in self._usage:
                found[parent] += _SELF
        return found

    def levels(self, tenant: str) -> list[Level]:
        """Return where a tenant with work is in the tree, from the root down."""
        found: list[Level] = []
        if tenant in self._below:
            found.append(self._level(tenant, tenant, _SELF, self._usage[tenant], itself=True))
        name: str | None = tenant
        while name is not None:
            parent = self._parent(name)
            found.append(self._level(name, parent, self._shares_of(name), self._had[name]))
            name = parent
        return found[::-1]

    def _level(
        self, name: str, parent: str | None, shares: float, used: float, *, itself: bool = False
    ) -> Level:
        had, of = self._had[parent], self._sums[parent]
        return Level(
            name, parent, shares, of, shares / of, used / had if had > 0 else 0.0,
            name in self._shares and not itself, itself,
        )  # fmt: skip

    def target(self, tenant: str) -> float:
        """Return the part of the pool that a tenant with work is to have."""
        return prod(level.target for level in self.levels(tenant))

    def actual(self, tenant: str) -> float:
        """Return the part of the pool that a tenant had itself."""
        had = self._had[None]
        return self._usage[tenant] / had if had > 0 else 0.0

    def compared(self, tenant: str) -> tuple[float, float]:
        """Return the target of a tenant's family among families, and what that counts as having
        had for this tenant: more or less by how it stands within the family."""
        family, *within = self.levels(tenant)
        factor = prod(
            min(max(level.actual / level.target, _LEAST), _MOST)
            for level in within
            if self._had[level.parent] > 0
        )
        return family.target, family.actual * factor


def with_tenant(usage: Mapping[str, float], tenant: str) -> Mapping[str, float]:
    """Return what tenants had, with one more that has work."""
    return usage if tenant in usage else {**usage, tenant: 0.0}


def part_of(policy: PackingPolicy, tenant: str) -> TenantPart | None:
    """Return what a tenant whose job waits is to have of a pool, and by whose shares; None where
    the pool does not ask."""
    if policy.score is None or not policy.score.by_share:
        return None
    found = FairTree(with_tenant(policy.usage, tenant), policy.tree, policy.score.shares)
    return _part(found, tenant)


def parts_of(policy: PackingPolicy, tenants: Iterable[str]) -> tuple[TenantPart, ...]:
    """Return that of each of these tenants, by name."""
    if policy.score is None or not policy.score.by_share:
        return ()
    usage, names = dict(policy.usage), sorted(set(tenants))
    for name in names:
        usage.setdefault(name, 0.0)
    found = FairTree(usage, policy.tree, policy.score.shares)
    return tuple(_part(found, name) for name in names)


def _part(found: FairTree, tenant: str) -> TenantPart:
    levels = found.levels(tenant)
    return TenantPart(
        tenant=tenant, target=prod(level.target for level in levels),
        actual=found.actual(tenant), whence=", ".join(map(_says, reversed(levels))),
    )  # fmt: skip


def _says(level: Level) -> str:
    who = f"what {level.name} does itself" if level.itself else level.name
    said = f"{who} {level.shares:g} of {count(level.of, 'share')}"
    said += f" below {level.parent}" if level.parent is not None else ""
    return f"{said} by the pool's `shares.{level.name}`" if level.from_pool else said


def says_part(part: TenantPart) -> str:
    """Return that in words."""
    return f"target {part.target:.1%} of the pool, had {part.actual:.1%} of late: {part.whence}"
