"""The command `longshore doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from longshore.client.terminal import JSON, Text, out, print_json

if TYPE_CHECKING:
    from longshore.workers.doctor.findings import Finding

# The rest is imported where it is needed: every command of `longshore` loads this module.


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(doctor)


def doctor(as_json: JSON = False) -> None:
    """Look at settings, servers, workers, nodes and this machine, and say what to do.

    Ends with code 0 when all is well, 1 when something is wrong; warnings do not count.
    """
    from longshore.client.process import run

    findings = run(_examine(quiet=as_json))
    failed = any(finding.level == "fail" for finding in findings)
    if as_json:
        print_json({"ok": not failed, "findings": findings})
    else:
        typer.echo(f"\n{in_all(findings)}")
    if failed:
        raise typer.Exit(1)


def in_all(findings: list[Finding]) -> str:
    """Return the last line: what the findings come to."""
    from longshore.models.text import count

    if any(finding.level == "fail" for finding in findings):
        return "Something is wrong."
    warnings = sum(finding.level == "warn" for finding in findings)
    return f"Nothing has failed; {count(warnings, 'warning')}." if warnings else "All is well."


async def _examine(*, quiet: bool) -> list[Finding]:
    from longshore.workers.doctor.run import examine

    findings: list[Finding] = []
    async for finding in examine():
        findings.append(finding)
        if not quiet:
            _show(finding)
    return findings


def _show(finding: Finding) -> None:

    colour = {"ok": "green", "warn": "yellow", "fail": "red"}[finding.level]
    line = Text.assemble(
        (f"{finding.level.value:<4}  ", colour), (f"{finding.check}: ", "bold"), finding.says
    )
    out().print(line, soft_wrap=True)
    if finding.mend:
        out().print(Text(f"      {finding.mend}", style="dim"), soft_wrap=True)
