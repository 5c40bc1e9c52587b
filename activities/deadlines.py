"""Deadlines of jobs: what is judged of a row, and what is noted when one is late or has ended."""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import RowMapping, text

from longshore.activities.database import Database
from longshore.activities.metrics import DEADLINES, JOBS_LATE, Metrics
from longshore.activities.stored_learnt import stored_learnt
from longshore.models.base import Instant, as_reason
from longshore.models.deadline import DeadlineJudgment, DeadlineOutlook
from longshore.models.elements import ElementState
from longshore.models.job_status import JobState
from longshore.models.messages import Waiting
from longshore.models.start_range import StartRange
from longshore.models.text import span
from longshore.models.units import Duration
from longshore.models.views import JobView
from longshore.scheduling.deadline import JobTimes, LikelyDuration, judge

_log = logging.getLogger(__name__)
_DURATION: TypeAdapter[timedelta] = TypeAdapter(Duration)
_INSTANT: TypeAdapter[datetime] = TypeAdapter(Instant)
_RANGE: TypeAdapter[StartRange] = TypeAdapter(StartRange)

COMING_START = """
      LEFT JOIN LATERAL (SELECT k.coming->>'start' AS start
                           FROM (SELECT buying_decision->'coming'->j.id AS coming
                                   FROM pools WHERE name = j.pool) k
                          WHERE q.job_id IS NOT NULL AND NOT q.held
                            AND EXISTS (
                                SELECT FROM jsonb_array_elements_text(k.coming->'purchases') w (id)
                                  JOIN purchases b ON b.id = w.id AND b.buying
                                   AND b.state NOT IN ('ENDED', 'REFUSED'))
                        ) c ON true
"""
"""What was bought and is still to come says better when a job starts, as `c.start`, than what runs
now: whoever decided about it knew both (`scheduling.buying.incoming_capacity`). `j` is the row of
the job, `q` that of the queue."""


def duration_of(row: Mapping[Any, Any]) -> LikelyDuration:
    """Return how long a job takes, from what is stored of its `expected_duration` and
    `max_duration` and of jobs like it; nothing of what somebody wrote by hand."""
    return LikelyDuration.of(
        _read(_DURATION, row["expected_duration"]),
        _read(_DURATION, row["max_duration"]),
        stored_learnt(row["learnt"]),
    )


def judgment_of_job(job: JobView, row: Mapping[Any, Any], now: datetime) -> DeadlineJudgment:
    """Return how a job that has a deadline stands to it; `row` is that of the list of jobs."""
    duration, runs = duration_of(row), job.state in (JobState.RUNNING, JobState.STOPPING)
    waits = job.elements is None or any(
        job.elements.get(state) for state in (ElementState.WAITING, ElementState.BLOCKED)
    )
    start = job.estimated_start if job.state is JobState.QUEUED else None
    times = JobTimes(
        deadline=row["deadline_at"], duration=duration if waits else LikelyDuration(),
        start=None if start is None else job.start_range or StartRange.at(start),
        start_kept=bool(row["start_kept"]), begins_at=job.begins_at,
        held=job.state is JobState.HELD and not job.begin_only,
        started_at=job.started_at if runs else None, ended_at=job.ended_at,
        of_array=job.elements is not None,
    )  # fmt: skip
    return _with_since(judge(times, now), row)


def judgment_of_queued(row: Mapping[Any, Any], now: datetime) -> DeadlineJudgment:
    """Return the same of a job in its queue, from a row with `QUEUED_COLUMNS`."""
    start, between = start_of_queued(row)
    times = JobTimes(
        deadline=row["deadline_at"], duration=duration_of(row),
        start=None if start is None or row["held"] else between or StartRange.at(start),
        start_kept=row["start_kept"], begins_at=row["begins_at"],
        held=row["held"] and not row["begin_only"],
    )  # fmt: skip
    return _with_since(judge(times, now), row)


