"""`longshore preempt --dry-run`: who would be preempted for a job, and what else was looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longshore.client.terminal import JSON, note, now, out, print_json, show

# The rest is imported where it is needed: every command of `longshore` loads this module.

NOT_DONE = 64
"""sysexits: wrong usage."""
_HOW = (
    "preemption is done by the pool, not by a command. `longshore preempt --dry-run JOB` shows "
    "who would be preempted for a job (docs/preemption.md)."
)
_ROWS = 12
_FILES = (".yaml", ".yml", ".json")


def register(app: typer.Typer) -> None:
    app.command(
        rich_help_panel="Jobs",
        epilog=f"Without --dry-run it stops nobody, and ends with code {NOT_DONE}.",
    )(preempt)


def preempt(
    ref: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB|FILE",
            help="A waiting job, by id or name; or a job file, as if submitted now.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the decision; no job is stopped.")
    ] = False,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="State file with nodes and running jobs; needs no server."
        ),
    ] = None,
    job: Annotated[str | None, typer.Option(metavar="FILE", help="With --state: the job.")] = None,
    as_json: JSON = False,
) -> None:
    """Show which running jobs would be preempted for a waiting one: each option, with its cost."""
    if not dry_run:
        note(f"error: {_HOW}")
        raise typer.Exit(NOT_DONE)
    if (ref is None) is (state is None) or (state is None) is not (job is None):
        raise typer.BadParameter(
            "give a job that waits, the file of a job, or --state FILE with --job FILE"
        )
    from longshore.client.preempt import decide_on_file, decide_on_files, decide_on_job
    from longshore.client.process import run

    if ref is not None and _is_path(ref):
        ran = run(decide_on_file(ref, now()))
    elif ref is not None:
        ran = run(decide_on_job(ref, now()))
    else:
        assert state is not None
        assert job is not None
        ran = decide_on_files(state, job, now())
    for remark in ran.notes:
        note(f"note: {remark}")
    if as_json:
        print_json(ran)
        return
    from longshore.client.preempt_view import render_plan

    show(render_plan(ran, most=_ROWS if out().is_terminal else None))
    if not ran.switched_on:
        note(f"note: preemption is off for {ran.source}: nobody is stopped (docs/preemption.md).")


def _is_path(ref: str) -> bool:
    """Return whether this is the file of a job. What looks like a path is one, also where nothing
    is there: else a slip in it would be said to be no job."""
    if ref.endswith(_FILES) or "/" in ref:
        return True
    try:
        return Path(ref).is_file()
    except OSError:  # longer than the name of a file may be
        return False
