"""Reading the queue of a pool for people, in the order in which a cycle decides."""

from datetime import datetime, timedelta

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import Database, clock
from longshore.activities.deadlines import (
    COMING_START,
    QUEUED_COLUMNS,
    judgment_of_queued,
    start_of_queued,
)
from longshore.activities.locality import with_locality
from longshore.activities.prices.views import price_now
from longshore.activities.queue_entries import QueueEntry
from longshore.activities.snapshot import load_nodes, load_pool, load_queue, load_running
from longshore.activities.stored_decisions import stored_decision
from longshore.activities.usage import load_pool_to_plan
from longshore.models.base import Instant
from longshore.models.deadline import DeadlineJudgment
from longshore.models.durations import ExpectedFrom
from longshore.models.moment import says_begin
from longshore.models.placement import Decision
from longshore.models.pool import PoolSpec
from longshore.models.price_series import PriceNow
from longshore.models.queue_view import QueuedJobView, QueueView, StartErrorsView
from longshore.models.start_range import StartRange
from longshore.scheduling.durations import expected_from, says_learnt
from longshore.scheduling.estimates import Told, start_errors
from longshore.scheduling.fair_tree import parts_of
from longshore.scheduling.guarantee import may_come_first
from longshore.scheduling.order import counted_as, queue_order, worth
from longshore.scheduling.prices.series import threshold, why_price_wait
from longshore.scheduling.rank import Standing, room_of, standings, waiting
from longshore.scheduling.rank import terms as terms_of
from longshore.scheduling.thresholds import Scoring


