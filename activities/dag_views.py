"""Reading DAGs for people."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import RowMapping, text

from longshore.activities.dag_rows import (
    JOBS,
    no_such_dag,
    spec_of,
    state_of,
    stored_dag,
    to_run_again,
)
from longshore.activities.database import Database
from longshore.activities.mutexes import mutexes_of, standing_of
from longshore.activities.views import MOST_ATTEMPTS, Views
from longshore.models.dag import DagSpec
from longshore.models.dag_view import (
    DagJobView,
    DagState,
    DagSummary,
    DagView,
    HeldMutex,
    StepAttempt,
    StepState,
)
from longshore.models.elements import ElementState
from longshore.models.errors import NotFoundError
from longshore.models.job_status import JobState
from longshore.models.text import format_places
from longshore.models.views import JobView
from longshore.models.visible import shown
from longshore.scheduling.arrays import progress_text
from longshore.scheduling.dag import Graph, waits_for
from longshore.scheduling.dag_inputs import why_no_output


class DagViews:
    """Read-only views of DAGs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def dags(
        self,
        *,
        tenant: str | None = None,
        states: frozenset[DagState] = frozenset(),
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[DagSummary, ...]:
        """Return DAGs, newest first; an empty filter takes all. `after` is the id of the last one
        of the page before."""
        asked = {
            "tenant": tenant, "states": [state.value for state in states] or None,
            "after": after, "limit": limit,
        }  # fmt: skip
        async with self._database.snapshot() as connection:
            rows = (await connection.execute(text(_DAGS), asked)).mappings().all()
            found = await connection.execute(
                text(_JOBS_OF_ALL), {"ids": [row["id"] for row in rows]}
            )
            counts: dict[str, Counter[StepState]] = {}
            submitted: dict[str, Counter[JobState]] = {}
            simulated: set[str] = set()
            for job in found.mappings():
                state = state_of(job)
                counts.setdefault(job["dag_id"], Counter())[state] += 1
                if job["simulated"]:
                    simulated.add(job["dag_id"])
                if state is StepState.SUBMITTED and job["live"] is not None:
                    live = submitted.setdefault(job["dag_id"], Counter())
                    live[JobState(job["live"])] += 1
        return tuple(
            DagSummary(
                **_of(row, counts[row["id"]]),
                simulated=row["id"] in simulated,
                submitted=submitted.get(row["id"], Counter()),
            )
            for row in rows
        )

    async def id_of(self, ref: str) -> str:
        """Return the id of the DAG with this id, or of the newest of this name.

        Raises NotFoundError.
        """
        async with self._database.transaction() as connection:
            found = await connection.scalar(text(_ID_OF), {"ref": ref})
        if found is None:
            raise no_such_dag(ref)
        return found

    async def spec(self, dag_id: str) -> DagSpec:
        """Return what was submitted. Raises NotFoundError."""
        async with self._database.transaction() as connection:
            return await spec_of(connection, dag_id)

    async def to_run_again(
        self, dag_id: str, spec: DagSpec, anew: Collection[str]
    ) -> tuple[str, ...]:
        """Return the jobs that a retry with this spec runs again, upstream first; `anew` are those
        that it changes."""
        async with self._database.transaction() as connection:
            return (await to_run_again(connection, dag_id, spec, anew)).jobs

    async def mutexes_of(self, job_id: str) -> tuple[HeldMutex, ...]:
        """Return the mutexes that a job has, each with how many jobs wait for it."""
        async with self._database.transaction() as connection:
            return await mutexes_of(connection, job_id)

    async def output(self, ref: str) -> str:
        """Return the JSON that the job put out which `DAG.JOB` names, by the DAG's id or name, or
        the job of this id. Raises NotFoundError with why there is none."""
        async with self._database.transaction() as connection:
            content = await connection.scalar(text(_OUTPUT), {"id": ref})
        if content is not None:
            return content
        found = await self.step_of(ref)
        if found is None:
            raise NotFoundError(
                f"no job {shown(ref)} of a DAG: `longshore dag show DAG` lists those of one"
            )
        dag, step = found
        if step.job_id and step.step is StepState.SUCCEEDED:
            async with self._database.transaction() as connection:
                content = await connection.scalar(text(_OUTPUT), {"id": step.job_id})
        if content is None:
            raise NotFoundError(f"{dag.id}.{step.name} has put nothing out: {why_no_output(step)}")
        return content

    async def step(self, ref: str) -> DagJobView | None:
        """Return the job that `DAG.JOB` names, submitted or not; None where there is none."""
        found = await self.step_of(ref)
        return None if found is None else found[1]

    async def step_of(self, ref: str) -> tuple[DagView, DagJobView] | None:
        """Return the DAG and its job that `DAG.JOB` names, submitted or not, by the DAG's id or
        the newest of its name; None where there is none."""
        parts = ref.split(".")
        starts = [".".join(parts[:number]) for number in range(1, len(parts))]
        if not starts:
            return None
        async with self._database.transaction() as connection:
            rows = await connection.execute(text(_STEP), {"ref": ref, "starts": starts})
            row = rows.one_or_none()
        if row is None:
            return None
        found = await self.dag(row.dag_id)
        return found, next(step for step in found.steps if step.name == row.name)

    async def dag(self, ref: str) -> DagView:
        """Return a DAG in full, by its id or the newest of a name. Raises NotFoundError."""
        dag_id = await self.id_of(ref)
        async with self._database.snapshot() as connection:
            rows = await connection.execute(text(_DAG), {"id": dag_id})
            row = rows.mappings().one()
            found = (await connection.execute(text(JOBS), {"id": dag_id})).mappings().all()
            ids = [job["job_id"] for job in found if job["job_id"]]
            costs = await connection.execute(text(_COSTS), {"id": dag_id})
            cost = {each["name"]: each for each in costs.mappings()}
            elements = await connection.execute(text(_ELEMENTS), {"ids": ids})
            ended = {
                each["array_id"]: {ElementState(name): n for name, n in each["counts"].items()}
                for each in elements.mappings()
            }
            tries: dict[str, list[StepAttempt]] = {}
            placed = await connection.execute(
                text(_ATTEMPTS), {"ids": ids, "least": MOST_ATTEMPTS}
            )
            for each in placed.mappings():
                tries.setdefault(each["job_id"], []).append(
                    StepAttempt.model_validate(
                        {name: each[name] for name in StepAttempt.model_fields}
                    )
                )
            excluded = (await standing_of(connection, dag_id, row["tenant"])).waits(dag_id)
        views = await Views(self._database).jobs(ids=tuple(ids), limit=len(ids)) if ids else ()
        spec = stored_dag(row["id"], row["spec"])
        graph = Graph.of(spec)
        jobs = {job["name"]: job for job in found}
        live = {view.id: view for view in views}
        states = {name: _by_now(job, live.get(job["job_id"])) for name, job in jobs.items()}
        waits = {
            name: excluded.get(name) or waits_for(graph, name, states, held=row["held"])
            for name, state in states.items()
            if state is StepState.WAITING
        }

        def step(name: str) -> DagJobView:
            job_id = jobs[name]["job_id"] or ""
            job = live.get(job_id)
            found = _step(name, spec, waits.get(name), states[name], jobs[name], job, cost)
            return found.model_copy(
                update={
                    "attempts": tuple(tries.get(job_id, ())),
                    "elements": ended.get(job_id) or (job.elements if job else None),
                }
            )

        steps = tuple(map(step, graph.order))
        submitted = Counter(
            step.state for step in steps if step.step is StepState.SUBMITTED and step.state
        )
        return DagView(
            **_of(row, Counter(states.values())), on_failure=spec.on_failure,
            simulated=any(step.simulated for step in steps),
            generation=row["generation"], steps=steps, submitted=submitted,
        )  # fmt: skip


def _by_now(row: RowMapping, job: JobView | None) -> StepState:
    """Return where a job is, which was read after its row: it may have ended in between."""
    state = state_of(row)
    if state is not StepState.SUBMITTED or job is None or not job.state.ended:
        return state
    if job.state is JobState.CANCELLED and not job.attempt:
        return StepState.WITHDRAWN
    return StepState(job.state)


def _of(row: RowMapping, counts: Mapping[StepState, int]) -> dict[str, Any]:
    """Return what a list tells of a DAG."""
    fields = ("id", "name", "tenant", "state", "held", "submitted_at", "ended_at")
    return {
        **{field: row[field] for field in fields}, "reason": row["message"],
        "jobs": sum(counts.values()), "counts": counts,
    }  # fmt: skip


def _step(
    name: str,
    spec: DagSpec,
    waits: str | None,
    state: StepState,
    row: RowMapping,
    job: JobView | None,
    costs: Mapping[str, RowMapping],
) -> DagJobView:
    asked = spec.jobs[name]
    cost = costs.get(name)
    reason = row["reason"] or (job.reason if job else "")
    if waits is not None:
        reason = waits
    elif job and job.elements is not None:
        reason = progress_text(job.elements, job.claimed, job.slots_aside)
    elif job and job.state is JobState.RUNNING:
        reason = f"on {format_places(job.places)}"
    return DagJobView(
        name=name, after=asked.after, join=asked.join, mutex=asked.mutex, inputs=asked.inputs,
        output_bytes=row["output_bytes"], job_id=row["job_id"],
        generation=row["generation"], step=state, state=job.state if job else None,
        failure=job.failure if job else None, exit_code=job.exit_code if job else None,
        simulated=bool((job and job.simulated) or (cost and cost["simulated"])),
        reason=reason, gpus=asked.gpus, gpu_type=asked.gpu_type,
        array=str(asked.array) if asked.array else None, submitted_at=row["submitted_at"],
        started_at=(job.first_started_at if job else None) or (cost["began"] if cost else None),
        ended_at=job.ended_at if job and job.ended_at else row["ended_at"],
        **({"gpu_time": cost["gpu_time"], "booked_micro_usd": cost["booked"]} if cost else {}),
    )  # fmt: skip


_DAGS = """
    SELECT id, name, tenant, state, held, message, submitted_at, ended_at
      FROM dags
     WHERE (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
       AND (CAST(:states AS text[]) IS NULL OR state = ANY (:states))
       AND (CAST(:after AS text) IS NULL
            OR (submitted_at <= (SELECT submitted_at FROM dags WHERE id = :after)
                AND (submitted_at < (SELECT submitted_at FROM dags WHERE id = :after)
                     OR id > :after)))
     ORDER BY submitted_at DESC, id LIMIT :limit
"""

_DAG = "SELECT * FROM dags WHERE id = :id"

_ID_OF = """
    SELECT coalesce(
        (SELECT id FROM dags WHERE id = :ref),
        (SELECT id FROM dags WHERE name = :ref ORDER BY submitted_at DESC, id LIMIT 1))
"""

_STEP = """
    WITH named AS (
        SELECT id, id AS called FROM dags WHERE id = ANY (:starts)
         UNION ALL
        (SELECT DISTINCT ON (name) id, name FROM dags WHERE name = ANY (:starts)
          ORDER BY name, submitted_at DESC, id)
    )
    SELECT d.dag_id, d.name
      FROM named n JOIN dag_jobs d ON d.dag_id = n.id
     WHERE :ref IN (n.called || '.' || d.name,
                    n.called || '.' || d.name || '.r' || d.generation)
     ORDER BY n.called = n.id DESC, d.dag_id, d.name LIMIT 1
"""
"""`.r2` also of a job that a retry runs again and that waits: its id once it is submitted."""

_OUTPUT = "SELECT content FROM outputs WHERE job_id = :id"

ON_SIMULATED = """(
    EXISTS (SELECT FROM placements p JOIN nodes n ON n.id = p.node_id
             WHERE p.job_id = j.id AND n.simulated)
    OR EXISTS (SELECT FROM array_slots s JOIN placements p ON p.job_id = s.job_id
                 JOIN nodes n ON n.id = p.node_id
                WHERE s.array_id = j.id AND n.simulated))
"""
"""Whether job `j` runs, or ran, on simulated GPUs."""

_JOBS_OF_ALL = f"""
    SELECT d.dag_id, d.state, j.end_state, j.attempts,
           CASE WHEN j.id IS NULL OR j.ended_at IS NOT NULL THEN NULL
                WHEN EXISTS (SELECT FROM placements p
                              WHERE p.job_id = j.id AND NOT p.spare AND p.ended_at IS NULL)
                THEN 'RUNNING'
                WHEN a.held OR (q.held AND q.price_since IS NULL)
                  OR (a.id IS NOT NULL AND j.begins_at > clock_timestamp())
                THEN 'HELD'
                WHEN EXISTS (SELECT FROM array_slots s JOIN placements p ON p.job_id = s.job_id
                              WHERE s.array_id = a.id AND p.ended_at IS NULL)
                THEN 'RUNNING'
                WHEN a.id IS NOT NULL OR q.job_id IS NOT NULL THEN 'QUEUED'
                ELSE 'RETRYING' END AS live,
           {ON_SIMULATED} AS simulated
      FROM dag_jobs d LEFT JOIN jobs j ON j.id = d.job_id
      LEFT JOIN arrays a ON a.id = j.id AND j.ended_at IS NULL
      LEFT JOIN queue q ON q.job_id = j.id
     WHERE d.dag_id = ANY (:ids)
"""
"""`live` is the state of a job that goes on, as `Views.jobs` has it."""

_ELEMENTS = """
    SELECT array_id, json_object_agg(state, number) AS counts
      FROM (SELECT e.array_id, e.state, count(*) AS number
              FROM elements e JOIN jobs j ON j.id = e.array_id
             WHERE e.array_id = ANY (:ids) AND e.newest AND j.ended_at IS NOT NULL
             GROUP BY e.array_id, e.state) n
     GROUP BY array_id
"""
"""Of arrays that have ended; `Views.jobs` has those of the others."""

_ATTEMPTS = """
    SELECT p.job_id, p.attempt, min(p.placed_at) AS started_at,
           CASE WHEN bool_or(p.ended_at IS NULL) THEN NULL ELSE max(p.ended_at) END AS ended_at,
           (array_agg(p.end_reason ORDER BY p.spare, p.ended_at DESC NULLS FIRST, p.rank))[1]
               AS end_reason
      FROM placements p
      JOIN (SELECT job_id, max(attempt) AS last FROM placements
             WHERE job_id = ANY (:ids) GROUP BY job_id) l ON l.job_id = p.job_id
     WHERE p.attempt > l.last - :least
     GROUP BY p.job_id, p.attempt ORDER BY p.job_id, p.attempt
"""
"""Of an attempt that changed its size in place, why its last rank gave up its GPUs."""

_COSTS = """
    WITH runs AS (
        SELECT d.name, j.id, j.id = d.job_id AS last
          FROM dag_jobs d
         CROSS JOIN generate_series(1, d.generation) g
          JOIN dags o ON o.id = d.dag_id
          JOIN jobs j ON j.id = d.dag_id || '.' || d.name
                             || CASE WHEN g > 1 THEN '.r' || g ELSE '' END
                     AND j.tenant = o.tenant
         WHERE d.dag_id = :id AND d.state <> 'LOST'
    ), its AS (
        SELECT name, id AS held_by, last FROM runs
         UNION ALL
        SELECT r.name, s.job_id, r.last FROM runs r JOIN array_slots s ON s.array_id = r.id
    ), held AS (
        SELECT i.name, i.last, l.job_id AS held_by, n.block_id AS block, l.started_at,
               n.simulated,
               extract(epoch FROM coalesce(l.ended_at, clock_timestamp()) - l.started_at)
               * CASE WHEN l.slices > 0 THEN bit_count(l.slices::bit(8)) / 8.0
                      ELSE l.milli / 1000.0 END AS seconds
          FROM its i JOIN leases l ON l.job_id = i.held_by JOIN nodes n ON n.id = l.node_id
    )
    SELECT h.name, make_interval(secs => sum(h.seconds)::float) AS gpu_time,
           min(h.started_at) FILTER (WHERE h.last) AS began, bool_or(h.simulated) AS simulated,
           (SELECT coalesce(sum(micro), 0)::bigint FROM ledger
             WHERE block_id = ANY (array_agg(h.block)) AND kind = 'usage'
               AND debit = ANY (array_agg('job:' || h.held_by))) AS booked
      FROM held h
     GROUP BY h.name
"""
"""Of all that a job ran, also before a retry of its DAG."""
