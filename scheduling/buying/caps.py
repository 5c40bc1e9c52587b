"""What the caps leave for an option, and which of them it passes."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from longshore.models.buying import BudgetLeft, CapsLeft, Option, PurchasePlan, UnmetJob
from longshore.models.spending import HeldBy
from longshore.models.text import at_most, dollars
from longshore.scheduling.buying.words import Lost


def over_a_cap(left: CapsLeft, jobs: Iterable[UnmetJob], option: Option) -> Lost | None:
    """Return which cap an option is over, with the amounts; None for none."""
    for plan in option.plans:
        if left.purchase is not None and plan.most > left.purchase:
            amounts = f"it may cost {at_most(plan.most)}, and {dollars(left.purchase)} is the most"
            says = f"it is over the cap of a purchase: {amounts}"
            lacks = plan.most - left.purchase
            return _lost(says, left, "caps.per_purchase", left.own.per_purchase, lacks)
    cost, tier = option.max_total, option.tier
    if left.day is not None and cost > left.day:
        says = _over_today("", cost, left.day)
        return _lost(says, left, "caps.per_day", left.own.per_day, cost - left.day)
    of_tier = left.tiers.get(tier)
    if of_tier is not None and cost > of_tier:
        says, own = _over_today(tier, cost, of_tier), left.own.per_tier_day.get(tier)
        return _lost(says, left, f"caps.per_tier_day.{tier}", own, cost - of_tier)
    for tenant, amount in shares(jobs, option.plans).items():
        of_tenant = left.tenants.get(tenant, left.tenant)
        if of_tenant is not None and amount > of_tenant:
            says = _over_today(tenant, amount, of_tenant)
            own, lacks = left.own.per_tenant_day, amount - of_tenant
            return _lost(says, left, "caps.per_tenant_day", own, lacks, tenant)
    for tenant, amount in _of_budgets(left, shares(jobs, option.plans)).items():
        budget = left.budgets[tenant]
        for field, when, most, whole, until in (
            ("per_day", "today", budget.day, budget.per_day, budget.day_ends),
            ("per_month", "this month", budget.month, budget.per_month, budget.month_ends),
        ):
            if most is not None and amount > most:
                return _over_budget(tenant, field, when, amount, most, whole, until)
    return None


def _over_budget(
    tenant: str,
    field: str,
    when: str,
    amount: int,
    most: int,
    whole: int | None,
    until: datetime | None,
) -> Lost:
    """Return it with what there is of that money, what is committed, and until when."""
    left = f"{dollars(max(most, 0))} is left"
    if whole is not None:
        left += f" of {dollars(whole)}, with {dollars(whole - most)} committed"
    if until is not None:
        left += f", until {until:%Y-%m-%d %H:%M} UTC"
    says = f"it is over the money of the budget of {tenant} {when}"
    needs = "" if whole is None else f" to {at_most(whole + amount - most)}"
    return Lost(
        f"{says}: its part may cost {at_most(amount)}, {left}",
        HeldBy.BUDGET, f"money.{field} of the budget of {tenant}{needs}",
    )  # fmt: skip


def spent(left: CapsLeft, jobs: Iterable[UnmetJob], option: Option) -> CapsLeft:
    """Return what is left when an option was taken."""
    tenants = dict(left.tenants)
    for tenant, amount in shares(jobs, option.plans).items():
        of_tenant = tenants.get(tenant, left.tenant)
        if of_tenant is not None:
            tenants[tenant] = of_tenant - amount
    tiers = {
        tier: amount - (option.max_total if tier is option.tier else 0)
        for tier, amount in left.tiers.items()
    }
    day = None if left.day is None else left.day - option.max_total
    budgets = dict(left.budgets)
    for tenant, amount in _of_budgets(left, shares(jobs, option.plans)).items():
        budgets[tenant] = _less(budgets[tenant], amount)
    return left.model_copy(
        update={"day": day, "tiers": tiers, "tenants": tenants, "budgets": budgets}
    )


def split_of(jobs: Iterable[UnmetJob], plan: PurchasePlan) -> Mapping[str, int]:
    """Return by what weights the tenants pay for an order: the GPU-seconds of their jobs."""
    weights: dict[str, int] = {}
    for job in jobs:
        if job.request.id in plan.serves:
            weights[job.tenant] = weights.get(job.tenant, 0) + _gpu_seconds(job)
    return weights


def _of_budgets(left: CapsLeft, owed: Mapping[str, int]) -> Mapping[str, int]:
    """Return what each budget with money has to pay, for its tenant and for those below it."""
    found: dict[str, int] = {}
    for tenant, amount in owed.items():
        for above in left.above.get(tenant, ()):
            found[above] = found.get(above, 0) + amount
    return found


def _less(left: BudgetLeft, amount: int) -> BudgetLeft:
    day = None if left.day is None else left.day - amount
    month = None if left.month is None else left.month - amount
    return left.model_copy(update={"day": day, "month": month})


def shares(jobs: Iterable[UnmetJob], plans: Iterable[PurchasePlan]) -> Mapping[str, int]:
    """Return what each tenant has to pay at most, by the GPU-hours of its jobs; rounded up."""
    by_id = {job.request.id: job for job in jobs}
    owed: dict[str, int] = {}
    for plan in plans:
        served = [by_id[job_id] for job_id in plan.serves if job_id in by_id]
        weights = [_gpu_seconds(job) for job in served]
        for job, weight in zip(served, weights, strict=True):
            part = -(-plan.most * weight // max(sum(weights), 1))
            owed[job.tenant] = owed.get(job.tenant, 0) + part
    return owed


def _over_today(whose: str, cost: int, most: int) -> str:
    of = f" for {whose}" if whose else ""
    amounts = f"it may cost {at_most(cost)}, and {dollars(max(most, 0))} is left"
    return f"it is over what is left of the cap of today{of}: {amounts}"


def _lost(
    says: str, left: CapsLeft, setting: str, own: int | None, lacks: int, tenant: str = ""
) -> Lost:
    """Return it with the setting of a pool that is the limit, and what that would have to be,
    unless `longshore market caps` sets it."""
    whose = left.general.get(f"{setting}.{tenant}" if tenant else setting)
    if whose is None:
        return Lost(says, setting, "" if own is None else at_most(own + lacks))
    return Lost(f"{says} (`longshore market caps {whose}`)", HeldBy.REFUSED)


def _gpu_seconds(job: UnmetJob) -> int:
    return job.request.gpus * max(job.request.expected_duration // timedelta(seconds=1), 1)
