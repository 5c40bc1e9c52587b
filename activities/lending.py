"""Spares that gangs lend: what may be lent, and having a spare back before it takes a place.

Nothing of a spare runs on its node, so a job that borrows it has the GPUs and their memory for
itself, and its agent knows of no difference. Before the gang's next attempt begins there, that job
is stopped as if it were preempted, with its grace.
"""

import json
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import Database, clock
from longshore.activities.failpoints import failpoint
from longshore.activities.placements import BORROWS
from longshore.activities.signals import Signals
from longshore.activities.stored_specs import stored_spec
from longshore.models.job_request import JobRequest
from longshore.models.messages import InterruptRequest
from longshore.models.node import Node
from longshore.models.placement import CyclePlan, Decision, PackingPolicy, PlacementKey
from longshore.models.preemption import PreemptionPlan, Victim
from longshore.models.resources import UNLIMITED, HostAmounts
from longshore.scheduling.lending import (
    LendableSpare,
    may_borrow,
    with_lent_spares,
)

_TO_STOP = timedelta(seconds=5)
STOPS_WITHIN = timedelta(minutes=5)
"""After its grace; a spare whose borrower has not ended by then takes no place."""


class Borrower(NamedTuple):
    """A job that runs on a spare of a gang."""

    job_id: str
    attempt: int
    node_id: str
    gpus: int
    priority: int
    grace: timedelta
    told: bool
    """It has been told to stop for that gang."""


class SpareInUse(Exception):
    """A spare takes its place once those that borrow it have ended."""

    def __init__(self, borrowers: Sequence[Borrower]) -> None:
        self.borrowers = tuple(borrowers)
        names = ", ".join(sorted({each.job_id for each in borrowers}))
        super().__init__(f"the spare is lent to {names}, which is being stopped")


async def load_lendable(connection: AsyncConnection, pool: str) -> tuple[LendableSpare, ...]:
    """Return the spares of a pool that are lent, or may be: of gangs that run whole on nodes that
    are ready. One that has to leave a node needs its spares."""
    rows = await connection.execute(text(_LENDABLE), {"pool": pool})
    return tuple(
        LendableSpare(
            row.job_id, row.node_id, tuple(row.gpu_indices),
            HostAmounts(
                row.cpu_milli / 1000, row.ram_mb / 1000,
                _limit(row.storage_mb_s, limited=row.storage_limited),
                _limit(row.milliwatts, limited=row.power_limited),
            ),
            tuple(row.lent),
            HostAmounts(
                row.cpu_used / 1000, row.ram_used / 1000, row.storage_used / 1000,
                row.power_used / 1000,
            ),
        )
        for row in rows
    )  # fmt: skip


async def on_lent_spare(
    connection: AsyncConnection,
    pool: str,
    decision: Decision,
    job: JobRequest,
    nodes: Sequence[Node],
    policy: PackingPolicy,
    now: datetime,
) -> Decision:
    """Return what a cycle of a pool would make of a decision for a job that waits: on a spare that
    is lent, where it may run on one and fits it."""
    if not may_borrow(job, policy.funding):
        return decision
    homes, spares = await lendable_on(connection, pool, nodes)
    made = CyclePlan(decisions=(decision,))
    (decided,) = with_lent_spares(made, [job], homes, spares, policy, now).decisions
    return decided


async def lendable_on(
    connection: AsyncConnection, pool: str, nodes: Sequence[Node]
) -> tuple[dict[str, Node], list[LendableSpare]]:
    """Return nodes by name, and what may be lent on them; others may have come since."""
    homes = {node.id: node for node in nodes}
    spares = await load_lendable(connection, pool)
    return homes, [spare for spare in spares if spare.node_id in homes]


async def borrowers_on(
    connection: AsyncConnection, key: PlacementKey, nodes: Collection[str]
) -> tuple[Borrower, ...]:
    """Return who runs on spares of an attempt on these nodes."""
    asked = {"id": key.job_id, "attempt": key.attempt, "nodes": list(nodes)}
    rows = (await connection.execute(text(_BORROWERS), asked)).mappings()
    found: list[Borrower] = []
    for row in rows:
        spec = stored_spec(row["job_id"], row["spec"])
        found.append(
            Borrower(
                row["job_id"], row["attempt"], row["node_id"], row["gpus"],
                spec.priority if spec else 0, spec.grace if spec else timedelta(0), row["told"],
            )
        )  # fmt: skip
    return tuple(found)


async def take_back(
    database: Database, signals: Signals, key: PlacementKey, borrowers: Sequence[Borrower]
) -> None:
    """Have those that run on a gang's spares stopped for it, and no others come there. Each is
    told before that is on record: whoever comes after a crash tells it again, and an attempt that
    was told already ignores it."""
    untold = [each for each in borrowers if not each.told]
    if not untold:
        return
    reason = f"preempted for {key.job_id}, which takes back the spare that it lent"
    told = [
        (each.job_id, InterruptRequest(attempt=each.attempt, reason=reason, for_job=key.job_id))
        for each in untold
    ]
    await signals.tell_jobs("preempt", told)
    await failpoint("take_back.before-commit")
    async with database.transaction() as connection:
        now = await clock(connection)
        rows = [_row(key, each, reason, now) for each in untold]
        values = {"rows": json.dumps(rows), "for": key.job_id, "for_attempt": key.attempt}
        await connection.execute(text(_STORE), values)


