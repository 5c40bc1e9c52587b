"""Mutexes of jobs of DAGs: asked for, taken, given back.

Who takes what is decided by `scheduling.mutexes`. The row of a DAG is locked before the rows of
its mutexes, and these by name: no two transactions wait for each other.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.dag_rows import mark_dag_poked
from longshore.activities.database import Database
from longshore.activities.signals import Signals
from longshore.models.dag import DagJob
from longshore.models.dag_view import HeldMutex
from longshore.scheduling.mutexes import Holder, Waiter, grants, next_dags, waits_for_mutex


@dataclass(frozen=True)
class Standing:
    """Who has, and who waits for, the mutexes that jobs of a DAG wait for."""

    waiters: tuple[Waiter, ...] = ()
    """Of all DAGs."""
    holders: Mapping[str, Holder] = field(default_factory=dict[str, Holder])

    def waits(self, dag_id: str) -> dict[str, str]:
        """Return for each job of the DAG that waits for a mutex what it waits for."""
        return {
            each.name: waits_for_mutex(each, self.waiters, self.holders)
            for each in self.waiters
            if each.dag_id == dag_id
        }


async def ask_for_mutexes(
    connection: AsyncConnection,
    dag_id: str,
    tenant: str,
    jobs: Mapping[str, DagJob],
    now: datetime,
) -> frozenset[str]:
    """Note that the other conditions of these jobs hold; return which of them take what they ask
    for. `jobs` are all of the DAG that wait for a mutex alone.

    The mutexes stay locked until the end of the transaction. The DAG's row is locked already.
    """
    asked = [
        {"name": name, "mutexes": job.mutex, "priority": job.priority}
        for name, job in jobs.items()
    ]
    names = sorted({each for job in jobs.values() for each in job.mutex})
    row = {"id": dag_id, "tenant": tenant, "names": names}
    await connection.execute(text(_ASK), {**row, "rows": json.dumps(asked), "now": now})
    await connection.execute(text(_MAKE), row)
    locked = await connection.execute(text(_LOCK), row)
    had = {each.name for each in locked if each.job_id is not None}
    held = had - set(await connection.scalars(text(_FREE_OF_ENDED), row))
    found = await waiters(connection, tenant, names, unless_held=dag_id)
    # Of its own on record some may be skipped by this very look.
    others = [each for each in found if each.dag_id != dag_id or each.name in jobs]
    return frozenset(each.name for each in grants(others, held) if each.dag_id == dag_id)


async def waiters(
    connection: AsyncConnection, tenant: str, names: Collection[str], *, unless_held: str = ""
) -> list[Waiter]:
    """Return the jobs that wait for one of these mutexes. Those of a DAG that is held do not, but
    for `unless_held`, which is about to be released."""
    rows = await connection.execute(
        text(_WAITERS), {"tenant": tenant, "names": list(names), "released": unless_held}
    )
    return [
        Waiter(
            dag_id=row.dag_id, name=row.name, mutexes=tuple(row.mutexes), priority=row.priority,
            since=row.ready_at,
        )
        for row in rows
    ]  # fmt: skip


async def standing_of(connection: AsyncConnection, dag_id: str, tenant: str) -> Standing:
    """Return who has the mutexes that jobs of a DAG wait for, and who else waits for them."""
    names = await connection.scalars(text(_WAITED_FOR), {"id": dag_id})
    if not (wanted := list(names)):
        return Standing()
    found = await waiters(connection, tenant, wanted)
    every = sorted({name for each in found for name in each.mutexes})
    rows = await connection.execute(text(_HOLDERS), {"tenant": tenant, "names": every})
    holders = {row.name: Holder(row.job_id, queued=row.queued) for row in rows}
    return Standing(tuple(found), holders)


async def mutexes_of(connection: AsyncConnection, job_id: str) -> tuple[HeldMutex, ...]:
    """Return the mutexes that a job has, each with how many jobs wait for it."""
    rows = await connection.execute(text(_OF_JOB), {"id": job_id})
    return tuple(HeldMutex(name=row.name, waiting=row.waiting) for row in rows)


async def free_mutexes(connection: AsyncConnection, job_ids: Sequence[str]) -> None:
    """Give back what these jobs have. To be called after the row of their DAG is locked."""
    await connection.execute(text(_LOCK_OF_JOBS), {"ids": list(job_ids)})
    await connection.execute(text(_FREE), {"ids": list(job_ids)})


async def wake_next(
    database: Database, signals: Signals, tenant: str, names: Collection[str], *, again: bool
) -> None:
    """Have the DAGs look whose jobs come first for these mutexes.

    To be called after the commit that gave them back: who saw them taken is on record by then as
    waiting. `again`: the try before this one may not have come to its signals.
    """
    if not names:
        return
    async with database.transaction() as connection:
        dags = sorted(next_dags(await waiters(connection, tenant, names), names))
        marked = [dag_id for dag_id in dags if await mark_dag_poked(connection, dag_id)]
    for dag_id in dags if again else marked:
        await signals.poke_dag(dag_id)


_ASK = """
    UPDATE dag_jobs d
       SET mutexes = ARRAY(SELECT jsonb_array_elements_text(a.mutexes)),
           priority = a.priority, ready_at = coalesce(d.ready_at, :now)
      FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS a (
           name text, mutexes jsonb, priority integer)
     WHERE d.dag_id = :id AND d.name = a.name AND d.state = 'WAITING'
