"""Commands of the local stack: `up`, `down` and `db`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from longshore.models.settings import StackInfo
    from longshore.workers.stack import Stack

# The rest is imported where a command needs it: every command of `longshore` loads this module.

db = typer.Typer(help="The capacity database: its schema, its address, a shell.")


def register(app: typer.Typer) -> None:
    """Add the commands of the local stack to the command line."""
    app.command()(up)
    app.command()(down)
    app.add_typer(db, name="db")


def up(
    nodes: Annotated[
        int | None,
        typer.Option(min=0, max=64, help="Number of simulated nodes (8xH100-80GB)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Start Temporal, PostgreSQL, the control worker and local nodes; find what runs already.

    Without --nodes: the nodes that ran before, else the GPUs of this machine, else two
    simulated nodes. Settings say where its data lies and at which ports it listens: see
    `longshore config`.
    """
    from longshore.workers.local import (
        choose_nodes,
        local_nodes,
        start_agents,
        start_console,
        start_control_worker,
        start_web_ui,
    )

    stack = _stack()
    with stack.exclusive(_progress):
        info = stack.start(_progress)
        start_control_worker(stack, _progress)
        for line in _schedule(stack):
            _progress(line)
        chosen = choose_nodes(stack, nodes)
        start_agents(stack, chosen, _progress)
        if nodes is not None and (others := sorted({*local_nodes(stack)} - chosen.keys())):
            _progress(
                f"{', '.join(others)}: running from before, beside the nodes asked for. "
                f"`longshore down` first, then `longshore up --nodes {nodes}`, leaves them out"
            )
        start_web_ui(stack, _progress)
        start_console(stack, _progress)
    if as_json:
        typer.echo(json.dumps(_summary(stack, info), indent=2))
    else:
        _say_where_things_are(stack, info)


def down(
    keep_servers: Annotated[
        bool,
        typer.Option(
            "--keep-servers", help="Stop agents and control worker, leave Temporal and PostgreSQL."
        ),
    ] = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Then remove the state folder and all it holds.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
) -> None:
    """Stop the agents, the control worker and the servers that `longshore up` started."""
    if purge and keep_servers:
        raise typer.BadParameter("--purge removes the servers' data: leave out --keep-servers")
    stack = _stack()
    if purge and not yes:
        typer.confirm(
            f"Remove {stack.folder} with all jobs, logs and checkpoints in it?", abort=True
        )
    stopped = stack.stop(_progress, keep_servers=keep_servers)
    if not stopped:
        typer.echo(f"nothing of the stack in {stack.folder} was running")
    if purge:
        stack.purge()
        typer.echo(f"removed {stack.folder}")


@db.command("upgrade")
def db_upgrade() -> None:
    """Bring the schema of the capacity database up to date."""
    from longshore.activities.migrations import upgrade
    from longshore.models.settings import Settings

    typer.echo(f"the database is at revision {upgrade(Settings().resolve_database_url())}")


@db.command("url")
def db_url() -> None:
    """Print the address of the capacity database."""
    from longshore.models.settings import Settings

    typer.echo(Settings().resolve_database_url())


@db.command("psql", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def db_psql(context: typer.Context) -> None:
    """Open psql on the capacity database; more arguments go to psql."""
    stack = _stack()
    url = stack.settings.resolve_database_url()
    argv = [_psql(stack), url, *context.args]
    sys.stdout.flush()
    os.execv(argv[0], argv)


def _stack() -> Stack:
    from longshore.activities.migrations import upgrade
    from longshore.models.search import SEARCH_ATTRIBUTES
    from longshore.models.settings import Settings
    from longshore.workers.stack import Stack

    return Stack(Settings(), search_attributes=SEARCH_ATTRIBUTES, migrate=upgrade)


def _progress(line: str) -> None:
    typer.echo(f"  {line}", err=True)


def _schedule(stack: Stack) -> tuple[str, ...]:
    from longshore.client.connection import connect
    from longshore.client.process import run
    from longshore.workers.schedules import ensure_schedules

    async def ensure() -> tuple[str, ...]:
        temporal = await connect(stack.settings)
        return await ensure_schedules(temporal, stack.settings)

    return run(ensure())


def _summary(stack: Stack, info: StackInfo) -> dict[str, object]:
    from longshore.workers.local import local_nodes

    return {
        "temporal_address": info.temporal_address,
        "temporal_ui": info.temporal_ui,
        "state_dir": str(stack.folder),
        "nodes": local_nodes(stack),
        "parts": [part.model_dump(mode="json") for part in stack.status()],
    }


def _say_where_things_are(stack: Stack, info: StackInfo) -> None:
    from longshore.workers.local import local_nodes

    typer.echo("\nLongshore is up.")
    rows = [
        ("Console", _console(stack)),
        *_pages(stack),
        ("Temporal UI", info.temporal_ui or f"of the server at {info.temporal_address}"),
        ("Nodes", ", ".join(local_nodes(stack)) or "none of its own; `longshore nodes` lists all"),
        ("State and logs", str(stack.folder)),
    ]
    for label, value in rows:
        typer.echo(f"  {label:<15}{value}")
    typer.echo(
        "\nNext: longshore submit --gpus 2 --follow -- sh -c 'echo I have $CUDA_VISIBLE_DEVICES'"
        "\n      longshore down   (stops all of it; what is stored stays)"
    )


def _console(stack: Stack) -> str:
    from longshore.models.addresses import url_of

    address = stack.settings.console_address
    return f"{url_of(address)} (`longshore ui` prints a link)" if address else "off"


def _pages(stack: Stack) -> list[tuple[str, str]]:
    from longshore.models.addresses import CONSOLE_PAGES, url_of

    address = stack.settings.console_address
    if address is None:
        return []
    return [(f"  {name}", f"{url_of(address)}{path}") for path, name in CONSOLE_PAGES]


def _psql(stack: Stack) -> str:
    from longshore.models.errors import StackError

    if not stack.settings.database_url:
        return str(stack.postgres.program("psql"))
    if found := shutil.which("psql"):
        return found
    try:
        return str(stack.postgres.program("psql"))
    except StackError:
        raise StackError(
            "there is no psql here. Install PostgreSQL's client, or give another client the "
            "address that `longshore db url` prints."
        ) from None
