"""What growth is decided from: malleable jobs that run on fewer GPUs than they are to have, and
what idle GPUs would bring otherwise."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.placements import BORROWS
from longshore.activities.preemption_inputs import FRESH, load_running_work
from longshore.activities.stored_specs import stored_spec
from longshore.models.buying import BuyingPolicy
from longshore.models.elastic import Malleable
from longshore.models.growth import Elastic, IdleNode, RankChange
from longshore.models.job_request import JobRequest
from longshore.models.messages import LeaseEnd
from longshore.models.placement import RunningJob
from longshore.models.pool import PoolSpec
from longshore.scheduling.buying.costs import SHORTEST_RESALE
from longshore.scheduling.growth_times import REMEMBERED
from longshore.scheduling.speedup import Stretch, measured

MOST = 256
"""Malleable jobs of a pool that one look reads."""


async def running_malleable(connection: AsyncConnection, pool: str) -> dict[str, bool]:
    """Return the pool's malleable jobs that run, of the oldest `MOST`, by id: whether each may
    lose a rank and go on."""
    rows = await connection.execute(text(_MALLEABLE), {"pool": pool, "most": MOST})
    return {row.id: row.in_place for row in rows}


async def load_elastic(
    connection: AsyncConnection,
    spec: PoolSpec,
    running: Collection[RunningJob],
    ids: Collection[str],
    store_away: str = "",
) -> tuple[Elastic, ...]:
    """Return those of these jobs that run on fewer GPUs than they are to have, by id.

    `running` is what `load_running` says in the same snapshot; `store_away` as in `read_inputs`.
    """
    works = await load_running_work(
        connection, spec.name, spec.preemption, running, store_away, only=ids
    )
    now = await clock(connection)
    values = {
        "ids": list(ids), "since": REMEMBERED,
        "ends": [LeaseEnd.RESIZED.value, LeaseEnd.PREEMPTED.value],
    }  # fmt: skip
    rows = (await connection.execute(text(_PAST), values)).mappings()
    past = {row["id"]: row for row in rows}
    stretches: dict[str, list[Stretch]] = {}
    for row in await connection.execute(text(_STRETCHES), {"ids": list(ids)}):
        stretch = Stretch(row.gpus, row.steps, row.time)
        stretches.setdefault(row.job_id, []).append(stretch)
    found: list[Elastic] = []
    for work in works:
        row = past[work.id]
        job_spec = stored_spec(work.id, row["spec"])
        if job_spec is None or job_spec.malleable is None:
            continue
        attempt = work.request.attempt
        asked = JobRequest.of(work.id, job_spec, row["submitted_at"], attempt + 1)
        had = {"attained": work.request.attained, "waits_since": now - work.waited}
        job = Elastic(
            work=work,
            asked=asked.model_copy(update=had),
            measured=measured(stretches.get(work.id, ())),
            changed_at=tuple(row["changed_at"] or ()),
            rank_changes=tuple(
                RankChange.model_validate(each) for each in row["rank_changes"] or ()
            ),
        )
        if job.gpus < job.sizes.target:
            done = _done(row["saves"] or (), attempt, job.sizes)
            found.append(job.model_copy(update={"done": done}))
    return tuple(found)


async def load_idle(
    connection: AsyncConnection, spec: PoolSpec, names: Collection[str]
) -> dict[str, IdleNode]:
    """Return what the idle GPUs of these nodes cost, and since when they are idle: by the last
    placements there that ended, and by when the node registered."""
    values = {"names": list(names), "fresh": FRESH, "since": REMEMBERED + spec.grow_after}
    nodes = (await connection.execute(text(_NODES), values)).mappings().all()
    freed: dict[str, dict[int, Any]] = {}
    for row in (await connection.execute(text(_FREED), values)).mappings():
        freed.setdefault(row["node_id"], {})[row["gpu"]] = row["freed_at"]
    return {
        row["id"]: IdleNode(
            price=_price(row, spec.buying),
            ready_since=row["registered_at"],
            freed_at=freed.get(row["id"], {}),
        )
        for row in nodes
    }


def _done(saves: Sequence[Mapping[str, Any]], attempt: int, sizes: Malleable) -> float:
    """Return what attempts before this one saved, as seconds of one GPU."""
    return sum(
        max(save["seconds"], 0.0) * sizes.speed(save["gpus"])
        for save in saves
        if save["attempt"] < attempt
    )


def _price(row: RowMapping, policy: BuyingPolicy) -> int:
    """Return what a GPU-hour of a node would bring, were it not used. Paid time is resold as
    buying expects it: see `scheduling.buying.costs`."""
    if row["price"] is None:
        return 0
    if row["by_use"]:
        return row["price"]
    left = row["left"]
    resells = policy.resell and left is not None and left >= SHORTEST_RESALE
    if not resells or row["bid"] is None:
        return 0
    hoped = row["bid"] * policy.resale_share * (1 - policy.resale_fee)
    return round(min(hoped, row["price"]))


_MALLEABLE = """
    SELECT j.id, coalesce(j.spec #> '{malleable,in_place}' = 'true', false) AS in_place
      FROM placements p JOIN jobs j ON j.id = p.job_id
     WHERE p.ended_at IS NULL AND p.rank = 0 AND j.pool = :pool
       AND jsonb_typeof(j.spec -> 'malleable') = 'object'
     ORDER BY j.submitted_at, j.id LIMIT :most
"""

_PAST = """
    SELECT j.id, j.spec, j.submitted_at,
           (SELECT array_agg(DISTINCT c.at ORDER BY c.at)
              FROM placements e
              JOIN placements first ON first.job_id = e.job_id AND first.attempt = e.attempt
               AND first.rank = 0
             CROSS JOIN LATERAL (
                   SELECT e.ended_at AS at
                    WHERE e.end_reason = ANY(:ends)
                      AND (e.rank = 0 OR first.ended_at IS DISTINCT FROM e.ended_at)
                    UNION ALL SELECT e.placed_at WHERE e.joined) c
             WHERE e.job_id = j.id
               AND c.at > clock_timestamp() - CAST(:since AS interval)) AS changed_at,
           (SELECT json_agg(json_build_object('at', c.at, 'gpus', c.gpus) ORDER BY c.at)
              FROM placements e
              JOIN placements first ON first.job_id = e.job_id AND first.attempt = e.attempt
               AND first.rank = 0 AND first.ended_at IS NULL
             CROSS JOIN LATERAL (
                   SELECT e.ended_at AS at, cardinality(e.gpu_indices) AS gpus
                    WHERE e.ended_at IS NOT NULL
                    UNION ALL SELECT e.placed_at, -cardinality(e.gpu_indices) WHERE e.joined) c
             WHERE e.job_id = j.id AND NOT e.spare) AS rank_changes,
           (SELECT json_agg(json_build_object('attempt', a.attempt, 'gpus', a.gpus,
                            'seconds', extract(epoch FROM s.saved_at - a.placed_at)))
              FROM (SELECT attempt, max(saved_at) AS saved_at FROM job_checkpoints
                     WHERE job_id = j.id GROUP BY attempt) s
              JOIN LATERAL (SELECT e.attempt, min(e.placed_at) AS placed_at,
                                   sum(cardinality(e.gpu_indices)) FILTER
                                   (WHERE (e.ended_at IS NULL OR e.ended_at >= s.saved_at
                                           OR e.ended_at = first.ended_at)
                                      AND NOT (e.joined AND e.placed_at > s.saved_at)) AS gpus
                              FROM placements e
                              JOIN placements first ON first.job_id = e.job_id
                               AND first.attempt = e.attempt AND first.rank = 0
                             WHERE e.job_id = j.id AND e.attempt = s.attempt AND NOT e.spare
                             GROUP BY e.attempt) a
                ON a.gpus > 0) AS saves
      FROM jobs j
     WHERE j.id = ANY(:ids)
"""

_STRETCHES = """
    WITH changes AS (
         SELECT DISTINCT p.job_id, p.attempt, c.at
           FROM placements p CROSS JOIN LATERAL (VALUES (p.placed_at), (p.ended_at)) AS c (at)
          WHERE p.job_id = ANY(:ids) AND NOT p.spare AND c.at IS NOT NULL),
    stretches AS (
         SELECT *, lead(at) OVER (PARTITION BY job_id, attempt ORDER BY at) AS until FROM changes)
    SELECT s.job_id, g.gpus, max(c.step) - min(c.step) AS steps,
           max(c.saved_at) - min(c.saved_at) AS time
      FROM stretches s
     CROSS JOIN LATERAL (
           SELECT sum(cardinality(p.gpu_indices)) AS gpus, array_agg(DISTINCT n.gpu_type) AS types
             FROM placements p JOIN nodes n ON n.id = p.node_id
            WHERE p.job_id = s.job_id AND p.attempt = s.attempt AND NOT p.spare
              AND p.placed_at <= s.at AND (p.ended_at IS NULL OR p.ended_at > s.at)) g
      JOIN job_checkpoints c ON c.job_id = s.job_id AND c.attempt = s.attempt
       AND c.step IS NOT NULL AND c.saved_at >= s.at
       AND (s.until IS NULL OR c.saved_at < s.until)
     -- On other GPUs a step takes another time.
     WHERE g.types = (SELECT array_agg(DISTINCT n.gpu_type)
                        FROM placements p JOIN nodes n ON n.id = p.node_id
                       WHERE p.job_id = s.job_id AND p.ended_at IS NULL AND NOT p.spare)
       AND g.gpus > 0
     GROUP BY s.job_id, s.attempt, s.at, g.gpus
"""

_NODES = """
    SELECT n.id, n.registered_at, nullif(b.price_micro_per_gpu_hour, 0) AS price,
           coalesce(o.is_machine, false) AS by_use, b.ends_at - clock_timestamp() AS left,
           (SELECT m.best_bid FROM market_books m
             WHERE m.provider = b.provider AND m.instance_type = b.instance_type
               AND m.observed_at > clock_timestamp() - CAST(:fresh AS interval)
             ORDER BY m.observed_at DESC LIMIT 1) AS bid
      FROM nodes n
      LEFT JOIN blocks b ON b.id = n.block_id
      LEFT JOIN orders o ON o.key = b.id
     WHERE n.id = ANY(:names)
"""

_FREED = f"""
    SELECT p.node_id, gpu, max(p.ended_at) AS freed_at
      FROM placements p
      JOIN nodes n ON n.id = p.node_id AND n.epoch = p.epoch
     CROSS JOIN LATERAL unnest(p.gpu_indices) AS gpu
     WHERE p.node_id = ANY(:names) AND NOT {BORROWS}
       AND p.ended_at > clock_timestamp() - CAST(:since AS interval)
     GROUP BY p.node_id, gpu
"""
