"""How tenants and budgets look."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from longshore.client.terminal import a_table
from longshore.models.funding import FundingClass, Quotas
from longshore.models.funding_use import format_hours
from longshore.models.funding_views import (
    BudgetChange,
    BudgetView,
    ClassMove,
    EnvelopeView,
    TenantView,
)
from longshore.models.text import NONE, dollars, listed

_NAMED = 10


def tenants_table(tenants: Sequence[TenantView]) -> Table:
    """Return a row for each tenant, below its parent; of what is limited also the limit."""
    table = a_table(
        ["tenant", "shares", "budget", "GPUs", "nodes", "jobs", "waiting", "alone on",
         "hours in 90d"],
        right=("shares", "GPUs", "nodes", "jobs", "waiting", "alone on", "hours in 90d"),
        fold=("tenant",),
    )  # fmt: skip
    for depth, tenant in in_tree(tenants):
        held, quotas = tenant.subtree, tenant.quotas
        table.add_row(
            "  " * depth + tenant.name,
            f"{tenant.shares:g}",
            f"since {tenant.budget_since:%Y-%m-%d}" if tenant.budget_since else NONE,
            _of(held.gpus, quotas.max_gpus),
            _of(held.nodes, quotas.max_nodes),
            _of(held.jobs, quotas.max_jobs),
            _of(held.queued, quotas.max_queued),
            _of(held.sensitive_nodes, quotas.sensitive_nodes),
            _hours(tenant),
        )
    return table


def _hours(tenant: TenantView) -> str:
    """Return ``1,220.00 of 1,000 GPU: jobs count 0.05``: of the soft quotas."""
    quotas = tenant.quotas
    of = (
        ("GPU", tenant.gpu_hours, quotas.gpu_hours), ("node", tenant.node_hours, quotas.node_hours)
    )  # fmt: skip
    had = ", ".join(
        f"{format_hours(used)} of {most:,g} {what}" for what, used, most in of if most is not None
    )
    if tenant.counts == 1:
        return had or NONE
    return f"{had}: jobs count {tenant.counts:.2f}" if had else f"jobs count {tenant.counts:.2f}"


def in_tree(tenants: Sequence[TenantView]) -> Iterator[tuple[int, TenantView]]:
    """Yield the tenants with how many stand above each, each behind its parent, else by name."""
    names = {tenant.name for tenant in tenants}
    children: dict[str | None, list[TenantView]] = {}
    for tenant in sorted(tenants, key=lambda tenant: tenant.name):
        parent = tenant.parent if tenant.parent in names else None
        children.setdefault(parent, []).append(tenant)
    waiting = [(0, tenant) for tenant in reversed(children.get(None, []))]
    while waiting:
        depth, tenant = waiting.pop()
        yield depth, tenant
        waiting += [(depth + 1, child) for child in reversed(children.get(tenant.name, []))]


def quotas_words(quotas: Quotas) -> str:
    """Return ``max_gpus 200, max_jobs 10``; empty without any."""
    given = quotas.model_dump(exclude_none=True)
    return ", ".join(f"{name} {value:g}" for name, value in given.items())


def budgets_table(budgets: Sequence[BudgetView]) -> Table:
    """Return a row for each envelope and each cap."""
    table = a_table(
        ["tenant", "envelope", "GPUs", "used", "lent", "for", "from (UTC)", "to (UTC)", "sharing",
         "lends"],
        right=("GPUs", "used", "lent"), fold=("for", "lends"),
    )  # fmt: skip
    for budget in budgets:
        for each in budget.envelopes:
            table.add_row(
                budget.tenant, each.spec.name, f"{each.spec.gpus:g}", f"{each.used:g}",
                f"{each.lent:g}" if each.spec.lending else NONE, for_words(each),
                f"{each.spec.start:%Y-%m-%d %H:%M}" if each.spec.start else NONE,
                f"{each.spec.end:%Y-%m-%d %H:%M}" if each.spec.end else "never",
                each.state.value if each.state != "open" else each.spec.sharing.value,
                lends_words(each),
            )  # fmt: skip
        for cap in budget.caps:
            over = "all below" if cap.spec.subtree else listed(cap.spec.envelopes, _NAMED)
            table.add_row(
                budget.tenant, f"cap {cap.spec.name}", f"{cap.spec.gpus:g}", f"{cap.used:g}",
                NONE, over, NONE, NONE, NONE, NONE,
            )  # fmt: skip
        if not budget.envelopes:
            table.add_row(budget.tenant, "none", *[NONE] * 8)
    return table


def money_lines(budgets: Sequence[BudgetView]) -> list[str]:
    """Return what purchases have taken of the money of each budget that has any."""
    return [f"Purchases for {one.tenant} and those below it: {said}."
            for one in budgets if (said := says_money(one))]  # fmt: skip


def says_money(budget: BudgetView) -> str:
    """Return ``$4.00 of $500.00 today, $90.00 of $9,000.00 this month, about $200.00 by its end``;
    empty for one without money."""
    money, spent = budget.money, budget.spent
    if money is None or spent is None:
        return ""
    parts = [f"{dollars(spent.today)} of {dollars(money.per_day)} today"] if money.per_day else []
    of = f" of {dollars(money.per_month)}" if money.per_month else ""
    parts.append(f"{dollars(spent.this_month)}{of} this month")
    parts.append(f"about {dollars(spent.forecast)} by its end, as in the last week")
    return ", ".join(parts)


def change_line(change: BudgetChange) -> str:
    """Return ``research: envelope main is changed: gpus 64 to 48``."""
    fields = f": {'; '.join(change.fields)}" if change.fields else ""
    return f"{change.tenant}: {change.what} {change.edit.value}{fields}"


def moves_table(moves: Sequence[ClassMove]) -> Table:
    table = a_table(
        ["job", "name", "tenant", "now", "then", "paid by now", "then by"],
        fold=("now", "then", "paid by now", "then by"),
    )
    for move in moves:
        table.add_row(
            move.job_id, move.job_name, move.tenant, classes_words(move.before),
            classes_words(move.after), _payers(move.payers_before), _payers(move.payers_after),
        )  # fmt: skip
    return table


def classes_words(classes: Mapping[FundingClass, float]) -> str:
    """Return ``4 OWNED, 4 UNFUNDED``."""
    return ", ".join(f"{gpus:g} {each.value}" for each, gpus in classes.items())


def _payers(payers: Mapping[str, float]) -> str:
    return ", ".join(f"{gpus:g} {tenant}" for tenant, gpus in payers.items()) or "nobody"


def _of(held: float, most: float | None) -> str:
    return f"{held:g}" if most is None else f"{held:g} of {most:g}"


def for_words(each: EnvelopeView) -> str:
    """Return what GPUs an envelope is for: ``H100, pool lab``; ``any``."""
    spec = each.spec
    parts = [spec.gpu_type or "", f"pool {spec.pool}" if spec.pool else ""]
    parts += [f"{name}={value}" for name, value in sorted(spec.labels.items())]
    return ", ".join(filter(None, parts)) or "any"


def lends_words(each: EnvelopeView) -> str:
    """Return how much an envelope lends, and to whom: ``4 to lab``."""
    lending = each.spec.lending
    return f"{lending.max:g} to {listed(lending.to, _NAMED)}" if lending else NONE
