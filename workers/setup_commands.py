"""The commands `longshore setup` and `longshore reconcile`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client.terminal import JSON, Text, out, print_json

if TYPE_CHECKING:
    from longshore.client.api import Longshore
    from longshore.models.reconcile import Finding, ReconcileReport

# The rest is imported where it is needed: every command of `longshore` loads this module.


_SHOWN = 10
"""Things that are too recent and named; `--json` has more."""


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(setup)
    app.command()(reconcile)


def setup(as_json: JSON = False) -> None:
    """Prepare servers of your own: tables, search attributes, schedules.

    Run it once, and after every upgrade. It may be repeated. `longshore up` does it for the
    local stack.
    """
    from longshore.client.process import run
    from longshore.models.settings import Settings
    from longshore.workers.setup import set_up

    done = run(set_up(Settings()))
    if as_json:
        return print_json({"done": done})
    for line in done:
        typer.echo(line)
    return None


def reconcile(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what disagrees, and change nothing.")
    ] = False,
    even_most: Annotated[
        bool,
        typer.Option(
            "--even-most",
            help="Mend also where most jobs or nodes have no workflow at all: as after the loss "
            "of Temporal's database. Make sure that it is the right namespace.",
        ),
    ] = False,
    as_json: JSON = False,
) -> None:
    """Compare database, workflows and agents now; mend what is safe, and report the rest.

    A schedule does the same every few minutes. Ends with code 1 when a person must look at
    something, else with 0: also where it names a time to run it again.
    """
    from longshore.client.calls import call

    async def ask(api: Longshore) -> ReconcileReport:
        from longshore.client.reconcile import reconcile
        from longshore.models.reconcile import ReconcileRequest

        return await reconcile(api, ReconcileRequest(dry_run=dry_run, even_most=even_most))

    report = call(ask)
    if as_json:
        print_json(report)
    else:
        _show(report)
    if not report.settled:
        raise typer.Exit(1)


def _show(report: ReconcileReport) -> None:
    for finding in report.findings:
        _show_finding(finding, dry_run=report.dry_run)
    if report.left_out:
        from longshore.models.text import and_more

        typer.echo(f"{and_more(report.left_out)}: run it again")
    compared = f"open jobs: {report.jobs}, nodes: {report.nodes}, pools: {report.pools}"
    mended = sum(finding.mended for finding in report.findings)
    if report.again_at is not None:
        _show_not_judged(report, report.again_at)
    if not report.findings:
        agree = "All else agrees" if report.too_recent else "All agree"
        typer.echo(f"{agree} ({compared}).")
    else:
        typer.echo(f"\nFindings: {len(report.findings)}, mended: {mended} ({compared}).")


def _show_not_judged(report: ReconcileReport, again_at: datetime) -> None:
    from longshore.models.text import and_more

    named = report.not_judged[:_SHOWN]  # none where an older version has looked
    for each in named:
        _show_line("wait", "cyan", each.subject, each.problem)
    if named and report.too_recent > len(named):
        typer.echo(and_more(report.too_recent - len(named)))
    after = again_at + timedelta(seconds=1)  # its fraction is not shown
    typer.echo(
        f"Too recent to be judged: {report.too_recent}. Run it again after {after:%H:%M:%S} UTC."
    )


def _show_finding(finding: Finding, *, dry_run: bool) -> None:
    word, colour = ("mended", "green") if finding.mended else ("look", "yellow")
    problem = f"{finding.problem} ({finding.kind.value})"
    _show_line(word, colour, finding.subject, problem)
    done = finding.done or ("can be mended" if dry_run and finding.mend else "")
    if done:
        out().print(Text(f"        {done}", style="dim"), soft_wrap=True)


def _show_line(word: str, colour: str, subject: str, problem: str) -> None:
    line = Text.assemble((f"{word:<6}  ", colour), (f"{subject}: ", "bold"), problem)
    out().print(line, soft_wrap=True)
