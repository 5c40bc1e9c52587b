"""What a decision about preemption is made from: a pool's queue, its nodes, and what runs there
with what it would cost to stop it."""

import asyncio
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from activities.checkpoint_store import CheckpointStore
from activities.checkpointing import info_of
from activities.snapshot import load_nodes, load_pool, load_queue, load_running
from models.base import Frozen
from models.checkpoint import CheckpointInfo, CheckpointsSeen
from models.errors import DamagedError, StoreError
from models.job import JobSpec
from models.messages import LeaseEnd
from models.node import Node
from models.placement import JobRequest, RunningJob
from models.pool import PoolSpec
from models.preemption import PreemptionPolicy, RunningWork, WorkCheckpoint

_AT_ONCE = 8
"""Reads of the checkpoint store."""


class PreemptionInputs(Frozen):
    """A pool as it is now."""

    spec: PoolSpec
    nodes: tuple[Node, ...]
    running: tuple[RunningWork, ...]
    queue: tuple[JobRequest, ...]
    """In order, without jobs that are held."""


async def read_inputs(
    connection: AsyncConnection, pool: str, seen: CheckpointsSeen | None = None
) -> PreemptionInputs:
    """Return what is to be decided on; without `seen`, nothing is known of any save.

    A job's saves count only where `seen` names them: nobody is stopped in the hope of one.
    """
    spec = await load_pool(connection, pool)
    queue = await load_queue(connection, pool)
    return PreemptionInputs(
        spec=spec,
        nodes=await load_nodes(connection, pool),
        running=await load_running_work(
            connection, pool, spec.preemption, seen or CheckpointsSeen()
        ),
        queue=tuple(entry.request for entry in queue if not entry.held),
    )


async def load_running_work(
    connection: AsyncConnection, pool: str, policy: PreemptionPolicy, seen: CheckpointsSeen
) -> tuple[RunningWork, ...]:
    """Return the jobs that run on the pool's nodes, by id, each with all of its nodes.

    The price is the mean of its blocks', by its GPUs; on nodes that were not bought, the policy's.
    """
    shares: dict[str, list[RunningJob]] = {}
    for share in await load_running(connection, pool):
        shares.setdefault(share.job_id, []).append(share)
    rows = await connection.execute(
        text(_WORK),
        {
            "pool": pool, "owned": policy.owned_gpu_price,
            "preempted": LeaseEnd.PREEMPTED.value,
        },
    )  # fmt: skip
    newest = {info.job_id: info for info in seen.newest}
    away = seen.reason if seen.away_since else ""
    works: list[RunningWork] = []
    for row in rows.mappings():
        spec = JobSpec.model_validate(row["spec"])
        held = tuple(shares[row["id"]])
        works.append(
            RunningWork(
                request=JobRequest.of(row["id"], spec, row["submitted_at"], row["attempt"]),
                tenant=spec.tenant,
                shares=held,
                started_at=row["placed_at"],
                expected_end=max(share.expected_end for share in held),
                checkpoint=_checkpoint(spec, newest.get(row["id"])),
                no_store=away if spec.checkpoint and spec.checkpoint.store else "",
                preemptible=getattr(spec, "preemptible", True),
                preempted_at=tuple(row["preempted_at"] or ()),
                price=round(row["price"]),
            )
        )
    return tuple(works)


async def see_checkpoints(
    store: CheckpointStore, job_ids: Iterable[str], now: datetime
) -> CheckpointsSeen:
    """Return the newest whole checkpoint of each of these jobs, or why the store is away."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(job_id: str) -> CheckpointInfo | None:
        async with gate:
            return await asyncio.to_thread(_newest, store, job_id)

    try:
        found = await asyncio.gather(*(one(job_id) for job_id in sorted(job_ids)))
    except StoreError as error:
        return CheckpointsSeen(away_since=now, reason=str(error))
    return CheckpointsSeen(newest=tuple(info for info in found if info is not None))


async def savers_of(connection: AsyncConnection, pool: str) -> tuple[str, ...]:
    """Return the running jobs of a pool whose saves go to the checkpoint store."""
    rows = await connection.execute(text(_SAVERS), {"pool": pool})
    return tuple(
        row.id
        for row in rows
        if (saves := JobSpec.model_validate(row.spec).checkpoint) and saves.store
    )


def _newest(store: CheckpointStore, job_id: str) -> CheckpointInfo | None:
    whole = store.newest(job_id)
    if whole is None:
        return None
    try:
        return info_of(tuple(store.manifest(job_id, name) for name in whole.manifests))
    except DamagedError:
        return None  # what cannot be read is no save


def _checkpoint(spec: JobSpec, info: CheckpointInfo | None) -> WorkCheckpoint | None:
    contract = spec.checkpoint
    if contract is None:
        return None
    known = WorkCheckpoint(grace=contract.grace, saves_while_running=contract.can_be_asked)
    if info is None:
        return known
    write = info.write_seconds
    return WorkCheckpoint.model_validate(
        {**known.model_dump(), "saved_at": info.saved_at, "write": write, "size": info.bytes / 1e9}
    )


_WORK = """
    SELECT j.id, j.spec, j.submitted_at, p.attempt, min(p.placed_at) AS placed_at,
           sum(coalesce(b.price_micro_per_gpu_hour, :owned) * cardinality(p.gpu_indices))
             / sum(cardinality(p.gpu_indices)) AS price,
           (SELECT array_agg(DISTINCT e.ended_at ORDER BY e.ended_at) FROM placements e
             WHERE e.job_id = j.id AND e.end_reason = :preempted AND e.rank = 0) AS preempted_at
      FROM placements p
      JOIN jobs j ON j.id = p.job_id
      JOIN nodes n ON n.id = p.node_id AND n.pool = :pool
      LEFT JOIN blocks b ON b.id = n.block_id AND b.price_micro_per_gpu_hour > 0
     WHERE p.ended_at IS NULL
     GROUP BY j.id, p.attempt ORDER BY j.id
"""

_SAVERS = """
    SELECT DISTINCT ON (j.id) j.id, j.spec
      FROM placements p
      JOIN jobs j ON j.id = p.job_id
      JOIN nodes n ON n.id = p.node_id AND n.pool = :pool
     WHERE p.ended_at IS NULL ORDER BY j.id
"""
