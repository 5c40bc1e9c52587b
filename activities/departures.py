"""Drains a node: plans who leaves now, cordons the node, tells the jobs.

Everything here may run twice: a job hears of its attempt, and the second time changes nothing.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.database import Database, clock
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.placements import end_spare
from longshore.activities.pokes import mark_poked, services_on
from longshore.activities.signals import Signals
from longshore.activities.stored_learnt import stored_learnt
from longshore.activities.stored_specs import UNKNOWN, stored_spec
from longshore.models.departures import (
    Cause,
    DeparturePlan,
    DepartureRequest,
    ExpiryChange,
    ExpiryRow,
    Leaving,
    Margins,
    Occupant,
)
from longshore.models.messages import InterruptRequest, LeaseEnd
from longshore.models.node import NodeState
from longshore.models.placement import Placement, PlacementKey
from longshore.scheduling.departures import needs_a_look, plan_departures
from longshore.scheduling.durations import end_at, ends_of


class DepartureActivities:
    """Activities of `NodeWorkflow` for the jobs that are to leave its node."""

    def __init__(self, database: Database, signals: Signals, margins: Margins) -> None:
        self._database = database
        self._signals = signals
        self._margins = margins

    @activity.defn
    @reports_errors
    async def see_off(self, request: DepartureRequest) -> DeparturePlan:
        """Ask the jobs to go whose time has come; return the plan, of which only that is done.

        The node takes no job any more once its plan says so, and takes them again when a plan no
        longer does, unless somebody has cordoned it. A registration that is over has no jobs.
        """
        async with self._database.transaction() as connection:
            node = await _lock_node(connection, request)
            if node is None:
                return DeparturePlan()
            plan = await self._plan(connection, request, node)
            await _give_up_spares(connection, request, plan)
            changed = await _set_cordon(connection, request.node_id, plan.cordon)
            look = changed or activity.info().attempt > 1
            services = await services_on(connection, request.node_id) if look else ()
            poke = changed == NodeState.READY and await mark_poked(connection, node["pool"])
            await failpoint("see_off.before-commit")
        await failpoint("see_off.after-commit")
        # A retry cannot know whether the one before it got as far as the signal.
        if poke or (not plan.cordon and activity.info().attempt > 1):
            await self._signals.poke_pool(node["pool"])
        await self._signals.poke_services(services)
        gone = await self._signals.tell_jobs(
            "move",
            [
                (each.key.job_id, InterruptRequest(attempt=each.key.attempt, reason=each.reason))
                for each in plan.departures
                if not each.spare
            ],
        )
        if gone:
            activity.logger.warning("%s will not hear of it: reconcile tells", ", ".join(gone))
        return plan

    @activity.defn
    @reports_errors
    async def set_expiry(self, row: ExpiryRow) -> ExpiryChange | None:
        """Write when a node ends, and return it: what is placed from now on is measured by that.

        A bought node ends when the ledger says so: who tells it may have read that earlier than
        another who was quicker to tell. None came of older versions, which wrote what they were
        told.
        """
        async with self._database.transaction() as connection:
            pool = await connection.scalar(
                text("UPDATE nodes SET expires_at = :at WHERE id = :id AND epoch = :epoch"
                     " RETURNING pool"),
                {"id": row.node_id, "epoch": row.epoch, "at": row.expires_at},
            )  # fmt: skip
            poke = pool and await mark_poked(connection, pool)
            expires_at = await end_as_bought(connection, row.node_id) if pool else None
        # A retry cannot know whether the one before it got as far as the signal.
        if pool and (poke or activity.info().attempt > 1):
            await self._signals.poke_pool(pool)
        return ExpiryChange(expires_at=expires_at or row.expires_at)

    async def _plan(
        self, connection: AsyncConnection, request: DepartureRequest, node: RowMapping
    ) -> DeparturePlan:
        rows = await connection.execute(
            text(_OCCUPANTS), {"id": request.node_id, "epoch": request.epoch}
        )
        occupants = [occupant_of(row) for row in rows.mappings()]
        now = await clock(connection)
        leavings = [*request.leavings, *_end_of_time(node["expires_at"])]
        plan = plan_departures(occupants, leavings, self._margins, now, node["state_since"])
        return plan.model_copy(update={"expires_at": node["expires_at"]})


class NodeLooks:
    """Has nodes that end look again where a job came that may have to go before that."""

    def __init__(self, database: Database, signals: Signals, margins: Margins) -> None:
        self._database = database
        self._signals = signals
        self._margins = margins

    async def after(self, placements: Sequence[Placement]) -> None:
        """Tell the nodes of these placements: few, and none that has no end."""
        if any(rank.node_expires_at for each in placements for rank in each.by_rank):
            async with self._database.transaction() as connection:
                nodes = await _to_look(connection, placements, self._margins)
            await self._signals.look_at_nodes(nodes)


async def end_as_bought(connection: AsyncConnection, node_id: str) -> datetime | None:
    """Have a bought node end with its block, the one that it goes on into, or its time for sale.

    Return when that is; None of a node that was not bought.
    """
    return await connection.scalar(text(_AS_BOUGHT), {"id": node_id})


async def _to_look(
    connection: AsyncConnection, placements: Sequence[Placement], margins: Margins
) -> tuple[str, ...]:
    now = await clock(connection)
    ends = {
        (rank.node_id, placement.job_id): rank.node_expires_at
        for placement in placements
        for rank in placement.by_rank
        if rank.node_expires_at is not None
    }
    rows = await connection.execute(
        text("SELECT id, spec FROM jobs WHERE id = ANY(:ids)"),
        {"ids": sorted({job_id for _, job_id in ends})},
    )
    specs = {row.id: stored_spec(row.id, row.spec) or UNKNOWN for row in rows}
    soon = {
        node_id
        for (node_id, job_id), expires_at in ends.items()
        if (spec := specs.get(job_id))
        and needs_a_look(spec.grace, spec.checkpoint is not None, expires_at, margins, now)
    }
    return tuple(sorted(soon))


def occupant_of(row: RowMapping) -> Occupant:
    """Return what is known of a job on a node; where only a spare of it is there, nothing runs.

    It probably ends when a cycle expects it: as it states, else as is learnt of it.
    """
    spec, spare = stored_spec(row["job_id"], row["spec"]) or UNKNOWN, row["spare"]
    ends = ends_of(stored_learnt(row["learnt"]), row["placed_at"], row["attained"])
    return Occupant(
        key=PlacementKey(job_id=row["job_id"], attempt=row["attempt"]),
        grace=timedelta(0) if spare else spec.grace,
        saves=spec.checkpoint is not None and not spare,
        expected_end=end_at(_end_of(row["placed_at"], spec.likely_duration), ends, row["now"]),
        spare=spare,
        replica=spec.engine is not None and not spare,
    )


def _end_of(placed_at: datetime, expected: timedelta) -> datetime:
    try:
        return placed_at + expected
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def _end_of_time(expires_at: datetime | None) -> list[Leaving]:
    if expires_at is None:
        return []
    reason = f"its node ends at {expires_at:%Y-%m-%d %H:%M:%S} UTC"
    return [Leaving(cause=Cause.EXPIRY, reason=reason, by=expires_at)]


async def _lock_node(connection: AsyncConnection, request: DepartureRequest) -> RowMapping | None:
    """Keep placements off the node until the end of the transaction; return its pool, its end and
    since when it is as it is.

    None where the registration is over.
    """
    found = await connection.execute(
        text("SELECT pool, expires_at, state_since FROM nodes WHERE id = :id AND epoch = :epoch"
             " AND state IN ('READY', 'DRAINING') FOR UPDATE"),
        {"id": request.node_id, "epoch": request.epoch},
    )  # fmt: skip
    return found.mappings().one_or_none()


async def _give_up_spares(
    connection: AsyncConnection, request: DepartureRequest, plan: DeparturePlan
) -> None:
    """End the spares that leave: nothing of them runs, so nobody has to be asked."""
    for each in plan.departures:
        if each.spare:
            await end_spare(connection, each.key, request.node_id, LeaseEnd.MOVED, each.reason)


async def _set_cordon(connection: AsyncConnection, node_id: str, reason: str) -> str | None:
    """Write whether the node takes jobs, and why it takes none; return its state where that is
    another, or has another reason."""
    change = _CORDON if reason else _UNCORDON
    return await connection.scalar(text(change), {"id": node_id, "reason": reason})


_OCCUPANTS = """
    SELECT p.job_id, p.attempt, min(p.placed_at) AS placed_at, j.spec, bool_and(p.spare) AS spare,
           (array_agg(p.learnt) FILTER (WHERE p.learnt IS NOT NULL))[1] AS learnt,
           max(p.attained) AS attained, clock_timestamp() AS now
      FROM placements p JOIN jobs j ON j.id = p.job_id
     WHERE p.node_id = :id AND p.epoch <= :epoch AND p.ended_at IS NULL
     GROUP BY p.job_id, p.attempt, j.id
     ORDER BY p.job_id
