"""The command `longshore worker`."""

from typing import Annotated

import typer

# The rest is imported where it is needed: every command of `longshore` loads this module.


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(worker)


def worker(
    set_current: Annotated[
        bool,
        typer.Option(
            "--set-current",
            help="Give the work to this worker's version as soon as it runs: where one worker "
            "is all that there is.",
        ),
    ] = False,
) -> None:
    """Run a control worker here: it carries jobs, pools and nodes through their lives.

    `longshore up` runs one already; run more for more throughput, or beside a Temporal and a
    PostgreSQL of your own (TEMPORAL_ADDRESS, LONGSHORE_DATABASE_URL). SIGTERM or Ctrl-C ends it
    in order, within 15 seconds; a second one at once.

    With TEMPORAL_DEPLOYMENT_NAME and TEMPORAL_WORKER_BUILD_ID it is a version, which gets no
    work until it is current: see longshore deployment.
    """
    from longshore.workers.control import main

    main(set_current=set_current)
