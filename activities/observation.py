"""What `reconcile` looks at: the rows first, in one transaction, then Temporal and the agents."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import TypeVar

from pydantic import ValidationError
from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.service import RPCError

from longshore.activities.database import Database, clock
from longshore.activities.funding.differences import FUNDING_DIFFERENCES
from longshore.activities.held_differences import HELD_DIFFERENCES
from longshore.activities.job_runs import may_be_on_record, run_of_job
from longshore.activities.pollers import is_polled
from longshore.activities.rpc_errors import is_unknown
from longshore.activities.stored_pools import pool_and_trouble
from longshore.models import search
from longshore.models.block import BLOCK_WORKFLOW
from longshore.models.dag_messages import DAG_WORKFLOW
from longshore.models.job_status import JobResult, JobState, JobStatus
from longshore.models.messages import (
    ARRAY_WORKFLOW,
    JOB_WORKFLOW,
    NODE_WORKFLOW,
    POOL_WORKFLOW,
    LeaseEnd,
    PoolStatus,
    job_workflow_id,
    node_task_queue,
    node_workflow_id,
    pool_workflow_id,
)
from longshore.models.node import ENGINE_FENCE
from longshore.models.node_messages import NodeStatus
from longshore.models.purchase import PURCHASE_WORKFLOW
from longshore.models.reconcile import ReconcileRequest
from longshore.models.reconcile_seen import (
    BlockSeen,
    DagSeen,
    JobSeen,
    LedgerSeen,
    NodeSeen,
    Observed,
    PlacementSeen,
    PoolSeen,
    PurchaseSeen,
    ServiceSeen,
    WorkflowSeen,
    WorkflowState,
)
from longshore.models.retry import FailureClass
from longshore.models.service_messages import SERVICE_WORKFLOW
from longshore.scheduling.reconcile import to_ask, to_describe

_AT_ONCE = 20
_ANSWER_WITHIN = timedelta(seconds=10)
_ATTEMPTS_OF_A_RESTART = 2
"""A worker that ends with a task in hand costs one."""
_SERVICES = "SELECT name, updated_at FROM services WHERE state <> 'REMOVED' ORDER BY name"
_LISTED = f"""WorkflowType IN ('{JOB_WORKFLOW}', '{ARRAY_WORKFLOW}', '{DAG_WORKFLOW}',
    '{POOL_WORKFLOW}', '{NODE_WORKFLOW}', '{BLOCK_WORKFLOW}', '{PURCHASE_WORKFLOW}',
    '{SERVICE_WORKFLOW}')
    AND ExecutionStatus = 'Running'"""
_JOB_STATE = SearchAttributeKey.for_keyword(search.JOB_STATE)
_NODE_ID = SearchAttributeKey.for_keyword(search.NODE_ID)
_JOB_PREFIX = job_workflow_id("")
_NODE_PREFIX = node_workflow_id("")
_POOL_PREFIX = pool_workflow_id("")

Key = TypeVar("Key")
Value = TypeVar("Value")


async def observe(
    database: Database,
    temporal: Client,
    request: ReconcileRequest,
    node_lost_after: timedelta,
    engine_fence: timedelta = ENGINE_FENCE,
) -> Observed:
    """Return what database, workflows and agents say now.

    Costs a list of the running workflows, a query for each node and a call for each agent; more
    is asked only where rows and list disagree. Raises UnavailableError and RPCError.
    """
    async with database.snapshot() as connection:
        seen = await _rows(connection, node_lost_after, engine_fence)
    seen = seen.model_copy(update={"workflows": await _running(temporal)})
    described = await _for_each(to_describe(seen, request), lambda id: describe(temporal, id))
    seen = seen.model_copy(update={"workflows": {**seen.workflows, **described}})
    jobs = await _for_each(to_ask(seen, request), lambda id: _job_status(temporal, id))
    watched = [
        flow.id.removeprefix(_NODE_PREFIX)
        for flow in seen.workflows.values()
        if flow.id.startswith(_NODE_PREFIX) and flow.state is WorkflowState.RUNNING
    ]
    nodes = await _for_each(watched, lambda id: _node_status(temporal, id))
    alive = [node.id for node in seen.nodes if node.alive]
    async with database.snapshot() as connection:
        now = await clock(connection)  # later than `seen.at`: there were many questions
    polled = await _for_each(alive, lambda id: is_polled(temporal, node_task_queue(id), now))
    return seen.model_copy(
        update={
            "ended_jobs": await _ended(database, seen),
            "job_status": jobs,
            "node_status": {id: status for id, status in nodes.items() if status is not None},
            "silent": frozenset(id for id, asks in polled.items() if not asks),
        }
    )


# --- rows ---------------------------------------------------------------------------------


async def _rows(
    connection: AsyncConnection, node_lost_after: timedelta, engine_fence: timedelta
) -> Observed:
    at = await connection.scalar(text("SELECT now()"))
    jobs = (await connection.execute(text(_JOBS))).mappings()
    pools = (await connection.execute(text(_POOLS))).mappings()
    lost = {"fence": engine_fence, "lost": LeaseEnd.NODE_LOST.value}
    nodes = (await connection.execute(text(_NODES), lost)).mappings()
    blocks = (await connection.execute(text(BLOCKS))).mappings()
    purchases = (await connection.execute(text(PURCHASES))).mappings()
    dags = (await connection.execute(text(DAGS))).mappings()
    services = (await connection.execute(text(_SERVICES))).mappings()
    ledgers = (await connection.execute(text(HELD_DIFFERENCES))).mappings()
    funding = (await connection.execute(text(FUNDING_DIFFERENCES))).mappings()
    assert at is not None
    return Observed(
        at=at,
        node_lost_after=node_lost_after,
        engine_fence=engine_fence,
        jobs=tuple(_job(row) for row in jobs),
        pools=tuple(_pool(row) for row in pools),
        nodes=tuple(NodeSeen.model_validate(dict(row)) for row in nodes),
        blocks=tuple(BlockSeen.model_validate(dict(row)) for row in blocks),
        purchases=tuple(PurchaseSeen.model_validate(dict(row)) for row in purchases),
        dags=tuple(DagSeen.model_validate(dict(row)) for row in dags),
        services=tuple(ServiceSeen.model_validate(dict(row)) for row in services),
        ledgers=tuple(LedgerSeen.model_validate(dict(row)) for row in ledgers),
        funding=tuple(LedgerSeen.model_validate(dict(row)) for row in funding),
    )


def _job(row: RowMapping) -> JobSeen:
    placement = None
    if row["attempt"] is not None:
        placement = PlacementSeen(
            attempt=row["attempt"], node_id=row["node_id"], epoch=row["epoch"],
            placed_at=row["placed_at"], ended_at=row["placement_ended_at"],
            end_reason=row["end_reason"],
        )  # fmt: skip
    return JobSeen(
        id=row["id"], submitted_at=row["submitted_at"], ended_at=row["ended_at"],
        queued_attempt=row["queued_attempt"], queued_at=row["queued_at"], placement=placement,
        is_array=row["is_array"],
        array_ended_at=row["array_ended_at"],
    )  # fmt: skip


def _pool(row: RowMapping) -> PoolSeen:
    spec, _ = pool_and_trouble(row["name"], row["spec"])
    return PoolSeen(
        name=row["name"], interval=spec.interval, waiting=row["waiting"],
        waiting_since=row["waiting_since"], last_cycle_at=row["last_cycle_at"],
    )  # fmt: skip


async def _ended(database: Database, seen: Observed) -> frozenset[str]:
    """Return which of the jobs that run, and are not open, were recorded once."""
    known = {job.id for job in seen.jobs}
    others = [
        flow.id.removeprefix(_JOB_PREFIX)
        for flow in seen.workflows.values()
        if flow.id.startswith(_JOB_PREFIX) and flow.id.removeprefix(_JOB_PREFIX) not in known
        and may_be_on_record(flow.id)
    ]  # fmt: skip
    if not others:
        return frozenset()
    async with database.transaction() as connection:
        found = await connection.scalars(
            text("SELECT id FROM jobs WHERE id = ANY(:ids)"), {"ids": others}
        )
        return frozenset(found)


# --- workflows ----------------------------------------------------------------------------


async def _running(temporal: Client) -> dict[str, WorkflowSeen]:
    return {flow.id: _listed(flow) async for flow in temporal.list_workflows(_LISTED)}


def _listed(flow: WorkflowExecution) -> WorkflowSeen:
    state = flow.typed_search_attributes.get(_JOB_STATE)
    known = state in tuple(JobState)
    return WorkflowSeen(
        id=flow.id, state=WorkflowState.RUNNING, run_id=flow.run_id, started_at=flow.start_time,
        job_state=JobState(state) if known else None,
        node_id=flow.typed_search_attributes.get(_NODE_ID),
    )  # fmt: skip


async def describe(temporal: Client, workflow_id: str, *, ask: bool = True) -> WorkflowSeen:
    """Return the newest run of a workflow as it is now, or that there is none; of a job's the
    newest that was not refused at its start. Raises RPCError.

    With `ask` a pool's workflow is asked what it outlives, which needs a control worker.
    """
    try:
        flow = await temporal.get_workflow_handle(workflow_id).describe(rpc_timeout=_ANSWER_WITHIN)
    except RPCError as error:
        if not is_unknown(error):
            raise
        return WorkflowSeen(id=workflow_id, state=WorkflowState.MISSING)
    seen = _listed(flow)
    if flow.status is WorkflowExecutionStatus.RUNNING:
        trouble, tries = _trouble(flow)
        if ask and not trouble and workflow_id.startswith(_POOL_PREFIX):
            trouble = await _trouble_of_pool(temporal, workflow_id)
        return seen.model_copy(update={"trouble": trouble, "tries": tries})
    if not workflow_id.startswith(_JOB_PREFIX):
        closed = {"state": WorkflowState.CLOSED, "closed_at": flow.close_time}
        return seen.model_copy(update=closed)
    run = await run_of_job(temporal, flow, within=_ANSWER_WITHIN)
    result = await _result(temporal, run)
    return _listed(run).model_copy(
        update={"state": WorkflowState.CLOSED, "closed_at": run.close_time, "result": result}
    )


def _trouble(flow: WorkflowExecutionDescription) -> tuple[str, int]:
    """Return what an activity, or the workflow's own code, that is tried again failed with, and
    how often."""
    for pending in flow.raw_description.pending_activities:
        waits = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
        if pending.attempt > 1 and waits:
            name, why = pending.activity_type.name, pending.last_failure.message
            tries = pending.attempt - 1
            return f"{name} was tried {tries} times ({why[:300]})", tries
    task = flow.raw_description.pending_workflow_task
    if task.attempt > _ATTEMPTS_OF_A_RESTART:
        return f"its workflow task was tried {task.attempt - 1} times", task.attempt - 1
    return "", 0


async def _result(temporal: Client, flow: WorkflowExecution) -> JobResult:
    """Return how a job ended, as far as its closed workflow says."""
    job_id = flow.id.removeprefix(_JOB_PREFIX)
    handle = temporal.get_workflow_handle(flow.id, run_id=flow.run_id, result_type=JobResult)
    try:
        result = await handle.result(follow_runs=False, rpc_timeout=_ANSWER_WITHIN)
    except WorkflowFailureError as error:
        result = _result_of(job_id, error.cause)
    return result.model_copy(update={"ended_at": result.ended_at or flow.close_time})


def _result_of(job_id: str, cause: BaseException | None) -> JobResult:
    if isinstance(cause, ApplicationError) and cause.details:
        with contextlib.suppress(ValidationError):  # somebody else's details
            return JobResult.model_validate(cause.details[0])
    if isinstance(cause, CancelledError):
        return JobResult(
            job_id=job_id, state=JobState.CANCELLED, failure=FailureClass.CANCELLED,
            message="its workflow was cancelled",
        )  # fmt: skip
    how = "was terminated" if isinstance(cause, TerminatedError) else "failed"
    why = f": {cause}" if cause and str(cause) else ""
    message = f"its workflow {how}{why}"[:2000]
    return JobResult(job_id=job_id, state=JobState.FAILED, message=message)


async def _job_status(temporal: Client, job_id: str) -> JobStatus | str:
    handle = temporal.get_workflow_handle(job_workflow_id(job_id))
    try:
        return await handle.query("status", result_type=JobStatus, rpc_timeout=_ANSWER_WITHIN)
    except (WorkflowQueryFailedError, WorkflowQueryRejectedError) as error:
        return str(error)
    except RPCError as error:
        return error.message


async def _trouble_of_pool(temporal: Client, workflow_id: str) -> str:
    handle = temporal.get_workflow_handle(workflow_id)
    try:
        told = await handle.query("status", result_type=PoolStatus, rpc_timeout=_ANSWER_WITHIN)
    except (WorkflowQueryFailedError, WorkflowQueryRejectedError, RPCError):
        return ""
    return told.trouble


async def _node_status(temporal: Client, node_id: str) -> NodeStatus | None:
    handle = temporal.get_workflow_handle(node_workflow_id(node_id))
    try:
        return await handle.query("status", result_type=NodeStatus, rpc_timeout=_ANSWER_WITHIN)
    except (WorkflowQueryFailedError, WorkflowQueryRejectedError, RPCError):
        return None


async def _for_each(
    keys: Iterable[Key], ask: Callable[[Key], Awaitable[Value]]
) -> Mapping[Key, Value]:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(key: Key) -> tuple[Key, Value]:
        async with gate:
            return key, await ask(key)

    return dict(await asyncio.gather(*(one(key) for key in keys)))


_JOBS = """
    SELECT j.id, j.submitted_at, j.ended_at, q.attempt AS queued_attempt, q.queued_at,
           p.attempt, p.node_id, p.epoch, p.placed_at, p.ended_at AS placement_ended_at,
           p.end_reason, EXISTS (SELECT FROM arrays WHERE id = j.id) AS is_array,
           (SELECT a.ended_at FROM array_slots s JOIN jobs a ON a.id = s.array_id
             WHERE s.job_id = j.id) AS array_ended_at
      FROM (SELECT id FROM jobs WHERE ended_at IS NULL
            UNION SELECT job_id FROM queue
            UNION SELECT job_id FROM placements WHERE ended_at IS NULL) AS open
      JOIN jobs j ON j.id = open.id
      LEFT JOIN queue q ON q.job_id = j.id
      LEFT JOIN LATERAL (SELECT * FROM placements
                          WHERE job_id = j.id AND NOT spare
                            AND (rank = 0 OR coalesce(end_reason, '') <> 'resized'
                                 OR j.spec->'malleable'->'in_place' IS DISTINCT FROM 'true')
                          ORDER BY attempt DESC, ended_at IS NULL, rank LIMIT 1) p ON true
     ORDER BY j.submitted_at, j.id
