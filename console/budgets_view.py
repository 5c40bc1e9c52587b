"""The page /budgets as HTML: the tree of tenants, envelopes, who lends to whom, bars of use."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from longshore.client.budget_view import for_words, in_tree, lends_words, quota_cells
from longshore.console.escaping import escape
from longshore.console.parts import cell, chip, empty, number, table, when
from longshore.models.funding import FundingClass, Quotas, Sharing
from longshore.models.funding_use import (
    FundingState,
    InUse,
    PaidGPUs,
    PaidHours,
    Usage,
    format_hours,
)
from longshore.models.funding_views import BudgetView, EnvelopeState, EnvelopeView
from longshore.models.text import NONE, ago, count, dollars, listed

PATH = "/budgets"
_NAMED = 5
_MEANS = {
    FundingClass.OWNED: "owned: its tenant pays",
    FundingClass.SHARED: "shared: a relative pays, and may take it back",
    FundingClass.BORROWED: "borrowed: a sponsor pays, by contract",
    FundingClass.UNFUNDED: "unfunded: nobody pays, preempted first",
}
_QUOTA_HEADS = {
    "GPUs": "GPUs", "nodes": "Nodes", "jobs": "Jobs", "waiting": "Waiting jobs",
    "alone on": "Nodes held alone", "hours in 90d": "Hours in 90 days",
}  # fmt: skip
_NOTHING = f'<td class="n nil">{NONE}</td>'
_Classes = Mapping[FundingClass, float]


def nothing_html() -> str:
    """Return the words for where no tenant is known."""
    return empty(
        "No tenants yet",
        "One is made by its first job, or by `longshore tenant set`.",
        "`longshore budget apply FILE` gives tenants budgets: who has none pays for all that it "
        "uses.",
    )


def tenants_html(state: FundingState, of_late: Usage) -> str:
    """Return the tenants in their tree, each with what its jobs use, by class; and what the
    colours of the page mean, those too of what was used of late."""
    used = _by_tenant(state)
    gpus = {each.tenant: _open_gpus(each) for each in state.budgets}
    most = max((*(sum(each.values()) for each in used.values()), *gpus.values(), 1.0))
    rows: list[str] = []
    for depth, tenant in in_tree(state.tenants):
        classes = used.get(tenant.name, {})
        own = gpus.get(tenant.name)
        budget = "pays for itself" if own is None else count(own, "GPU")
        name = f'<span class="in-tree" style="--depth:{depth}">{escape(tenant.name)}</span>'
        rows.append(
            f"<tr>{cell(name, 'Tenant', folds=True)}{_bars(classes, most, own)}"
            f"{number(_gpus(sum(classes.values())), 'In use')}{_numbers(classes, _gpus)}"
            f"{cell(escape(budget), 'Budget')}</tr>"
        )
    heads = ("Tenant", "Use", "In use", *map(_head, FundingClass), "Budget")
    seen = {row.funding: row.gpu_hours for row in of_late.rows}
    return _legend([*used.values(), seen]) + table(
        "Tenants", heads, rows, numbers=("In use", *map(_head, FundingClass))
    )


def envelopes_html(state: FundingState) -> str:
    """Return a row for each envelope, with how much of it is used and its window; nothing
    without any."""
    most = max((each.spec.gpus for one in state.budgets for each in one.envelopes), default=1.0)
    held: dict[tuple[str | None, str | None], list[InUse]] = {}
    for one in state.in_use:
        held.setdefault((one.payer, one.envelope), []).append(one)
    rows = [
        _envelope(
            budget.tenant, each, held.get((budget.tenant, each.spec.name), ()), most, state.at
        )
        for budget in state.budgets
        for each in budget.envelopes
    ]
    heads = ("Envelope", "Use", "Used", "For", "Who has it", "Window, UTC", "Lends")
    return table("Envelopes", heads, rows, numbers=("Used",)) if rows else ""


def caps_html(state: FundingState) -> str:
    """Return a row for each cap; nothing without any."""
    rows: list[str] = []
    for budget in state.budgets:
        for each in budget.caps:
            spec = each.spec
            over = "all below it" if spec.subtree else listed(spec.envelopes, _NAMED)
            used = {FundingClass.OWNED: each.used}
            name = f"{budget.tenant}/{spec.name}"
            rows.append(
                f"<tr>{cell(escape(name), 'Cap', folds=True)}"
                f"{_bars(used, max(spec.gpus, each.used, 1.0), spec.gpus, word='used')}"
                f"{number(_of(each.used, spec.gpus), 'Used')}"
                f"{cell(escape(over), 'Over', folds=True)}</tr>"
            )
    heads = ("Cap", "Use", "Used", "Over")
    return table("Caps", heads, rows, numbers=("Used",)) if rows else ""


def quotas_html(state: FundingState) -> str:
    """Return a row for each tenant that has a quota; nothing where none has."""
    rows: list[str] = []
    for depth, tenant in in_tree(state.tenants):
        if tenant.quotas == Quotas():
            continue
        name = f'<span class="in-tree" style="--depth:{depth}">{escape(tenant.name)}</span>'
        cells = (
            number(escape(said), _QUOTA_HEADS[key]) for key, said in quota_cells(tenant).items()
        )
        rows.append(f"<tr>{cell(name, 'Tenant', folds=True)}{''.join(cells)}</tr>")
    heads = _QUOTA_HEADS.values()
    return table("Quotas", ("Tenant", *heads), rows, numbers=tuple(heads)) if rows else ""


def loans_html(state: FundingState) -> str:
    """Return who pays for jobs of another tenant; nothing where nobody does."""
    loans = [each for each in state.in_use if each.lender]
    rows = [
        f"<tr>{cell(escape(each.by), 'From', folds=True)}{cell(escape(each.tenant), 'To')}"
        f"{cell(escape(_means(each.funding)), 'How', folds=True)}"
        f"{number(_gpus(each.gpus), 'GPUs')}</tr>"
        for each in sorted(loans, key=lambda each: (each.by, each.tenant))
    ]
    heads = ("From", "To", "How", "GPUs")
    return table("Lending", heads, rows, numbers=("GPUs",)) if rows else ""


def money_html(state: FundingState) -> str:
    """Return what purchases have taken of the money of each budget; nothing where none has any."""
    rows: list[str] = []
    for each in state.budgets:
        if each.money is None or each.spent is None:
            continue
        day, month, spent = each.money.per_day, each.money.per_month, each.spent
        rows.append(
            f"<tr>{cell(escape(each.tenant), 'Budget', folds=True)}"
            f"{number(dollars(spent.today), 'Today')}{number(dollars(day), 'Of')}"
            f"{number(dollars(spent.this_month), 'This month')}{number(dollars(month), 'Of')}"
            f"{number(dollars(spent.forecast), 'Forecast')}</tr>"
        )
    heads = ("Budget", "Today", "Of", "This month", "Of", "Forecast")
    return table("Money", heads, rows, numbers=heads[1:]) if rows else ""


def usage_html(used: Usage) -> str:
    """Return the GPU-hours of each tenant by class, as bars; nothing where nobody had any."""
    by_tenant: dict[str, dict[FundingClass, float]] = {}
    for row in used.rows:
        classes = by_tenant.setdefault(row.tenant, {})
        classes[row.funding] = classes.get(row.funding, 0.0) + row.gpu_hours
    most = max((sum(each.values()) for each in by_tenant.values()), default=1.0) or 1.0
    rows = [
        f"<tr>{cell(escape(tenant), 'Tenant', folds=True)}{_bars(classes, most)}"
        f"{number(format_hours(sum(classes.values())), 'GPU-hours')}"
        f"{_numbers(classes, format_hours)}</tr>"
        for tenant, classes in by_tenant.items()
    ]
    heads = ("Tenant", "Use", "GPU-hours", *map(_head, FundingClass))
    numbers = ("GPU-hours", *map(_head, FundingClass))
    return table("GPU-hours by class", heads, rows, numbers=numbers) if rows else ""


def payers_html(payers: Iterable[PaidGPUs]) -> str:
    """Return a line for each class and payer of a job's GPUs."""
    return "<br>".join(
        f"{_gpus(each.gpus)} {each.funding.value} <small>"
        f"{f'by {escape(each.by)}' if each.by else 'preempted first'}</small>"
        for each in payers
    )