class QueueViews:
    """Read-only views of queues in the capacity database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def queue(self, pool: str) -> QueueView:
        """Return the queue of a pool. Raises NotFoundError, and StoredError where the settings of
        the pool cannot be read."""
        async with self._database.snapshot() as connection:
            spec = await load_pool_to_plan(connection, pool, known=True)
            entries = {each.request.id: each for each in await load_queue(connection, pool)}
            nodes = await load_nodes(connection, pool)
            running = await load_running(connection, pool)
            requests = [each.request for each in entries.values()]
            if spec.packing.score:
                requests, nodes = await with_locality(
                    connection, pool, spec.packing, requests, nodes
                )
            now = await clock(connection)
            found = await price_now(connection, spec, now)
            told = await _told(connection, pool)
            simulated = bool(await connection.scalar(text(SIMULATED), {"pool": pool}))
        packing = spec.packing
        held = {job_id for job_id, entry in entries.items() if entry.held}
        ordered = queue_order(requests, packing, now, nodes, running, held)
        stands = standings(
            [waiting(job, now) for job in ordered], room_of(nodes, running),
            worth(packing, nodes, now), may_come_first(packing, nodes, held),
        )  # fmt: skip
        may_start = [job for job in ordered if job.id not in held]
        scoring = Scoring(may_start, packing, now, nodes, running) if packing.score else None
        jobs = [
            _view(
                entries[job.id], place, stands[job.id], told[job.id], spec, found, now
            ).model_copy(update={"score": scoring.of(job) if scoring else None})
            for place, job in enumerate(ordered, 1)
            if job.id in told
        ]
        aside = [row for job_id, row in sorted(told.items()) if job_id not in entries]
        jobs += [_aside(row, now) for row in aside]
        return QueueView(
            pool=pool, order=packing.in_order, jobs=tuple(jobs), simulated=simulated,
            weights=packing.score.used if packing.score else None,
            tenants=parts_of(packing, (each.tenant for each in jobs if each.place is not None)),
        )  # fmt: skip

    async def start_errors(self, pool: str, over: timedelta) -> StartErrorsView:
        """Return how far off the starts were that jobs of a pool were told in the last time.
        Raises NotFoundError."""
        async with self._database.snapshot() as connection:
            await load_pool(connection, pool, known=True)
            now = await clock(connection)
            rows = await connection.execute(text(_ESTIMATES), {"pool": pool, "since": now - over})
            told = [
                Told(row.made_at, row.starts_at, row.placed_at, _range(row.earliest, row.latest))
                for row in rows
            ]
            simulated = bool(await connection.scalar(text(SIMULATED), {"pool": pool}))
        return StartErrorsView(
            pool=pool, since=now - over, rows=start_errors(told, now), simulated=simulated
        )


def _range(earliest: datetime | None, latest: datetime | None) -> StartRange | None:
    if earliest is None or latest is None:
        return None
    return StartRange(earliest=earliest, latest=latest)


async def _told(connection: AsyncConnection, pool: str) -> dict[str, RowMapping]:
    rows = await connection.execute(text(_JOBS), {"pool": pool})
    return {row["job_id"]: row for row in rows.mappings()}


def _view(
    entry: QueueEntry, place: int, standing: Standing, row: RowMapping,
    spec: PoolSpec, found: PriceNow, now: Instant,
) -> QueuedJobView:  # fmt: skip
    job, packing = entry.request, spec.packing
    service, expected = waiting(job, now), expected_from(job)
    terms = None
    if packing.by_rank:
        terms = terms_of(service, packing).model_copy(update={"rank": standing.rank})
    decision = stored_decision(Decision, row["decision"])
    starts_at, start_range = start_of_queued(row)
    return QueuedJobView(
        place=place, job_id=job.id, name=row["name"], tenant=row["tenant"],
        priority=job.priority, counted_as=counted_as(job, packing, now), gpus=job.gpus_held,
        waited=service.waited, attained=job.attained,
        first=(packing.by_rank or packing.by_terms) and bool(standing.guaranteed),
        expected=expected, learnt=says_learnt(job.learnt) if job.learnt else "",
        expected_duration=None if expected is ExpectedFrom.UNKNOWN else job.expected_duration,
        terms=terms,
        starts_at=starts_at, start_range=start_range, deadline=_deadline(row, now),
        reason=_why_held(row, spec, found, now) if entry.held
        else decision.reason if decision else "",
    )  # fmt: skip


def _deadline(row: RowMapping, now: Instant) -> DeadlineJudgment | None:
    return None if row["deadline_at"] is None else judgment_of_queued(row, now)


def _why_held(row: RowMapping, spec: PoolSpec, found: PriceNow, now: Instant) -> str:
    below = threshold(row["start_below"], spec.start_below)
    if row["price_since"] is not None and below is not None:
        return why_price_wait(below, found, now)
    begins_at, by_user = row["begins_at"], not row["begin_only"]
    if begins_at is None or (by_user and begins_at <= now):
        return "it is held"
    return says_begin(begins_at, now, "it is held" if by_user else "")


def _aside(row: RowMapping, now: Instant) -> QueuedJobView:
    """Return a job that is set aside: it is in no plan, and may not be readable."""
    decision = stored_decision(Decision, row["decision"])
    return QueuedJobView(
        place=None, job_id=row["job_id"], name=row["name"], tenant=row["tenant"],
        priority=row["priority"], counted_as=row["priority"], gpus=None, waited=row["waited"],
        attained=row["attained"], reason=decision.reason if decision else "it cannot be read",
        deadline=_deadline(row, now),
    )  # fmt: skip


_JOBS = f"""
    SELECT q.job_id, j.name, j.tenant, q.decision, {QUEUED_COLUMNS},
           q.start_below, q.price_since,
           q.priority, q.attained,
           greatest(q.waited + CASE WHEN q.held THEN interval '0'
                                    ELSE clock_timestamp() - q.queued_at END, interval '0')
               AS waited
      FROM queue q JOIN jobs j ON j.id = q.job_id
{COMING_START}
     WHERE q.pool = :pool
"""

_ESTIMATES = """
    SELECT e.made_at, e.starts_at, e.earliest, e.latest, p.placed_at
      FROM start_estimates e
      LEFT JOIN placements p ON p.job_id = e.job_id AND p.attempt = e.attempt AND p.rank = 0
     WHERE e.pool = :pool AND e.made_at >= :since
       AND (p.placed_at IS NOT NULL OR EXISTS (
            SELECT FROM queue q WHERE q.job_id = e.job_id AND q.attempt = e.attempt))
"""
"""Of a job that was cancelled as it waited nobody knows when it would have started."""

SIMULATED = "SELECT bool_or(simulated) FROM nodes WHERE pool = :pool AND state <> 'GONE'"
