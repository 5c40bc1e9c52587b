"""The steps of a DAG: onto the record, and from the ends of its jobs to what follows.

Every activity here may run twice. What is to be submitted is on record before it is, and a job's
id is of one submission: a repeat starts what is missing and nothing twice.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from longshore.activities.database import Database, clock
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.job_starts import start_job
from longshore.activities.rpc_errors import is_unknown
from longshore.models.dag import DagSpec, DagState, StepState
from longshore.models.dag_messages import AdvanceDag, DagProgress, OpenDag, OpenedDag
from longshore.models.errors import NotFoundError
from longshore.models.job import JobState
from longshore.models.messages import JobInput, job_workflow_id
from longshore.scheduling.dag import DagPlan, Graph, decide, reopened, waits_for

_AT_ONCE = 200
"""Jobs that one look submits; the workflow looks again for the others."""
_IN_FLIGHT = 25
UNRECORDED_AFTER = timedelta(minutes=1)
"""A job that was submitted so long ago is in the queue, or its workflow tells why not."""
_UNRECORDED = "its workflow ended before the job came into a queue"


class DagActivities:
    """Activities of `DagWorkflow`."""

    def __init__(self, database: Database, temporal: Client) -> None:
        self._database = database
        self._temporal = temporal

    @activity.defn
    @reports_errors
    async def open_dag(self, request: OpenDag) -> OpenedDag:
        """Put a DAG on record; or of one that is, open what a retry runs again.

        A repeat changes nothing. Raises NotFoundError where none is on record to go on with.
        """
        async with self._database.transaction() as connection:
            if request.spec is not None and not request.retry:
                await _record(connection, request.dag_id, request.spec, request)
            row = await _locked(connection, request.dag_id)
            spec = DagSpec.model_validate(row["spec"])
            opened = OpenedDag(name=spec.name, tenant=spec.tenant, jobs=len(spec.jobs))
            if row["submitted_at"] != request.submitted_at and not request.retry:
                why = f"a DAG {request.dag_id} is on record already: give this one another id"
                return opened.model_copy(update={"refusal": why})
            if request.retry and row["state"] != DagState.RUNNING:
                await _reopen(connection, request.dag_id, spec, row["generation"] + 1)
            await failpoint("open_dag.before-commit")
        await failpoint("open_dag.after-commit")
        return opened

    @activity.defn
    @reports_errors
    async def advance_dag(self, request: AdvanceDag) -> DagProgress:
        """Look at how the jobs of a DAG ended, and submit, skip and cancel what follows."""
        if request.check:
            await self._find_unrecorded(request.dag_id)
        async with self._database.transaction() as connection:
            row = await _locked(connection, request.dag_id)
            spec = DagSpec.model_validate(row["spec"])
            graph = Graph.of(spec)
            jobs = {each["name"]: each for each in await _jobs_of(connection, request.dag_id)}
            if row["state"] == DagState.RUNNING:
                plan = decide(
                    graph, {name: state_of(job) for name, job in jobs.items()}, spec.on_failure,
                    held=request.held, stopped_by=row["stopped_by"],
                    cancelled=row["cancelled"] or request.cancelled,
                )  # fmt: skip
                await _store(connection, request, row["generation"], plan)
            else:
                known = {name: state_of(job) for name, job in jobs.items()}
                plan = DagPlan(DagState(row["state"]), known, reason=row["message"])
            starting = await _starting(connection, request.dag_id)
            ended_at = await connection.scalar(
                text("SELECT ended_at FROM dags WHERE id = :id"), {"id": request.dag_id}
            )
            await failpoint("advance_dag.before-commit")
        await failpoint("advance_dag.after-commit")
        await self._submit(request.dag_id, spec, starting[:_AT_ONCE])
        to_cancel = [jobs[name] for name in plan.cancel if not jobs[name]["cancel_sent"]]
        await self._cancel(request.dag_id, to_cancel, plan.reason or _stop(plan))
        return _progress(graph, plan, more=len(starting) > _AT_ONCE, ended_at=ended_at)

    async def _submit(
        self, dag_id: str, spec: DagSpec, starting: Sequence[tuple[str, str]]
    ) -> None:
        """Start the workflows of jobs (name, job id), and record that they are there."""
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def submit(name: str, job_id: str) -> None:
            job = spec.jobs[name].spec
            digest = hashlib.sha256(job.model_dump_json().encode()).hexdigest()[:16]
            async with gate:
                try:
                    await start_job(self._temporal, job_id, JobInput(spec=job), digest, dag_id)
                except WorkflowAlreadyStartedError:
                    return  # by the try before this one
            await failpoint("advance_dag.after-first-start")

        if not starting:
            return
        await asyncio.gather(*(submit(name, job_id) for name, job_id in starting))
        async with self._database.transaction() as connection:
            await connection.execute(
                text(
                    "UPDATE dag_jobs SET state = 'STARTED'"
                    " WHERE dag_id = :id AND state = 'STARTING' AND name = ANY (:names)"
                ),
                {"id": dag_id, "names": [name for name, _ in starting]},
            )

    async def _cancel(self, dag_id: str, jobs: Sequence[RowMapping], why: str) -> None:
        """Ask jobs to end; one that has just ended is left as it ended."""
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def cancel(job_id: str) -> None:
            async with gate:
                handle = self._temporal.get_workflow_handle(job_workflow_id(job_id))
                try:
                    await handle.cancel(reason=why)
                except RPCError as error:
                    if not is_unknown(error):
                        raise

        if not jobs:
            return
        await asyncio.gather(*(cancel(job["job_id"]) for job in jobs))
        async with self._database.transaction() as connection:
            await connection.execute(
                text(
                    "UPDATE dag_jobs SET cancel_sent = true"
                    " WHERE dag_id = :id AND name = ANY (:names)"
                ),
                {"id": dag_id, "names": [job["name"] for job in jobs]},
            )

    async def _find_unrecorded(self, dag_id: str) -> None:
        """Note jobs whose workflow is over and that have no record: no end of theirs comes."""
        async with self._database.transaction() as connection:
            since = await clock(connection) - UNRECORDED_AFTER
            rows = await connection.execute(
                text(_WITHOUT_RECORD), {"id": dag_id, "since": since, "most": _AT_ONCE}
            )
            found = [(row.name, row.job_id) for row in rows]
        gone = [name for name, job_id in found if await self._is_over(job_id)]
        if gone:
            async with self._database.transaction() as connection:
                await connection.execute(
                    text(_LOSE), {"id": dag_id, "names": gone, "why": _UNRECORDED}
                )

    async def _is_over(self, job_id: str) -> bool:
        try:
            found = await self._temporal.get_workflow_handle(job_workflow_id(job_id)).describe()
        except RPCError as error:
            if is_unknown(error):
                return True
            raise
        return found.status is not WorkflowExecutionStatus.RUNNING


async def _record(
    connection: AsyncConnection, dag_id: str, spec: DagSpec, request: OpenDag
) -> None:
    made = await connection.scalar(
        text(_INSERT_DAG),
        {
            "id": dag_id, "name": spec.name, "tenant": spec.tenant,
            "spec": spec.model_dump_json(), "submitted_at": request.submitted_at,
        },
    )  # fmt: skip
    if made:
        await connection.execute(
            text("INSERT INTO dag_jobs (dag_id, name) SELECT :id, unnest(CAST(:names AS text[]))"),
            {"id": dag_id, "names": list(spec.jobs)},
        )


async def _locked(connection: AsyncConnection, dag_id: str) -> RowMapping:
    """Hold the DAG's row until the end of the transaction, as `mark_dag_poked` does."""
    rows = await connection.execute(
        text("SELECT * FROM dags WHERE id = :id FOR NO KEY UPDATE"), {"id": dag_id}
    )
    row = rows.mappings().one_or_none()
    if row is None:
        raise NotFoundError(f"no DAG {dag_id} is on record: `longshore dag list` lists them")
    return row


