"""What the end of a job means to DAGs: its own goes on, and those that wait for what it had."""

from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.dag_rows import mark_dag_poked
from longshore.activities.database import Database
from longshore.activities.mutexes import free_mutexes, wake_next
from longshore.activities.signals import Signals


class OfDag(NamedTuple):
    """What a job is to its DAG."""

    dag_id: str
    tenant: str
    mutexes: tuple[str, ...]
    """That it had until its end."""


async def of_dag(connection: AsyncConnection, job_id: str) -> OfDag | None:
    """Return what a job is to its DAG; None for a job of none."""
    rows = await connection.execute(text(_OF_DAG), {"id": job_id})
    row = rows.one_or_none()
    return None if row is None else OfDag(row.dag_id, row.tenant, tuple(row.mutexes))


async def of_dag_at_retry(connection: AsyncConnection, job_id: str) -> OfDag | None:
    """Return the job's DAG at a retry: the try before may not have come to its signals."""
    return None if activity.info().attempt == 1 else await of_dag(connection, job_id)


async def mark_end(connection: AsyncConnection, job_id: str, job: OfDag) -> bool:
    """Give back what the job had, and return whether its DAG has to be signalled.

    To be called last in the transaction that records the end.
    """
    first = await mark_dag_poked(connection, job.dag_id)
    if job.mutexes:
        await free_mutexes(connection, [job_id])
    return first


async def tell_end(database: Database, signals: Signals, job: OfDag, *, first: bool) -> None:
    """Wake the job's DAG, and those that come first for what it had.

    To be called after the commit; `first` as `mark_end` says.
    """
    again = activity.info().attempt > 1
    if first or again:
        await signals.poke_dag(job.dag_id)
    await wake_next(database, signals, job.tenant, job.mutexes, again=again)


_OF_DAG = """
    SELECT d.dag_id, g.tenant, d.mutexes
      FROM dag_jobs d JOIN dags g ON g.id = d.dag_id
     WHERE d.job_id = :id
"""
