"""How long jobs ran: kept when they end, and read once when one comes into its queue.

What is learnt goes with the job from there, so no cycle reads a history.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import Database
from longshore.activities.job_selection import like
from longshore.models.dag import DagSpec
from longshore.models.durations import DurationRow, DurationsView, Learnt
from longshore.models.job import JobSpec
from longshore.scheduling.durations import (
    LEAST_RUNS,
    MOST_RUNS,
    PLANNED_PART,
    REMEMBERED,
    learn,
    shape_of,
)

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_FORGET_AT_ONCE = 1000
_NAMED = 10
"""Jobs that use what is learnt, by key."""
_MOST_KEYS = 1000


async def learnt_for(connection: AsyncConnection, job_id: str, spec: JobSpec) -> Learnt | None:
    """Return what is learnt of a job that comes into its queue, or would; None where its user says
    how long it takes, and where too little is known."""
    shape = shape_of(spec)
    if spec.expected_duration is not None or shape is None:
        return None
    asked = {
        "id": job_id, "tenant": spec.tenant, "name": spec.name,
        "shape": shape, "remembered": REMEMBERED, "most": MOST_RUNS,
    }  # fmt: skip
    row = (await connection.execute(text(_RUNS), asked)).mappings().one()
    if (learnt := learn(row["runs"] or ())) is None:
        return None
    limit = spec.max_duration and max(spec.max_duration // timedelta(seconds=1), 1)
    new = {"taken_over": row["taken_over"], "limit": limit}
    return learnt.model_copy(update=new)


async def learnt_in_dag(connection: AsyncConnection, dag: DagSpec) -> dict[str, Learnt]:
    """Return what is learnt of the jobs of a DAG whose user does not say how long they take, by
    name; an array has no time of its own."""
    shapes = {
        name: shape
        for name, job in dag.jobs.items()
        if job.expected_duration is None and job.array is None and (shape := shape_of(job.spec))
    }
    if not shapes:
        return {}
    asked = {
        "tenant": dag.tenant, "jobs": list(shapes), "shapes": list(shapes.values()),
        "names": [f"{dag.name}/{dag.jobs[name].spec.name}" for name in shapes],
        "remembered": REMEMBERED, "most": MOST_RUNS,
    }  # fmt: skip
    rows = await connection.execute(text(_RUNS_IN_DAG), asked)
    found = {row.job: learn(row.runs) for row in rows}
    return {name: learnt for name, learnt in found.items() if learnt is not None}


async def keep_run(connection: AsyncConnection, job_id: str) -> None:
    """Keep how long a job ran that has just succeeded, and forget the oldest of its key where they
    are too many. A repeat changes nothing."""
    asked = {"id": job_id, "most": MOST_RUNS, "remembered": REMEMBERED}
    await connection.execute(text(_KEEP), asked)


async def forget_runs(connection: AsyncConnection) -> None:
    """Forget runs that are too old to say anything."""
    asked = {"remembered": REMEMBERED, "some": _FORGET_AT_ONCE}
    await connection.execute(text(_FORGET), asked)


class DurationViews:
    """A read-only view of what is learnt."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def durations(
        self, *, tenant: str | None = None, name: str | None = None
    ) -> DurationsView:
        """Return what is learnt, by tenant, name and shape; `name` may be a form such as ``a-*``.
        The thousand keys that had an end last."""
        asked: dict[str, Any] = {
            "tenant": tenant, "name": name and like(name), "quantiles": list(QUANTILES),
            "remembered": REMEMBERED, "most": MOST_RUNS, "keys": _MOST_KEYS, "named": _NAMED,
        }  # fmt: skip
        async with self._database.snapshot() as connection:
            rows = (await connection.execute(text(_KEYS), asked)).mappings().all()
        return DurationsView(rows=tuple(map(_row, rows)), needed=LEAST_RUNS)


def _row(row: RowMapping) -> DurationRow:
    seconds: list[float] = row["seconds"]
    last: datetime = row["last"]
    learnt = learn(seconds)
    return DurationRow(
        tenant=row["tenant"], name=row["name"], shape=row["shape"], runs=len(seconds), last=last,
        quantiles=tuple(timedelta(seconds=each) for each in row["quantiles"]),
        expected=learnt and learnt.left(timedelta(0), PLANNED_PART),
        used_by=tuple(row["used_by"] or ()), used=row["used"] or 0,
    )  # fmt: skip


NAME = """coalesce((SELECT g.name FROM dag_jobs d JOIN dags g ON g.id = d.dag_id
                      WHERE d.job_id = {id}) || '/', '') || {name}"""
"""The name by which a job is learnt: of one of a DAG with the DAG's before it."""

_IS_SLOT = "EXISTS (SELECT FROM array_slots s WHERE s.job_id = {id})"
"""A slot runs for as long as there are elements: that says nothing of the next array."""