def start_of_queued(row: Mapping[Any, Any]) -> tuple[datetime | None, StartRange | None]:
    """Return when a job in its queue probably starts, and between when and when, from a row with
    `QUEUED_COLUMNS`."""
    return _read(_INSTANT, row["estimated_start"]), _read(_RANGE, row["start_range"])


async def note_late(
    database: Database, metrics: Metrics, pool: str, now: datetime
) -> list[tuple[str, Waiting]]:
    """Note which jobs of the queue will be late as they wait, each once; return those that are to
    hear it.

    In a transaction of its own, to be called after that of a cycle: who ends a job locks its row
    before the queue.
    """
    async with database.transaction() as connection:
        rows = (await connection.execute(text(_TO_JUDGE), {"pool": pool})).mappings().all()
        judged = [(row, judgment_of_queued(row, now)) for row in rows]
        late = [each for each in judged if each[1].outlook is DeadlineOutlook.LATE]
        if late:
            ids = [row["id"] for row, _ in late]
            await connection.execute(text(_NOTE), {"ids": ids, "now": now})
    for row, judgment in late:
        _log.warning("job %s waits, and will miss its deadline: %s", row["id"], judgment.says)
        metrics.add(JOBS_LATE, pool=pool)
    return [(row["id"], _waiting(row, judgment)) for row, judgment in late if not row["held"]]


def note_end(metrics: Metrics, pool: str, job_id: str, late: timedelta | None) -> None:
    """Count how a job ended that had a deadline, `late` by so much; None for one without."""
    if late is None:
        return
    outcome = DeadlineOutlook.MISSED if late > timedelta(0) else DeadlineOutlook.MET
    if outcome is DeadlineOutlook.MISSED:
        _log.warning("job %s missed its deadline by %s", job_id, span(late))
    metrics.add(DEADLINES, pool=pool, outcome=outcome.value)


def _waiting(row: RowMapping, judgment: DeadlineJudgment) -> Waiting:
    before = f"; {row['reason']}" if row["reason"] else ""
    reason = as_reason(f"its deadline: {judgment.says}{before}")
    return Waiting(attempt=row["attempt"], reason=reason)


def _with_since(judgment: DeadlineJudgment, row: Mapping[Any, Any]) -> DeadlineJudgment:
    return judgment.model_copy(update={"late_since": row["late_since"]})


def _read(adapter: TypeAdapter[Any], stored: object) -> Any:
    try:
        return None if stored is None else adapter.validate_python(stored)
    except ValidationError:
        return None


DURATION_COLUMNS = """
    j.spec->'expected_duration' AS expected_duration, j.spec->'max_duration' AS max_duration"""
"""What `duration_of` reads beside `learnt`; `j` is the row of the job."""

START_KEPT = "(c.start IS NOT NULL OR q.decision->>'start_kept' IS DISTINCT FROM 'false')"
"""By a start for which no place is kept no job is late: each newcomer that goes first moves it."""

QUEUED_COLUMNS = f"""
    j.deadline_at, j.late_since, j.begins_at, q.held, q.begin_only,
    {DURATION_COLUMNS}, q.learnt,
    coalesce(c.start, q.decision->>'estimated_start') AS estimated_start,
    CASE WHEN c.start IS NULL THEN q.decision->'start_range' END AS start_range,
    {START_KEPT} AS start_kept
"""

_TO_JUDGE = f"""
    SELECT j.id, q.attempt, q.decision->>'reason' AS reason, {QUEUED_COLUMNS}
      FROM jobs j
      JOIN queue q ON q.job_id = j.id
{COMING_START}
     WHERE j.pool = :pool AND j.deadline_at IS NOT NULL AND j.late_since IS NULL
       AND j.ended_at IS NULL
       FOR NO KEY UPDATE OF j SKIP LOCKED
"""

_NOTE = "UPDATE jobs SET late_since = :now WHERE id = ANY(:ids)"

HAS_DEADLINES = """
    EXISTS (SELECT FROM jobs
             WHERE pool = :pool AND deadline_at IS NOT NULL AND late_since IS NULL
               AND ended_at IS NULL)
"""
"""Whether `note_late` has anything to look at."""
