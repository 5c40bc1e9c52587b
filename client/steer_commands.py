"""Commands that steer jobs, by name or by what they have in common: cancel, hold, release,
requeue."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client import selection
from longshore.client.calls import call, known_pool
from longshore.client.job_commands import REASON
from longshore.client.job_view import jobs_table
from longshore.client.selection import Selection
from longshore.client.steering import (
    CANCEL,
    HOLD,
    RELEASE,
    REQUEUE,
    Asked,
    Verb,
    ask_all,
    begins_of,
    named,
    select,
)
from longshore.client.terminal import JSON, note, now, out, print_json, say, show
from longshore.models.moment import said_at
from longshore.models.text import count, listed
from longshore.models.views import JobView

if TYPE_CHECKING:
    from longshore.client.api import Longshore

REFS = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB]...", help="Ids, or names for the newest jobs of them."),
]
ALL_TENANTS = Annotated[
    bool,
    typer.Option(
        "--all-tenants", help="Allow jobs of several tenants.", rich_help_panel="Which jobs"
    ),
]
DRY_RUN = Annotated[
    bool, typer.Option("--dry-run", help="Only list the jobs that it would affect.")
]
_NAMED = 5
_LOOKED_UP = 100
"""Jobs whose `begin` is looked up to say what comes of a release."""
_TELL_EVERY = 2.0
"""Seconds between two words on how far it is."""


def register(app: typer.Typer) -> None:
    for command in (cancel, hold, release, requeue):
        app.command(rich_help_panel="Jobs")(command)


def cancel(
    refs: REFS = None,
    reason: REASON = "",
    indices: Annotated[
        str | None,
        typer.Option("--elements", metavar="3-9,12", help="Only these elements of an array."),
    ] = None,
    pool: selection.POOL = None,
    tenant: selection.TENANT = None,
    state: selection.STATES = None,
    labels: selection.LABELS = None,
    name: selection.NAME = None,
    all_tenants: ALL_TENANTS = False,
    dry_run: DRY_RUN = False,
    as_json: JSON = False,
) -> None:
    """Cancel jobs. Running jobs get their stop signal and their grace first.

    longshore cancel --label sweep=7 --state QUEUED --dry-run
    """
    chosen = selection.read(pool, tenant, state, labels, name)
    if indices is not None:
        if refs is None or len(refs) > 1 or chosen.given or dry_run:
            raise typer.BadParameter("--elements are those of one array: name one, and no more")
        return _cancel_elements(refs[0], indices, reason, as_json)
    return _steer(CANCEL, refs, chosen, reason, all_tenants, dry_run, as_json)


def hold(
    refs: REFS = None,
    reason: REASON = "",
    pool: selection.POOL = None,
    tenant: selection.TENANT = None,
    state: selection.STATES = None,
    labels: selection.LABELS = None,
    name: selection.NAME = None,
    all_tenants: ALL_TENANTS = False,
    dry_run: DRY_RUN = False,
    as_json: JSON = False,
) -> None:
    """Put jobs on hold. Running jobs are stopped and requeued on hold."""
    chosen = selection.read(pool, tenant, state, labels, name)
    _steer(HOLD, refs, chosen, reason, all_tenants, dry_run, as_json)


def release(
    refs: REFS = None,
    reason: REASON = "",
    pool: selection.POOL = None,
    tenant: selection.TENANT = None,
    state: selection.STATES = None,
    labels: selection.LABELS = None,
    name: selection.NAME = None,
    all_tenants: ALL_TENANTS = False,
    dry_run: DRY_RUN = False,
    as_json: JSON = False,
) -> None:
    """Release held jobs, so that they can be placed again."""
    chosen = selection.read(pool, tenant, state, labels, name)
    _steer(RELEASE, refs, chosen, reason, all_tenants, dry_run, as_json)


def requeue(
    refs: REFS = None,
    reason: REASON = "",
    pool: selection.POOL = None,
    tenant: selection.TENANT = None,
    state: selection.STATES = None,
    labels: selection.LABELS = None,
    name: selection.NAME = None,
    all_tenants: ALL_TENANTS = False,
    dry_run: DRY_RUN = False,
    as_json: JSON = False,
) -> None:
    """Stop running jobs with their grace, and requeue them at their old place."""
    chosen = selection.read(pool, tenant, state, labels, name)
    _steer(REQUEUE, refs, chosen, reason, all_tenants, dry_run, as_json)


def _cancel_elements(ref: str, indices: str, reason: str, as_json: bool) -> None:
    said = call(lambda api: api.cancel_elements(ref, indices, reason))
    if as_json:
        return print_json(said)
    ended = f"; {said.ended:,} had ended before" if said.ended else ""
    say(
        f"{said.waiting:,} that waited are cancelled, {said.running:,} are stopped by their "
        f"slots{ended}"
    )
    return None


def _steer(
    verb: Verb,
    refs: list[str] | None,
    chosen: Selection,
    reason: str,
    all_tenants: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Ask each job for the same; say what failed, and go on with the others."""
    if refs and (chosen.given or all_tenants):
        raise typer.BadParameter("either name jobs, or select them by flags: not both")
    if not refs and not chosen.given:
        raise typer.BadParameter(
            "name jobs, or select them: --label, --name, --state, --pool or --tenant"
        )
    if chosen.states and not chosen.states & verb.states:
        which = " or ".join(sorted(verb.states))
        raise typer.BadParameter(f"no such job can be asked to {verb.name}: only one that is "
                                 f"{which}")  # fmt: skip
    if dry_run:
        return _list(verb, refs, chosen, all_tenants, as_json)

    async def ask(api: "Longshore") -> Asked:
        meant = refs or []
        if not refs:
            found = await select(api, chosen, verb, all_tenants=all_tenants)
            await _tell(api, verb, chosen, found)
            meant = [job.id for job in found]
        heard = _progress(verb, len(meant))
        asked = await ask_all(api, verb, meant, reason, selected=not refs, heard=heard)
        if verb is RELEASE:
            asked.begins = await begins_of(api, asked.asked[:_LOOKED_UP], now())
        return asked

    _report(verb, call(ask), as_json)
    return None


