"""Reading the capacity database into the values that `scheduling` works on."""

import contextlib
from collections.abc import Callable, Collection, Hashable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.locality import with_locality
from longshore.activities.placements import BORROWS, SETTLED
from longshore.activities.queue_entries import QueueEntry, entry_of
from longshore.activities.stored_learnt import stored_learnt
from longshore.activities.stored_nodes import can_be_index, gpu_of, node_of, topology_of
from longshore.activities.stored_pools import stored_pool
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.margins import DEFAULT_MARGINS, Margins
from longshore.models.node import GPU, Node
from longshore.models.packing import PackingPolicy
from longshore.models.placement import PlacementKind, RunningJob
from longshore.models.pool import PoolSpec, no_such_pool
from longshore.models.serving import START_LIMIT
from longshore.models.units import Duration
from longshore.scheduling.durations import end_at, ends_of
from longshore.scheduling.order import QueuedJob, before, by_age, queue_order, seconds_ahead
from longshore.scheduling.placement.mix import remembered

_LIMIT: TypeAdapter[timedelta | None] = TypeAdapter(Duration | None)
SET_ASIDE_FOR = timedelta(minutes=10)
"""So long is a job left alone that was set aside; then it is tried again, as a newer version may
plan it."""


async def load_pool(
    connection: AsyncConnection, pool: str, margins: Margins = DEFAULT_MARGINS, *,
    known: bool = False,
) -> PoolSpec:  # fmt: skip
    """Return the pool's settings; the defaults where it has none.

    Who packs, or buys for that, gives the `margins` of its settings. With `known` the pool has to
    be there: raises NotFoundError otherwise. Raises StoredError where they cannot be read.
    """
    spec = await connection.scalar(
        text("SELECT spec FROM pools WHERE name = :pool"), {"pool": pool}
    )
    if spec is None and known:
        raise no_such_pool(pool, await connection.scalars(text("SELECT name FROM pools")))
    return stored_pool(pool, spec).within(margins)


async def load_nodes(
    connection: AsyncConnection, pool: str, only: Collection[str] | None = None
) -> tuple[Node, ...]:
    """Return the pool's nodes that have not gone, by id, with who holds each GPU; of those that
    are lost the ones that may come back.

    With `only` those of these ids.
    """
    values = _asked(pool, only)
    nodes = await connection.execute(text(_NODES.format(only=_only(only, "n.id"))), values)
    gpus: dict[str, list[GPU]] = {}
    # Thousands of GPUs, of which few differ: equal ones share one value.
    known: dict[tuple[int, int, int, str | None, int, str | None, int], GPU] = {}
    query = _GPUS.format(only=_only(only, "n.id", "g.node_id"))
    held = await connection.execute(text(query), values)
    for node_id, *columns in held:
        facts = tuple(columns)
        if not can_be_index(facts[0]):
            continue
        if facts not in known:
            known[facts] = gpu_of(*facts)
        gpus.setdefault(node_id, []).append(known[facts])
    # Machines of one make have one topology: read once, and one value in all of their nodes.
    read = lru_cache(topology_of)
    return tuple(node_of(row, tuple(gpus.get(row["id"], ())), read) for row in nodes.mappings())


async def load_simulated(connection: AsyncConnection, pool: str) -> frozenset[str]:
    """Return the ids of the pool's nodes whose GPUs come from flags."""
    rows = await connection.execute(
        text("SELECT id FROM nodes WHERE pool = :pool AND simulated"), {"pool": pool}
    )
    return frozenset(rows.scalars())


class PoolQueue(NamedTuple):
    entries: tuple[QueueEntry, ...]
    """In no order: `scheduling.order` puts them into one."""
    unreadable: dict[str, str]
    """Jobs that cannot be read, with why: another version took them."""


async def load_queue(connection: AsyncConnection, pool: str) -> tuple[QueueEntry, ...]:
    """Return the pool's queue, in no order, without jobs that cannot be planned."""
    return (await read_queue(connection, pool)).entries


async def read_queue(connection: AsyncConnection, pool: str) -> PoolQueue:
    """Return the pool's queue, without jobs that were set aside lately."""
    rows = await connection.execute(
        text(_QUEUE),
        {"pool": pool, "aside": PlacementKind.SET_ASIDE.value, "backoff": SET_ASIDE_FOR},
    )
    entries: list[QueueEntry] = []
    unreadable: dict[str, str] = {}
    known: dict[Hashable, JobRequest] = {}
    for row in rows.mappings():
        entry = entry_of(row, known)
        if isinstance(entry, QueueEntry):
            entries.append(entry)
        else:
            unreadable[row["job_id"]] = entry
    return PoolQueue(tuple(entries), unreadable)


