"""A spare takes the place of a lost node of a gang: the job goes on as its next attempt.

In one transaction the old attempt's placements end and the next one's begin on the same GPUs, so
nobody else can have them in between, and nothing waits in a queue.
"""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import RowMapping, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity
from temporalio.exceptions import ApplicationError

from longshore.activities.database import Database
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.funding.rows import carry_charges
from longshore.activities.job_end_rows import end_attempt
from longshore.activities.lending import (
    DOES_NOT_STOP,
    LENT_TO,
    STOPS_WITHIN,
    SpareInUse,
    borrowers_on,
    take_back,
)
from longshore.activities.placements import (
    ATTAINED,
    GIVE_LEASES,
    LEASED_COLUMNS,
    PLACEMENT_COLUMNS,
    load_placement,
    seen_of,
)
from longshore.activities.pokes import mark_poked_if_useful
from longshore.activities.signals import Signals
from longshore.activities.stored_decisions import stored_decision
from longshore.activities.stored_nodes import stored_labels
from longshore.activities.stored_specs import stored_spec
from longshore.models.failover import Failover, HeldNode, SwapReply, SwapRequest
from longshore.models.job import JobSpec
from longshore.models.messages import LeaseEnd
from longshore.models.node import NodeState
from longshore.models.placement import Decision, PlacementKey
from longshore.scheduling.gangs.spares import decision_after, plan_failover
from longshore.scheduling.topology import domain_of_labels

_LONGEST_WAIT = 10
"""Seconds until it looks again whether whoever runs on a spare has ended; at first one."""


class SpareActivities:
    """The activity of `JobWorkflow` for gangs with spares."""

    def __init__(self, database: Database, signals: Signals) -> None:
        self._database = database
        self._signals = signals

    @activity.defn
    @reports_errors
    async def swap(self, request: SwapRequest) -> SwapReply:
        """Begin the next attempt with spares in the places of lost nodes, where they suffice.

        Else the leases end, as by `release`. The processes of the attempt must have ended. A
        repeat finds what the one before it has done. While a spare that is to take a place is
        lent, whoever runs on it is stopped, and this is tried again.
        """
        try:
            async with self._database.transaction() as connection:
                reply = await _swap(connection, request)
                pool = await connection.scalar(
                    text("SELECT pool FROM jobs WHERE id = :id"), {"id": request.key.job_id}
                )
                poke = pool and await mark_poked_if_useful(connection, pool)
                await failpoint("swap.before-commit")
        except SpareInUse as lent:
            await take_back(self._database, self._signals, request.key, lent.borrowers)
            wait = timedelta(seconds=min(activity.info().attempt, _LONGEST_WAIT))
            raise ApplicationError(
                str(lent), type=SpareInUse.__name__, next_retry_delay=wait
            ) from None
        await failpoint("swap.after-commit")
        # A retry cannot know whether the one before it got as far as the signal.
        if pool and (poke or activity.info().attempt > 1):
            await self._signals.poke_pool(pool)
        return reply


async def _swap(connection: AsyncConnection, request: SwapRequest) -> SwapReply:
    key = request.key
    following = PlacementKey(job_id=key.job_id, attempt=key.attempt + 1)
    row = {"id": key.job_id, "attempt": key.attempt}
    # First of all: whoever ends the job, and a second delivery of this, come before or after.
    job = await connection.execute(text(_LOCK_JOB), row)
    stored = job.mappings().one_or_none()
    if placement := await load_placement(connection, following):
        return SwapReply(placement=placement, reason=placement.reason)
    if stored is not None and stored["ended_at"] is None:
        await connection.execute(text(_LOCK_NODES), row)
        held = await connection.execute(text(_HELD), row | {"stops_within": STOPS_WITHIN})
        rows = held.mappings().all()
        failover = _failover(rows, stored_spec(key.job_id, stored["spec"]), request)
        taken = [swap.node.node_id for swap in failover.swaps]
        if taken and (borrowers := await borrowers_on(connection, key, taken)):
            raise SpareInUse(borrowers)
        if failover.swaps and await _carry_out(connection, request, rows, failover):
            placement = await load_placement(connection, following)
            return SwapReply(placement=placement, reason=failover.reason)
        why = failover.reason
    else:
        why = "the job has ended"
    await end_attempt(connection, key, request.end.value, request.message)
    return SwapReply(reason=why)


def _failover(rows: Sequence[RowMapping], spec: JobSpec | None, request: SwapRequest) -> Failover:
    if spec is None:
        return Failover(reason="its stored spec cannot be read")
    if spec.gang is None or not rows:
        return Failover(reason="it holds no nodes of a gang any more")
    ended = [row for row in rows if row["ended_at"] and not row["spare"]]
    if any(row["end_reason"] != LeaseEnd.NODE_LOST.value for row in ended):
        return Failover(reason="its leases have ended")
    decision = stored_decision(Decision, rows[0]["decision"])
    if decision is None:
        return Failover(reason="the stored decision of its nodes cannot be read")
    groups: dict[int, set[str]] = {}
    for member in decision.members:
        groups.setdefault(member.group, set()).add(member.node_id)
    return plan_failover(
        [_held(row, request.failed_on) for row in rows],
        [frozenset(groups[number]) for number in sorted(groups)],
        spec.gang,
    )


