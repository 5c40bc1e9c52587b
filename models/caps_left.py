"""What is left of the caps on purchases, and of the money of budgets."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Self

from pydantic import Field

from longshore.models.base import Frozen, Instant
from longshore.models.buying_policy import Caps


class BudgetLeft(Frozen):
    """What is left of the money of a budget; no limit where one is left out."""

    day: int | None = None
    month: int | None = None
    per_day: int | None = None
    """What there is of it in all, each day and each month."""
    per_month: int | None = None
    day_ends: Instant | None = None
    """From when on there is so much again."""
    month_ends: Instant | None = None


class CapOf(StrEnum):
    """What a cap limits, in the order in which caps are named."""

    PURCHASE = "purchase"
    """Each purchase."""
    DAY = "day"
    """All purchases of a day (UTC)."""
    TIER = "tier"
    """Those of a day for the jobs of a tier."""
    TENANT = "tenant"
    """Those of a day of which a tenant pays most."""


class CapLeft(Frozen):
    """A cap on what purchases may cost, and what is left of it now. In micro-dollars."""

    of: CapOf
    name: str = ""
    """The tier or the tenant."""
    most: int
    """What it is set to."""
    left: int
    """Below zero where it was lowered below what is committed."""
    scope: str = ""
    """As `longshore market caps` names it (``pool=red``); empty for one of the pool's policy."""

    @property
    def setting(self) -> str:
        """Its name in a pool's policy."""
        if self.of is CapOf.TIER:
            return f"caps.per_tier_day.{self.name}"
        return f"caps.per_{self.of}{'_day' if self.of is CapOf.TENANT else ''}"

    def less(self, amount: int) -> Self:
        """Return it when so much more is committed."""
        return self.model_copy(update={"left": self.left - amount})


class CapsLeft(Frozen):
    """What is left of all caps now."""

    caps: tuple[CapLeft, ...] = ()
    """The pool's own, and those that `longshore market caps` sets."""
    budgets: dict[str, BudgetLeft] = Field(default_factory=dict[str, BudgetLeft])
    """Of tenants whose budgets have money."""
    above: dict[str, tuple[str, ...]] = Field(default_factory=dict[str, tuple[str, ...]])
    """By tenant: those of them that pay for its purchases too, itself and those above it."""
    stopped: str = ""
    """Why nothing may be bought at all: the stop-buying switch."""
    unreadable: str = ""
    """Purchases under way of which nobody can read what they bring: others might be for the same
    jobs."""

    @classmethod
    def of(cls, caps: Caps, tenants: Iterable[str] = ()) -> Self:
        """Return what is left of a pool's own caps, for these tenants, when nothing was bought
        yet."""
        found = [(CapOf.PURCHASE, "", caps.per_purchase), (CapOf.DAY, "", caps.per_day)]
        found += [(CapOf.TIER, tier.value, most) for tier, most in caps.per_tier_day.items()]
        found += [(CapOf.TENANT, tenant, caps.per_tenant_day) for tenant in sorted(set(tenants))]
        return cls(
            caps=tuple(
                CapLeft(of=of, name=name, most=most, left=most)
                for of, name, most in found if most is not None
            )
        )  # fmt: skip

    @property
    def today(self) -> int | None:
        """What may be committed today in all; None without a limit."""
        return min((cap.left for cap in self.caps if cap.of is CapOf.DAY), default=None)

    def of_tenant(self, tenant: str) -> int | None:
        """Return what may be committed today for a tenant, of its own caps and of the money of
        budgets; None without a limit."""
        own = (cap.left for cap in self.caps if cap.of is CapOf.TENANT and cap.name == tenant)
        money = (self.budgets[name] for name in self.above.get(tenant, ()) if name in self.budgets)
        budgets = (left for each in money for left in (each.day, each.month) if left is not None)
        return min((*own, *budgets), default=None)