async def is_longer(connection: AsyncConnection, pool: str, most: int) -> bool:
    """Return whether more jobs than so many wait in a pool, without those that are held."""
    query = "SELECT 1 FROM queue WHERE pool = :pool AND NOT held OFFSET :most LIMIT 1"
    rows = await connection.execute(text(query), {"pool": pool, "most": most})
    return rows.first() is not None


async def read_place(
    connection: AsyncConnection, pool: str, job_id: str, packing: PackingPolicy
) -> Callable[[], int | None]:
    """Return who says, from what is read here, a job's place in its pool's queue, from 1, those
    that are held counted; None where it has left it. To put a long queue into order takes long:
    it is for a time when the snapshot is over."""
    asked = {"pool": pool, "job": job_id}
    row = (await connection.execute(text(_IN_QUEUE), asked)).one_or_none()
    if row is None:
        return lambda: None
    *known, fills = row
    job = QueuedJob(*known)
    if packing.by_rank or packing.by_terms or packing.funding or packing.turns or fills:
        # It moves with time, with who pays or with whose turn it is, or is behind all: only who
        # has them all can say.
        entries = await load_queue(connection, pool)
        nodes = await load_nodes(connection, pool)
        running = await load_running(connection, pool)
        requests = [entry.request for entry in entries]
        held = {entry.request.id for entry in entries if entry.held}
        if packing.by_terms:
            requests, nodes = await with_locality(connection, pool, packing, requests, nodes)
        now = await clock(connection)

        def place() -> int:
            ordered = queue_order(requests, packing, now, nodes, running, held)
            places = (place for place, each in enumerate(ordered, 1) if each.id == job_id)
            return next(places, len(ordered) + 1)  # one that is set aside comes behind them

        return place
    classes, more, as_much = zip(*before(job, packing, await clock(connection)), strict=True)
    _, submitted, *_ = by_age(job, packing)
    ahead = await connection.scalar(
        text(_AHEAD),
        asked | {
            "classes": list(classes), "more": list(more), "as_much": list(as_much),
            "submitted": submitted, "ahead": seconds_ahead(packing), "attempt": job.attempt,
        },
    )  # fmt: skip
    return lambda: 1 + (ahead or 0)


async def load_running(
    connection: AsyncConnection, pool: str, only: Collection[str] | None = None, *,
    on_lent_spares: bool = False,
) -> tuple[RunningJob, ...]:  # fmt: skip
    """Return what holds GPUs of the pool's nodes, with when it should end as far as that is known
    now; or those that run on GPUs which others hold and lend as spares.

    With `only` on nodes of these ids.
    """
    whose = "" if on_lent_spares else "NOT"
    query = _RUNNING.format(only=_only(only, "n.id", "p.node_id"), whose=whose)
    rows = await connection.execute(text(query), _asked(pool, only))
    return tuple(map(_running, rows.mappings()))


def _running(row: RowMapping) -> RunningJob:
    ends = ends_of(stored_learnt(row["learnt"]), row["placed_at"], row["attained"])
    return RunningJob(
        job_id=row["job_id"],
        node_id=row["node_id"],
        gpu_indices=tuple([index for index in row["gpu_indices"] if can_be_index(index)]),
        vram_per_gpu=row["vram_mb"] / 1000,
        milli=row["milli"],
        slices=row["slices"],
        cpus=row["cpu_milli"] / 1000,
        ram=row["ram_mb"] / 1000,
        storage=row["storage_mb_s"] / 1000,
        power=row["milliwatts"] / 1000,
        expected_end=end_at(row["expected_end"], ends, row["now"]),
        ends=ends,
        since=row["since"],
        latest=_limit_of(row),
        spare=row["spare"],
        waited=row["waited"],
    )


def _limit_of(row: RowMapping) -> datetime | None:
    """Return when the time limit of a job ends it; None where somebody wrote nonsense."""
    try:
        limit = _LIMIT.validate_python(row["max_duration"])
        return None if limit is None else row["placed_at"] + limit
    except (ValidationError, OverflowError):
        return None


