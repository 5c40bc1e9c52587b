"""The steps of a DAG: onto the record, and from the ends of its jobs to what follows.

Every activity here may run twice. What is to be submitted is on record before it is, and a job's
id is of one submission: a repeat starts what is missing and nothing twice.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
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
from longshore.activities.job_starts import digest_of, start_job
from longshore.activities.rpc_errors import is_unknown
from longshore.models.dag import DagSpec, DagState, StepState
from longshore.models.dag_messages import AdvanceDag, DagProgress, OpenDag, OpenedDag
from longshore.models.errors import NotFoundError
from longshore.models.job import JobState
from longshore.models.messages import JOB_ID, JobInput, job_workflow_id
from longshore.models.problems import bounded
from longshore.models.visible import shown
from longshore.scheduling.dag import (
    DagPlan,
    Graph,
    decide,
    problems,
    reopened,
    waits_for,
    why_stopped,
)

_AT_ONCE = 200
"""Jobs that one look submits; the workflow looks again for the others."""
_IN_FLIGHT = 25
UNRECORDED_AFTER = timedelta(minutes=1)
"""A job that was submitted so long ago is in the queue, or its workflow tells why not."""
_ANOTHER = "another job has its id"
_UNRECORDED = "its workflow ended before the job came into a queue"


class DagActivities:
    """Activities of `DagWorkflow`."""

    def __init__(self, database: Database, temporal: Client, most_jobs: int) -> None:
        """Of a DAG with more than `most_jobs` none is submitted."""
        self._database = database
        self._most_jobs = most_jobs
        self._temporal = temporal

    @activity.defn
    @reports_errors
    async def open_dag(self, request: OpenDag) -> OpenedDag:
        """Put a DAG on record; or of one that is, open what a retry runs again.

        A repeat changes nothing. Raises NotFoundError where none is on record to go on with.
        """
        dag_id, spec = request.dag_id, request.spec
        if spec is not None and not request.retry and (why := self._why_not(dag_id, spec)):
            return OpenedDag(refusal=why)
        async with self._database.transaction() as connection:
            if spec is not None and not request.retry:
                await _record(connection, dag_id, spec, request)
            row = await _locked(connection, dag_id)
            spec = DagSpec.model_validate(row["spec"])
            if row["submitted_at"] != request.submitted_at and not request.retry:
                why = f"a DAG {dag_id} is on record already: give this one another id"
                return OpenedDag(refusal=why)
            if request.retry and row["state"] != DagState.RUNNING:
                await _reopen(connection, dag_id, spec, row["generation"] + 1)
            await failpoint("open_dag.before-commit")
        await failpoint("open_dag.after-commit")
        return OpenedDag()

    def _why_not(self, dag_id: str, spec: DagSpec) -> str:
        """Return what is wrong with a DAG; any SDK may have started it."""
        longest = f"{dag_id}.{max(spec.jobs, key=len)}.r999"
        if not JOB_ID.fullmatch(longest):
            return (
                f"the workflow id must be dag- and letters, digits, dots, dashes and underscores, "
                f"and leave room for the ids of its jobs such as {shown(longest)}"
            )
        edges = {name: job.after for name, job in spec.jobs.items()}
        found = [
            f"{'.'.join(each.place)}: {each.message}" for each in problems(edges, self._most_jobs)
        ]
        return "\n".join(bounded(found))

    @activity.defn
    @reports_errors
    async def advance_dag(self, request: AdvanceDag) -> DagProgress:
        """Look at how the jobs of a DAG ended, and submit, skip and cancel what follows."""
        dag_id = request.dag_id
        if request.check:
            await self._find_unrecorded(dag_id)
        # Before the lock, for which the ends of jobs wait, and with them their pools.
        async with self._database.transaction() as connection:
            spec = await spec_of(connection, dag_id)
        graph = Graph.of(spec)
        async with self._database.transaction() as connection:
            row = await _locked(connection, dag_id)
            jobs = {each["name"]: each for each in await _jobs_of(connection, dag_id)}
            known = {name: state_of(job) for name, job in jobs.items()}
            more = False
            if row["state"] == DagState.RUNNING:
                plan = decide(
                    graph, known, spec.on_failure, held=request.held,
                    stopped_by=row["stopped_by"], cancelled=row["cancelled"] or request.cancelled,
                )  # fmt: skip
                # What is intended is submitted in this look: a hold or a cancel finds no rest.
                begun = sum(job["state"] == "SUBMITTING" for job in jobs.values())
                start = plan.start[: max(_AT_ONCE - begun, 0)]
                more = len(start) < len(plan.start)
                plan = replace(plan, start=start)
                await _store(connection, request, row["generation"], plan)
            else:
                plan = DagPlan(DagState(row["state"]), known, reason=row["message"])
            starting = await _starting(connection, dag_id)
            ended_at = await connection.scalar(
                text("SELECT ended_at FROM dags WHERE id = :id"), {"id": dag_id}
            )
            await failpoint("advance_dag.before-commit")
        await failpoint("advance_dag.after-commit")
        await self._submit(dag_id, spec, starting)
        to_cancel = [jobs[name] for name in plan.cancel if not jobs[name]["cancel_sent"]]
        await self._cancel(dag_id, to_cancel, plan.reason or why_stopped(plan.stopped_by or ""))
        return _progress(graph, plan, more=more, ended_at=ended_at)

    async def _submit(
        self, dag_id: str, spec: DagSpec, starting: Sequence[tuple[str, str]]
    ) -> None:
        """Start the workflows of jobs (name, job id), and record that they are there."""
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def submit(name: str, job_id: str) -> tuple[str, bool]:
            job = spec.jobs[name].spec
            digest = digest_of(job)
            async with gate:
                try:
                    await start_job(self._temporal, job_id, JobInput(spec=job), digest, dag_id)
                except WorkflowAlreadyStartedError:
                    # By the try before this one, or by somebody else.
                    handle = self._temporal.get_workflow_handle(job_workflow_id(job_id))
                    if (await (await handle.describe()).memo()).get("digest") != digest:
                        return name, False
            await failpoint("advance_dag.after-first-start")
            return name, True

        if not starting:
            return
        ours = await asyncio.gather(*(submit(name, job_id) for name, job_id in starting))
        async with self._database.transaction() as connection:
            await connection.execute(
                text(_SUBMITTED),
                {
                    "id": dag_id, "why": _ANOTHER, "names": [name for name, _ in starting],
                    "others": [name for name, is_ours in ours if not is_ours],
                },
            )  # fmt: skip

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
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def is_over(job_id: str) -> bool:
            async with gate:
                return await self._is_over(job_id)

        over = await asyncio.gather(*(is_over(job_id) for _, job_id in found))
        gone = [name for (name, _), ended in zip(found, over, strict=True) if ended]
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
        raise no_such_dag(dag_id)
    return row


def no_such_dag(ref: str) -> NotFoundError:
    return NotFoundError(f"no DAG {shown(ref)}: `longshore dag list --all` lists them")


async def spec_of(connection: AsyncConnection, dag_id: str) -> DagSpec:
    """Return what was submitted, which never changes. Raises NotFoundError."""
    spec = await connection.scalar(text("SELECT spec FROM dags WHERE id = :id"), {"id": dag_id})
    if spec is None:
        raise no_such_dag(dag_id)
    return DagSpec.model_validate(spec)


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
    if state in ("SUBMITTING", "SUBMITTED") and end is None:
        return StepState.SUBMITTED
    if state == "LOST":
        return StepState.FAILED
    if state not in ("SUBMITTING", "SUBMITTED"):
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
        states = [plan.states[name].value for name in plan.skip]
        await connection.execute(
            text(_LEAVE_OUT),
            {**dag, "names": [*plan.skip], "whys": [*plan.skip.values()], "states": states},
        )
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
            "SELECT name, job_id FROM dag_jobs WHERE dag_id = :id AND state = 'SUBMITTING'"
            " ORDER BY submitted_at, name"
        ),
        {"id": dag_id},
    )
    return [(row.name, row.job_id) for row in rows]


def _progress(graph: Graph, plan: DagPlan, *, more: bool, ended_at: Any) -> DagProgress:
    submitted = frozenset(plan.start)
    states = {
        name: StepState.SUBMITTED if name in submitted else state
        for name, state in plan.states.items()
    }
    waiting = next((n for n in graph.order if states[n] is StepState.WAITING), None)
    return DagProgress(
        state=plan.state,
        counts=Counter(states.values()),
        reason=plan.reason or (why_stopped(plan.stopped_by) if plan.stopped_by else ""),
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
    UPDATE dag_jobs d SET state = l.state, reason = l.why, ended_at = :now
      FROM unnest(CAST(:names AS text[]), CAST(:states AS text[]), CAST(:whys AS text[]))
           AS l (name, state, why)
     WHERE d.dag_id = :id AND d.name = l.name AND d.state = 'WAITING'
"""

_SUBMITTED = """
    UPDATE dag_jobs
       SET state = CASE WHEN name = ANY (:others) THEN 'LOST' ELSE 'SUBMITTED' END,
           reason = CASE WHEN name = ANY (:others) THEN :why ELSE reason END
     WHERE dag_id = :id AND state = 'SUBMITTING' AND name = ANY (:names)
"""

_INTEND = """
    UPDATE dag_jobs
       SET state = 'SUBMITTING', generation = :generation, submitted_at = :now,
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
     WHERE d.dag_id = :id AND d.state = 'SUBMITTED' AND j.id IS NULL AND d.submitted_at < :since
     ORDER BY d.submitted_at LIMIT :most
"""

_LOSE = """
    UPDATE dag_jobs d SET state = 'LOST', reason = :why, ended_at = clock_timestamp()
     WHERE dag_id = :id AND name = ANY (:names)
       AND NOT EXISTS (SELECT FROM jobs WHERE id = d.job_id)
"""