async def _reopen(
    connection: AsyncConnection, dag_id: str, spec: DagSpec, generation: int
) -> None:
    jobs = await _jobs_of(connection, dag_id)
    names = reopened(Graph.of(spec), {job["name"]: state_of(job) for job in jobs})
    row = {"id": dag_id, "names": list(names), "generation": generation}
    await connection.execute(text(_REOPEN_JOBS), row)
    await connection.execute(text(_REOPEN_DAG), row)


async def _jobs_of(connection: AsyncConnection, dag_id: str) -> Sequence[RowMapping]:
    rows = await connection.execute(text(JOBS), {"id": dag_id})
    return rows.mappings().all()


def state_of(job: RowMapping) -> StepState:
    """Return where a job is, by its row and by how it ended on record."""
    state, end = job["state"], job["end_state"]
    if state in ("STARTING", "STARTED") and end is None:
        return StepState.STARTED
    if state == "LOST":
        return StepState.FAILED
    if state not in ("STARTING", "STARTED"):
        return StepState(state)
    if end == JobState.CANCELLED and not job["attempts"]:
        return StepState.WITHDRAWN
    return StepState(end)


async def _store(
    connection: AsyncConnection, request: AdvanceDag, generation: int, plan: DagPlan
) -> None:
    """Record a plan: what is to be submitted, what is left out, and the end of the DAG."""
    now = await clock(connection)
    dag = {"id": request.dag_id, "now": now}
    if plan.skip:
        left_out = [
            {**dag, "name": name, "why": why, "state": plan.states[name].value}
            for name, why in plan.skip.items()
        ]
        await connection.execute(text(_LEAVE_OUT), left_out)
    if plan.start:
        await connection.execute(
            text(_INTEND), {**dag, "names": list(plan.start), "generation": generation}
        )
    await connection.execute(
        text(_UPDATE_DAG),
        {
            **dag, "state": plan.state.value, "held": request.held, "message": plan.reason,
            "cancelled": request.cancelled, "stopped_by": plan.stopped_by,
        },
    )  # fmt: skip


