"""The command that shows who waits in a pool, and in which order."""

from datetime import datetime
from typing import Annotated

import typer

from longshore.client.calls import call
from longshore.client.past_times import past_time
from longshore.client.queue_view import errors_table, legends, queue_table
from longshore.client.terminal import JSON, LIMIT, Text, note, now, out, print_json, show
from longshore.client.words import SIMULATED
from longshore.models.packing import QueueOrder
from longshore.models.text import count, span
from longshore.models.visible import brief

_USUAL_SINCE = "1d"


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Jobs")(queue)


def queue(
    pool: Annotated[str, typer.Option(help="The pool.")] = "default",
    start: Annotated[bool, typer.Option("--start", help="Show estimated starts.")] = False,
    terms: Annotated[
        bool, typer.Option("--terms", help="Show the terms of rank and score.")
    ] = False,
    estimates: Annotated[
        bool,
        typer.Option("--estimates", help="Show the errors of past start estimates."),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=_USUAL_SINCE,
            help="With --estimates: the last 7d, or from 14:05 on.",
        ),
    ] = None,
    limit: LIMIT = 50,
    as_json: JSON = False,
) -> None:
    """List the waiting jobs of a pool, in the order of its next cycle."""
    if estimates:
        begins = past_time("--since", since or _USUAL_SINCE)
        return _show_estimates(pool, begins, as_json=as_json)
    if since is not None:
        raise typer.BadParameter(f"--since {brief(since)}: give --estimates too")
    found = call(lambda api: api.queue(pool))
    first = found.model_copy(update={"jobs": found.jobs[:limit]})
    if as_json:
        print_json(first)
        return _note_more(len(found.jobs) - limit)
    if terms and found.order is QueueOrder.AGE and not found.weights:
        note(
            f"pool {pool} goes by age: the oldest of a class first. `longshore pool set {pool} "
            "--order attained-service` has it go by rank, and --profile by a score."
        )
    if not found.jobs:
        return note(f"Nobody waits in pool {pool}.")
    if found.simulated:
        note(f"The GPUs of pool {pool} are {SIMULATED}.")
    show(queue_table(first, now(), out().width, start=start, terms=terms))
    for legend in legends(found) if terms else ():
        show(Text(f"\n{legend}", style="dim"))
    return _note_more(len(found.jobs) - limit)


def _note_more(more: int) -> None:
    if more > 0:
        note(f"\n{count(more, 'more job')} behind these; --limit shows more.")


def _show_estimates(pool: str, begins: datetime, *, as_json: bool) -> None:
    over = now() - begins
    found = call(lambda api: api.start_errors(pool, over))
    if as_json:
        return print_json(found)
    if not found.rows:
        return note(f"No job of pool {pool} was told a start in {span(over)} that has come.")
    if found.simulated:
        note(f"The GPUs of pool {pool} are {SIMULATED}.")
    show(errors_table(found.rows))
    return None
