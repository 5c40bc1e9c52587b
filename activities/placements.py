"""Placements: their rows and leases, and what of them is signalled to their jobs."""

from collections.abc import Sequence

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.stored_decisions import stored_reason
from longshore.models.messages import LeaseEnd
from longshore.models.placement import Placed, Placement, PlacementKey, Rank

PLACEMENT_COLUMNS = """job_id, attempt, rank, spare, cycle_id, node_id, epoch, gpu_indices,
    cpu_milli, ram_mb, storage_mb_s, milliwatts, vram_mb, milli, slices, mig_profile,
    expected_seconds, decision, waited, attained, learnt, alone, idle, lendable, borrowed_from"""
LEASED_COLUMNS = """job_id, attempt, rank, node_id, epoch, gpu_indices, vram_mb, milli, slices,
    mig_profile, idle, borrowed_from"""
GIVE_LEASES = """
    INSERT INTO leases (job_id, attempt, rank, node_id, epoch, gpu_index, vram_mb, milli, slices,
                        mig_profile, tenant, borrowed_from)
    SELECT p.job_id, p.attempt, p.rank, p.node_id, p.epoch, g.index,
           CASE WHEN g.index = ANY(p.idle) THEN 0 ELSE p.vram_mb END, p.milli, p.slices,
           p.mig_profile, j.tenant, p.borrowed_from
      FROM placed p
      JOIN jobs j ON j.id = p.job_id
     CROSS JOIN LATERAL unnest(p.gpu_indices) AS g (index)
    RETURNING job_id
"""
"""Ends a statement whose `placed` are LEASED_COLUMNS of the placements that it has made."""

BORROWS = "(p.borrowed_from IS NOT NULL AND p.kept_at IS NULL)"
"""Of a placement `p` that is live: a gang's spare holds its GPUs, and all that it uses beside them
on its node."""
HELD_SINCE = """CASE WHEN p.borrowed_from IS NULL THEN p.placed_at
                     ELSE coalesce(p.kept_at, p.ended_at, clock_timestamp()) END"""
"""Of a placement `p`: from when on it has held its GPUs itself, and no spare of another job."""

ATTAINED = """least(p.attained + greatest(
        least(coalesce((SELECT max(c.saved_at) FROM job_checkpoints c
                         WHERE c.job_id = p.job_id AND c.attempt = p.attempt), p.placed_at),
              coalesce(p.ended_at, clock_timestamp())) - p.placed_at,
        interval '0'), interval '3653 days')"""
"""Of a placement `p`: for how long its job has held its GPUs by its last save, over all attempts.
What is in no save the next attempt does not go on from. A node's clock may be ahead."""

SETTLED = """EXISTS (SELECT FROM placements e
                      WHERE e.job_id = d.job_id AND e.attempt = d.attempt
                        AND e.end_reason IN ('resized', 'node-lost')
                        AND e.ended_at > d.decided_at)"""
"""Of a preemption `d`: a part of the attempt has left, for it or with its node, and the rest goes
on."""


def placement_of(rows: Sequence[RowMapping]) -> Placed:
    """Return a placement as it is signalled to its job, from its rows joined with their nodes'.

    One row for each node, by rank, its spares last.
    """
    first = rows[0]
    ranks = tuple(rank_of(row) for row in rows if not row["spare"])
    return Placed(
        job_id=first["job_id"], attempt=first["attempt"], rank=first["rank"],
        node_id=first["node_id"], epoch=first["epoch"],
        gpu_indices=seen_of(first), slices=first["slices"],
        cycle_id=first["cycle_id"], placed_at=first["placed_at"],
        node_expires_at=first["expires_at"],
        simulated=first["simulated"], reason=stored_reason(first["decision"]),
        ranks=ranks if len(ranks) > 1 else (),
        spares=tuple(rank_of(row) for row in rows if row["spare"] and not row["over"]),
    )  # fmt: skip


def rank_of(row: RowMapping) -> Rank:
    """Return a rank from its row, joined with its node's."""
    return Rank(
        rank=row["rank"], node_id=row["node_id"], epoch=row["epoch"],
        gpu_indices=seen_of(row), address=row["address"],
        expires_at=row["expires_at"], joined=row.get("joined", False),
    )  # fmt: skip


def seen_of(row: RowMapping) -> tuple[int, ...]:
    """Return the GPUs of a rank that its process sees: not those that it only holds."""
    idle = row["idle"]
    return tuple([index for index in row["gpu_indices"] if index not in idle])


async def end_spare(
    connection: AsyncConnection, key: PlacementKey, node_id: str, end: LeaseEnd, message: str
) -> bool:
    """End what stands by for a gang on a node; return whether anything did. Nothing of it runs, so
    nobody has to be asked, and the gang goes on."""
    ended = await connection.execute(
        text(_END_SPARE),
        {
            "job": key.job_id, "attempt": key.attempt, "id": node_id, "reason": end.value,
            "message": message[:2000],
        },
    )  # fmt: skip
    return ended.rowcount > 0


async def load_placement(connection: AsyncConnection, key: PlacementKey) -> Placement | None:
    """Return an attempt's placement, unless its leases ended otherwise than with a node."""
    return await _load(connection, key, "o.ended_at IS NULL OR o.end_reason = :lost")


async def load_as(
    connection: AsyncConnection, key: PlacementKey, *, live: bool
) -> Placement | None:
    """Return an attempt's placement where one of its ranks holds leases, or else where one does
    not any more."""
    return await _load(connection, key, f"o.ended_at IS {'' if live else 'NOT '}NULL")


async def _load(connection: AsyncConnection, key: PlacementKey, ended: str) -> Placement | None:
    """Return the placement of an attempt of which one rank, `o`, has ended so, or not at all."""
    rows = await connection.execute(
        text(_PLACEMENT.format(ended=ended)),
        {"id": key.job_id, "attempt": key.attempt, "lost": LeaseEnd.NODE_LOST.value},
    )
    found = rows.mappings().all()
    return placement_of(found) if found else None


_PLACEMENT = """
    SELECT p.job_id, p.attempt, p.rank, p.spare, p.node_id, p.epoch, p.gpu_indices, p.idle,
           p.slices, p.cycle_id, p.placed_at, p.decision, p.ended_at IS NOT NULL AS over,
           n.address, n.expires_at, n.simulated
      FROM placements p JOIN nodes n ON n.id = p.node_id
     WHERE p.job_id = :id AND p.attempt = :attempt
       AND EXISTS (SELECT FROM placements o
                    WHERE o.job_id = p.job_id AND o.attempt = p.attempt AND NOT o.spare
                      AND ({ended}))
     ORDER BY p.rank
"""

_END_SPARE = """
    UPDATE placements
       SET ended_at = clock_timestamp(), end_reason = :reason, end_message = :message
     WHERE job_id = :job AND attempt = :attempt AND node_id = :id AND spare AND ended_at IS NULL
"""
