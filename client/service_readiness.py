"""Waiting until services are ready, or will not be."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from longshore.client.service_view import new_reasons, why_left
from longshore.client.terminal import note, say, warn
from longshore.models.errors import NeverReadyError, RefusedError, StoredError
from longshore.models.service import ServiceState, ServiceView
from longshore.models.text import count
from longshore.models.visible import visible
from longshore.scheduling.serving.replicas import TRIES

if TYPE_CHECKING:
    from longshore.client.api import Longshore

_POLL_EVERY = 0.3


def say_endpoints(service: ServiceView) -> None:
    for endpoint in service.endpoints:
        say(f"{service.name} answers at {endpoint}")


async def all_ready(
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
            say_endpoints(found)
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
    api: "Longshore",
    name: str,
    revision: int | None = None,
    *,
    quiet: bool,
    of_all: bool = False,
) -> ServiceView:
    """Wait until a service has all its replicas, and no others; tell what changes, and why
    replicas wait or have failed.

    Raises RefusedError where it goes back from the `revision` that is waited for, or is removed,
    and NeverReadyError where engines fail and there is none to go back to: meanwhile, or with
    `of_all` at any time.
    """
    told, reasons, failed_before = "", set[str](), dict[int, int]()
    while True:
        found = await api.service(name)
        if found.state is not ServiceState.RUNNING:
            raise RefusedError(f"service {name} is {found.state.in_words}")
        if revision is not None and found.revision != revision:
            raise RefusedError(f"service {name}: {why_left(found, revision)}")
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
        _refuse_never_ready(found, None if of_all else failed_before)
        await asyncio.sleep(_POLL_EVERY)


def _refuse_never_ready(service: ServiceView, failed_before: dict[int, int] | None) -> None:
    """Raise NeverReadyError where `TRIES` engines have failed since it was looked at first, none
    of the revision was ever ready, and it has no other to go back to.

    `failed_before` has how many had failed at the first look, by the number of the revision; None
    where those count, too.
    """
    for each in service.revisions or ():
        if each.number != service.revision or each.ready_at is not None or each.can_go_back:
            continue
        first = 0
        if failed_before is not None:
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
