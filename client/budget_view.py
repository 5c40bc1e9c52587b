"""How tenants and budgets look."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from longshore.client.terminal import WIDE, a_table, room_for, without_empty
from longshore.models.funding import FundingClass, Quotas
from longshore.models.funding_use import format_hours
from longshore.models.funding_views import (
    BudgetChange,
    BudgetView,
    ClassMove,
    EnvelopeState,
    EnvelopeView,
    TenantView,
)
from longshore.models.text import NONE, dollars, listed
from longshore.models.units import plain

_NAMED = 10
_EMPTY = {"shares": "1", "alone on": "0", "hours in 90d": NONE}
"""Cells of columns that a narrow table leaves out where all are so."""
_NARROW = 7
"""Characters of a number and its limit in a narrow table, which folds more: ``180 of``."""


def tenants_table(tenants: Sequence[TenantView], width: int) -> Table:
    """Return a row for each tenant, below its parent; of what is limited also the limit. A narrow
    table leaves out nodes, since when there is a budget, and columns that say nothing."""
    rows = [_tenant_cells(depth, tenant) for depth, tenant in in_tree(tenants)]
    headings = ["tenant", "shares", "budget", "GPUs", "nodes", "jobs", "waiting", "alone on",
                "hours in 90d"]  # fmt: skip
    numbers = ("GPUs", "nodes", "jobs", "waiting", "alone on")
    if width >= WIDE:
        table = a_table(headings, right=("shares", *numbers, "hours in 90d"), fold=("tenant",))
    else:
        headings = [name for name in headings if name not in ("budget", "nodes")]
        headings = without_empty(headings, rows, _EMPTY)
        # The tree is what is looked for: names are folded last.
        widest = {"tenant": width // 4, "hours in 90d": width // 6}
        widest |= dict.fromkeys(numbers, _NARROW)
        widest["tenant"] = room_for("tenant", headings, rows, widest, width)
        table = a_table(headings, right=("shares", *numbers), widest=widest)
    for row in rows:
        table.add_row(*(row[name] for name in headings))
    return table


def _tenant_cells(depth: int, tenant: TenantView) -> dict[str, str]:
    return {
        "tenant": "  " * depth + tenant.name,
        "shares": f"{tenant.shares:g}",
        "budget": f"since {tenant.budget_since:%Y-%m-%d}" if tenant.budget_since else NONE,
    } | quota_cells(tenant)


def quota_cells(tenant: TenantView) -> dict[str, str]:
    """Return what a tenant holds with those below it, each with its quota where there is one."""
    held, quotas = tenant.subtree, tenant.quotas
    return {
        "GPUs": _of(held.gpus, quotas.max_gpus),
        "nodes": _of(held.nodes, quotas.max_nodes),
        "jobs": _of(held.jobs, quotas.max_jobs),
        "waiting": _of(held.queued, quotas.max_queued),
        "alone on": _of(held.sensitive_nodes, quotas.sensitive_nodes),
        "hours in 90d": _hours(tenant),
    }


def _hours(tenant: TenantView) -> str:
    """Return ``1,220.00 of 1,000 GPU: jobs count 0.05``: of the soft quotas."""
    quotas = tenant.quotas
    of = (
        ("GPU", tenant.gpu_hours, quotas.gpu_hours), ("node", tenant.node_hours, quotas.node_hours)
    )  # fmt: skip
    had = ", ".join(
        f"{format_hours(used)} of {most:,g} {what}"
        for what, used, most in of
        if used is not None and most is not None
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
    return ", ".join(f"{name} {plain(value)}" for name, value in given.items())


def budgets_table(budgets: Sequence[BudgetView], width: int) -> Table:
    """Return a row for each envelope and each cap. A narrow table has one column for the window,
    when an envelope opens, or else when it ends, and one for what it lends."""
    wide = width >= WIDE
    rows = [row for budget in budgets for row in _budget_rows(budget, wide)]
    if wide:
        headings = ["tenant", "envelope", "GPUs", "used", "lent", "for", "from (UTC)", "to (UTC)",
                    "sharing", "lends"]  # fmt: skip
        table = a_table(headings, right=("GPUs", "used", "lent"), fold=("for", "lends"))
    else:
        headings = ["tenant", "envelope", "GPUs", "used", "for", "window (UTC)", "sharing",
                    "lent"]  # fmt: skip
        headings = without_empty(headings, rows, {"lent": NONE})
        widest = {"tenant": width // 8, "envelope": width // 7, "for": width // 8,
                  "window (UTC)": 10, "lent": width // 8}  # fmt: skip
        widest["tenant"] = room_for("tenant", headings, rows, widest, width)
        table = a_table(headings, right=("GPUs", "used"), widest=widest)
    for row in rows:
        table.add_row(*(row[name] for name in headings))
    return table


def _budget_rows(budget: BudgetView, wide: bool) -> Iterator[Mapping[str, str]]:
    nothing = defaultdict(lambda: NONE, tenant=budget.tenant)
    for each in budget.envelopes:
        spec = each.spec
        start = f"{spec.start:%Y-%m-%d %H:%M}" if spec.start else NONE
        end = f"{spec.end:%Y-%m-%d %H:%M}" if spec.end else "never"
        lent = plain(each.lent) if wide else f"{plain(each.lent)} of {lends_words(each)}"
        yield {
            "tenant": budget.tenant, "envelope": spec.name, "GPUs": plain(spec.gpus),
            "used": plain(each.used), "lent": lent if spec.lending else NONE,
            "for": for_words(each), "from (UTC)": start, "to (UTC)": end,
            "window (UTC)": _window(each, start, end),
            "sharing": spec.sharing.value if each.state is EnvelopeState.OPEN else each.state,
            "lends": lends_words(each),
        }  # fmt: skip
    for cap in budget.caps:
        over = "all below" if cap.spec.subtree else listed(cap.spec.envelopes, _NAMED)
        yield nothing | {
            "envelope": f"cap {cap.spec.name}", "GPUs": plain(cap.spec.gpus),
            "used": plain(cap.used), "for": over,
        }  # fmt: skip
    if not budget.envelopes:
        yield nothing | {"envelope": "none"}


def _window(each: EnvelopeView, start: str, end: str) -> str:
    if each.state is EnvelopeState.NOT_YET:
        return f"opens {start}"
    if each.spec.end is None:
        return "no end"
    return f"{'ended' if each.state is EnvelopeState.ENDED else 'ends'} {end}"


def money_lines(budgets: Sequence[BudgetView]) -> list[str]:
    """Return what purchases have taken of the money of each budget that has any, and which other
    budgets they count in."""
    lines = [f"Purchases for {one.tenant} and those below it: {said}."
             for one in budgets if (said := says_money(one))]  # fmt: skip
    shown = {one.tenant for one in budgets}
    above = ((one.tenant, [name for name in one.money_of if name not in shown]) for one in budgets)
    return lines + [
        f"Purchases for {tenant} take of the money of {listed(names, _NAMED)}, too: "
        f"`longshore budget show {names[0]}`."
        for tenant, names in above
        if names
    ]


def says_money(budget: BudgetView) -> str:
    """Return ``$4.00 of $500.00 today, $90.00 of $9,000.00 this month, about $200.00 by its end``;
    empty for one without money."""
    money, spent = budget.money, budget.spent
    if money is None or spent is None:
        return ""
    day, month = money.per_day, money.per_month
    parts = [] if day is None else [f"{dollars(spent.today)} of {dollars(day)} today"]
    of = "" if month is None else f" of {dollars(month)}"
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
    return ", ".join(f"{plain(gpus)} {each.value}" for each, gpus in classes.items())


def _payers(payers: Mapping[str, float]) -> str:
    return ", ".join(f"{plain(gpus)} {tenant}" for tenant, gpus in payers.items()) or "nobody"


def _of(held: float, most: float | None) -> str:
    return plain(held) if most is None else f"{plain(held)} of {plain(most)}"


def for_words(each: EnvelopeView) -> str:
    """Return what GPUs an envelope is for: ``H100, pool lab``; ``any``."""
    spec = each.spec
    parts = [spec.gpu_type or "", f"pool {spec.pool}" if spec.pool else ""]
    parts += [f"{name}={value}" for name, value in sorted(spec.labels.items())]
    return ", ".join(filter(None, parts)) or "any"


def lends_words(each: EnvelopeView) -> str:
    """Return how much an envelope lends, and to whom: ``4 to lab``."""
    lending = each.spec.lending
    return f"{plain(lending.max)} to {listed(lending.to, _NAMED)}" if lending else NONE
