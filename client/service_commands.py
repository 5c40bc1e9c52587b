"""Commands for services: models that are kept running and answer requests."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client.calls import call
from longshore.client.model_view import change_line
from longshore.client.serve_view import say_preview
from longshore.client.service_readiness import all_ready, is_settled, say_endpoints, until_ready
from longshore.client.service_view import (
    headline,
    problems,
    replicas_table,
    revisions_table,
    served_line,
    services_table,
    undone_in_full,
)
from longshore.client.terminal import (
    JSON,
    note,
    note_simulated,
    now,
    out,
    print_json,
    say,
    show,
    warn,
)
from longshore.models.document import load_document, read_document, read_stdin
from longshore.models.errors import NotFoundError, StoredError
from longshore.models.service import MOST_REPLICAS, ServiceFile, ServiceState, ServiceView
from longshore.models.text import count

if TYPE_CHECKING:
    from longshore.client.api import Longshore

_PANEL = "Models"

NAME = Annotated[str, typer.Argument(metavar="NAME", help="The service.")]
NO_WAIT = Annotated[
    bool, typer.Option("--no-wait", help="Return at once, and not when all replicas are ready.")
]
DRY_RUN = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Say what would be changed, placed where, for how much, and stopped; change nothing.",
    ),
]
rollout_app = typer.Typer(help="See how an update goes on, or undo it.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    for command in (serve, services, service, scale, slots, evict):
        # `-1` is a number that is too small, and no option.
        how = {"ignore_unknown_options": True} if command is scale else None
        app.command(rich_help_panel=_PANEL, context_settings=how)(command)
    app.add_typer(rollout_app, name="rollout", rich_help_panel=_PANEL)


def serve(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Service file (YAML or JSON); - reads stdin.")
    ],
    no_wait: NO_WAIT = False,
    dry_run: DRY_RUN = False,
    as_json: JSON = False,
) -> None:
    """Serve models: start services, or change those that are there, one replica after the other.

    The file has `services`, and may have `models` to add first.
    """
    asked = _services_in(file)
    folder = Path() if file == "-" else Path(file).parent
    models = [each.seen_from(folder) for each in asked.models]
    if dry_run:
        found = call(lambda api: api.serve_preview(asked.services, models))
        return print_json(found) if as_json else say_preview(found)

    async def apply(api: "Longshore") -> list[ServiceView]:
        if models:
            edit = await api.add_models(models)
            for each in edit.warnings:
                warn(each)
            for change in () if as_json else edit.changes:
                say(change_line("model", change))
        begun = dict[str, int]()
        before = {each.name: await _running(api, each.name) for each in asked.services}
        served = await api.serve_all(asked.services)
        for spec, (revision, warnings) in zip(asked.services, served, strict=True):
            for each in warnings:
                warn(f"service {spec.name}: {each}")
            if not as_json:
                now_ = await _running(api, spec.name)
                say(served_line(spec, revision, before[spec.name], now_))
            begun[spec.name] = revision
        await _warn_unheard(api, asked.services[0].name)
        if no_wait:
            return [await api.service(name) for name in begun]
        return await all_ready(api, begun, quiet=as_json)

    served = call(apply)
    if as_json:
        return print_json(served)
    for each in served if no_wait else ():
        if is_settled(each):
            say_endpoints(each)
        else:
            note(f"revision {each.revision} is not all there yet: longshore rollout status "
                 f"{each.name} waits for it")  # fmt: skip
    return None


def _services_in(file: str) -> ServiceFile:
    """Return what a file, or stdin for ``-``, asks for. Raises SpecError."""
    if file == "-":
        return load_document(read_stdin(), "stdin", ServiceFile)
    return read_document(file, ServiceFile)


async def _running(api: "Longshore", name: str) -> ServiceView | None:
    """Return a service as it is now; None where none of the name runs, or cannot be read."""
    try:
        found = await api.service(name)
    except (NotFoundError, StoredError):
        return None
    return found if found.state is ServiceState.RUNNING else None


async def _warn_unheard(api: "Longshore", name: str) -> None:
    """Say where no control worker takes up what was asked of a service."""
    from longshore.client.control_worker import why_not_heard

    if why := await why_not_heard(api.temporal, name):
        warn(f"service {name}: {why}")


def services(as_json: JSON = False) -> None:
    """List the services, with how many of their replicas are ready."""
    found = call(lambda api: api.services())
    if as_json:
        return print_json(found)
    if not found:
        return note("No services. `longshore serve FILE` starts one.")
    note_simulated(any(each.simulated for each in found))
    show(services_table(found))
    for trouble in filter(None, (each.trouble for each in found)):
        warn(trouble)
    return None


def service(
    name: NAME,
    remove: Annotated[
        bool, typer.Option("--remove", help="Stop it: its replicas end what they have begun.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Show a service: its replicas, where they answer, what they take, and its revisions."""
    if remove:
        found = call(lambda api: _removed(api, name))
        if as_json:
            return print_json(found)
        if found.state is ServiceState.REMOVED:
            return say(f"{name} is removed.")
        return say(f"{name} is being removed: its replicas end what they have begun.")
    found = call(lambda api: api.service(name))
    if as_json:
        return print_json(found)
    note_simulated(found.simulated)
    say(headline(found))
    if found.message:
        for line in found.message.split("\n"):
            say(line)
    if found.replicas:
        show(replicas_table(found.replicas, now(), out().width, of_one=True))
    for line in problems(found.replicas, now()):
        note(line)
    if found.revisions:
        show(revisions_table(found.revisions, now(), out().width))
    for line in undone_in_full(found.revisions or ()):
        note(line)
    return None


