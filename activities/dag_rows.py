"""Rows of DAGs and of their jobs: onto the record, read, and changed by a plan."""

from collections.abc import Collection, Sequence

from pydantic import ValidationError
from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.stored_specs import stored_error
from longshore.models.array import ArraySpec
from longshore.models.dag import DagSpec
from longshore.models.dag_edges import Extra
from longshore.models.dag_messages import AdvanceDag, OpenDag
from longshore.models.dag_view import StepState
from longshore.models.errors import NotFoundError
from longshore.models.job_status import JobState
from longshore.models.visible import shown
from longshore.scheduling.dag import DagPlan, Graph
from longshore.scheduling.dag_changes import Changes
from longshore.scheduling.dag_retry import Reopened, reopened

ANOTHER = "another job has its id"


async def record_dag(
    connection: AsyncConnection, dag_id: str, spec: DagSpec, request: OpenDag
) -> None:
    """Put a DAG and its jobs on record where it is not yet."""
    made = await connection.scalar(
        text(_INSERT_DAG),
        {
            "id": dag_id, "name": spec.name, "tenant": spec.tenant,
            "spec": spec.model_dump_json(), "submitted_at": request.submitted_at,
        },
    )  # fmt: skip
    if made:
        await connection.execute(text(_INSERT_JOBS), {"id": dag_id, "names": list(spec.jobs)})
        await _record_element_edges(connection, dag_id, spec)


async def is_on_record(connection: AsyncConnection, dag_id: str) -> bool:
    """Return whether a DAG is on record: a repeat finds it, whatever its pools take by now."""
    known = "SELECT EXISTS (SELECT FROM dags WHERE id = :id)"
    return bool(await connection.scalar(text(known), {"id": dag_id}))


async def _record_element_edges(connection: AsyncConnection, dag_id: str, spec: DagSpec) -> None:
    """Put the edges from element to element of a DAG on record, and none that were before."""
    graph = Graph.of(spec)
    edges = [
        {
            "id": dag_id, "name": name, "upstream": up,
            "waits": spec.jobs[name].after[up].extra is Extra.WAIT,
            **index_ranges(spec.jobs[up].array),
        }
        for name, ups in graph.partners.items()
        for up in ups
    ]  # fmt: skip
    await connection.execute(text(_FORGET_EDGES), {"id": dag_id})
    await connection.execute(text(_FORGET_JOINS), {"id": dag_id})
    if not edges:
        return
    await connection.execute(text(_INSERT_EDGES), edges)
    names = list(graph.partners)
    row = {"id": dag_id, "names": names, "joins": [graph.joins[name].value for name in names]}
    await connection.execute(text(_SET_JOINS), row)


def index_ranges(array: ArraySpec | None) -> dict[str, list[int]]:
    """Return the indices of an array as columns of ranges."""
    ranges = array.ranges if array else ()
    return {
        "firsts": [each.first for each in ranges], "lasts": [each.last for each in ranges],
        "steps": [each.step for each in ranges],
    }  # fmt: skip


async def lock_dag(connection: AsyncConnection, dag_id: str) -> RowMapping:
    """Hold the DAG's row until the end of the transaction, as `mark_dag_poked` does; return it
    without the spec, which may be long."""
    rows = await connection.execute(text(_LOCK), {"id": dag_id})
    row = rows.mappings().one_or_none()
    if row is None:
        raise no_such_dag(dag_id)
    return row


def no_such_dag(ref: str) -> NotFoundError:
    return NotFoundError(f"no DAG {shown(ref)}: `longshore dag list --all` lists them")


async def spec_of(connection: AsyncConnection, dag_id: str) -> DagSpec:
    """Return what was submitted last: only the retry of a DAG that has ended changes it.

    Raises NotFoundError, and StoredError where what is stored cannot be read.
    """
    return (await spec_and_version(connection, dag_id))[0]


def version_of(row: RowMapping) -> tuple[object, ...]:
    """Return what is another where the spec of a row of `dags` may be another: a retry counts the
    generation."""
    return row["submitted_at"], row["generation"]


async def spec_and_version(
    connection: AsyncConnection, dag_id: str
) -> tuple[DagSpec, tuple[object, ...]]:
    """Return the spec of a DAG, and the version that it is of. Raises as `spec_of` does."""
    rows = await connection.execute(
        text("SELECT spec, submitted_at, generation FROM dags WHERE id = :id"), {"id": dag_id}
    )
    row = rows.mappings().one_or_none()
    if row is None:
        raise no_such_dag(dag_id)
    return stored_dag(dag_id, row["spec"]), version_of(row)


def stored_dag(dag_id: str, stored: object) -> DagSpec:
    """Return the spec of a DAG. Raises StoredError where it cannot be read."""
    try:
        return DagSpec.model_validate(stored)
    except ValidationError as error:
        raise stored_error(f"what is stored of DAG {dag_id}", stored, error) from error


