"""The command `longshore worker`."""

from __future__ import annotations

import typer

# The rest is imported where it is needed: every command of `longshore` loads this module.


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(worker)


def worker() -> None:
    """Run a control worker here: it carries jobs, pools and nodes through their lives.

    `longshore up` runs one already; run more for more throughput, or beside a Temporal and a
    PostgreSQL of your own (TEMPORAL_ADDRESS, LONGSHORE_DATABASE_URL). SIGTERM or Ctrl-C ends it
    in order.
    """
    from workers.control import main

    main()
