"""Commits a plan as far as it holds: takes its jobs out of the queue, gives them their leases."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.funding.planning import Settlement
from longshore.activities.placements import GIVE_LEASES, LEASED_COLUMNS, PLACEMENT_COLUMNS
from longshore.activities.snapshot import to_mb, to_milli
from longshore.models.job_request import JobRequest
from longshore.models.messages import CycleRequest
from longshore.models.mig import slices_gb
from longshore.models.node import Node
from longshore.models.placement import CyclePlan, Decision
from longshore.scheduling.placement.state import idle_gpus


async def commit(
    connection: AsyncConnection,
    request: CycleRequest,
    decided: CyclePlan,
    queue: Sequence[JobRequest],
    nodes: Sequence[Node],
    settlement: Settlement | None = None,
) -> set[str]:
    """Commit those placements of a cycle that still hold; return whose they are.

    The cycle is noted where there are any. A job that has left the queue, a node of another epoch,
    GPUs taken since: the database refuses. With who pays for them, and for what runs, where a
    `settlement` says so.
    """
    if decided.placements:
        await connection.execute(
            text(
                "INSERT INTO cycles (id, pool, queued, placed, refused, took_ms)"
                " VALUES (:id, :pool, 0, 0, 0, 0)"
            ),
            {"id": request.cycle_id, "pool": request.pool},
        )
    jobs = {job.id: job for job in queue}
    by_id = {node.id: node for node in nodes}
    by_job = [rows_of(decision, jobs[decision.job_id], by_id) for decision in decided.placements]
    if settlement is None:
        return await _place(connection, request.cycle_id, by_job)
    while True:
        # Nodes before envelopes, as whoever ends a placement locks them.
        savepoint = await connection.begin_nested()
        placed = await _place(connection, request.cycle_id, by_job)
        # What the database has refused takes nothing from anybody.
        its = settlement.of_those(placed)
        await its.settle(connection)
        unpaid = await its.pay_for(connection, placed)
        if not unpaid:
            await savepoint.commit()
            return placed
        await savepoint.rollback()
        by_job = [rows for rows in by_job if rows[0]["job_id"] not in unpaid]


async def _place(
    connection: AsyncConnection, cycle_id: str, by_job: Sequence[Sequence[Mapping[str, Any]]]
) -> set[str]:
    if not by_job:
        return set()
    # All at once is the rule; job by job only when the database refused a part of it.
    placed = await _insert(connection, cycle_id, [row for rows in by_job for row in rows])
    if placed is None:
        one_by_one = [await _insert(connection, cycle_id, rows) for rows in by_job]
        placed = {job_id for jobs_placed in one_by_one for job_id in jobs_placed or ()}
    return placed


async def _insert(
    connection: AsyncConnection, cycle_id: str, rows: Sequence[Mapping[str, Any]]
) -> set[str] | None:
    """Take the rows out of the queue and place them; return the jobs that were still there.

    None when the database refuses any.
    """
    try:
        async with connection.begin_nested():
            result = await connection.execute(
                text(_PLACE), {"rows": json.dumps(rows), "cycle": cycle_id}
            )
            return {row.job_id for row in result}
    except (IntegrityError, DataError):
        return None


def rows_of(
    decision: Decision, job: JobRequest, nodes: Mapping[str, Node], first_rank: int = 0
) -> list[dict[str, Any]]:
    """Return a row for each node of a placement, its spares last; the decision stands with the
    first. `job` is of the size that it has with `first_rank` ranks before these."""
    rows: list[dict[str, Any]] = []
    if not first_rank:
        job = job.at_size(sum(len(gpus) for _, gpus in decision.by_node))
    ranks = first_rank + len(decision.by_node)
    for rank, (node_id, gpu_indices) in enumerate(decision.held, first_rank):
        idle = idle_gpus(job, nodes[node_id], gpu_indices)
        host = job.share_of(len(gpu_indices), nodes[node_id].gpu_power)
        rows.append(
            {
                "job_id": job.id,
                "attempt": job.attempt,
                "rank": rank,
                "spare": rank >= ranks,
                "node_id": node_id,
                "epoch": nodes[node_id].epoch,
                "gpu_indices": sorted([*gpu_indices, *idle]),
                "alone": job.sensitive,
                "idle": idle,
                "lendable": rank >= ranks and job.gang is not None and job.gang.lend_spares,
                "borrowed_from": decision.borrowed_from,
                "cpu_milli": to_milli(host.cpus),
                "ram_mb": to_mb(host.ram),
                "storage_mb_s": to_mb(host.storage),
                "milliwatts": to_milli(host.power),
                "vram_mb": to_mb(_vram(job, nodes[node_id], gpu_indices[0], decision.slices)),
                "milli": 0 if job.mig else job.milli,
                "slices": decision.slices,
                "mig_profile": job.mig,
                "expected_seconds": job.expected_duration.total_seconds(),
                "decision": {} if rank > first_rank else decision.model_dump(mode="json"),
            }
        )
    return rows


def _vram(job: JobRequest, node: Node, gpu_index: int, slices: int) -> float:
    """Return the GB that the job takes of each of its GPUs."""
    if job.mig is None:
        return job.vram_per_gpu
    return slices_gb(next(gpu.vram for gpu in node.gpus if gpu.index == gpu_index), slices)


WANTED = """wanted AS (
        SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
            job_id text, attempt integer, rank integer, spare boolean, node_id text,
            epoch integer, gpu_indices integer[], alone boolean, idle integer[],
            lendable boolean, borrowed_from text,
            cpu_milli bigint, ram_mb bigint, storage_mb_s bigint, milliwatts bigint,
            vram_mb bigint, milli integer, slices integer, mig_profile text,
            expected_seconds double precision, decision jsonb)
    )"""
"""What `rows_of` says, as a table."""

_PLACE = f"""
    WITH {WANTED}, taken AS (
        DELETE FROM queue q USING wanted w
         WHERE q.job_id = w.job_id AND q.attempt = w.attempt AND w.rank = 0 AND NOT q.held
        RETURNING q.job_id, q.waited + (clock_timestamp() - q.queued_at) AS waited, q.attained,
                  q.learnt
    ), placed AS (
        INSERT INTO placements ({PLACEMENT_COLUMNS})
        SELECT job_id, attempt, rank, spare, :cycle, node_id, epoch, gpu_indices, cpu_milli,
               ram_mb, storage_mb_s, milliwatts, vram_mb, milli, slices, mig_profile,
               expected_seconds, decision, waited, attained, learnt, alone, idle,
               lendable, borrowed_from
          FROM wanted JOIN taken USING (job_id)
        RETURNING {LEASED_COLUMNS}
    )
    {GIVE_LEASES}
"""