async def _removed(api: "Longshore", name: str) -> ServiceView:
    """Remove a service, also one that cannot be read; return it."""
    for each in await api.remove_service(name):
        warn(each)
    live = [each for each in await api.services() if each.name == name]
    return live[0] if live else await api.service(name)


def scale(
    name: NAME,
    replicas: Annotated[
        int,
        typer.Argument(
            metavar="REPLICAS", min=0, max=MOST_REPLICAS, help="How many engines it is to have."
        ),
    ],
    no_wait: NO_WAIT = False,
    as_json: JSON = False,
) -> None:
    """Change how many replicas a service has."""

    async def apply(api: "Longshore") -> ServiceView:
        for each in await api.scale(name, replicas):
            warn(each)
        await _warn_unheard(api, name)
        if no_wait:
            return await api.service(name)
        return await until_ready(api, name, quiet=as_json)

    found = call(apply)
    if as_json:
        return print_json(found)
    return say(f"{name}: {found.ready} of {count(replicas, 'replica')} ready")


@rollout_app.command()
def status(name: NAME, as_json: JSON = False) -> None:
    """Wait until all replicas of a service are of its revision, and tell what changes."""
    found = call(lambda api: until_ready(api, name, quiet=as_json, of_all=True))
    if as_json:
        return print_json(found)
    return say(f"{name}: revision {found.revision}, all {count(found.ready, 'replica')} ready")


@rollout_app.command()
def undo(
    name: NAME,
    to: Annotated[
        int | None,
        typer.Option("--to", min=1, help="The revision; the one before that was ready."),
    ] = None,
    no_wait: NO_WAIT = False,
    as_json: JSON = False,
) -> None:
    """Go back to an earlier revision of a service, one replica after the other."""

    async def apply(api: "Longshore") -> ServiceView:
        revision, notes = await api.undo_rollout(name, to)
        for each in notes:
            warn(each)
        if not as_json:
            say(f"{name}: back to revision {revision}")
        await _warn_unheard(api, name)
        if no_wait:
            return await api.service(name)
        return await until_ready(api, name, revision, quiet=as_json)

    found = call(apply)
    if as_json:
        return print_json(found)
    return None


def slots(as_json: JSON = False) -> None:
    """List the engines that hold GPU memory: what each holds, and what it really takes."""
    found = call(lambda api: api.slots())
    if as_json:
        return print_json(found)
    if not found:
        return note("No engines. `longshore serve FILE` starts services.")
    note_simulated(any(each.simulated for each in found))
    show(replicas_table(found, now(), out().width))
    for line in problems(found, now()):
        note(line)
    return None


def evict(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="The engine, by its job's id: `longshore slots` lists them."
        ),
    ],
    as_json: JSON = False,
) -> None:
    """Stop one engine when it has ended what it has begun; its service starts another."""
    found = call(lambda api: api.evict(job))
    if as_json:
        return print_json(found)
    for each in found.notes:
        warn(each)
    return say(f"{job} of service {found.service} is being stopped.")