async def load_recent(connection: AsyncConnection, pool: str) -> tuple[RecentJobs, ...]:
    """Return the jobs that the pool placed lately, by shape: so many as for its nodes say what to
    expect (`scheduling.placement.mix.remembered`)."""
    nodes = await connection.scalar(text(_COUNT_NODES), {"pool": pool})
    asked = {
        "pool": pool, "placements": remembered(nodes or 0), "fields": _OF_SHAPE,
        "start_limit": START_LIMIT.total_seconds(),
    }  # fmt: skip
    rows = await connection.execute(text(_RECENT), asked)
    recent: list[RecentJobs] = []
    for row in rows.mappings():
        # None where somebody has written into the row: nothing to expect, as of older versions.
        shape = {"id": "recent", "needs_container": row["container"], **(row["shape"] or {})}
        with contextlib.suppress(ValidationError):
            request = JobRequest.model_validate(shape)
            recent.append(RecentJobs(request=request, count=row["count"], ended=row["ended"]))
    return tuple(recent)


def to_mb(gb: float) -> int:
    return round(gb * 1000)


def to_milli(cores: float) -> int:
    return round(cores * 1000)


def _only(only: Collection[str] | None, *columns: str) -> str:
    # Said of each table: PostgreSQL does not conclude it, and would read all of the others.
    return "" if only is None else " ".join(f"AND {column} = ANY(:only)" for column in columns)


def _asked(pool: str, only: Collection[str] | None) -> dict[str, object]:
    return {"pool": pool} if only is None else {"pool": pool, "only": list(only)}


WAITS_SINCE = "CASE WHEN held THEN clock_timestamp() ELSE queued_at END - waited"
"""Of a row of the queue. A job that is held does not wait; of others it never changes."""

_QUEUE = f"""
    SELECT job_id, attempt, held, queued_at, {WAITS_SINCE} AS waits_since, attained, submitted_at,
           CAST(CASE jsonb_typeof(request) WHEN 'object'
                THEN request - ARRAY['id', 'attempt', 'submitted_at'] ELSE request END AS text)
           AS request, can_stop, duration_known, learnt, tenant
      FROM queue
     WHERE pool = :pool
       AND (decision->>'kind' IS DISTINCT FROM :aside
            OR decided_at < clock_timestamp() - CAST(:backoff AS interval))
"""

_PATH_BEHIND = """
    CASE jsonb_typeof(request->'path_behind') WHEN 'number'
    THEN CAST(least(greatest(CAST(request->>'path_behind' AS numeric), 0), 1) AS float8)
    ELSE 0 END"""
_SUBMITTED = "CAST(extract(epoch FROM submitted_at) AS float8)"
_AHEAD_BY = f"""CASE CAST(:ahead AS float8) WHEN 0 THEN 0
                     ELSE CAST(:ahead AS float8) * {_PATH_BEHIND} END"""

_FILLS = "(request->'fills' = 'true') IS TRUE"

_IN_QUEUE = f"""
    SELECT job_id, attempt, priority, submitted_at, {WAITS_SINCE} AS waits_since,
           {_PATH_BEHIND} AS path_behind, {_FILLS} AS fills
      FROM queue WHERE pool = :pool AND job_id = :job
"""

_AHEAD = f"""
    SELECT count(*)
      FROM queue q
      JOIN unnest(CAST(:classes AS integer[]), CAST(:more AS timestamptz[]),
                  CAST(:as_much AS timestamptz[])) AS before (priority, more, as_much)
           USING (priority)
     WHERE pool = :pool AND NOT {_FILLS}
       AND ({WAITS_SINCE} <= before.more
            OR {WAITS_SINCE} <= before.as_much
               AND ({_SUBMITTED} - {_AHEAD_BY}, job_id COLLATE "C", attempt)
                   < (:submitted, :job, :attempt))
"""
"""`scheduling.order` says who is before whom: `before`, and `by_age`. Of a job that does not only
fill: those that do are behind it."""

_NODES = """
    SELECT id, block_id, provider, tier, gpu_type, cpu_milli, cpu_milli_used, ram_mb, ram_mb_used,
           storage_mb_s, storage_mb_s_used, milliwatts, milliwatts_used, gpu_milliwatts,
           expires_at, state, state_reason, clearing, container_runtime, agent_protocol, labels,
           epoch, CAST(topology AS text) AS topology, conformance, accepted, b.price
      FROM nodes n
      LEFT JOIN (SELECT id AS bought, nullif(price_micro_per_gpu_hour, 0) AS price
                   FROM blocks) b ON b.bought = n.block_id
     WHERE pool = :pool AND state <> 'GONE' {only}
       AND (state <> 'LOST' OR NOT EXISTS (SELECT FROM machines m
                                            WHERE m.name = n.id AND m.state = 'ENDED'))
     ORDER BY id COLLATE "C"
"""
"""A bought machine that has ended does not come back: no job waits for it. (Its end marks the node
as changed, see `activities.buying.machine_ends`.)"""