"""
"""Of a gang, a placement that has ended where there is one: its job has to hear of that. Not of a
rank that it gave up itself, in place."""

_POOLS = """
    SELECT p.name, p.spec, count(q.job_id) AS waiting, min(q.queued_at) AS waiting_since,
           (SELECT max(committed_at) FROM cycles WHERE pool = p.name) AS last_cycle_at
      FROM pools p LEFT JOIN queue q ON q.pool = p.name AND NOT q.held
     GROUP BY p.name ORDER BY p.name
"""

_NODES = """
    SELECT n.id, n.state, n.epoch, n.registered_at, n.state_since, lost.engines
      FROM nodes n, LATERAL (
           SELECT count(*) AS engines FROM placements p JOIN jobs j ON j.id = p.job_id
            WHERE n.state = 'LOST' AND n.state_since > now() - :fence AND p.node_id = n.id
              AND p.end_reason = :lost AND p.ended_at > n.state_since - interval '1 minute'
              AND jsonb_typeof(j.spec -> 'engine') = 'object') lost
     ORDER BY n.id
"""

BLOCKS = "SELECT id, purchase_id, created_at FROM blocks WHERE state <> 'ENDED' ORDER BY id"
"""Rows of `BlockSeen`."""

PURCHASES = """
    SELECT id, created_at FROM purchases
     WHERE buying AND state NOT IN ('ENDED', 'REFUSED') ORDER BY id
"""
"""Rows of `PurchaseSeen`."""

DAGS = """
    SELECT g.id, g.submitted_at, EXISTS (
           SELECT FROM dag_jobs d
            WHERE d.dag_id = g.id AND d.mutexes <> '{}'
              AND (d.state = 'WAITING' AND d.ready_at IS NOT NULL
                   OR d.state = 'SUBMITTING'
                      AND NOT EXISTS (SELECT FROM jobs WHERE id = d.job_id))) AS keeps_others
      FROM dags g WHERE g.state = 'RUNNING' ORDER BY g.submitted_at, g.id
"""
"""Rows of `DagSeen`."""
