"""What nodes hold already: data that jobs named and used there, and checkpoints of jobs that left.

Longshore copies no data. Whatever a job with `data` fetched to its node's disk is likely to be
there still when the next job with that name comes; so cycles are told, and the pool's weight
`locality` says what that is worth. A job that was preempted or held finds its checkpoint on the
node that it left; on another node it has to be restored from the store.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.messages import LeaseEnd
from longshore.models.node import Node
from longshore.models.packing import PackingPolicy
from longshore.models.placement import CyclePlan, JobRequest

KEPT_FOR = timedelta(days=7)
"""Data that nobody used for so long is taken to be gone."""
_LEFT = [LeaseEnd.PREEMPTED.value, LeaseEnd.HELD.value, LeaseEnd.RESIZED.value]
"""Ends after which nothing is wrong with the node."""


async def with_locality(
    connection: AsyncConnection,
    pool: str,
    packing: PackingPolicy,
    queue: Sequence[JobRequest],
    nodes: tuple[Node, ...],
) -> tuple[list[JobRequest], tuple[Node, ...]]:
    """Return the queue with the checkpoints that its jobs go on from, and the nodes with what they
    hold of all that the queue wants; both as they are where the pool gives nothing for it."""
    jobs, held = await load_locality(connection, pool, packing, queue)
    return jobs, tuple(_holding(node, held.get(node.id)) for node in nodes) if held else nodes


async def load_locality(
    connection: AsyncConnection, pool: str, packing: PackingPolicy, queue: Sequence[JobRequest]
) -> tuple[list[JobRequest], dict[str, tuple[str, ...]]]:
    """Return the queue as `with_locality` does, and what each node holds of what it wants."""
    if not packing.weights.locality:
        return list(queue), {}
    held: dict[str, set[str]] = {}
    wanted = sorted({name for job in queue for name in job.data})
    if wanted:
        rows = await connection.execute(
            text(_DATA), {"pool": pool, "names": wanted, "within": KEPT_FOR}
        )
        for row in rows:
            held.setdefault(row.node_id, set()).add(row.name)
    checkpoints: dict[str, dict[str, float]] = {}
    if again := [job.id for job in queue if job.attempt > 1 and job.gang is None]:
        rows = await connection.execute(text(_CHECKPOINTS), {"ids": again, "left": _LEFT})
        for row in rows:
            name = f"checkpoint of {row.job_id}"
            checkpoints[row.job_id] = {name: row.bytes / 1e9}
            held.setdefault(row.node_id, set()).add(name)
    jobs = [_with_checkpoint(job, checkpoints.get(job.id, {})) for job in queue]
    return jobs, {node_id: tuple(sorted(names)) for node_id, names in held.items()}


async def note_data(
    connection: AsyncConnection,
    queue: Sequence[JobRequest],
    decided: CyclePlan,
    placed: Collection[str],
) -> None:
    """Remember that the jobs that were placed use their data on their nodes."""
    data = {job.id: job.data for job in queue if job.id in placed}
    used = {
        (node_id, name)
        for decision in decided.placements
        for name in data.get(decision.job_id, ())
        for node_id, _ in decision.by_node
    }
    if used:
        rows = [{"node": node_id, "name": name} for node_id, name in sorted(used)]
        await connection.execute(text(_NOTE), rows)


async def forget_data(connection: AsyncConnection, pool: str) -> None:
    """Drop what nodes of a pool are taken not to hold any more."""
    await connection.execute(text(_FORGET), {"pool": pool, "within": KEPT_FOR})


def _with_checkpoint(job: JobRequest, checkpoint: dict[str, float]) -> JobRequest:
    return job.model_copy(update={"data": job.data | checkpoint}) if checkpoint else job


def _holding(node: Node, held: tuple[str, ...] | None) -> Node:
    return node.model_copy(update={"data": held}) if held else node


_DATA = """
    SELECT d.node_id, d.name
      FROM node_data d JOIN nodes n ON n.id = d.node_id
     WHERE n.pool = :pool AND n.state = 'READY' AND d.name = ANY(:names)
       AND d.used_at > clock_timestamp() - CAST(:within AS interval)
"""

_CHECKPOINTS = """
    SELECT j.id AS job_id, p.node_id,
           coalesce((SELECT bytes FROM job_checkpoints c WHERE c.job_id = j.id
                      ORDER BY c.attempt DESC, c.number DESC LIMIT 1), 0) AS bytes
      FROM jobs j
     CROSS JOIN LATERAL (SELECT node_id, end_reason FROM placements WHERE job_id = j.id
                          ORDER BY attempt DESC, rank LIMIT 1) p
     WHERE j.id = ANY(:ids) AND p.end_reason = ANY(:left)
       AND j.spec->'checkpoint'->>'store' = 'true'
"""
"""A job without a checkpoint of its own, or with one on storage that all nodes see, is the same
everywhere."""

_NOTE = """
    INSERT INTO node_data (node_id, name) VALUES (:node, :name)
    ON CONFLICT (node_id, name) DO UPDATE SET used_at = clock_timestamp()
"""

_FORGET = """
    DELETE FROM node_data d USING nodes n
     WHERE n.id = d.node_id AND n.pool = :pool
       AND d.used_at <= clock_timestamp() - CAST(:within AS interval)
"""