def _list(
    verb: Verb, refs: list[str] | None, chosen: Selection, all_tenants: bool, as_json: bool
) -> None:
    async def look(api: "Longshore") -> tuple[list[JobView], Asked]:
        if refs:
            return await named(api, refs)
        found = await select(api, chosen, verb, all_tenants=all_tenants)
        if not found:
            await _tell(api, verb, chosen, found)
        return found, Asked()

    found, asked = call(look)
    if as_json:
        print_json(found)
    elif found:
        show(jobs_table(found, now(), out().width))
        note(f"\nWould {verb.name} {count(len(found), 'job')}; nothing was done.")
    _raise_last(asked)


async def _tell(api: "Longshore", verb: Verb, chosen: Selection, found: list[JobView]) -> None:
    """Say what is about to be done, to how many jobs."""
    if found:
        ids = listed([job.id for job in found], _NAMED)
        return note(f"{verb.name} {count(len(found), 'job')}: {ids}")
    if chosen.pool:
        await known_pool(api, chosen.pool)
    return note(f"No such jobs to {verb.name}: `longshore jobs` with the same flags lists all.")


def _progress(verb: Verb, number: int) -> Callable[[int], None]:
    told_at = time.monotonic()

    def heard(so_far: int) -> None:
        nonlocal told_at
        if so_far < number and time.monotonic() - told_at >= _TELL_EVERY:
            told_at = time.monotonic()
            note(f"{verb.name}: {so_far:,} of {count(number, 'job')}")

    return heard


def _report(verb: Verb, asked: Asked, as_json: bool) -> None:
    if as_json:
        failed = [{"job": ref, "error": str(error)} for ref, error in asked.failed]
        print_json({"asked": verb.name, "jobs": asked.asked, "ended": asked.ended,
                    "failed": failed})  # fmt: skip
    else:
        for job_id in asked.asked:
            begins_at = asked.begins.get(job_id)
            if begins_at is None:
                say(f"{job_id} {verb.outcome.format(id=job_id)}")
            else:
                say(f"{job_id} may be placed from {said_at(begins_at, now())} on, its `begin`")
    for job_id in asked.ended:
        note(f"{job_id} had ended by then")
    _raise_last(asked)


def _raise_last(asked: Asked) -> None:
    """Say what failed; raise the last of it, whose code the command ends with."""
    if not asked.failed:
        return
    for _, error in asked.failed[:-1]:
        note(f"error: {error}")
    if len(asked.failed) > 1:
        note(f"{count(len(asked.failed), 'job')} could not be asked; the last:")
    raise asked.failed[-1][1]
