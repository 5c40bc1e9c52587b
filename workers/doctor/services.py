"""Check of services: whether a workflow keeps each, and its engines are as they should be."""

import asyncio
from collections.abc import Sequence

from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.observation import describe
from longshore.activities.serving.service_views import services_view
from longshore.models.reconcile_seen import WorkflowState
from longshore.models.service import ReplicaView, ServiceState, ServiceView
from longshore.models.service_messages import service_workflow_id
from longshore.models.text import count, listed
from longshore.models.units import format_gb
from longshore.models.visible import visible
from longshore.workers.doctor.findings import Finding, ok, warn

_CHECK = "services"
_MOST, _SHOWN = 100, 5
_LONGEST = 300


async def services(temporal: Client, database: Database) -> list[Finding]:
    """Return which services nobody keeps, of the first hundred, which cannot be read, and whose
    engines take too much or fail; nothing where there is no service."""
    found = await _read(database)
    if not found:
        return []
    return await _not_kept(temporal, database, found) + wrong_with(found) or [_well(found)]


def wrong_with(found: Sequence[ServiceView]) -> list[Finding]:
    """Return which services cannot be read, and whose engines take too much or fail."""
    return [*_unreadable(found), *_over(found), *_failing(found)]


async def _read(database: Database) -> Sequence[ServiceView]:
    """Return the services that are not over, by name."""
    async with database.snapshot() as connection:
        return await services_view(connection)


def _well(found: Sequence[ServiceView]) -> Finding:
    wanted = sum(each.spec.replicas for each in found if each.state is ServiceState.RUNNING)
    ready = sum(each.ready for each in found)
    return ok(
        _CHECK, f"{count(len(found), 'service')}, {ready} of {count(wanted, 'replica')} ready"
    )


async def _not_kept(
    temporal: Client, database: Database, found: Sequence[ServiceView]
) -> list[Finding]:
    names = await _without_workflow(temporal, found)
    if names:
        await asyncio.sleep(2.0)  # one that begins or ends at this moment looks the same
        still = await _without_workflow(temporal, await _read(database))
        names = [each for each in names if each in still]
    if not names:
        return []
    return [
        warn(
            _CHECK,
            f"nobody keeps {listed(names, _SHOWN)}: no workflow runs, and no replica is started "
            "or stopped",
            "`longshore reconcile` starts it again, as `longshore serve FILE` does.",
        )
    ]


async def _without_workflow(temporal: Client, found: Sequence[ServiceView]) -> list[str]:
    return [
        each.name
        for each in found[:_MOST]
        if (await describe(temporal, service_workflow_id(each.name), ask=False)).state
        is not WorkflowState.RUNNING
    ]


def _unreadable(found: Sequence[ServiceView]) -> list[Finding]:
    # Of one that is being removed nobody reads it.
    ill = [each for each in found if each.trouble and each.state is ServiceState.RUNNING]
    return [
        warn(
            _CHECK,
            visible(each.trouble),
            "Until then its engines go on, and nothing of it is started or stopped.",
        )
        for each in ill[:_SHOWN]
    ]


def _over(found: Sequence[ServiceView]) -> list[Finding]:
    ill = [f"{each.job_id} {_memory(each)}" for one in found for each in one.replicas if each.over]
    if not ill:
        return []
    return [
        warn(
            _CHECK,
            f"more GPU memory is taken than is held: {listed(ill, _SHOWN, between='; ')}",
            "Other jobs on these GPUs may run out of memory: give the model a larger `memory`.",
        )
    ]


def _memory(replica: ReplicaView) -> str:
    held, used = replica.leased_in_all / 1000, replica.used / 1000
    return f"takes {format_gb(used)}, holds {format_gb(held)}"


def _failing(found: Sequence[ServiceView]) -> list[Finding]:
    result: list[Finding] = []
    for each in found:
        ill = [one for one in each.replicas if one.failed and not one.endpoint]
        if each.state is not ServiceState.RUNNING or each.ready >= each.spec.replicas or not ill:
            continue
        worst = max(ill, key=lambda one: one.failures)
        last = visible(worst.message)
        last = last if len(last) <= _LONGEST else f"{last[:_LONGEST]}…"
        result.append(
            warn(
                _CHECK,
                f"service {each.name}: {each.ready} of {count(each.spec.replicas, 'replica')} "
                f"ready; engines of {worst.job_id} failed {count(worst.failures, 'time')}"
                f"{f', the last one: {last}' if last else ''}",
                f"`longshore logs {worst.job_id}` shows what it wrote; `longshore serve FILE` "
                f"changes the service, `longshore rollout undo {each.name}` goes back.",
            )
        )
    return result[:_SHOWN]