_GPUS = """
    SELECT g.node_id, g.index, g.vram_mb, g.vram_mb_used, l.job_id,
           CASE g.kind WHEN 'share' THEN g.milli_used ELSE 0 END, CAST(g.mig AS text),
           g.slices_used
      FROM gpus g
      JOIN nodes n ON n.id = g.node_id AND n.pool = :pool AND n.state <> 'GONE' {only}
      LEFT JOIN leases l
        ON l.node_id = g.node_id AND l.gpu_index = g.index AND l.ended_at IS NULL
       AND l.milli = 1000 AND l.borrowed_from IS NULL
     ORDER BY g.node_id, g.index
"""
"""Who holds a GPU whole; who has a part of it, `_RUNNING` says."""

_RUNNING = f"""
    SELECT p.job_id, p.node_id, p.gpu_indices, p.vram_mb, p.milli, p.slices, p.cpu_milli,
           p.ram_mb, p.storage_mb_s, p.milliwatts, p.spare,
           greatest(least(p.waited, interval '3653 days'), interval '0') AS waited,
           least(p.placed_at + make_interval(secs => p.expected_seconds), d.frees_by)
           AS expected_end, p.placed_at, p.attained, clock_timestamp() AS now,
           CASE WHEN d.frees_by IS NULL THEN p.learnt END AS learnt,
           CASE WHEN d.frees_by IS NULL AND j.spec->>'expected_duration' IS NULL
                THEN p.placed_at - least(p.attained, interval '3653 days') END AS since,
           CASE WHEN d.frees_by IS NULL
                 AND NOT EXISTS (SELECT FROM array_slots s WHERE s.job_id = p.job_id)
                THEN j.spec->>'max_duration' END AS max_duration
      FROM placements p
      JOIN nodes n ON n.id = p.node_id AND n.pool = :pool {{only}}
      JOIN jobs j ON j.id = p.job_id
      LEFT JOIN preemptions d
        ON d.job_id = p.job_id AND d.attempt = p.attempt AND NOT {SETTLED}
     WHERE p.ended_at IS NULL AND {{whose}} {BORROWS} ORDER BY p.job_id
"""
"""A job that is being stopped for another gives its GPUs back when it has saved. One on a lent
spare gives nothing back: the spare holds what it uses. The time limit of a slot is one of each
element, and ends no slot."""

_OF_SHAPE = sorted(
    JobRequest.model_fields.keys() & JobSpec.model_fields.keys()
    - {"priority", "tenant", "gang", "storage_bandwidth", "power_per_gpu", "data", "max_duration",
       "start_below", "engine"}
)  # fmt: skip
"""Fields of a spec that tell jobs apart of which more are to be expected."""

_COUNT_NODES = "SELECT count(*) FROM nodes WHERE pool = :pool AND state <> 'GONE'"

_RECENT = """
    WITH latest AS MATERIALIZED (
        SELECT (SELECT spec FROM jobs WHERE id = p.job_id) AS spec,
               p.ended_at IS NOT NULL AS ended,
               CASE WHEN p.learnt IS NOT NULL THEN p.expected_seconds END AS learnt
          FROM cycles c JOIN placements p ON p.cycle_id = c.id AND p.rank = 0
         WHERE c.pool = :pool ORDER BY c.committed_at DESC LIMIT :placements
    ), shapes AS (
        SELECT (SELECT jsonb_object_agg(key, value) FROM jsonb_each(j.spec)
                 WHERE key = ANY(:fields))
               || CASE WHEN learnt IS NULL THEN '{}'::jsonb
                       ELSE jsonb_build_object('expected_duration', learnt) END
               || CASE WHEN jsonb_typeof(j.spec #> '{engine,model}') = 'object'
                       THEN jsonb_build_object('serves', true, 'loads_within',
                            coalesce(j.spec #> '{engine,model,start_limit}',
                                     to_jsonb(CAST(:start_limit AS float8))))
                       ELSE '{}'::jsonb END AS shape,
               j.spec->>'image' IS NOT NULL AS container, j.ended
          FROM latest j
         WHERE j.spec->>'gang' IS NULL AND jsonb_typeof(j.spec) = 'object'
    )
    SELECT shape, container, count(*) AS count, count(*) FILTER (WHERE ended) AS ended
      FROM shapes GROUP BY shape, container ORDER BY shape, container
"""
"""The specs are looked up one by one: in a join PostgreSQL expects that next to none of them says
what it asks of them, and finds the latest placements anew for each job that there is."""