"""

_MAKE = """
    INSERT INTO mutexes (tenant, name)
    SELECT :tenant, name FROM unnest(CAST(:names AS text[])) AS name ORDER BY name
    ON CONFLICT DO NOTHING
"""

_LOCK = """
    SELECT name, job_id FROM mutexes WHERE tenant = :tenant AND name = ANY (:names)
     ORDER BY name FOR UPDATE
"""

_WAITERS = """
    SELECT d.dag_id, d.name, d.mutexes, d.priority, d.ready_at
      FROM dag_jobs d JOIN dags g ON g.id = d.dag_id
     WHERE d.state = 'WAITING' AND d.ready_at IS NOT NULL
       AND d.mutexes && CAST(:names AS text[])
       AND g.tenant = :tenant AND g.state = 'RUNNING' AND (NOT g.held OR g.id = :released)
"""

_WAITED_FOR = """
    SELECT DISTINCT unnest(mutexes) FROM dag_jobs
     WHERE dag_id = :id AND state = 'WAITING' AND ready_at IS NOT NULL
"""

_HOLDERS = """
    SELECT m.name, m.job_id, EXISTS (SELECT FROM queue WHERE job_id = m.job_id) AS queued
      FROM mutexes m
     WHERE m.tenant = :tenant AND m.name = ANY (:names) AND m.job_id IS NOT NULL
"""

_OF_JOB = """
    SELECT m.name, (
           SELECT count(*) FROM dag_jobs d JOIN dags g ON g.id = d.dag_id
            WHERE d.state = 'WAITING' AND d.ready_at IS NOT NULL
              AND d.mutexes @> ARRAY[m.name]
              AND g.tenant = m.tenant AND g.state = 'RUNNING' AND NOT g.held) AS waiting
      FROM mutexes m WHERE m.job_id = :id ORDER BY m.name
"""

_LOCK_OF_JOBS = """
    SELECT FROM mutexes WHERE job_id = ANY (:ids) ORDER BY tenant, name FOR UPDATE
"""

_FREE_OF_ENDED = """
    UPDATE mutexes SET job_id = NULL, since = NULL
     WHERE tenant = :tenant AND name = ANY (:names)
       AND EXISTS (SELECT FROM jobs WHERE id = mutexes.job_id AND ended_at IS NOT NULL)
    RETURNING name
"""
"""A worker of the version before may have recorded the end: it knew of no mutexes."""

_FREE = "UPDATE mutexes SET job_id = NULL, since = NULL WHERE job_id = ANY (:ids)"
