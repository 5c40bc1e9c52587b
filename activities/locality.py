"""What nodes hold already: data, images, and checkpoints of jobs that left.

Of what nodes fetch themselves, and of images, counts what their agents say that they hold. Data
that a job sees to itself nobody sees: whatever a job with that name fetched to its node's disk is
likely to be there still when the next comes. Cycles are told, and the pool's weight `locality`
says what that is worth. A job that was preempted or held finds its checkpoint on the node that it
left; on another node it has to be restored from the store.
"""

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.data import READY
from longshore.models.job_request import JobRequest, checkpoint_name
from longshore.models.messages import LeaseEnd
from longshore.models.node import Node
from longshore.models.packing import PackingPolicy
from longshore.models.placement import CyclePlan
from longshore.models.preemption import RunningWork

KEPT_FOR = timedelta(days=7)
"""Data that nobody used for so long is taken to be gone."""
_PARTS = 4
"""What a node has of a data set counts by quarters."""
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


async def with_locality_of_both(
    connection: AsyncConnection, pool: str, packing: PackingPolicy,
    waiting: Sequence[JobRequest], works: tuple[RunningWork, ...], nodes: tuple[Node, ...],
) -> tuple[list[JobRequest], tuple[RunningWork, ...], tuple[Node, ...]]:  # fmt: skip
    """Return what waits and what runs with their data as `with_locality` has it, and the nodes
    with what they hold of it. Where the order weighs data, both are ranked by the same."""
    ranked = works if packing.ranks_by_data else ()
    asked = [*waiting, *(work.request for work in ranked)]
    jobs, nodes = await with_locality(connection, pool, packing, asked, nodes)
    located = tuple(
        work if request is work.request else work.model_copy(update={"request": request})
        for work, request in zip(ranked, jobs[len(waiting) :], strict=True)
    )
    return jobs[: len(waiting)], located or works, nodes


async def with_locality_beside(
    connection: AsyncConnection, pool: str, packing: PackingPolicy, job: JobRequest,
    nodes: tuple[Node, ...],
) -> tuple[JobRequest, tuple[Node, ...]]:  # fmt: skip
    """Return a job more with its data as `with_locality` has it, and the nodes with what they hold
    of that beside what others want."""
    (job,), held = await load_locality(connection, pool, packing, [job])
    return job, tuple(
        _holding(node, tuple(sorted({*node.data, *held.get(node.id, ())}))) for node in nodes
    )


async def load_locality(
    connection: AsyncConnection, pool: str, packing: PackingPolicy, queue: Sequence[JobRequest]
) -> tuple[list[JobRequest], dict[str, tuple[str, ...]]]:
    """Return the queue as `with_locality` does, and what each node holds of what it wants."""
    if not packing.reads_data:
        return list(queue), {}
    held: dict[str, set[str]] = {}
    wanted = sorted({name for job in queue for name in job.data})
    in_part = set[str]()
    if wanted:
        rows = await connection.execute(
            text(_DATA), {"pool": pool, "names": wanted, "within": KEPT_FOR}
        )
        found = [(row.node_id, row.name, row.part) for row in rows]
        in_part = {name for _, name, part in found if part < READY}
        for node_id, name, part in found:
            names = _parts(name)[: int(part * _PARTS)] if part < READY else _parts(name)
            held.setdefault(node_id, set()).update(names if name in in_part else (name,))
    checkpoints: dict[str, dict[str, float]] = {}
    if again := [job.id for job in queue if job.attempt > 1 and job.gang is None]:
        rows = await connection.execute(text(_CHECKPOINTS), {"ids": again, "left": _LEFT})
        for row in rows:
            name = checkpoint_name(row.job_id)
            checkpoints[row.job_id] = {name: row.bytes / 1e9}
            held.setdefault(row.node_id, set()).add(name)
    jobs = [_with_checkpoint(_parted(job, in_part), checkpoints.get(job.id, {})) for job in queue]
    return jobs, {node_id: tuple(sorted(names)) for node_id, names in held.items()}


async def note_data(
    connection: AsyncConnection,
    queue: Sequence[JobRequest],
    decided: CyclePlan,
    placed: Collection[str],
) -> None:
    """Remember that the jobs that were placed use, on their nodes, the data that they see to
    themselves. Of the rest, whose names have a space, agents say what is there."""
    data = {
        job.id: [name for name in job.data if " " not in name] for job in queue if job.id in placed
    }
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


def _parts(name: str) -> tuple[str, ...]:
    """Return the names of the parts of a data set that some node has in part."""
    return tuple(f"{name} ({part}/{_PARTS})" for part in range(1, _PARTS + 1))


def _parted(job: JobRequest, in_part: AbstractSet[str]) -> JobRequest:
    """Return a job with the parts of what some node has in part, each a data set of its own: so
    that a node with half of it counts half."""
    if in_part.isdisjoint(job.data):
        return job
    data = {
        part: (size or 1.0) / _PARTS if name in in_part else size
        for name, size in job.data.items()
        for part in (_parts(name) if name in in_part else (name,))
    }
    return job.model_copy(update={"data": data})


def _with_checkpoint(job: JobRequest, checkpoint: dict[str, float]) -> JobRequest:
    return job.model_copy(update={"data": job.data | checkpoint}) if checkpoint else job


def _holding(node: Node, held: tuple[str, ...] | None) -> Node:
    return node.model_copy(update={"data": held}) if held else node


_DATA = """
    SELECT node_id, name, max(part) AS part
      FROM (SELECT d.node_id,
                   CASE WHEN d.source = '' THEN d.name
                        ELSE 'data ' || d.source || ' of ' || d.tenant END AS name,
                   CASE WHEN NOT d.held OR d.total = 0 THEN 1
                        ELSE CAST(d.bytes AS double precision) / d.total END AS part
              FROM node_data d JOIN nodes n ON n.id = d.node_id
             WHERE n.pool = :pool AND n.state = 'READY'
               AND (d.held OR d.used_at > clock_timestamp() - CAST(:within AS interval))) AS here
     WHERE name = ANY(:names)
     GROUP BY node_id, name
"""
"""Names as `models.placement.fetched_name` makes them."""

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
    ON CONFLICT (node_id, name, tenant, source) DO UPDATE SET used_at = clock_timestamp()
"""

_FORGET = """
    DELETE FROM node_data d USING nodes n
     WHERE n.id = d.node_id AND n.pool = :pool AND NOT d.held
       AND d.used_at <= clock_timestamp() - CAST(:within AS interval)
"""
