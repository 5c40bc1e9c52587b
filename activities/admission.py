"""Why a pool never takes new work, whoever starts it, and as what: a job, an array, a DAG."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.dag_rows import is_on_record
from longshore.activities.database import clock
from longshore.activities.ever_held import EverHeld
from longshore.activities.funding.refusals import why_never_taken
from longshore.activities.snapshot import load_pool
from longshore.models.dag import DagSpec
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.pool import Growth, PoolSpec
from longshore.models.problems import bounded
from longshore.scheduling.advice import advice
from longshore.scheduling.time_limits import why_too_long, with_limit
from longshore.scheduling.unready_nodes import in_the_way_for_good
from longshore.scheduling.words import format_rejected


async def is_slot(connection: AsyncConnection, job_id: str) -> bool:
    """Return whether a job is a slot: its array was taken with a time limit, or with none,
    whatever its pool says by now."""
    is_slot = "SELECT FROM array_slots WHERE job_id = :id"
    return (await connection.execute(text(is_slot), {"id": job_id})).first() is not None


async def why_never(
    connection: AsyncConnection,
    job_id: str,
    spec: JobSpec,
    pool: PoolSpec,
    submitted_at: datetime,
    attempt: int = 1,
) -> str:
    """Return why the pool never takes the job, or the array: for its time limit, for a quota of
    its tenant that is less than the job alone, for a sponsor that there is not, or because it is
    fixed and no node of it could ever hold the job.
    Empty where it may.

    Nodes are asked about new work alone: what was taken waits for those that start again."""
    if attempt > 1:
        return ""
    why = why_too_long(spec, pool)
    if why and not await is_slot(connection, job_id):
        return why
    (why,) = await why_never_taken(
        connection, [(JobRequest.of(job_id, spec, submitted_at, 1), spec)]
    )
    if why or pool.growth is Growth.OPEN or await _was_taken(connection, job_id):
        return why
    return await _why_no_node(job_id, spec, pool, EverHeld(connection, spec.pool))


async def why_no_dag(
    connection: AsyncConnection, dag_id: str, spec: DagSpec, submitted_at: datetime
) -> tuple[str, ...]:
    """Return for each job of a new DAG that its pool would never take why not, as ``NAME: why``.

    Of one that is on record none: what was taken stays, whatever its pools take by now."""
    if await is_on_record(connection, dag_id):
        return ()
    pools: dict[str, tuple[PoolSpec, EverHeld]] = {}
    known: dict[str, str] = {}
    refused: list[str] = []
    for name, each in spec.jobs.items():
        job = each.spec
        if job.pool not in pools:
            pool = await load_pool(connection, job.pool)
            pools[job.pool] = pool, EverHeld(connection, job.pool)
        pool, held = pools[job.pool]
        asked = JobRequest.of("", job, submitted_at, 1)
        same = f"{asked.model_dump_json()} {job.pool} {job.max_duration} {job.funding}"
        if same not in known:
            why = why_too_long(job, pool)
            why = why or (await why_never_taken(connection, [(asked, job)]))[0]
            if not why and pool.growth is not Growth.OPEN:
                why = await _why_no_node("", job, pool, held)
            known[same] = why
        if known[same]:
            refused.append(f"{name}: {known[same]}")
    return tuple(bounded(refused))


async def _why_no_node(job_id: str, spec: JobSpec, pool: PoolSpec, held: EverHeld) -> str:
    now = await clock(held.connection)
    spec = with_limit(spec, pool)
    job = JobRequest.of(job_id, spec, now, 1)
    nodes = await held.nodes_if_none_could(job, now)
    return "" if nodes is None else never_held(job, spec, pool, nodes, now)


async def _was_taken(connection: AsyncConnection, job_id: str) -> bool:
    """Return whether the pool has taken the job before, or the array, DAG or service it is of."""
    return bool(await connection.scalar(text(_TAKEN), {"id": job_id}))


def never_held(
    job: JobRequest, spec: JobSpec, pool: PoolSpec, nodes: Sequence[Node], now: datetime
) -> str:
    """Return why these nodes of a fixed pool could never hold the job, which is so."""
    if not nodes:
        return (
            f"pool {spec.pool} has no nodes, and is fixed: start one (`longshore agent --pool "
            f"{spec.pool}`), have jobs wait for nodes (`longshore pool set {spec.pool} --growth "
            "open`), or name another pool"
        )
    rejections = in_the_way_for_good(job, nodes, pool.packing, now)
    counts = format_rejected(Counter(each.code for each in rejections))
    helps = advice(job, rejections, nodes, now, pool=spec.pool)
    what = "no nodes together" if spec.gang else "no node"
    return (
        f"{what} of pool {spec.pool} could ever hold {job.smallest.gpus} x "
        f"{spec.gpu_type or 'any GPU'} for it ({counts}), and the pool is fixed: "
        f"{'; or '.join((*helps, 'name another pool'))} (`longshore nodes` lists what there is)"
    )


_TAKEN = """
    SELECT EXISTS (SELECT FROM queue WHERE job_id = :id)
        OR EXISTS (SELECT FROM placements WHERE job_id = :id)
        OR EXISTS (SELECT FROM array_slots WHERE job_id = :id)
        OR EXISTS (SELECT FROM dag_jobs WHERE job_id = :id)
        OR EXISTS (SELECT FROM replicas WHERE job_id = :id)
"""
