"""How the use of GPUs, and who held them, look."""

from datetime import datetime

from rich.table import Table

from longshore.client.terminal import a_table
from longshore.client.words import cell, period, zone
from longshore.models.funding_use import Leases, LeaseView, Usage, UsageRow, UsedBy, format_hours
from longshore.models.text import NONE, count

_HEADINGS = {
    UsedBy.TENANT: ("tenant", "class", "paid by"),
    UsedBy.ENVELOPE: ("paid by", "class", "tenant"),
    UsedBy.JOB: ("job", "tenant", "class", "paid by"),
}
_HOURS = "GPU-hours"


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
    return f"{format_hours(found.gpu_hours)} GPU-hours from {when}: {classes}"


def leases_table(found: Leases, now: datetime) -> Table:
    """Return a row for each GPU, or part of one, that was held."""
    headings = ("node", "GPU", "job", "tenant", "attempt", "class", "paid by",
                f"from ({zone(now)})", f"until ({zone(now)})")  # fmt: skip
    table = a_table(headings, right=("GPU", "attempt"), fold=("paid by",))
    for lease in found.leases:
        until = cell(lease.ended_at, now) if lease.ended_at else NONE
        table.add_row(
            lease.node_id, _gpu(lease), lease.job_id, lease.tenant, str(lease.attempt),
            lease.funding.value, lease.by or "nobody", cell(lease.started_at, now), until,
        )  # fmt: skip
    return table


def _gpu(lease: LeaseView) -> str:
    if lease.mig is not None:
        return f"{lease.gpu_index} ({lease.mig})"
    part = f" ({count(lease.gpus)})" if lease.gpus < 1 else ""
    return f"{lease.gpu_index}{part}"