async def to_run_again(
    connection: AsyncConnection, dag_id: str, spec: DagSpec, anew: Collection[str] = ()
) -> Reopened:
    """Return the jobs that a retry runs again: also those that are to run `anew`, and those whose
    output is gone and wanted by one of them."""
    jobs = await jobs_of(connection, dag_id)
    states = dict.fromkeys(spec.jobs, StepState.WAITING)
    states |= {job["name"]: state_of(job) for job in jobs}
    without = {job["name"] for job in jobs if job["output_bytes"] is None}
    graph, wanted = Graph.of(spec), set(anew)
    while True:
        again = reopened(graph, states, wanted)
        gone = {up for name in again.jobs for up in spec.jobs[name].inputs if up in without}
        if gone <= set(again.jobs):
            return again
        wanted |= gone


async def reopen(
    connection: AsyncConnection,
    dag_id: str,
    spec: DagSpec,
    generation: int,
    changed: Changes | None = None,
) -> None:
    """Have what a retry runs again wait again. `changed` says what this spec changed, where it is
    to take the place of the stored one."""
    if changed is not None:
        row = {"id": dag_id, "spec": spec.model_dump_json(), "names": list(changed.new)}
        await connection.execute(text(_REPLACE_SPEC), row)
        await connection.execute(text(_INSERT_JOBS), row)
    again = await to_run_again(connection, dag_id, spec, changed.anew if changed else ())
    row = {
        "id": dag_id, "names": list(again.jobs), "whole": list(again.whole),
        "generation": generation,
    }  # fmt: skip
    await connection.execute(text(_REOPEN_JOBS), row)
    await connection.execute(text(_REOPEN_DAG), row)
    await _record_element_edges(connection, dag_id, spec)


async def jobs_of(connection: AsyncConnection, dag_id: str) -> Sequence[RowMapping]:
    """Return the jobs of a DAG, each with how it has ended."""
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


async def store_plan(
    connection: AsyncConnection,
    request: AdvanceDag,
    row: RowMapping,
    plan: DagPlan,
    *,
    takes: bool,
) -> bool:
    """Record a plan for the DAG of this row: what is to be submitted, with the mutexes that it
    `takes` or not, what is left out, and the end of the DAG.

    Returns whether jobs have failed instead, whose id is that of a job of another DAG.
    """
    lost = False
    now = await clock(connection)
    dag = {"id": request.dag_id, "now": now}
    if plan.skip:
        states = [plan.states[name].value for name in plan.skip]
        await connection.execute(
            text(_LEAVE_OUT),
            {**dag, "names": [*plan.skip], "whys": [*plan.skip.values()], "states": states},
        )
    if plan.start:
        start = {**dag, "names": list(plan.start)}
        intended = await connection.execute(
            text(_INTEND), {**start, "generation": row["generation"]}
        )
        if takes:
            await connection.execute(text(_TAKE), {**start, "tenant": row["tenant"]})
        lost = intended.rowcount < len(plan.start)
        if lost:
            await connection.execute(text(_LOSE_UNINTENDED), {**start, "why": ANOTHER})
    await connection.execute(
        text(_UPDATE_DAG),
        {
            **dag, "state": plan.state.value, "held": request.held, "message": plan.reason,
            "cancelled": request.cancelled, "stopped_by": plan.stopped_by,
        },
    )  # fmt: skip
    return lost


async def starting(connection: AsyncConnection, dag_id: str) -> list[tuple[str, str]]:
    """Return the jobs (name, job id) of which it is not known that their workflow is there."""
    rows = await connection.execute(
        text(
            "SELECT name, job_id FROM dag_jobs WHERE dag_id = :id AND state = 'SUBMITTING'"
            " ORDER BY submitted_at, name"
        ),
        {"id": dag_id},
    )
    return [(row.name, row.job_id) for row in rows]


async def let_others_pass(
    connection: AsyncConnection, dag_id: str, unsubmitted: Sequence[str]
) -> frozenset[str]:
    """Have jobs that wait for mutexes ask anew at the DAG's next look, and those `unsubmitted`
    wait again; return all for which they asked."""
    row = {"id": dag_id, "names": list(unsubmitted)}
    found = await connection.scalars(text(_LET_PASS), row)
    return frozenset(name for mutexes in found for name in mutexes)


async def mark_dag_poked(connection: AsyncConnection, dag_id: str) -> bool:
    """Return True for the first since the DAG looked last: that one has to signal.

    To be called last in a transaction, after `mark_poked_if_useful`; only mutexes come later. It
    takes the DAG's row, as `mark_poked` takes the pool's.
    """
    found = await connection.execute(
        text("SELECT poked FROM dags WHERE id = :id AND ended_at IS NULL FOR NO KEY UPDATE"),
        {"id": dag_id},
    )
    row = found.one_or_none()
    if row is None or row.poked:
        return False
    await connection.execute(text("UPDATE dags SET poked = true WHERE id = :id"), {"id": dag_id})
    return True


