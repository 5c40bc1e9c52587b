"""What the caps leave for an option, and which of them it passes."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from longshore.models.block_end import BlockJob
from longshore.models.buying import Option, PurchasePlan, UnmetJob
from longshore.models.caps_left import BudgetLeft, CapLeft, CapOf, CapsLeft
from longshore.models.limit import HeldBy, Limit
from longshore.models.market import Window
from longshore.models.spending import WARM
from longshore.models.text import at_most, dollars
from longshore.scheduling.buying.words import Lost

DEFAULT_TENANT = "default"


def over_a_cap(left: CapsLeft, jobs: Iterable[UnmetJob], option: Option) -> Lost | None:
    """Return which caps an option is over, with the amounts, and what each would have to be;
    None for none."""
    owed, counted = shares(jobs, option.plans), counted_by_tenant(jobs, option.plans)
    over = [
        (cap, amount)
        for cap in left.caps
        if (amount := _amount(cap, option, counted)) is not None and amount > cap.left
    ]
    says = [_over_cap(cap, amount) for cap, amount in over]
    needs = dict[tuple[str, str], int]()
    for cap, amount in over:  # a setting for each tenant has to do for all of them
        named = (cap.setting, cap.scope)
        needs[named] = max(needs.get(named, 0), cap.most + amount - cap.left)
    limits = [
        Limit(name=HeldBy.REFUSED, needs=f"{scope} {at_most(most)}")
        if scope
        else Limit(name=setting, needs=at_most(most))
        for (setting, scope), most in needs.items()
    ]
    for tenant, amount in _of_budgets(left, owed).items():
        budget = left.budgets[tenant]
        for field, when, most, whole, until in (
            ("per_day", "today", budget.day, budget.per_day, budget.day_ends),
            ("per_month", "this month", budget.month, budget.per_month, budget.month_ends),
        ):
            if most is not None and amount > most:
                lost = _over_budget(tenant, field, when, amount, most, whole, until)
                says.append(lost.why)
                limits += lost.limits
    return Lost("; and ".join(says), tuple(limits)) if says else None


def _amount(cap: CapLeft, option: Option, counted: Mapping[str, int]) -> int | None:
    """Return what an option may cost at most of what a cap limits; None for nothing of it."""
    match cap.of:
        case CapOf.PURCHASE:
            return max((plan.most for plan in option.plans), default=None)
        case CapOf.DAY:
            return option.max_total
        case CapOf.TIER:
            return option.max_total if cap.name == option.tier else None
        case CapOf.TENANT:
            return counted.get(cap.name)


def _over_cap(cap: CapLeft, amount: int) -> str:
    cost, left = at_most(amount), dollars(max(cap.left, 0))
    by = f" (`longshore market caps {cap.scope}`)" if cap.scope else ""
    if cap.of is CapOf.PURCHASE:
        return f"it is over the cap of a purchase: it may cost {cost}, and {left} is the most{by}"
    whose = f" for {cap.name}" if cap.name else ""
    return (
        f"it is over what is left of the cap of today{whose}: it may cost {cost}, and "
        f"{left} is left{by}"
    )


def _over_budget(
    tenant: str,
    field: str,
    when: str,
    amount: int,
    most: int,
    whole: int | None,
    until: datetime | None,
) -> Lost:
    """Return it with what there is of that money, and until when."""
    left = dollars(max(most, 0)) + (f" of {dollars(whole)}" if whole is not None else "")
    ends = f" until {until:%Y-%m-%d %H:%M} UTC" if until is not None else ""
    says = f"it is over the money of the budget of {tenant} {when}"
    needs = "" if whole is None else f" to {at_most(whole + amount - most)}"
    return Lost(
        f"{says}: its part may cost {at_most(amount)}, {left} is left{ends}",
        Limit.at(HeldBy.BUDGET, f"money.{field} of the budget of {tenant}{needs}"),
    )  # fmt: skip


def spent(left: CapsLeft, jobs: Iterable[UnmetJob], option: Option) -> CapsLeft:
    """Return what is left when an option was taken."""
    owed, counted = shares(jobs, option.plans), counted_by_tenant(jobs, option.plans)
    caps = tuple(
        cap if cap.of is CapOf.PURCHASE else cap.less(_amount(cap, option, counted) or 0)
        for cap in left.caps
    )
    budgets = dict(left.budgets)
    for tenant, amount in _of_budgets(left, owed).items():
        budgets[tenant] = _less(budgets[tenant], amount)
    return left.model_copy(update={"caps": caps, "budgets": budgets})


def split_of(jobs: Iterable[UnmetJob], plan: PurchasePlan) -> Mapping[str, int]:
    """Return by what weights the tenants pay for an order: the GPU-seconds of their jobs. What no
    job pays for, such as a machine of the warm target, is the default tenant's."""
    weights: dict[str, int] = {}
    for job in jobs:
        if job.request.id in plan.serves and not job.request.id.startswith(WARM):
            weights[job.tenant] = weights.get(job.tenant, 0) + _gpu_seconds(job)
    return weights or {DEFAULT_TENANT: 1}


def gpu_time(jobs: Iterable[BlockJob], window: Window) -> dict[str, int]:
    """Return the GPU-seconds of each job that goes on, or begins, in a window."""
    found: dict[str, int] = {}
    for job in jobs:
        until = min(job.expected_end, window.end)
        seconds = max((until - window.start) // timedelta(seconds=1), 1)
        found[job.id] = found.get(job.id, 0) + job.gpus * seconds
    return found


def tenant_of(split: Mapping[str, int]) -> str:
    """Return the tenant of a purchase that is paid so: who pays most of it."""
    return max(sorted(split), key=lambda tenant: split[tenant])


def counted_by_tenant(
    jobs: Iterable[UnmetJob], plans: Iterable[PurchasePlan]
) -> Mapping[str, int]:
    """Return what counts for the caps of each tenant: the whole of its purchases, as the database
    counts them (the trigger `purchase_commits`)."""
    jobs = tuple(jobs)
    found: dict[str, int] = {}
    for plan in plans:
        tenant = tenant_of(split_of(jobs, plan))
        found[tenant] = found.get(tenant, 0) + plan.most
    return found


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
    jobs = tuple(jobs)
    owed: dict[str, int] = {}
    for plan in plans:
        split = split_of(jobs, plan)
        for tenant, weight in split.items():
            part = -(-plan.most * weight // sum(split.values()))
            owed[tenant] = owed.get(tenant, 0) + part
    return owed


def _gpu_seconds(job: UnmetJob) -> int:
    return job.request.gpus * max(job.request.expected_duration // timedelta(seconds=1), 1)
