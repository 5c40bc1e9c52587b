"""After a cycle: preempts running jobs of lower classes for jobs that still wait.

What is decided is stored before anybody hears of it. So a repeat tells the same attempts again and
decides nothing anew, and the GPUs that are being freed count as coming in every later decision.
"""

import asyncio
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.checkpoints.rows import CheckpointActivities
from longshore.activities.database import Database, clock
from longshore.activities.explanations import STORED_COLUMNS, stored_of
from longshore.activities.failpoints import failpoint
from longshore.activities.funding.planning import RUNS_WITH_BUDGET
from longshore.activities.metrics import PREEMPTIONS, SILENT, Metrics
from longshore.activities.placements import SETTLED, end_spare
from longshore.activities.plan_threads import PlanThreads
from longshore.activities.pokes import mark_poked_if_useful
from longshore.activities.pool_cache import PoolCache
from longshore.activities.preemption_inputs import PreemptionInputs, read_inputs
from longshore.activities.queue_rows import lock_job
from longshore.activities.signals import Signals
from longshore.models.checkpoint import CheckpointsRequest
from longshore.models.job_request import JobRequest
from longshore.models.margins import DEFAULT_MARGINS, Margins
from longshore.models.messages import InterruptRequest, LeaseEnd
from longshore.models.packing import QueueOrder
from longshore.models.placement import PlacementKey
from longshore.models.pool import PoolSpec
from longshore.models.preemption import PreemptionPlan, RunningWork
from longshore.models.text import count
from longshore.scheduling.placement.mix import Mix
from longshore.scheduling.preemption.due import given_up_for, seed_of
from longshore.scheduling.preemption.payers import Right, right_over
from longshore.scheduling.preemption.plan import plan_preemptions
from longshore.scheduling.preemption.ways import as_told
from longshore.scheduling.serving.running_engine import is_idle

_TO_STOP = timedelta(seconds=5)
"""What it takes to hear of it and to give the GPUs back, beside the save."""
STORE_ANSWERS_WITHIN = 2.0
"""Seconds; jobs count as unable to save while it does not, and no cycle waits for it longer."""


_log = logging.getLogger(__name__)


class Looked(NamedTuple):
    """What a cycle knows when it has planned."""

    at: Collection[str]
    """The jobs that it decided on."""
    mix: Mix | None
    """What it expected to be asked for; None: what the queue says."""


NOBODY = Looked((), None)


class Preempting:
    """Decides, stores and signals preemptions of one pool."""

    def __init__(
        self,
        database: Database,
        signals: Signals,
        checkpoints: CheckpointActivities | None = None,
        metrics: Metrics = SILENT,
        kept: PoolCache | None = None,
        margins: Margins = DEFAULT_MARGINS,
        plans: PlanThreads | None = None,
    ) -> None:
        """Without `checkpoints` nobody asks the store: what the database knows of saves counts.

        `kept` are the pools that a cycle keeps, `plans` makes its plans too.
        """
        self._database = database
        self._signals = signals
        self._checkpoints = checkpoints
        self._metrics = metrics
        self._kept = kept or PoolCache()
        self._margins = margins
        self._plans = plans or PlanThreads()

    async def after_cycle(
        self, pool: str, cycle_id: str, looked: Looked = NOBODY
    ) -> timedelta | None:
        """Preempt running jobs for those that this cycle left waiting; return when another one may
        be preempted since time has passed: as an engine has its turn then.

        Of a long queue a part is decided on: whom it may help, and whom the cycle `looked` at.
        A repeat finds what was stored under the cycle's id, and signals again; an attempt that
        has ended meanwhile ignores it.
        """
        told, again = await self._stored(cycle_id), None
        if not told:
            told, again = await self._decide_and_store(pool, cycle_id, looked)
        await self._signals.tell_jobs("preempt", told)
        return again

    async def _stored(self, cycle_id: str) -> list[tuple[str, InterruptRequest]]:
        async with self._database.transaction() as connection:
            rows = await connection.execute(text(_STORED), {"cycle": cycle_id})
            return [_told(row) for row in rows.mappings()]

    async def _decide_and_store(
        self, pool: str, cycle_id: str, looked: Looked
    ) -> tuple[list[tuple[str, InterruptRequest]], timedelta | None]:
        asked = {"pool": pool, "by_rank": QueueOrder.ATTAINED_SERVICE.value}
        async with self._database.transaction() as connection:
            if not await connection.scalar(text(_MIGHT_HELP), asked):
                return [], None
        store_away = await why_store_is_away(self._checkpoints, pool)
        async with self._database.snapshot() as connection:
            kept = await self._kept.take(connection, pool)
            seen = await read_inputs(connection, pool, store_away, kept, self._margins, looked.at)
            now = await clock(connection)
        self._kept.keep(pool, kept)
        if not seen.spec.preemption.enabled:
            return [], None
        again = _until_a_turn(seen.queue, now)
        try:
            plans = await self._plans.run(
                pool, plan_preemptions, seen.queue, seen.nodes, seen.running, seen.spec.preemption,
                seen.spec.packing, now, seen.under_way, seen.quotes(now), seen.recent,
                mix=looked.mix, due={id: seed_of(f"{cycle_id}|{id}") for id in seen.due},
            )  # fmt: skip
        except Exception:
            # A fault of ours, or of one job: the pool's cycles go on, and stop nobody.
            _log.exception("pool %s: preemption cannot be planned", pool)
            return [], again
        return await self._store(seen, cycle_id, plans), again

    async def _store(
        self, seen: PreemptionInputs, cycle_id: str, plans: Sequence[PreemptionPlan]
    ) -> list[tuple[str, InterruptRequest]]:
        """Store which jobs are preempted for which, and which are spared for a time; return the
        messages to the preempted jobs."""
        waiting = {job.id: job for job in seen.queue}
        running = {work.id: work for work in seen.running}
        chosen = [plan for plan in plans if plan.preempts]
        pool = seen.spec.name
        spares = [
            _Spare(waiting[plan.job_id], running[victim.job_id].request, node)
            for plan in chosen for victim in plan.victims for node in victim.spares_on
        ]  # fmt: skip
        spared = [plan.model_dump(mode="json", include={"job_id", "spared"})
                  for plan in plans if plan.spared]  # fmt: skip
        async with self._database.transaction() as connection:
            asked = {"rows": json.dumps(spared), "pool": pool, "decided": list(waiting)}
            await connection.execute(text(_SPARE), asked)
            if not chosen:
                return []
            rows = [
                row
                for plan in await _as_told(connection, chosen)
                for row in _rows(plan, waiting[plan.job_id], running, seen.spec)
            ]
            freed = [await _give_up(connection, each) for each in spares]
            stored = await connection.execute(
                text(_STORE), {"rows": json.dumps(rows), "cycle": cycle_id, "pool": pool}
            )
            told = [_told(row) for row in stored.mappings()]
            # Where others stop too, the cycle after them is early enough.
            poke = any(freed) and not told and await mark_poked_if_useful(connection, pool)
            await failpoint("preempt.before-commit")
        await failpoint("preempt.after-commit")
        if poke:
            await self._signals.poke_pool(pool)
        self._metrics.add(PREEMPTIONS, len(told), pool=pool)
        return told


