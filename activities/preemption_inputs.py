"""What a decision about preemption is made from: a pool's queue, its nodes, and what runs there
with what it would cost to stop it."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from heapq import nlargest

from pydantic import ValidationError
from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.locality import with_locality_of_both
from longshore.activities.placements import SETTLED
from longshore.activities.pool_cache import CachedPool
from longshore.activities.serving.engine_turns import with_engine_turns
from longshore.activities.snapshot import (
    load_nodes,
    load_queue,
    load_recent,
    load_running,
)
from longshore.activities.stored_learnt import stored_learnt
from longshore.activities.stored_specs import stored_spec
from longshore.activities.usage import load_pool_to_plan
from longshore.models.base import Frozen
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest, RecentJobs
from longshore.models.margins import DEFAULT_MARGINS, Margins
from longshore.models.messages import LeaseEnd
from longshore.models.node import Node
from longshore.models.placement import RunningJob
from longshore.models.pool import PoolSpec
from longshore.models.preemption import (
    BuyQuote,
    GainedGPUs,
    PreemptionPlan,
    PreemptionPolicy,
    PreemptionUnderWay,
    RunningEngine,
    RunningWork,
    SeenPrice,
    WorkCheckpoint,
)
from longshore.models.serving import EngineStage
from longshore.models.units import LONGEST, MOST
from longshore.scheduling.durations import end_at, with_learnt
from longshore.scheduling.funding.where_paid import where_paid
from longshore.scheduling.preemption.quotes import rough_quote
from longshore.scheduling.preemption.what_if import held_by

FRESH = timedelta(minutes=15)
"""Prices that are older say nothing of what a market asks now."""


class PreemptionInputs(Frozen):
    """A pool as it is now."""

    spec: PoolSpec
    nodes: tuple[Node, ...]
    running: tuple[RunningWork, ...]
    queue: tuple[JobRequest, ...]
    """In no order, without jobs that are held; malleable ones as of their smallest size."""
    recent: tuple[RecentJobs, ...] = ()
    """Placed lately, as a cycle knows them."""
    under_way: tuple[PreemptionUnderWay, ...] = ()
    """The jobs for which others are being stopped now."""
    prices: tuple[SeenPrice, ...] = ()
    """What markets asked of late, where the pool buys."""
    due: tuple[str, ...] = ()
    """Jobs that wait on though what they were told first of their start has passed, where tenants
    have budgets."""

    def quotes(self, now: datetime) -> dict[str, BuyQuote]:
        """Return what it would probably cost to buy for each job that waits; nothing is bought
        for one that no budget pays for."""
        unfunded = self.spec.packing.unfunded
        found = {
            job.id: rough_quote(job, self.prices, self.spec.purchasing, now)
            for job in self.queue
            if job.id not in unfunded
        }
        return {job_id: quote for job_id, quote in found.items() if quote is not None}


async def read_inputs(
    connection: AsyncConnection, pool: str, store_away: str = "", kept: CachedPool | None = None,
    margins: Margins = DEFAULT_MARGINS, wanted: Collection[str] = (),
) -> PreemptionInputs:  # fmt: skip
    """Return what is to be decided on.

    `kept` is the pool in the snapshot of `connection`, where it is known: of a long queue those
    are read then for which others may be stopped, and the `wanted` ones. `store_away` says why
    the checkpoint store is away, empty where it is there. Saves count as far as they have been
    observed (`activities.checkpoints.rows`): nobody is stopped in the hope of one.
    """
    spec = await load_pool_to_plan(connection, pool, margins)
    if kept is None:
        waiting = [entry.request for entry in await load_queue(connection, pool) if not entry.held]
        nodes = await load_nodes(connection, pool)
        shares = await load_running(connection, pool)
    else:
        entries = kept.queue.waiting(await clock(connection)).entries
        waiting = [entry.request for entry in entries.values()]
        nodes, shares = kept.nodes.nodes, kept.nodes.running
    works = await load_running_work(connection, pool, spec.preemption, shares, store_away)
    stops = (await connection.execute(text(_UNDER_WAY), {"pool": pool})).mappings().all()
    if kept is not None:
        wanted = {*wanted, *(row["for_job"] for row in stops)}
        to_come = kept.nodes.open_gpus + _most_freed(works, spec.preemption)
        now = await clock(connection)
        some = kept.queue.to_make_room(
            to_come, kept.nodes.gpus, spec.packing, now, wanted, kept.nodes.nodes
        )
        waiting = waiting if some is None else some
    paid = where_paid(waiting, spec.packing.funding, everyone=True)
    waiting = [job.smallest for job in paid]
    served = {*(row["for_job"] for row in stops), *spec.packing.turns}
    waiting = await with_engine_turns(
        connection, pool, waiting, works, spec.preemption, await clock(connection), served
    )
    queue, works, nodes = await with_locality_of_both(
        connection, pool, spec.packing, waiting, works, nodes
    )
    return PreemptionInputs(
        spec=spec,
        nodes=nodes,
        running=works,
        queue=tuple(queue),
        recent=await load_recent(connection, pool) if spec.packing.rule.learns else (),
        under_way=_under_way(stops, queue, nodes),
        prices=await _prices(connection) if spec.buying.enabled else (),
        due=await _due(connection, spec),
    )


async def load_running_work(
    connection: AsyncConnection,
    pool: str,
    policy: PreemptionPolicy,
    running: Iterable[RunningJob],
    store_away: str = "",
    only: Collection[str] | None = None,
) -> tuple[RunningWork, ...]:
    """Return the jobs that run on the pool's nodes, by id, each with all of its nodes, by id,
    without those whose spec cannot be read. With `only` those of these ids.

    `running` is what `load_running` says in the same snapshot.

    The price is the mean of its blocks', by its GPUs; on nodes that were not bought, the policy's.
    """
    shares: dict[str, list[RunningJob]] = {}
    wanted = [share for share in running if only is None or share.job_id in only]
    for share in sorted(wanted, key=lambda share: share.node_id):
        shares.setdefault(share.job_id, []).append(share)
    preempted = LeaseEnd.PREEMPTED.value
    values: dict[str, object] = {
        "pool": pool, "owned": policy.owned_gpu_price, "preempted": preempted,
        "resized": LeaseEnd.RESIZED.value,
    }  # fmt: skip
    if only is not None:
        values["only"] = list(only)
    query = _WORK.format(only="" if only is None else "AND p.job_id = ANY(:only)")
    rows = await connection.execute(text(query), values)
    return tuple(
        _work(row, spec, tuple(shares[row["id"]]), store_away)
        for row in rows.mappings()
        if row["id"] in shares and (spec := stored_spec(row["id"], row["spec"])) is not None
    )


def _work(
    row: RowMapping, spec: JobSpec, shares: tuple[RunningJob, ...], store_away: str
) -> RunningWork:
    request = JobRequest.of(row["id"], spec, row["submitted_at"], row["attempt"])
    request = request.model_copy(update={"attained": row["attained"]})
    request = with_learnt(request, stored_learnt(row["learnt"]))
    return RunningWork(
        request=request.smallest,  # with which it starts again, where it is stopped whole
        malleable=spec.malleable,
        tenant=spec.tenant,
        shares=shares,
        started_at=row["placed_at"],
        begun=_has_begun(spec, row),
        begun_at=row["first_saved_at"],
        expected_end=max(end_at(each.expected_end, each.ends, row["now"]) for each in shares),
        checkpoint=_checkpoint(spec, row),
        no_store=store_away if spec.checkpoint and spec.checkpoint.store else "",
        preemptible=spec.preemptible,
        preempted_at=tuple(row["preempted_at"] or ()),
        counted_as=row["counted_as"],
        waited=row["waited"],
        price=round(row["price"]),
        engine=_engine(spec, row),
    )


def _has_begun(spec: JobSpec, row: RowMapping) -> bool:
    """Whether an attempt is past what it needs to begin, as its image: a save of it tells so."""
    # Of one that has never saved it does not matter: it is stopped for nobody of its class.
    never_saved = row["saved_at"] is None
    # One that saves only when it is stopped tells nothing before that.
    silent = spec.checkpoint is not None and not spec.checkpoint.while_running
    return never_saved or silent or row["first_saved_at"] is not None


def _engine(spec: JobSpec, row: RowMapping) -> RunningEngine | None:
    if spec.engine is None or row["engine_attempt"] is None:
        return None
    # What it said as of an attempt before this one says nothing any more.
    ready = row["engine_attempt"] == row["attempt"] and row["stage"] == EngineStage.READY
    return RunningEngine(
        model=spec.engine.model.name, runtime=spec.engine.runtime.name,
        ready_at=row["ready_at"] if ready else None,
        idle_since=row["idle_since"] if ready else None,
        uses=row["uses"] if ready else 0,
        load_time=timedelta(seconds=row["load_seconds"]),
        pinned=spec.engine.model.pinned,
        prewarmed=spec.engine.model.prewarm and ready and not row["uses"],
    )  # fmt: skip


def _checkpoint(spec: JobSpec, row: RowMapping) -> WorkCheckpoint | None:
    contract = spec.checkpoint
    if contract is None:
        return None
    # Both as its job's side has written them into the store: more than can be says nothing.
    wrote, size = row["write_seconds"], (row["bytes"] or 0) / 1e9
    return WorkCheckpoint(
        saved_at=row["saved_at"],
        write=wrote if wrote is not None and 0 <= wrote <= LONGEST.total_seconds() else None,
        size=size if 0 <= size <= MOST else 0.0,
        grace=contract.grace,
        saves_while_running=contract.can_be_asked,
        without_step=contract.store and row["saved_at"] is not None and row["step"] is None,
    )


def _most_freed(works: Iterable[RunningWork], policy: PreemptionPolicy) -> int:
    """Return how many GPUs come free at most where as many jobs are stopped as may be at once."""
    gpus = (sum(len(share.gpu_indices) for share in work.shares) for work in works)
    return sum(nlargest(policy.max_under_way, gpus))


def _under_way(
    stops: Iterable[RowMapping], queue: Iterable[JobRequest], nodes: Sequence[Node]
) -> tuple[PreemptionUnderWay, ...]:
    """Return the jobs for which others are being stopped now."""
    requests = {job.id: job for job in queue}
    return tuple(
        PreemptionUnderWay(
            job_id=row["for_job"],
            victims=tuple(row["victims"]),
            shares=_kept_for(
                requests.get(row["for_job"]), _gains(row["plan"]), row["frees_by"], nodes
            ),
        )
        for row in stops
    )  # fmt: skip


async def _prices(connection: AsyncConnection) -> tuple[SeenPrice, ...]:
    """Return what markets asked of late; nothing while buying is stopped."""
    found = await connection.execute(text(_PRICES), {"age": FRESH})
    return tuple(
        SeenPrice(
            instance_type=row.instance_type, market=row.provider, ask=row.best_ask,
            gpus=row.ask_gpus,
        )
        for row in found
    )  # fmt: skip


async def _due(connection: AsyncConnection, spec: PoolSpec) -> tuple[str, ...]:
    if spec.packing.funding is None:
        return ()
    return tuple(await connection.scalars(text(_DUE), {"pool": spec.name}))


def _gains(stored: object) -> tuple[GainedGPUs, ...]:
    """Return what a stored plan gains its job; nothing of what somebody wrote by hand."""
    try:
        return PreemptionPlan.model_validate(stored).gains
    except ValidationError:
        return ()


def _kept_for(
    job: JobRequest | None, gains: Iterable[GainedGPUs], since: datetime, nodes: Sequence[Node]
) -> tuple[RunningJob, ...]:
    """Return the GPUs that a waiting job will get; none where it waits no more."""
    if job is None:
        return ()
    by_id = {node.id: node for node in nodes}
    return tuple(
        held_by(job, gain, since + job.expected_duration, by_id[gain.node_id])
        for gain in gains
        if gain.node_id in by_id
    )


_WORK = """
    WITH held AS (
        SELECT p.job_id, p.attempt, min(p.placed_at) AS placed_at,
               greatest(least(max(p.waited), interval '3653 days'), interval '0') AS waited,
               max(p.attained) AS attained,
               (array_agg(p.learnt) FILTER (WHERE p.learnt IS NOT NULL))[1] AS learnt,
               max(CASE jsonb_typeof(p.decision -> 'counted_as')
                   WHEN 'number' THEN CAST(p.decision ->> 'counted_as' AS integer) END)
                   AS counted_as,
               sum(coalesce(nullif(b.price_micro_per_gpu_hour, 0), :owned)
                   * cardinality(p.gpu_indices)) / sum(cardinality(p.gpu_indices)) AS price
          FROM placements p
          JOIN nodes n ON n.id = p.node_id AND n.pool = :pool
          LEFT JOIN blocks b ON b.id = n.block_id
         WHERE p.ended_at IS NULL {only}
         GROUP BY p.job_id, p.attempt)
    SELECT j.id, j.spec, j.submitted_at, held.attempt, held.placed_at, held.price,
           held.counted_as, held.waited, held.attained, held.learnt, clock_timestamp() AS now,
           c.saved_at, c.write_seconds, c.bytes, c.step,
           (SELECT min(saved_at) FROM job_checkpoints
             WHERE job_id = j.id AND attempt = held.attempt) AS first_saved_at,
           r.attempt AS engine_attempt, r.stage, r.ready_at, r.idle_since, r.uses, r.load_seconds,
           (SELECT array_agg(e.ended_at ORDER BY e.ended_at) FROM placements e
             WHERE e.job_id = j.id AND e.rank = 0
               AND (e.end_reason = :preempted
                    OR e.end_reason = :resized AND EXISTS (
                       SELECT FROM preemptions d
                        WHERE d.job_id = e.job_id AND d.attempt = e.attempt
                          AND d.decided_at < e.ended_at)))
               AS preempted_at
      FROM held
      JOIN jobs j ON j.id = held.job_id
      LEFT JOIN replicas r ON r.job_id = j.id
      LEFT JOIN LATERAL (SELECT * FROM job_checkpoints WHERE job_id = j.id
                          ORDER BY attempt DESC, number DESC LIMIT 1) c ON true
     ORDER BY j.id
