"""Checks of Temporal, and of the control workers that ask it for work."""

import importlib.util
import uuid
from datetime import UTC, datetime, timedelta
from functools import partial

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    GetSystemInfoRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from longshore.activities.database import Database
from longshore.activities.pollers import server_time
from longshore.client.control_worker import (
    START,
    Asking,
    TakenUp,
    nobody_asks,
    process_of,
    taken_up,
    who_asks,
)
from longshore.client.deployments import Deployments, deployments_in_use
from longshore.models.messages import CONTROL_TASK_QUEUE, PING_WORKFLOW
from longshore.workers.doctor.agents import agents
from longshore.workers.doctor.bought import blocks
from longshore.workers.doctor.dags import dags
from longshore.workers.doctor.database import clocks
from longshore.workers.doctor.findings import Check, Finding, Level, fail, ok, warn
from longshore.workers.doctor.pools import pools
from longshore.workers.doctor.schedules import schedules
from longshore.workers.doctor.services import services
from longshore.workers.doctor.workflows import workflows

OLDEST_TEMPORAL = (1, 29)
_TAKEN_WITHIN = timedelta(seconds=5)


def checks(temporal: Client) -> dict[str, Check]:
    """Return each check of Temporal by its name."""
    return {
        "temporal": partial(_version, temporal),
        "namespace": partial(_namespace, temporal),
        "search attributes": partial(_search_attributes, temporal),
        "temporal clock": partial(_clock, temporal),
        "control worker": partial(_control_worker, temporal),
        "workflows": partial(workflows, temporal),
        "schedules": partial(schedules, temporal),
    }


def checks_of_nodes(temporal: Client, database: Database) -> dict[str, Check]:
    """Return each check that compares Temporal with the database."""
    return {
        "pools": partial(pools, temporal, database),
        "blocks": partial(blocks, temporal, database),
        "dags": partial(dags, temporal, database),
        "services": partial(services, temporal, database),
        "agents": partial(agents, temporal, database),
    }


async def _version(temporal: Client) -> list[Finding]:
    info = await temporal.workflow_service.get_system_info(GetSystemInfoRequest())
    found = tuple(int(part) for part in info.server_version.split("-")[0].split(".")[:2])
    if found < OLDEST_TEMPORAL:
        wanted = ".".join(map(str, OLDEST_TEMPORAL))
        return [
            fail(
                "temporal",
                f"the server has version {info.server_version}",
                f"Move it to version {wanted} or later.",
            )
        ]
    return [ok("temporal", f"Temporal {info.server_version} answers")]


async def _namespace(temporal: Client) -> list[Finding]:
    try:
        await temporal.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=temporal.namespace)
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return [
            fail(
                "namespace",
                f"the server has no namespace {temporal.namespace}",
                f"Run `temporal operator namespace create -n {temporal.namespace}`, or set "
                "TEMPORAL_NAMESPACE.",
            )
        ]
    return [ok("namespace", f"{temporal.namespace} is there")]


async def _search_attributes(temporal: Client) -> list[Finding]:
    wanted = _wanted_attributes()
    if not wanted:
        return []
    reply = await temporal.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=temporal.namespace)
    )
    types = {name: _type_of(value) for name, value in reply.custom_attributes.items()}
    found = [
        fail(
            "search attributes",
            f"the server does not know {name}",
            f"Run `temporal operator search-attribute create --name {name} --type {kind} "
            f"-n {temporal.namespace}`.",
        )
        for name, kind in wanted.items()
        if name not in types
    ]
    found += [
        fail(
            "search attributes",
            f"{name} is of type {types[name]}, not {kind}",
            "Use another namespace: the type of an attribute cannot be changed.",
        )
        for name, kind in wanted.items()
        if types.get(name, kind) != kind
    ]
    return found or [ok("search attributes", f"all {len(wanted)} are registered")]


async def _control_worker(temporal: Client) -> list[Finding]:
    asking = await who_asks(temporal)
    last_seen = f"; the last that did: {asking.last_seen}" if asking.last_seen else ""
    found = [
        fail("control worker", nobody_asks(what) + last_seen, f"{START} Jobs wait until then.")
        for what in asking.missing
    ]
    troubles = await _troubles_of_versions(temporal)
    if any(each.level is Level.FAIL for each in troubles):
        return troubles  # a worker of no version, as `longshore up` starts, would get no work
    found = found or troubles
    if found:
        return found
    look = await _ping(temporal)
    if not look.answered:
        return [_unanswered(look, asking)]
    many = f"{len(asking.lately)} control workers take" if len(asking.lately) > 1 else "one takes"
    return [ok("control worker", f"{many} work from task queue {CONTROL_TASK_QUEUE}")]


async def _ping(temporal: Client) -> TakenUp:
    """Return who takes up a workflow that completes at once."""
    handle = await temporal.start_workflow(
        PING_WORKFLOW, id=f"ping-{uuid.uuid4().hex[:12]}", task_queue=CONTROL_TASK_QUEUE,
        # Longer than it is looked at: one that is over would count as answered.
        execution_timeout=2 * _TAKEN_WITHIN,
        static_summary="longshore doctor asks for an answer",
    )  # fmt: skip
    return await taken_up(temporal, handle.id, _TAKEN_WITHIN)


def _unanswered(look: TakenUp, asking: Asking) -> Finding:
    """Return which control worker hangs, where one was given the workflow; else who asked last."""
    seconds = f"{_TAKEN_WITHIN.total_seconds():g} s"
    if look.handed_to:
        who = process_of(look.handed_to)
        return fail(
            "control worker",
            f"{who} was given a workflow and has not answered within {seconds}: it hangs, is "
            "very busy, or is gone",
            "`longshore up` on its machine ends one of its own stack that hangs, and starts "
            "another; elsewhere restart its service. Jobs wait until then.",
        )
    return fail(
        "control worker",
        f"nobody took a workflow from task queue {CONTROL_TASK_QUEUE} within {seconds}; those "
        f"that asked last ({asking.last_seen}) are gone, hang, are busy, older, or of a version "
        "that gets no work",
        f"{START} `longshore deployment status` shows the versions.",
    )


async def _troubles_of_versions(temporal: Client) -> list[Finding]:
    """A worker may ask for work and get none, because another version is to have it."""
    found: list[Finding] = []
    for name in await deployments_in_use(temporal):
        trouble = (await Deployments(temporal, name).status()).trouble
        if trouble:
            says = f"deployment {name}: {trouble.says}"
            level = fail if trouble.holds_up_work else warn
            found.append(level("control worker", says, trouble.mend))
    return found


async def _clock(temporal: Client) -> list[Finding]:
    before = datetime.now(UTC)
    if (theirs := await server_time(temporal)) is not None:
        return [clocks("temporal clock", "Temporal", theirs, before)]
    return [
        warn(
            "temporal clock",
            "the server did not say what time it is",
            "Compare its clock with this machine's by hand.",
        )
    ]


def _wanted_attributes() -> dict[str, str]:
    if importlib.util.find_spec("longshore.models.search") is None:
        return {}
    from longshore.models.search import SEARCH_ATTRIBUTES

    return SEARCH_ATTRIBUTES


def _type_of(value: "IndexedValueType.ValueType") -> str:
    """Return a type as people write it: ``Keyword``, ``KeywordList``, ``Int``."""
    name = IndexedValueType.Name(value).removeprefix("INDEXED_VALUE_TYPE_")
    return name.title().replace("_", "")