def _until_a_turn(queue: Sequence[JobRequest], now: datetime) -> timedelta | None:
    """Return until when an engine that waits has its turn; None where none is to have it."""
    turns = (job.turn_at - now for job in queue if job.turn_at is not None and job.turn_at > now)
    return min(turns, default=None)


async def why_store_is_away(checkpoints: CheckpointActivities | None, pool: str) -> str:
    """Have the newest saves in the database; return why that cannot be, or nothing."""
    if checkpoints is None:
        return ""
    try:
        async with asyncio.timeout(STORE_ANSWERS_WITHIN):
            return (await checkpoints.observe_checkpoints(CheckpointsRequest(pool=pool))).reason
    except TimeoutError:
        return f"the checkpoint store did not answer within {STORE_ANSWERS_WITHIN:g} s"


async def _as_told(
    connection: AsyncConnection, plans: Sequence[PreemptionPlan]
) -> list[PreemptionPlan]:
    """Return plans that say of a wait the start that the last cycle told of the job."""
    asked = {"ids": [plan.job_id for plan in plans]}
    rows = (await connection.execute(text(_TOLD), asked)).mappings()
    starts = {row["job_id"]: stored_of(row).start for row in rows}
    return [as_told(plan, starts.get(plan.job_id)) for plan in plans]


def _rows(
    plan: PreemptionPlan,
    job: JobRequest,
    running: Mapping[str, RunningWork],
    spec: PoolSpec,
) -> list[dict[str, Any]]:
    longest = max(victim.save for victim in plan.victims)
    funding = spec.packing.funding
    return [
        {
            "job_id": victim.job_id,
            "attempt": running[victim.job_id].request.attempt,
            "priority": running[victim.job_id].request.priority,
            "for_job": job.id,
            "for_attempt": job.attempt,
            "for_priority": job.priority,
            "plan": plan.model_dump(mode="json"),
            "by_payer": plan.cut is not None
            or right_over(victim.job_id, job.id, funding) is Right.FIRST,
            "idle": is_idle(running[victim.job_id], spec.preemption, plan.at),
            "frees_by": (plan.at + longest + _TO_STOP).isoformat(),
        }
        for victim in plan.victims
        if not victim.spares_on
    ]


async def _give_up(connection: AsyncConnection, spare: "_Spare") -> bool:
    """Have a gang give up what stands by for it on a node, where the other still waits."""
    job, gang = spare.job, spare.gang
    asked = {"job": job.id, "attempt": job.attempt}
    if not await connection.scalar(text(_WAITS), asked):
        return False
    await lock_job(connection, gang.id)  # as whoever ends it, or swaps
    key = PlacementKey(job_id=gang.id, attempt=gang.attempt)
    message = given_up_for(job.id)
    return await end_spare(connection, key, spare.node_id, LeaseEnd.PREEMPTED, message)