async def _starting(connection: AsyncConnection, dag_id: str) -> list[tuple[str, str]]:
    rows = await connection.execute(
        text(
            "SELECT name, job_id FROM dag_jobs WHERE dag_id = :id AND state = 'STARTING'"
            " ORDER BY submitted_at, name"
        ),
        {"id": dag_id},
    )
    return [(row.name, row.job_id) for row in rows]


def _stop(plan: DagPlan) -> str:
    return f"{plan.stopped_by} failed, and its DAG stops at the first failure"


def _progress(graph: Graph, plan: DagPlan, *, more: bool, ended_at: Any) -> DagProgress:
    submitted = frozenset(plan.start)
    states = {
        name: StepState.STARTED if name in submitted else state
        for name, state in plan.states.items()
    }
    waiting = next((n for n in graph.order if states[n] is StepState.WAITING), None)
    return DagProgress(
        state=plan.state,
        counts=Counter(states.values()),
        reason=plan.reason or (_stop(plan) if plan.stopped_by else ""),
        next="" if waiting is None else f"{waiting} {waits_for(graph, waiting, states)}",
        more=more,
        ended_at=ended_at,
    )


_INSERT_DAG = """
    INSERT INTO dags (id, name, tenant, spec, submitted_at)
    VALUES (:id, :name, :tenant, CAST(:spec AS json), :submitted_at)
    ON CONFLICT (id) DO NOTHING
    RETURNING id
"""

JOBS = """
    SELECT d.name, d.state, d.job_id, d.generation, d.reason, d.cancel_sent, d.submitted_at,
           d.ended_at, j.end_state, j.attempts
      FROM dag_jobs d LEFT JOIN jobs j ON j.id = d.job_id
     WHERE d.dag_id = :id
"""

_LEAVE_OUT = """
    UPDATE dag_jobs SET state = :state, reason = :why, ended_at = :now
     WHERE dag_id = :id AND name = :name AND state = 'WAITING'
"""

_INTEND = """
    UPDATE dag_jobs
       SET state = 'STARTING', generation = :generation, submitted_at = :now,
           job_id = dag_id || '.' || name
                    || CASE WHEN :generation > 1 THEN '.r' || :generation ELSE '' END
     WHERE dag_id = :id AND state = 'WAITING' AND name = ANY (:names)
"""

_UPDATE_DAG = """
    UPDATE dags
       SET poked = false, state = :state, held = :held, stopped_by = :stopped_by,
           cancelled = coalesce(cancelled, :cancelled), message = :message,
           ended_at = CASE WHEN :state = 'RUNNING' THEN NULL ELSE CAST(:now AS timestamptz) END
     WHERE id = :id
"""

_REOPEN_JOBS = """
    UPDATE dag_jobs
       SET state = 'WAITING', reason = '', job_id = NULL, cancel_sent = false,
           submitted_at = NULL, ended_at = NULL, generation = :generation
     WHERE dag_id = :id AND name = ANY (:names)
"""

_REOPEN_DAG = """
    UPDATE dags
       SET state = 'RUNNING', ended_at = NULL, message = '', cancelled = NULL, stopped_by = NULL,
           generation = :generation
     WHERE id = :id
"""

_WITHOUT_RECORD = """
    SELECT d.name, d.job_id
      FROM dag_jobs d LEFT JOIN jobs j ON j.id = d.job_id
     WHERE d.dag_id = :id AND d.state = 'STARTED' AND j.id IS NULL AND d.submitted_at < :since
     ORDER BY d.submitted_at LIMIT :most
"""

_LOSE = """
    UPDATE dag_jobs d SET state = 'LOST', reason = :why, ended_at = clock_timestamp()
     WHERE dag_id = :id AND name = ANY (:names)
       AND NOT EXISTS (SELECT FROM jobs WHERE id = d.job_id)
"""
