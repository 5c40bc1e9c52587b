"""Commands on versions of the control worker."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client.calls import call
from longshore.client.terminal import JSON, Text, a_table, note, print_json, say, show
from longshore.models.deployment import (
    DEFAULT_DEPLOYMENT,
    DEPLOYMENT_VARIABLE,
    DeploymentView,
    Moved,
)

if TYPE_CHECKING:
    from longshore.client.api import Longshore
    from longshore.client.deployments import Deployments

deployment_app = typer.Typer(
    help="Versions of the control worker: which one is current, and rolling updates.",
    no_args_is_help=True,
)
BuildID = Annotated[
    str, typer.Argument(metavar="BUILD_ID", help="The worker's TEMPORAL_WORKER_BUILD_ID.")
]
Name = Annotated[
    str | None,
    typer.Option(
        help=f"The deployment (default: {DEPLOYMENT_VARIABLE}, else {DEFAULT_DEPLOYMENT})."
    ),
]


def register(app: typer.Typer) -> None:
    app.add_typer(deployment_app, name="deployment", rich_help_panel="Setup")


@deployment_app.command("status")
def status(name: Name = None, as_json: JSON = False) -> None:
    """Show the versions: workers, workflows on each, and why work waits."""
    found = call(lambda api: _deployment(api, name).status())
    if as_json:
        return print_json(found)
    if not found.versions:
        return note(
            f"No worker has named deployment {found.name}: control workers are unversioned. "
            f"{DEPLOYMENT_VARIABLE} and TEMPORAL_WORKER_BUILD_ID make one a version."
        )
    show(_table(found))
    if found.trouble:
        note(f"{found.trouble.says}. {found.trouble.mend}")
    return None


@deployment_app.command("set-current")
def set_current(
    build_id: BuildID,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also move pools and nodes whose version has no worker left, in the middle "
            "of their runs.",
        ),
    ] = False,
    name: Name = None,
    as_json: JSON = False,
) -> None:
    """Make a version current, and move pools and nodes to it.

    Its workers must run. Stop those of the version before when this has returned: what stays
    behind is listed, and exit code 1 says so.
    """
    moved = call(lambda api: _deployment(api, name).set_current(build_id, force=force))
    if as_json:
        print_json(moved)
    else:
        _say(moved)
    if moved.stayed:
        raise typer.Exit(1)


@deployment_app.command("ramp")
def ramp(
    build_id: BuildID,
    percent: Annotated[
        float, typer.Option(min=0, max=100, help="Share of new work and of jobs; 0 ends it.")
    ],
    name: Name = None,
    as_json: JSON = False,
) -> None:
    """Give a version a share of the work before it becomes current."""

    async def share(api: "Longshore") -> DeploymentView:
        deployment = _deployment(api, name)
        await deployment.ramp(build_id, percent)
        return await deployment.status()

    found = call(share)
    if as_json:
        return print_json(found)
    say(f"version {build_id} gets {percent:g} % of new work; the current one is {found.current}")
    return None


def _deployment(api: "Longshore", name: str | None) -> "Deployments":
    from longshore.client.deployments import Deployments

    chosen = name or os.environ.get(DEPLOYMENT_VARIABLE) or DEFAULT_DEPLOYMENT
    return Deployments(api.temporal, chosen)


def _table(found: DeploymentView):
    table = a_table(
        ("BUILD", "STATE", "WORKERS", "POOLS", "NODES", "JOBS"),
        right=("WORKERS", "POOLS", "NODES", "JOBS"), fold=("BUILD",),
    )  # fmt: skip
    for version in found.versions:
        share = f" {found.ramp_percent:g} %" if version.build_id == found.ramping else ""
        counts = (version.workers, version.pools, version.nodes, version.jobs)
        table.add_row(Text(version.build_id), f"{version.state.value}{share}", *map(str, counts))
    return table


def _say(moved: Moved) -> None:
    say(f"version {moved.build_id} is current; pools and nodes that moved to it: "
          f"{len(moved.moved)}")  # fmt: skip
    if moved.stayed:
        note(
            f"These stay where they are, and need a worker of their version: "
            f"{', '.join(moved.stayed)}. `longshore deployment status` says which; --force moves "
            "them as they are."
        )
