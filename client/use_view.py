"""How the use of GPUs looks, who held them, and who would pay for a job."""

from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table

from longshore.client.terminal import Text, a_table, heading
from longshore.client.words import cell, period, zone
from longshore.models.fund_view import FundRung, FundView
from longshore.models.funding_use import Leases, LeaseView, Usage, UsageRow, UsedBy, format_hours
from longshore.models.text import NONE, count, listed

_HEADINGS = {
    UsedBy.TENANT: ("tenant", "class", "paid by"),
    UsedBy.ENVELOPE: ("paid by", "class", "tenant"),
    UsedBy.JOB: ("job", "tenant", "class", "paid by"),
}
_HOURS = "GPU-hours"
_NAMED = 5


def usage_table(found: Usage, most: int | None = None) -> Table:
    """Return a row for each user, class and payer; at most so many."""
    headings = _HEADINGS[found.by]
    table = a_table((*headings, _HOURS), right=(_HOURS,), fold=("paid by",))
    for row in found.rows[:most]:
        cells = _cells(row)
        table.add_row(*(cells[heading] for heading in headings), format_hours(row.gpu_hours))
    return table


def _cells(row: UsageRow) -> dict[str, str]:
    return {
        "tenant": row.tenant, "class": row.funding.value, "paid by": row.by or "nobody",
        "job": row.job_id or NONE,
    }  # fmt: skip


def usage_words(found: Usage, now: datetime) -> str:
    """Return ``14.00 GPU-hours from .. to ..: 12.00 OWNED, 2.00 UNFUNDED``."""
    classes = ", ".join(f"{format_hours(hours)} {each}" for each, hours in found.by_class.items())
    when = period(found.since, found.until, now)
    lent = ""
    if found.on_lent_spares:
        hours = format_hours(found.on_lent_spares)
        lent = f"; besides, {hours} on spares that gangs lend, and pay themselves"
    return f"{format_hours(found.gpu_hours)} GPU-hours from {when}: {classes}{lent}"


def fund_screen(found: FundView, now: datetime) -> RenderableType:
    """Return who pays for a job, or would, envelope by envelope, and what would help."""
    wants = f" wants {count(found.wants, 'GPU')}" if found.wants and not found.runs else ""
    parts: list[RenderableType] = [
        Text.assemble((found.job_id, "bold"), f" of tenant {found.tenant}{wants}"),
        Text(_answer(found)),
    ]
    if found.rungs:
        anew = "Who would be asked if it were covered anew, in this order"
        asked = anew if found.runs else "Who is asked, in this order"
        parts += [Text(), heading(asked), _rungs_table(found, now)]
    elif found.has_budget and not found.runs:
        parts.append(Text("No envelope is for such GPUs.", style="dim"))
    if found.remedies:
        parts += [Text(), heading("What would help, each by itself")]
        parts += [Text(f"- {remedy.says}") for remedy in found.remedies]
    return Group(*parts)


def _answer(found: FundView) -> str:
    if found.runs or (found.funded and not found.has_budget):
        return f"Paid for: {found.says}"
    if found.funded:
        return f"Would be paid for: {found.says}"
    return found.says[:1].upper() + found.says[1:]


def _rungs_table(found: FundView, now: datetime) -> Table:
    headings = ("who", "envelope", "GPUs", "unused", "to recall", "who has it", "gives", "why not",
                f"window ({zone(now)})")  # fmt: skip
    table = a_table(
        headings, right=("GPUs", "unused", "to recall", "gives"),
        fold=("envelope", "who has it"),
    )  # fmt: skip
    for rung in found.rungs:
        held = [f"{tenant} {count(gpus)}" for tenant, gpus in rung.held_by.items()]
        ahead = f"; {count(rung.ahead)} of it for jobs ahead" if rung.ahead else ""
        table.add_row(
            rung.rung, f"{rung.tenant}/{rung.envelope}", count(rung.gpus), count(rung.unused),
            count(rung.recallable) if rung.recallable else NONE,
            (listed(held, _NAMED) or NONE) + ahead, count(rung.gives), rung.code or "",
            _window(rung, now),
        )  # fmt: skip
    return table


def _window(rung: FundRung, now: datetime) -> str:
    if rung.opens is not None:
        return f"opens {cell(rung.opens, now)}"
    if rung.ends is None:
        return "no end"
    return f"{'ends' if rung.ends > now else 'ended'} {cell(rung.ends, now)}"


def leases_table(found: Leases, now: datetime) -> Table:
    """Return a row for each GPU, or part of one, that was held."""
    headings = ("node", "GPU", "job", "tenant", "attempt", "class", "paid by",
                f"from ({zone(now)})", f"until ({zone(now)})")  # fmt: skip
    table = a_table(headings, right=("GPU", "attempt"), fold=("paid by",))
    for lease in found.leases:
        until = cell(lease.ended_at, now) if lease.ended_at else NONE
        table.add_row(
            lease.node_id, _gpu(lease), lease.job_id, lease.tenant, str(lease.attempt),
            lease.funding.value, _paid_by(lease), cell(lease.started_at, now), until,
        )  # fmt: skip
    return table


def _paid_by(lease: LeaseView) -> str:
    if lease.borrowed_from is not None:
        return f"on a spare that {lease.borrowed_from} lends"
    return lease.by or "nobody"


def _gpu(lease: LeaseView) -> str:
    if lease.mig is not None:
        return f"{lease.gpu_index} ({lease.mig})"
    part = f" ({count(lease.gpus)})" if lease.gpus < 1 else ""
    return f"{lease.gpu_index}{part}"
