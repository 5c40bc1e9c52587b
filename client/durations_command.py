"""The command that shows how long jobs run, as is learnt from those before them."""

import re
from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table

from longshore.client.calls import call
from longshore.client.terminal import (
    JSON,
    WIDE,
    a_table,
    note,
    now,
    out,
    print_json,
    room_for,
    show,
    without_empty,
)
from longshore.models.durations import NAME_FORM, DurationRow, DurationsView
from longshore.models.text import NONE, ago, and_more, count, span
from longshore.models.visible import shown

LEGEND = (
    "half and 9 in 10: took no longer. Planned with: what the next one is expected to take, where "
    "its user does not say (`expected_duration`)."
)


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Jobs")(durations)


def durations(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Only jobs of this name or pattern, e.g. 'train-*'.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Show learnt durations of jobs, by tenant, name and shape."""
    if name is not None and not re.fullmatch(NAME_FORM, name, re.ASCII):
        raise typer.BadParameter(
            "--name: expected a name or a form of one, such as train, 'train-*' or nightly/train, "
            f"not {shown(name)}"
        )
    found = call(lambda api: api.durations(tenant=tenant, name=name))
    if as_json:
        return print_json(found)
    if not found.rows:
        return note("No job that succeeded is on record for it yet.")
    show(durations_table(found, now(), out().width))
    few = sum(row.expected is None for row in found.rows)
    note(f"\n{LEGEND}")
    if few:
        note(f"{count(few, 'row')} of fewer than {found.needed} runs: nothing is learnt from it.")
    return None


def durations_table(found: DurationsView, now: datetime, width: int) -> Table:
    """Return a row for each tenant, name and shape; a narrow table leaves out the shortest runs
    and who is planned with them, and folds names and shapes."""
    rows = [_cells(row, now) for row in found.rows]
    headings = [*(rows[0] if rows else ())]
    if len({row.tenant for row in found.rows}) == 1:
        headings.remove("tenant")
    widest = {"name": max(width // 4, 12)}
    if width < WIDE:
        few = {"1 in 10", "in use by"}
        headings = without_empty(headings, rows, {"planned with": NONE})
        headings = [each for each in headings if each not in few]
        widest = {"tenant": 8, "name": 8, "shape": 12, "planned with": 7}
        widest["name"] = room_for("name", headings, rows, widest, width)
    table = a_table(
        headings, right=("runs", "1 in 10", "half", "9 in 10", "planned with", "last"),
        fold=("in use by",), widest=widest,
    )  # fmt: skip
    for row in rows:
        table.add_row(*(row[heading] for heading in headings))
    return table


def _cells(row: DurationRow, now: datetime) -> dict[str, str]:
    tenth, _, half, _, most = row.quantiles
    return {
        "tenant": row.tenant, "name": row.name, "shape": row.shape, "runs": str(row.runs),
        "1 in 10": span(tenth), "half": span(half), "9 in 10": span(most),
        "planned with": NONE if row.expected is None else span(row.expected),
        "last": ago(row.last, now), "in use by": in_use(row),
    }  # fmt: skip


def in_use(row: DurationRow) -> str:
    """Return which jobs are planned with it now: ``train-7, train-8, and 3 more``."""
    few = row.used_by[:2]
    return ", ".join(filter(None, (*few, and_more(row.used - len(few))))) or NONE
