"""`longshore buy --dry-run`: what would be bought now, and what else was looked at."""

from __future__ import annotations

from typing import Annotated

import typer

from longshore.client.terminal import JSON, note, now, out, print_json, show

# The rest is imported where it is needed: every command of `longshore` loads this module.

NOT_BOUGHT = 64
"""sysexits: wrong usage."""
_HOW = (
    "buying is done by the pool's workflow, not by a command. A pool buys when its policy says "
    "`enabled: true` (docs/buying.md); `longshore buy --dry-run` shows what it would buy now."
)
_ROWS = 12


def register(app: typer.Typer) -> None:
    app.command(
        rich_help_panel="Markets",
        epilog=f"Without --dry-run it buys nothing, says how buying is switched on, and ends "
        f"with code {NOT_BOUGHT}.",
    )(buy)


def buy(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the decision; nothing is bought.")
    ] = False,
    pool: Annotated[str, typer.Option(metavar="POOL", help="The pool to buy for.")] = "default",
    state: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="State file with queue, nodes and markets (YAML or JSON); needs no server.",
        ),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Show what would be bought for a queue now: each option, with its cost."""
    if not dry_run:
        note(f"error: {_HOW}")
        raise typer.Exit(NOT_BOUGHT)
    from longshore.client.buying import decide_on_file, decide_on_pool
    from longshore.client.process import run

    ran = decide_on_file(state, now()) if state else run(decide_on_pool(pool, now()))
    if as_json:
        print_json(ran)
        return
    from longshore.client.buy_view import render_dry_run

    show(render_dry_run(ran, most=_ROWS if out().is_terminal else None))
    if not ran.switched_on:
        note(f"note: buying is off for {ran.source}: nothing is bought (docs/buying.md).")
    elif ran.not_yet:
        resumes = " (`longshore market resume`)" if ran.not_yet.startswith("buying is") else ""
        note(f"note: nothing is bought now: {ran.not_yet}{resumes}.")
