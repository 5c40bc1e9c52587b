"""How the use of GPUs looks, who held them, and who would pay for a job."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table

from longshore.client.terminal import (
    WIDE,
    SeveralLines,
    Text,
    a_table,
    heading,
    room_for,
    without_empty,
)
from longshore.client.words import cell, moment, period, zone
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
_NO_END = "no end"


def usage_table(found: Usage, most: int | None = None) -> Table:
    """Return a row for each user, class and payer; at most so many."""
    headings = _HEADINGS[found.by]
    table = a_table((*headings, _HOURS), right=(_HOURS,), fold=("paid by",))
    for row in found.rows[:most]:
        cells = _cells(row)
        table.add_row(*(cells[name] for name in headings), format_hours(row.gpu_hours))
    return table


def _cells(row: UsageRow) -> dict[str, str]:
    return {
        "tenant": row.tenant, "class": row.funding.value, "paid by": row.by or "nobody",
        "job": f"service {row.service}" if row.service else row.job_id or NONE,
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


def fund_screen(found: FundView, now: datetime, width: int) -> RenderableType:
    """Return who pays for a job, or would, envelope by envelope, and what would help."""
    wants = f" wants {count(found.wants, 'GPU')}" if found.wants and not found.runs else ""
    parts: list[RenderableType] = [
        Text.assemble((found.job_id, "bold"), f" of tenant {found.tenant}{wants}"),
        Text(_answer(found)),
    ]
    if found.rungs:
        anew = "Who would be asked if it were covered anew, in this order"
        asked = anew if found.runs else "Who is asked, in this order"
        parts += [Text(), heading(asked), _rungs_table(found, now, width)]
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


def _rungs_table(found: FundView, now: datetime, width: int) -> Table:
    """Return a row for each envelope; a narrow table has what it has beside what is unused."""
    window = f"window ({zone(now)})"
    headings = ["who", "envelope", "GPUs", "unused", "to recall", "who has it", "gives", "why not",
                window]  # fmt: skip
    wide = width >= WIDE
    rows = [_rung_cells(rung, now, window, wide) for rung in found.rungs]
    if wide:
        table = a_table(
            headings, right=("GPUs", "unused", "to recall", "gives"),
            fold=("envelope", "who has it"),
        )  # fmt: skip
        longest = width
    else:
        headings = [name for name in headings if name not in ("GPUs", "to recall")]
        empty = {"who has it": NONE, "why not": "", window: _NO_END}
        headings = without_empty(headings, rows, empty)
        widest = {"envelope": width // 6, "unused": 7, "who has it": width // 8, window: 10}
        longest = widest["envelope"] = room_for("envelope", headings, rows, widest, width)
        table = a_table(headings, right=("gives",), widest=widest)
    _add_rows(table, headings, rows, "envelope", longest)
    return table


def _rung_cells(rung: FundRung, now: datetime, window: str, wide: bool) -> dict[str, str]:
    held = [f"{tenant} {count(gpus)}" for tenant, gpus in rung.held_by.items()]
    ahead = f"; {count(rung.ahead)} of it for jobs ahead" if rung.ahead else ""
    unused = count(rung.unused)
    if not wide:
        recall = f", {count(rung.recallable)} to recall" if rung.recallable else ""
        unused = f"{unused} of {count(rung.gpus)}{recall}"
    return {
        "who": rung.rung,
        "envelope": f"{rung.tenant}/{rung.envelope}{f' (on {rung.on})' if rung.on else ''}",
        "GPUs": count(rung.gpus), "unused": unused,
        "to recall": count(rung.recallable) if rung.recallable else NONE,
        "who has it": (listed(held, _NAMED) or NONE) + ahead, "gives": count(rung.gives),
        "why not": rung.code or "", window: _window(rung, now),
    }  # fmt: skip


def _add_rows(
    table: Table,
    headings: Sequence[str],
    rows: Iterable[Mapping[str, str]],
    payer: str,
    longest: int,
) -> None:
    """Add the rows; an envelope stands below its tenant where both are too long for a line."""
    for row in rows:
        tenant, slash, envelope = row[payer].partition("/")
        broken = SeveralLines((tenant + slash, envelope))
        cells = {**row, payer: broken if envelope and len(row[payer]) > longest else row[payer]}
        table.add_row(*(cells[name] for name in headings))


def _window(rung: FundRung, now: datetime) -> str:
    if rung.opens is not None:
        return f"opens {cell(rung.opens, now)}"
    if rung.ends is None:
        return _NO_END
    return f"{'ends' if rung.ends > now else 'ended'} {cell(rung.ends, now)}"


def leases_screen(found: Leases, now: datetime, width: int) -> RenderableType:
    """Return a row for each GPU, or part of one, that was held.

    A narrow screen leaves out the attempt, and has one column for node and GPU, as `--gpu` takes
    them, and one for both times."""
    begins, ends = f"from ({zone(now)})", f"until ({zone(now)})"
    headings = ["node", "GPU", "job", "tenant", "attempt", "class", "paid by", begins, ends]
    wide, longest = width >= WIDE, width
    rows: list[dict[str, str]] = []
    for lease in found.leases:
        gpu, start = _gpu(lease), cell(lease.started_at, now)
        end = cell(lease.ended_at, now) if lease.ended_at else NONE
        rows.append({
            "node": lease.node_id, "GPU": gpu if wide else f"{lease.node_id}/{gpu}",
            "job": lease.job_id, "tenant": lease.tenant, "attempt": str(lease.attempt),
            "class": lease.funding.value, "paid by": _paid_by(lease),
            begins: start if wide or end == NONE else f"{start} to {end}", ends: end,
        })  # fmt: skip
    if wide:
        table = a_table(headings, right=("GPU", "attempt"), fold=("paid by",))
    else:
        headings = ["GPU", "job", "tenant", "class", "paid by", begins]
        widest = {"GPU": width // 8, "job": width // 5 + 1, "tenant": width // 10,
                  "paid by": width // 5 + 1, begins: 10}  # fmt: skip
        longest = widest["paid by"] = room_for("paid by", headings, rows, widest, width)
        table = a_table(headings, widest=widest)
    _add_rows(table, headings, rows, "paid by", longest)
    return Group(heading(f"As of {moment(found.at)}"), table)


def _paid_by(lease: LeaseView) -> str:
    if lease.borrowed_from is not None:
        return f"on a spare that {lease.borrowed_from} lends"
    return lease.by or "nobody"


def _gpu(lease: LeaseView) -> str:
    if lease.mig is not None:
        return f"{lease.gpu_index} ({lease.mig})"
    part = f" ({count(lease.gpus)})" if lease.gpus < 1 else ""
    return f"{lease.gpu_index}{part}"