def hours_html(hours: Iterable[PaidHours]) -> str:
    """Return a line for each class and payer of the GPU-hours of a job."""
    return "<br>".join(
        f"{format_hours(each.gpu_hours)} {each.funding.value}"
        f"{f' <small>by {escape(each.by)}</small>' if each.by else ''}"
        for each in hours
    )


def _envelope(
    tenant: str,
    each: EnvelopeView,
    held: Sequence[InUse],
    most: float,
    now: datetime,
) -> str:
    spec = each.spec
    who = listed([f"{one.tenant} {_gpus(one.gpus)}" for one in held], _NAMED) or NONE
    name = f"{tenant}/{spec.name}"
    state = "" if each.state is EnvelopeState.OPEN else f" {chip(_STATES[each.state])}"
    # Shared with relatives is as usual, and goes without saying.
    alone = " <small>not shared with relatives</small>" if spec.sharing is Sharing.NONE else ""
    return (
        f"<tr>{cell(escape(name) + state + alone, 'Envelope', folds=True)}"
        f"{_bars(_summed(held), most, spec.gpus)}"
        f"{number(_of(each.used, spec.gpus), 'Used')}"
        f"{cell(escape(for_words(each)), 'For', folds=True)}"
        f"{cell(escape(who), 'Who has it', folds=True)}"
        f"{cell(_window(each, now), 'Window, UTC')}"
        f"{cell(escape(lends_words(each)), 'Lends', folds=True)}</tr>"
    )