"""

_CORDON = """
    UPDATE nodes SET state = 'DRAINING', state_reason = :reason, clearing = true,
           state_since = CASE WHEN state = 'READY' THEN clock_timestamp() ELSE state_since END
     WHERE id = :id AND (state = 'READY' OR NOT clearing OR state_reason <> :reason)
    RETURNING state
"""

_UNCORDON = """
    UPDATE nodes SET state = CASE WHEN drain_reason IS NULL THEN 'READY' ELSE 'DRAINING' END,
           state_reason = coalesce(drain_reason, ''), clearing = false,
           state_since = CASE WHEN drain_reason IS NULL THEN clock_timestamp()
                              ELSE state_since END
     WHERE id = :id AND state = 'DRAINING' AND (drain_reason IS NULL OR clearing)
    RETURNING state
"""
"""What somebody has shut stays so, and for that reason again."""

_AS_BOUGHT = """
    UPDATE nodes n
       SET block_id = m.block_id,
           expires_at = coalesce(s.starts_at, after.ends_at, b.ends_at, n.expires_at)
      FROM machines m
      JOIN blocks b ON b.id = m.block_id
      LEFT JOIN orders s ON s.key = m.sale_key
      LEFT JOIN block_nodes k ON k.block_id = b.id AND k.node_id = m.name
      LEFT JOIN blocks after ON after.id = k.next_block
     WHERE m.name = n.id AND n.id = :id
    RETURNING n.expires_at
"""