def _row(key: PlacementKey, each: Borrower, reason: str, now: datetime) -> dict[str, Any]:
    victim = Victim(
        job_id=each.job_id, priority=each.priority, nodes=(each.node_id,), gpus=each.gpus,
        recompute=0, write=0, requeue=0, total=0, save=each.grace, reason="on a lent spare",
    )  # fmt: skip
    plan = PreemptionPlan(job_id=key.job_id, at=now, victims=(victim,), reason=reason)
    return {
        "job_id": each.job_id, "attempt": each.attempt, "priority": each.priority,
        "plan": plan.model_dump(mode="json"),
        "frees_by": (now + each.grace + _TO_STOP).isoformat(),
    }  # fmt: skip


def _limit(amount: int, *, limited: bool) -> float:
    return amount / 1000 if limited else UNLIMITED


_LENDABLE = f"""
    SELECT s.job_id, s.node_id, s.gpu_indices, s.cpu_milli, s.ram_mb, s.storage_mb_s,
           s.milliwatts, n.storage_mb_s IS NOT NULL AS storage_limited,
           n.milliwatts IS NOT NULL AS power_limited, u.cpu_used, u.ram_used, u.storage_used,
           u.power_used,
           ARRAY(SELECT g.index FROM gpus g
                  WHERE g.node_id = s.node_id AND g.index = ANY (s.gpu_indices)
                    AND g.borrowed_by IS NOT NULL ORDER BY 1) AS lent
      FROM placements s
      JOIN nodes n ON n.id = s.node_id AND n.epoch = s.epoch
     CROSS JOIN LATERAL (
           SELECT coalesce(sum(p.cpu_milli), 0)::bigint AS cpu_used,
                  coalesce(sum(p.ram_mb), 0)::bigint AS ram_used,
                  coalesce(sum(p.storage_mb_s), 0)::bigint AS storage_used,
                  coalesce(sum(p.milliwatts), 0)::bigint AS power_used
             FROM placements p
            WHERE p.borrowed_from = s.job_id AND p.node_id = s.node_id AND p.ended_at IS NULL
              AND {BORROWS}) u
     WHERE n.pool = :pool AND n.state = 'READY' AND s.lendable AND s.ended_at IS NULL
       AND NOT EXISTS (
           SELECT FROM placements r LEFT JOIN nodes m ON m.id = r.node_id AND m.epoch = r.epoch
            WHERE r.job_id = s.job_id AND r.attempt = s.attempt AND NOT r.spare
              AND (r.ended_at IS NOT NULL OR m.state IS DISTINCT FROM 'READY'))
       AND NOT EXISTS (SELECT FROM preemptions d
                        WHERE d.for_job = s.job_id AND d.for_attempt = s.attempt)
     ORDER BY s.node_id, s.job_id
"""

_BORROWERS = f"""
    SELECT p.job_id, p.attempt, p.node_id, cardinality(p.gpu_indices) AS gpus, j.spec,
           EXISTS (SELECT FROM preemptions d
                    WHERE (d.job_id, d.attempt) = (p.job_id, p.attempt)
                      AND (d.for_job, d.for_attempt) = (:id, :attempt)) AS told
      FROM placements p JOIN jobs j ON j.id = p.job_id
     WHERE p.borrowed_from = :id AND p.ended_at IS NULL AND {BORROWS}
       AND p.node_id = ANY(:nodes)
     ORDER BY p.job_id
"""

_STORE = """
    INSERT INTO preemptions (job_id, attempt, pool, cycle_id, for_job, for_attempt, priority,
                             for_priority, plan, by_payer, frees_by)
    SELECT w.job_id, w.attempt, j.pool, g.cycle_id, g.job_id, g.attempt, w.priority,
           w.priority, w.plan, true, w.frees_by
      FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS w (
               job_id text, attempt integer, priority integer, plan jsonb,
               frees_by timestamptz)
      JOIN jobs j ON j.id = w.job_id
      JOIN placements g ON g.job_id = :for AND g.attempt = :for_attempt AND g.rank = 0
    ON CONFLICT (job_id, attempt) DO NOTHING
"""
"""One that is being stopped already ends by that. With this on record the gang lends no more."""

LENT_TO = f"""
    (SELECT p.job_id FROM placements p
      WHERE s.spare AND p.borrowed_from = s.job_id AND p.node_id = s.node_id
        AND p.ended_at IS NULL AND {BORROWS} ORDER BY 1 LIMIT 1)"""
"""Of a placement `s`: a job that runs on it as it is lent."""
DOES_NOT_STOP = f"""
    (SELECT p.job_id FROM placements p
       JOIN preemptions d ON (d.job_id, d.attempt) = (p.job_id, p.attempt)
      WHERE s.spare AND p.borrowed_from = s.job_id AND p.node_id = s.node_id
        AND p.ended_at IS NULL AND {BORROWS}
        AND d.frees_by < clock_timestamp() - CAST(:stops_within AS interval)
      ORDER BY 1 LIMIT 1)"""
"""Of a placement `s`: a job that runs on it, and that should have ended long ago."""
