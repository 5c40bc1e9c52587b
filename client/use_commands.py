"""Commands that say who used GPUs, who paid for them, and who held one at a moment."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client.calls import call, known_job
from longshore.client.job_commands import REF
from longshore.client.past_times import past_time
from longshore.client.terminal import (
    JSON,
    LIMIT,
    Text,
    note,
    note_simulated,
    now,
    out,
    print_json,
    show,
)
from longshore.client.use_view import fund_screen, leases_screen, usage_table, usage_words
from longshore.client.words import clock
from longshore.models.fund_view import FundView
from longshore.models.funding_use import Leases, UsedBy
from longshore.models.text import count
from longshore.models.visible import shown

if TYPE_CHECKING:
    from longshore.client.api import Longshore

PANEL = "Tenants and budgets"


def register(app: typer.Typer) -> None:
    for command in (fund, usage, leases):
        app.command(rich_help_panel=PANEL)(command)


def fund(ref: REF, as_json: JSON = False) -> None:
    """Show who pays for a job, or would pay: each envelope considered, and what would help."""

    async def ask(api: "Longshore") -> FundView:
        return await api.fund((await known_job(api, ref)).id)

    found = call(ask)
    if as_json:
        return print_json(found)
    show(fund_screen(found, now(), out().width))
    return None


def usage(
    tenant: Annotated[str | None, typer.Option(help="Only usage of this tenant's jobs.")] = None,
    by: Annotated[UsedBy, typer.Option(help="Key to sum by.")] = UsedBy.TENANT,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Start: 7d for 7 days before now, 14:05, or 2026-11-25T14:05."
        ),
    ] = "7d",
    limit: LIMIT = 50,
    as_json: JSON = False,
) -> None:
    """Show GPU-hours by class and by who paid.

    Each GPU-second is of one class: OWNED, SHARED, BORROWED, or UNFUNDED, where nobody paid.
    """
    begins = past_time("--since", since)
    found = call(lambda api: api.usage(begins, by=by, tenant=tenant))
    if as_json:
        return print_json(found)
    if not found.rows:
        whose = f" of tenant {tenant}" if tenant else ""
        return note(f"No job{whose} has held a GPU since {clock(found.since, now())}.")
    note_simulated(found.simulated)
    show(usage_table(found, limit), Text(f"\n{usage_words(found, now())}", style="dim"))
    if (more := len(found.rows) - limit) > 0:
        note(f"{count(more, 'more row')}; --limit shows them.")
    return None


def leases(
    gpu: Annotated[
        str | None, typer.Option(metavar="NODE/GPU", help="Only this GPU, or all GPUs of NODE.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Moment: 10m for 10 minutes before now, 14:05, or 2026-11-25T14:05 "
            "(default: now).",
        ),
    ] = None,
    job: Annotated[str | None, typer.Option(metavar="JOB", help="Only this job's.")] = None,
    as_json: JSON = False,
) -> None:
    """Show who held a GPU at a moment, and who paid for it then: the class is that of the moment.

    longshore leases --gpu node-a/3 --at 2026-11-25T14:05
    """
    node_id, index = _gpu(gpu) if gpu is not None else (None, None)
    moment = past_time("--at", at) if at is not None else None

    async def ask(api: "Longshore") -> Leases:
        job_id = (await known_job(api, job)).id if job is not None else None
        return await api.leases(moment, node_id=node_id, gpu_index=index, job=job_id)

    found = call(ask)
    if as_json:
        return print_json(found)
    if not found.leases:
        held = "holds" if moment is None else "held"
        when = "" if moment is None else f" at {clock(found.at, now())}"
        of = "" if node_id is None else f" of {node_id}"
        what = f"GPU {index}{of}" if index is not None else f"a GPU{of}"
        if job is not None:
            what = f"no GPU of {gpu}" if gpu is not None else "no GPU"
        return note(f"{'Nobody' if job is None else f'Job {job}'} {held} {what}{when}.")
    note_simulated(any(lease.simulated for lease in found.leases))
    show(leases_screen(found, now(), out().width))
    return None


def _gpu(text: str) -> tuple[str, int | None]:
    """Return the node of ``NODE/3`` or ``NODE``, and which of its GPUs."""
    found = re.fullmatch(r"([^/\s]+)(?:/(\d{1,4}))?", text, re.ASCII)
    if found is None:
        raise typer.BadParameter(
            f"--gpu {shown(text)}: give a node and one of its GPUs, such as node-a/3, or a node"
        )
    return found[1], None if found[2] is None else int(found[2])