"""
"""Who gave up ranks in place was not stopped: rank 0 never leaves so. That a process has begun
shows in the first save of its attempt."""

_UNDER_WAY = f"""
    SELECT d.for_job, d.plan, max(d.frees_by) AS frees_by,
           array_agg(DISTINCT d.job_id ORDER BY d.job_id) AS victims
      FROM preemptions d
      JOIN placements p ON p.job_id = d.job_id AND p.attempt = d.attempt AND p.ended_at IS NULL
     WHERE d.pool = :pool AND NOT {SETTLED}
     GROUP BY d.for_job, d.plan
     ORDER BY d.for_job
"""

_DUE = """
    SELECT q.job_id FROM queue q JOIN start_estimates e USING (job_id, attempt)
     WHERE q.pool = :pool AND NOT q.held
       AND coalesce(e.kept_until, CASE WHEN q.decision->>'start_kept' IS DISTINCT FROM 'false'
                                       THEN coalesce(e.latest, e.starts_at) END)
           <= clock_timestamp()
     ORDER BY q.job_id
"""

_PRICES = """
    SELECT DISTINCT ON (provider, instance_type) provider, instance_type, best_ask, ask_gpus
      FROM market_books
     WHERE best_ask IS NOT NULL AND observed_at > clock_timestamp() - :age
       AND NOT EXISTS (SELECT FROM market_switch WHERE stopped)
     ORDER BY provider, instance_type, observed_at DESC
"""