_STATES = {EnvelopeState.NOT_YET: "WAITING", EnvelopeState.ENDED: "ENDED"}


def _window(each: EnvelopeView, now: datetime) -> str:
    """Return when an envelope begins, or else when it ends."""
    start, end = each.spec.start, each.spec.end
    if each.state is EnvelopeState.NOT_YET and start is not None:
        return f"opens {when(start)} <small>{ago(start, now)}</small>"
    if end is None:
        return "never ends"
    ends = "ended" if each.state is EnvelopeState.ENDED else "ends"
    return f"{ends} {when(end)} <small>{ago(end, now)}</small>"


def _by_tenant(state: FundingState) -> dict[str, _Classes]:
    found: dict[str, list[InUse]] = {}
    for each in state.in_use:
        found.setdefault(each.tenant, []).append(each)
    return {tenant: _summed(rows) for tenant, rows in found.items()}


def _summed(rows: Iterable[InUse]) -> dict[FundingClass, float]:
    """Return the GPUs of these rows by class."""
    found: dict[FundingClass, float] = {}
    for each in rows:
        found[each.funding] = found.get(each.funding, 0.0) + each.gpus
    return found


def _open_gpus(budget: BudgetView) -> float:
    of = [each for each in budget.envelopes if each.state is EnvelopeState.OPEN]
    return sum(each.spec.gpus for each in of)


def _bars(classes: _Classes, most: float, of: float | None = None, *, word: str = "") -> str:
    """Return a cell with a bar of the classes, with a frame as long as what there is of it."""
    parts = "".join(
        f'<i class="part {each.value.lower()}" style="width:{_part(gpus, most)}"></i>'
        for each in FundingClass
        if (gpus := classes.get(each, 0.0)) > 0
    )
    told = ", ".join(
        f"{gpus:,.2f} {word or each.value.lower()}" for each, gpus in classes.items() if gpus > 0
    )
    frame = "" if of is None else f'<b style="width:{_part(of, most)}"></b>'
    title = escape(told or "nothing")
    return f'<td class="bars"><span class="bar-of" title="{title}">{frame}{parts}</span></td>'


def _part(amount: float, most: float) -> str:
    return f"{min(amount / most, 1.0) * 100:.2f}%"


def _numbers(classes: _Classes, said: Callable[[float], str]) -> str:
    """Return a cell for each class; a narrow page leaves out those with nothing."""
    return "".join(
        number(said(classes[each]), _head(each)) if classes.get(each) else _NOTHING
        for each in FundingClass
    )


def _legend(used: Iterable[_Classes]) -> str:
    there = {each for classes in used for each in classes}
    items = "".join(
        f'<span><i class="part {each.value.lower()}"></i>{escape(_means(each))}</span>'
        for each in FundingClass
        if each in there
    )
    return f'<div class="legend">{items}</div>' if items else ""


def _means(each: FundingClass) -> str:
    return _MEANS[each]


def _head(each: FundingClass) -> str:
    return each.value.capitalize()


def _of(used: float, of: float) -> str:
    return f"{_gpus(used, zero='0')} of {_gpus(of, zero='0')}"


def _gpus(gpus: float, *, zero: str = NONE) -> str:
    return count(round(gpus, 3)) if gpus else zero