_RUNS_IN_DAG = """
    SELECT k.job, r.runs
      FROM unnest(CAST(:jobs AS text[]), CAST(:names AS text[]), CAST(:shapes AS text[]))
           AS k (job, name, shape)
     CROSS JOIN LATERAL (
            SELECT array_agg(seconds) AS runs FROM (
                SELECT seconds FROM run_times
                 WHERE tenant = :tenant AND name = k.name AND shape = k.shape
                   AND ended_at > clock_timestamp() - CAST(:remembered AS interval)
                 ORDER BY ended_at DESC LIMIT :most) latest) r
     WHERE r.runs IS NOT NULL
"""

_RUNS = f"""
    SELECT (SELECT array_agg(seconds) FROM (
                SELECT seconds FROM run_times
                 WHERE tenant = :tenant AND name = {NAME.format(id=":id", name=":name")}
                   AND shape = :shape AND NOT {_IS_SLOT.format(id=":id")}
                   AND ended_at > clock_timestamp() - CAST(:remembered AS interval)
                 ORDER BY ended_at DESC LIMIT :most) latest) AS runs,
           coalesce((SELECT CAST(ceil(extract(epoch FROM p.attained)) AS bigint)
                       FROM placements p
                      WHERE p.job_id = :id ORDER BY p.attempt, p.rank LIMIT 1), 0) AS taken_over
"""
"""What it took over from another job is what its first placement had attained before. Of a first
attempt that is not known yet: whoever hands it on says it."""

_KEEP = f"""
    WITH run AS (
        SELECT j.id, j.tenant, {NAME.format(id="j.id", name="j.name")} AS name, j.shape,
               j.ended_at,
               extract(epoch FROM greatest(l.attained - f.attained, interval '0')
                       + greatest(l.ended_at - l.placed_at, interval '0')) AS seconds
          FROM jobs j
          JOIN LATERAL (SELECT attained, placed_at, ended_at FROM placements
                         WHERE job_id = j.id ORDER BY attempt DESC, rank LIMIT 1) l
            ON l.ended_at IS NOT NULL
          JOIN LATERAL (SELECT attained FROM placements
                         WHERE job_id = j.id ORDER BY attempt, rank LIMIT 1) f ON true
         WHERE j.id = :id AND j.shape IS NOT NULL AND NOT {_IS_SLOT.format(id="j.id")}
    ), kept AS (
        INSERT INTO run_times (job_id, tenant, name, shape, ended_at, seconds)
        SELECT id, tenant, name, shape, ended_at, seconds FROM run
        ON CONFLICT DO NOTHING
        RETURNING job_id
    )
    DELETE FROM run_times WHERE job_id IN (
        SELECT o.job_id FROM run JOIN run_times o USING (tenant, name, shape)
         ORDER BY o.ended_at DESC OFFSET :most - 1 FOR UPDATE OF o SKIP LOCKED)
"""
"""Who else forgets the same ones does it for both."""

_FORGET = """
    DELETE FROM run_times WHERE job_id IN (
        SELECT job_id FROM run_times
         WHERE ended_at < clock_timestamp() - CAST(:remembered AS interval)
         ORDER BY ended_at LIMIT :some FOR UPDATE SKIP LOCKED)
"""

_KEYS = f"""
    WITH keys AS (
        SELECT tenant, name, shape, max(ended_at) AS last, count(*) AS runs
          FROM run_times
         WHERE ended_at > clock_timestamp() - CAST(:remembered AS interval)
           AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
           AND (CAST(:name AS text) IS NULL OR name LIKE :name)
         GROUP BY tenant, name, shape
         ORDER BY last DESC LIMIT :keys
    ), users AS (
        SELECT j.tenant, {NAME.format(id="j.id", name="j.name")} AS name, j.shape,
               count(*) AS used, (array_agg(j.id ORDER BY j.id))[1 : :named] AS used_by
          FROM (SELECT job_id FROM queue WHERE learnt IS NOT NULL
                 UNION
                SELECT job_id FROM placements
                 WHERE ended_at IS NULL AND learnt IS NOT NULL) u
          JOIN jobs j ON j.id = u.job_id
         WHERE j.shape IS NOT NULL
         GROUP BY 1, 2, 3
    )
    SELECT k.tenant, k.name, k.shape, k.last, r.seconds, r.quantiles, u.used, u.used_by
      FROM keys k
      JOIN LATERAL (
           SELECT array_agg(seconds) AS seconds,
                  percentile_disc(CAST(:quantiles AS float8[])) WITHIN GROUP (ORDER BY seconds)
                  AS quantiles
             FROM (SELECT seconds FROM run_times t
                    WHERE t.tenant = k.tenant AND t.name = k.name AND t.shape = k.shape
                      AND t.ended_at > clock_timestamp() - CAST(:remembered AS interval)
                    ORDER BY t.ended_at DESC LIMIT :most) latest) r ON true
      LEFT JOIN users u ON u.tenant = k.tenant AND u.name = k.name AND u.shape = k.shape
     ORDER BY k.tenant, k.name, k.shape
"""
