"""Commands for services: models that are kept running and answer requests."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client.calls import call
from longshore.client.service_view import (
    headline,
    new_reasons,
    problems,
    replicas_table,
    revisions_table,
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
from longshore.models.errors import NeverReadyError, RefusedError, StoredError
from longshore.models.service import MOST_REPLICAS, ServiceFile, ServiceState, ServiceView
from longshore.models.text import count
from longshore.models.visible import visible
from longshore.scheduling.serving.replicas import TRIES

if TYPE_CHECKING:
    from longshore.client.api import Longshore

_PANEL = "Models"
_POLL_EVERY = 0.3

NAME = Annotated[str, typer.Argument(metavar="NAME", help="The service.")]
NO_WAIT = Annotated[
    bool, typer.Option("--no-wait", help="Return at once, and not when all replicas are ready.")
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
    as_json: JSON = False,
) -> None:
    """Serve models: start services, or change those that are there, one replica after the other.

    The file has `services`, and may have `models` to add first.
    """
    asked = _services_in(file)

    async def apply(api: "Longshore") -> list[ServiceView]:
        if asked.models:
            folder = Path() if file == "-" else Path(file).parent
            edit = await api.add_models([each.seen_from(folder) for each in asked.models])
            for each in edit.warnings:
                warn(each)
        begun = dict[str, int]()
        served = await api.serve_all(asked.services)
        for spec, (revision, warnings) in zip(asked.services, served, strict=True):
            for each in warnings:
                warn(f"service {spec.name}: {each}")
            if not as_json:
                say(f"{spec.name}: revision {revision}, model {spec.model}")
            begun[spec.name] = revision
        if no_wait:
            return [await api.service(name) for name in begun]
        return await _all_ready(api, begun, quiet=as_json)

    found = call(apply)
    if as_json:
        return print_json(found)
    for each in found if no_wait else ():
        _say_endpoints(each)
        if not is_settled(each):
            note(f"revision {each.revision} is not all there yet: longshore rollout status "
                 f"{each.name} waits for it")  # fmt: skip
    return None


def _services_in(file: str) -> ServiceFile:
    """Return what a file, or stdin for ``-``, asks for. Raises SpecError."""
    if file == "-":
        return load_document(read_stdin(), "stdin", ServiceFile)
    return read_document(file, ServiceFile)


def _say_endpoints(service: ServiceView) -> None:
    for endpoint in service.endpoints:
        say(f"{service.name} answers at {endpoint}")


async def _all_ready(
    api: "Longshore", revisions: Mapping[str, int], *, quiet: bool
) -> list[ServiceView]:
    """Wait for services at the same time; tell where each answers as soon as it is ready.

    One that will not be ready is told at once too, and raises RefusedError when the others are;
    NeverReadyError where all that will not be are tried again.
    """
    failed: list[str] = []
    refused = False

    async def told(name: str, revision: int) -> ServiceView | None:
        nonlocal refused
        try:
            found = await until_ready(api, name, revision, quiet=quiet)
        except (NeverReadyError, RefusedError, StoredError) as error:
            if len(revisions) == 1:
                raise
            refused = refused or not isinstance(error, NeverReadyError)
            warn(str(error))
            failed.append(name)
            return None
        if not quiet:
            _say_endpoints(found)
        return found

    found = await asyncio.gather(*(told(*each) for each in revisions.items()))
    if failed:
        why = (
            f"{len(failed)} of {count(len(revisions), 'service')} will not be ready: "
            f"{', '.join(failed)}"
        )
        raise RefusedError(why) if refused else NeverReadyError(why)
    return [each for each in found if each is not None]


async def until_ready(
    api: "Longshore", name: str, revision: int | None = None, *, quiet: bool
) -> ServiceView:
    """Wait until a service has all its replicas, and no others; tell what changes, and why
    replicas wait or have failed.

    Raises RefusedError where it goes back from the `revision` that is waited for, or is removed,
    and NeverReadyError where engines fail meanwhile and there is none to go back to.
    """
    told, reasons, failed_before = "", set[str](), dict[int, int]()
    while True:
        found = await api.service(name)
        if found.state is not ServiceState.RUNNING:
            raise RefusedError(f"service {name} is {found.state.in_words}")
        if revision is not None and found.revision != revision:
            undone = [each.undone for each in found.revisions or () if each.number == revision]
            why = undone[0] if undone and undone[0] else f"it is at revision {found.revision} now"
            raise RefusedError(f"service {name}: {why}")
        line = f"{name}: {found.ready} ready, {found.spec.replicas} wanted"
        if found.message:
            line += f"; {found.message}"
        if line != told and not quiet:
            note(line)
            told = line
        for reason in () if quiet else new_reasons(found.replicas, reasons):
            note(reason)
        if is_settled(found):
            return found
        _refuse_never_ready(found, failed_before)
        await asyncio.sleep(_POLL_EVERY)


def _refuse_never_ready(service: ServiceView, failed_before: dict[int, int]) -> None:
    """Raise NeverReadyError where `TRIES` engines have failed since it was looked at first, none
    of the revision was ever ready, and it has no other to go back to.

    `failed_before` has how many had failed at the first look, by the number of the revision.
    """
    for each in service.revisions or ():
        if each.number != service.revision or each.ready_at is not None or each.can_go_back:
            continue
        first = failed_before.setdefault(each.number, each.failures)
        if each.failures < first + TRIES:
            continue
        name = service.name
        last = f". The last one: {visible(each.last_failure)}" if each.last_failure else ""
        raise NeverReadyError(
            f"service {name}: revision {each.number} never got ready "
            f"({count(each.failures, 'engine')} failed), and there is no other to go back to"
            f"{last}\n"
            f"It is tried again, ever later: `longshore service {name}` shows how that goes; "
            f"`longshore serve FILE` with another model changes it; `longshore service {name} "
            "--remove` stops it."
        )


def is_settled(service: ServiceView) -> bool:
    """Return whether a service has all replicas of its revision, all ready; others may still
    be stopping."""
    own = [each for each in service.replicas if not each.stopping]
    return (
        len(own) == service.spec.replicas
        and service.ready == service.spec.replicas
        and all(each.revision == service.revision for each in own)
    )


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
    await api.remove_service(name)
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
        await api.scale(name, replicas)
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
    found = call(lambda api: until_ready(api, name, quiet=as_json))
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
        revision = await api.undo_rollout(name, to)
        if not as_json:
            say(f"{name}: back to revision {revision}")
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
    return say(f"{job} of service {found.service} is being stopped.")
