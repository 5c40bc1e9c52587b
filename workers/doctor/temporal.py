"""Checks of Temporal, of who asks it for work, and of where it and the database must agree."""

import asyncio
import importlib.util
import uuid
from datetime import UTC, datetime, timedelta
from functools import partial

from sqlalchemy import text
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    GetSystemInfoRequest,
    PollActivityTaskQueueRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.database import Database
from activities.polls import POLL_SEEN_WITHIN, last_polls
from client.deployments import Deployments, deployments_at_work
from models.messages import CONTROL_TASK_QUEUE, POOL_WORKFLOW, node_task_queue, pool_workflow_id
from workers.doctor.database import clocks
from workers.doctor.findings import Check, Finding, fail, ok, warn

OLDEST_TEMPORAL = (1, 29)
_AT_ONCE = 20
_POLL_LASTS = timedelta(seconds=5)
_START = "Run `longshore up`, or `longshore worker` beside servers of your own."


def checks(temporal: Client) -> dict[str, Check]:
    """Return each check of Temporal by its name."""
    return {
        "temporal": partial(_version, temporal),
        "namespace": partial(_namespace, temporal),
        "search attributes": partial(_search_attributes, temporal),
        "temporal clock": partial(_clock, temporal),
        "control worker": partial(_control_worker, temporal),
    }


def checks_of_nodes(temporal: Client, database: Database) -> dict[str, Check]:
    """Return each check that compares Temporal with the database."""
    return {
        "pools": partial(_pools, temporal, database),
        "agents": partial(_agents, temporal, database),
    }


def forgotten(pool: str) -> Finding:
    """Return what is wrong with a pool that was poked and has no workflow."""
    return fail(
        "pools",
        f"pool {pool} was poked, and no workflow {pool_workflow_id(pool)} runs",
        "Run `temporal workflow signal-with-start --signal-name poke --workflow-id "
        f"{pool_workflow_id(pool)} --type {POOL_WORKFLOW} --task-queue {CONTROL_TASK_QUEUE} "
        f'--input \'{{"pool": "{pool}"}}\'`; its jobs wait until then.',
    )


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
    now = datetime.now(UTC)
    found: list[Finding] = []
    workers: set[str] = set()
    for what, workflows in (("workflows", True), ("activities", False)):
        seen = await last_polls(temporal, CONTROL_TASK_QUEUE, workflows=workflows)
        fresh = {who for who, at in seen.items() if now - at < POLL_SEEN_WITHIN}
        workers |= fresh
        if not fresh:
            found.append(
                fail(
                    "control worker",
                    f"nobody asks task queue {CONTROL_TASK_QUEUE} for {what}",
                    f"{_START} Jobs wait until then.",
                )
            )
    found = found or await _troubles_of_versions(temporal)
    if found:
        return found
    many = f"{len(workers)} control workers take" if len(workers) > 1 else "one takes"
    return [ok("control worker", f"{many} work from task queue {CONTROL_TASK_QUEUE}")]


async def _troubles_of_versions(temporal: Client) -> list[Finding]:
    """A worker that is a version may ask for work, and get none."""
    found: list[Finding] = []
    for name in await deployments_at_work(temporal):
        trouble = (await Deployments(temporal, name).status()).trouble
        if trouble:
            says = f"deployment {name}: {trouble.says}"
            level = fail if trouble.holds_up_work else warn
            found.append(level("control worker", says, trouble.mend))
    return found


async def _clock(temporal: Client) -> list[Finding]:
    """Have the server note, by its clock, when somebody asked it for work a moment ago."""
    identity = task_queue = f"doctor-{uuid.uuid4().hex[:8]}"
    before = datetime.now(UTC)
    poll = asyncio.create_task(
        temporal.workflow_service.poll_activity_task_queue(
            PollActivityTaskQueueRequest(
                namespace=temporal.namespace,
                task_queue=TaskQueue(name=task_queue),
                identity=identity,
            ),
            timeout=_POLL_LASTS,
        )
    )
    try:
        while not poll.done():
            seen = await last_polls(temporal, task_queue)
            if identity in seen:
                return [clocks("temporal clock", "Temporal", seen[identity], before)]
            await asyncio.sleep(0.05)
    finally:
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
    return [
        warn(
            "temporal clock",
            "the server did not say what time it is",
            "Compare its clock with this machine's by hand.",
        )
    ]


async def _pools(temporal: Client, database: Database) -> list[Finding]:
    pools = await _forgotten_pools(temporal, database)
    if pools:
        # A poke that is on its way right now looks the same for a moment.
        await asyncio.sleep(2.0)
        pools &= await _forgotten_pools(temporal, database)
    if not pools:
        return [ok("pools", "every pool that was poked has its workflow")]
    return [forgotten(pool) for pool in sorted(pools)]


async def _forgotten_pools(temporal: Client, database: Database) -> set[str]:
    async with database.transaction() as connection:
        poked = list(await connection.scalars(text("SELECT name FROM pools WHERE poked")))
    return {pool for pool in poked if not await _runs(temporal, pool_workflow_id(pool))}


async def _runs(temporal: Client, workflow_id: str) -> bool:
    try:
        description = await temporal.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return description.status is WorkflowExecutionStatus.RUNNING


async def _agents(temporal: Client, database: Database) -> list[Finding]:
    async with database.transaction() as connection:
        rows = (await connection.execute(text(_NODES))).mappings().all()
    gate = asyncio.Semaphore(_AT_ONCE)

    async def silent(node_id: str) -> bool:
        async with gate:
            seen = await last_polls(temporal, node_task_queue(node_id))
        return not any(datetime.now(UTC) - at < POLL_SEEN_WITHIN for at in seen.values())

    live = [row["id"] for row in rows if row["state"] != "LOST"]
    quiet = await asyncio.gather(*(silent(node_id) for node_id in live))
    found = [
        fail(
            "agents",
            f"node {node_id} is in the database, and its agent asks for no work",
            "Look at the agent's log on that machine, or start it again: `longshore agent "
            f"--node-id {node_id}`.",
        )
        for node_id, is_quiet in zip(live, quiet, strict=True)
        if is_quiet
    ]
    found += [
        warn(
            "agents",
            f"node {row['id']} is lost: {row['state_reason']}",
            f"Start its agent again on {row['hostname'] or 'its machine'}, if it is to come back.",
        )
        for row in rows
        if row["state"] == "LOST"
    ]
    if found:
        return found
    return [ok("agents", f"nodes: {len(live)}; the agent of each asks for work")]


def _wanted_attributes() -> dict[str, str]:
    if importlib.util.find_spec("models.search") is None:
        return {}
    from models.search import SEARCH_ATTRIBUTES

    return SEARCH_ATTRIBUTES


def _type_of(value: "IndexedValueType.ValueType") -> str:
    """Return a type as people write it: ``Keyword``, ``Int``."""
    return IndexedValueType.Name(value).removeprefix("INDEXED_VALUE_TYPE_").title()


_NODES = """
    SELECT id, state, state_reason, hostname FROM nodes WHERE state <> 'GONE' ORDER BY id
"""