def _held(row: RowMapping, failed_on: str) -> HeldNode:
    # A node that does not name its fabric is there because the gang lets it: a domain of its own.
    labels = stored_labels(row["labels"]) or {}
    domain = domain_of_labels(row["node_id"], labels, unlabelled=True)
    assert domain is not None
    return HeldNode(
        rank=row["rank"], node_id=row["node_id"], epoch=row["epoch"],
        gpu_indices=seen_of(row), domain=domain.name, spare=row["spare"],
        lent=row["lent_to"] is not None, unfit=_why_unfit(row, failed_on),
    )  # fmt: skip


def _why_unfit(row: RowMapping, failed_on: str) -> str:
    if row["ended_at"]:
        return row["end_message"] or "its lease has ended"
    if row["epoch"] != row["live_epoch"]:
        return "its agent started anew"
    if row["state"] != NodeState.READY.value:
        return row["drain_reason"] or row["state_reason"] or f"it is {row['state'].lower()}"
    if row["does_not_stop"]:
        return f"{row['does_not_stop']}, to which it is lent, does not stop"
    return "its process failed there" if row["node_id"] == failed_on else ""


async def _carry_out(
    connection: AsyncConnection,
    request: SwapRequest,
    rows: Sequence[RowMapping],
    failover: Failover,
) -> bool:
    """End the attempt and begin the next; return False where the database refuses that."""
    key, by_rank = request.key, {swap.rank: swap.node for swap in failover.swaps}
    left = [swap.left for swap in failover.swaps]
    decision = decision_after(Decision.model_validate(rows[0]["decision"]), failover)
    stays = {node.rank for node in failover.spares}
    wanted: list[dict[str, Any]] = []
    for row in rows:
        node = by_rank.get(row["rank"])
        if row["spare"] and row["rank"] not in stays:
            continue
        wanted.append(
            {
                "rank": row["rank"],
                "node_id": node.node_id if node else row["node_id"],
                "epoch": node.epoch if node else row["epoch"],
                "gpu_indices": node.gpu_indices if node else seen_of(row),
                "decision": {} if row["rank"] else decision.model_dump(mode="json"),
            }
        )
    values = {
        "id": key.job_id, "attempt": key.attempt, "left": left, "end": request.end.value,
        "swapped": LeaseEnd.SWAPPED.value, "message": failover.reason[:2000],
        "rows": json.dumps(wanted),
    }  # fmt: skip
    try:
        async with connection.begin_nested():
            await connection.execute(text(_END), values)
            await connection.execute(text(_BEGIN), values)
            await carry_charges(connection, key.job_id, key.attempt)
    except IntegrityError:
        return False
    return True


_LOCK_JOB = "SELECT spec, ended_at FROM jobs WHERE id = :id FOR NO KEY UPDATE"

_LOCK_NODES = """
    SELECT FROM nodes n
     WHERE id IN (SELECT node_id FROM placements WHERE job_id = :id AND attempt = :attempt)
     ORDER BY id FOR NO KEY UPDATE
"""
"""So that none of them ends, or is closed, between the look and the commit."""

_HELD = f"""
    SELECT s.rank, s.spare, s.node_id, s.epoch, s.gpu_indices, s.idle, s.ended_at, s.end_reason,
           s.end_message, s.decision, n.epoch AS live_epoch, n.state, n.state_reason,
           n.drain_reason, n.labels, {LENT_TO} AS lent_to, {DOES_NOT_STOP} AS does_not_stop
      FROM placements s JOIN nodes n ON n.id = s.node_id
     WHERE s.job_id = :id AND s.attempt = :attempt
     ORDER BY s.rank
"""

_END = """
    UPDATE placements
       SET ended_at = clock_timestamp(), end_message = :message,
           end_reason = CASE WHEN node_id = ANY(:left) THEN :end ELSE :swapped END
     WHERE job_id = :id AND attempt = :attempt AND ended_at IS NULL
"""

_BEGIN = f"""
    WITH wanted AS (
        SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
            rank integer, node_id text, epoch integer, gpu_indices integer[], decision jsonb)
    ), placed AS (
        INSERT INTO placements ({PLACEMENT_COLUMNS})
        SELECT p.job_id, p.attempt + 1, w.rank, p.spare, p.cycle_id, w.node_id, w.epoch,
               CASE WHEN p.alone THEN s.gpu_indices ELSE w.gpu_indices END,
               p.cpu_milli, p.ram_mb, p.storage_mb_s,
               s.milliwatts * cardinality(w.gpu_indices)
                   / (cardinality(s.gpu_indices) - cardinality(s.idle)),
               p.vram_mb, p.milli, p.slices, p.mig_profile, p.expected_seconds, w.decision,
               p.waited, {ATTAINED}, p.learnt, p.alone,
               CASE WHEN p.alone
                    THEN ARRAY(SELECT unnest(s.gpu_indices) EXCEPT SELECT unnest(w.gpu_indices))
                    ELSE '{{}}' END, p.lendable, NULL
          FROM placements p
          JOIN wanted w USING (rank)
          JOIN placements s
            ON s.job_id = p.job_id AND s.attempt = p.attempt AND s.node_id = w.node_id
         WHERE p.job_id = :id AND p.attempt = :attempt
        RETURNING {LEASED_COLUMNS}
    )
    {GIVE_LEASES}
"""
"""What a GPU draws is its node's; all else is the rank's."""