_LOCK = """
    SELECT id, name, tenant, generation, state, held, cancelled, stopped_by, poked, message,
           submitted_at, ended_at
      FROM dags WHERE id = :id FOR NO KEY UPDATE
"""

_INSERT_DAG = """
    INSERT INTO dags (id, name, tenant, spec, submitted_at)
    VALUES (:id, :name, :tenant, CAST(:spec AS json), :submitted_at)
    ON CONFLICT (id) DO NOTHING
    RETURNING id
"""

_INSERT_JOBS = """
    INSERT INTO dag_jobs (dag_id, name) SELECT :id, unnest(CAST(:names AS text[]))
    ON CONFLICT DO NOTHING
"""

_REPLACE_SPEC = "UPDATE dags SET spec = CAST(:spec AS json) WHERE id = :id"

_FORGET_EDGES = "DELETE FROM element_edges WHERE dag_id = :id"

_FORGET_JOINS = """
    UPDATE dag_jobs SET element_join = NULL, others = NULL
     WHERE dag_id = :id AND element_join IS NOT NULL
"""

_INSERT_EDGES = """
    INSERT INTO element_edges (dag_id, name, upstream, extra_waits, firsts, lasts, steps)
    VALUES (:id, :name, :upstream, :waits, :firsts, :lasts, :steps)
"""

_SET_JOINS = """
    UPDATE dag_jobs d SET element_join = l.join, others = NULL
      FROM unnest(CAST(:names AS text[]), CAST(:joins AS text[])) AS l (name, "join")
     WHERE d.dag_id = :id AND d.name = l.name
"""

JOBS = """
    SELECT d.name, d.state, d.job_id, d.generation, d.reason, d.cancel_sent, d.submitted_at,
           d.ended_at, d.ready_at, d.mutexes, d.others, d.kept_from, j.end_state, j.attempts,
           (SELECT bytes FROM outputs WHERE job_id = d.job_id) AS output_bytes
      FROM dag_jobs d LEFT JOIN jobs j ON j.id = d.job_id
     WHERE d.dag_id = :id
"""

_LEAVE_OUT = """
    UPDATE dag_jobs d SET state = l.state, reason = l.why, ended_at = :now
      FROM unnest(CAST(:names AS text[]), CAST(:states AS text[]), CAST(:whys AS text[]))
           AS l (name, state, why)
     WHERE d.dag_id = :id AND d.name = l.name AND d.state = 'WAITING'
"""

_INTEND = """
    UPDATE dag_jobs
       SET state = 'SUBMITTING', generation = :generation, submitted_at = :now,
           job_id = dag_id || '.' || name
                    || CASE WHEN :generation > 1 THEN '.r' || :generation ELSE '' END
     WHERE dag_id = :id AND state = 'WAITING' AND name = ANY (:names)
       AND NOT EXISTS (
           SELECT FROM dag_jobs other
            WHERE other.job_id = dag_jobs.dag_id || '.' || dag_jobs.name
                  || CASE WHEN :generation > 1 THEN '.r' || :generation ELSE '' END)
"""
"""Two DAGs may make the same id: job `b.c` of DAG `a`, and job `c` of DAG `a.b`."""

_LOSE_UNINTENDED = """
    UPDATE dag_jobs SET state = 'LOST', reason = :why, ended_at = :now
     WHERE dag_id = :id AND state = 'WAITING' AND name = ANY (:names)
"""

_TAKE = """
    UPDATE mutexes m SET job_id = d.job_id, since = :now
      FROM dag_jobs d
     WHERE d.dag_id = :id AND d.name = ANY (:names) AND d.job_id IS NOT NULL
       AND m.tenant = :tenant AND m.name = ANY (d.mutexes)
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
           submitted_at = NULL, ended_at = NULL, ready_at = NULL, mutexes = '{}',
           generation = :generation,
           kept_from = CASE WHEN name = ANY (:whole) THEN NULL
                            WHEN EXISTS (SELECT FROM arrays WHERE id = dag_jobs.job_id)
                            THEN job_id ELSE kept_from END
     WHERE dag_id = :id AND name = ANY (:names)
"""

_LET_PASS = """
    UPDATE dag_jobs
       SET state = 'WAITING', job_id = NULL, submitted_at = NULL, ready_at = NULL
     WHERE dag_id = :id AND mutexes <> '{}'
       AND (state = 'WAITING' OR state = 'SUBMITTING' AND name = ANY (:names))
    RETURNING mutexes
"""

_REOPEN_DAG = """
    UPDATE dags
       SET state = 'RUNNING', ended_at = NULL, message = '', cancelled = NULL, stopped_by = NULL,
           generation = :generation
     WHERE id = :id
"""