class _Spare(NamedTuple):
    """What stands by for a gang, and the job for which it is given up."""

    job: JobRequest
    gang: JobRequest
    node_id: str


def _told(row: Mapping[Any, Any]) -> tuple[str, InterruptRequest]:
    plan = PreemptionPlan.model_validate(row["plan"])
    victims = plan.victims
    left = next((each.gpus_left for each in victims if each.job_id == row["job_id"]), None)
    what = "preempted" if left is None else f"shrunk to {count(left, 'GPU')}"
    reason = f"{what} for {row['for_job']} of class {row['for_priority']}"
    if plan.cut is not None:
        reason = f"{what} for {row['for_job']}, whose start was due"
        if plan.lottery is not None and row["job_id"] in plan.lottery.drawn:
            reason += f": drawn by lottery with seed {plan.lottery.seed}"
    elif row["by_payer"]:
        reason = f"{what} for {row['for_job']}, since a budget pays for that job first"
    return row["job_id"], InterruptRequest(
        attempt=row["attempt"], reason=reason, for_job=row["for_job"], gpus_left=left
    )


_MIGHT_HELP = f"""
    SELECT {RUNS_WITH_BUDGET} OR EXISTS (
        SELECT FROM queue q JOIN replicas r ON r.ended_at IS NULL
          JOIN jobs j ON j.id = r.job_id
          JOIN placements p ON p.job_id = r.job_id AND p.ended_at IS NULL
          JOIN nodes n ON n.id = p.node_id
         WHERE q.pool = :pool AND NOT q.held AND n.pool = :pool
           AND (r.idle_since IS NOT NULL OR jsonb_exists(q.request, 'serves')
                OR j.spec #>> '{{engine,model,prewarm}}' = 'true')) OR EXISTS (
        SELECT FROM queue q
         WHERE q.pool = :pool AND NOT q.held
           AND q.priority + (SELECT count(*) FROM pools WHERE name = :pool
                                AND spec #>> '{{packing,order}}' = :by_rank)
             > (SELECT min(CASE jsonb_typeof(j.spec -> 'priority')
                                        WHEN 'number' THEN (j.spec ->> 'priority')::numeric END)
                               FROM placements p JOIN jobs j ON j.id = p.job_id
                              WHERE p.ended_at IS NULL AND j.pool = :pool))
"""
"""Whether an engine runs that leaves for a job of any class, or for an engine that has its turn;
or anything that is of a lower class than a job that waits, or of the same where that may be
stopped too. A priority that somebody has written as another thing than a number counts as none."""

_TOLD = f"SELECT job_id, {STORED_COLUMNS} FROM queue WHERE job_id = ANY (:ids)"

_WAITS = """
    SELECT EXISTS (SELECT FROM queue WHERE job_id = :job AND attempt = :attempt AND NOT held)
"""

_STORED = """
    SELECT d.job_id, d.attempt, d.for_job, d.for_priority, d.by_payer, d.plan
      FROM preemptions d
     WHERE d.cycle_id = :cycle
     ORDER BY d.job_id
"""

_SPARE = """
    UPDATE queue q SET spared = n.spared
      FROM (SELECT job_id, w.spared
              FROM queue o
              LEFT JOIN jsonb_to_recordset(CAST(:rows AS jsonb)) AS w (job_id text, spared jsonb)
             USING (job_id)
             WHERE o.pool = :pool AND o.job_id = ANY(:decided)
               AND (o.spared IS NOT NULL OR w.spared IS NOT NULL)) AS n
     WHERE q.job_id = n.job_id AND q.spared IS DISTINCT FROM n.spared
"""

_STORE = f"""
    WITH wanted AS (
        SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
            job_id text, attempt integer, priority integer, for_job text, for_attempt integer,
            for_priority integer, plan jsonb, by_payer boolean, idle boolean,
            frees_by timestamptz)
    )
    INSERT INTO preemptions AS d (job_id, attempt, pool, cycle_id, for_job, for_attempt, priority,
                             for_priority, plan, by_payer, idle, frees_by)
    SELECT w.job_id, w.attempt, :pool, :cycle, w.for_job, w.for_attempt, w.priority,
           w.for_priority, w.plan, w.by_payer, w.idle, w.frees_by
      FROM wanted w
      JOIN placements p
        ON p.job_id = w.job_id AND p.attempt = w.attempt AND p.rank = 0 AND p.ended_at IS NULL
      JOIN queue q ON q.job_id = w.for_job AND q.attempt = w.for_attempt AND NOT q.held
    ON CONFLICT (job_id, attempt) DO UPDATE
       SET pool = excluded.pool, cycle_id = excluded.cycle_id, for_job = excluded.for_job,
           for_attempt = excluded.for_attempt, priority = excluded.priority,
           for_priority = excluded.for_priority, plan = excluded.plan,
           by_payer = excluded.by_payer, idle = excluded.idle,
           frees_by = excluded.frees_by, decided_at = clock_timestamp()
     WHERE {SETTLED}
    RETURNING job_id, attempt, for_job, for_priority, by_payer, plan
"""
"""What has ended since, or is wanted no more, is left out. An attempt that gave up a part in place
may give way again."""
