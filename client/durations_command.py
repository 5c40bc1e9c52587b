"""The command that shows how long jobs run, as is learnt from those before them."""

import re
from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table

from longshore.client.calls import call
from longshore.client.terminal import JSON, a_table, note, now, out, print_json, show
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
    """Return a row for each tenant, name and shape."""
    tenants = len({row.tenant for row in found.rows}) > 1
    headings = ["name", "shape", "runs", "1 in 10", "half", "9 in 10", "planned with", "last"]
    table = a_table(
        [*["tenant"] * tenants, *headings, "in use by"],
        right=("runs", "1 in 10", "half", "9 in 10", "planned with", "last"),
        fold=("in use by",), widest={"name": max(width // 4, 12)},
    )  # fmt: skip
    for row in found.rows:
        table.add_row(*[row.tenant] * tenants, *_cells(row, now))
    return table


def _cells(row: DurationRow, now: datetime) -> tuple[str, ...]:
    tenth, _, half, _, most = row.quantiles
    expected = NONE if row.expected is None else span(row.expected)
    return (
        row.name, row.shape, str(row.runs), span(tenth), span(half), span(most), expected,
        ago(row.last, now), in_use(row),
    )  # fmt: skip


def in_use(row: DurationRow) -> str:
    """Return which jobs are planned with it now: ``train-7, train-8, and 3 more``."""
    few = row.used_by[:2]
    return ", ".join(filter(None, (*few, and_more(row.used - len(few))))) or NONE
