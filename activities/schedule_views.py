"""What is on record of the runs of schedules, for people."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from longshore.activities.dag_views import ON_SIMULATED
from longshore.activities.database import Database
from longshore.activities.views import Views
from longshore.models.dag_view import DagState
from longshore.models.schedule import Kind


@dataclass(frozen=True)
class RecordedRun:
    """A job or DAG of a schedule."""

    id: str
    state: str
    ended: bool
    reason: str
    submitted_at: datetime
    ended_at: datetime | None
    simulated: bool
    """It runs, or ran, on simulated GPUs."""


class ScheduleViews:
    """Read-only views of the runs of schedules."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def runs(self, kind: Kind, ids: Sequence[str]) -> tuple[RecordedRun, ...]:
        """Return those of these jobs or DAGs that are on record."""
        if not ids:
            return ()
        if kind is Kind.JOB:
            jobs = await Views(self._database).jobs(ids=tuple(ids), limit=len(ids))
            return tuple(
                RecordedRun(
                    job.id, job.state.value, job.state.ended, job.reason, job.submitted_at,
                    job.ended_at, job.simulated,
                )
                for job in jobs
            )  # fmt: skip
        async with self._database.transaction() as connection:
            rows = await connection.execute(text(_DAGS), {"ids": list(ids)})
            return tuple(
                RecordedRun(
                    row.id, row.state, DagState(row.state).ended, row.message, row.submitted_at,
                    row.ended_at, row.simulated,
                )
                for row in rows
            )  # fmt: skip


_DAGS = f"""
    SELECT d.id, d.state, d.message, d.submitted_at, d.ended_at,
           EXISTS (SELECT FROM dag_jobs s JOIN jobs j ON j.id = s.job_id
                    WHERE s.dag_id = d.id AND {ON_SIMULATED}) AS simulated
      FROM dags d WHERE d.id = ANY (:ids)
"""
