"""One cycle of a pool: read queue and capacity once, plan, commit what holds, tell the jobs."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import ParamSpec, TypeVar

from sqlalchemy import text
from temporalio import activity

from longshore.activities.buying.block_wakeups import BlockWakeups
from longshore.activities.checkpoints.rows import CheckpointActivities
from longshore.activities.checkpoints.watch import CheckpointWatches
from longshore.activities.commit import commit
from longshore.activities.compiler_warmup import Warming
from longshore.activities.cycle_inputs import Decided, Planning, PoolGPUs, RecentlyPlaced, Turns
from longshore.activities.cycle_metrics import Took, measure_cycle, measure_funding
from longshore.activities.cycle_notes import begin_cycle, forget_cycles, note_cycle
from longshore.activities.cycle_placements import placed_in
from longshore.activities.database import Database, clock
from longshore.activities.deadlines import HAS_DEADLINES, note_late
from longshore.activities.departures import NodeLooks
from longshore.activities.durations import forget_runs
from longshore.activities.error_translation import reports_errors
from longshore.activities.explanations import explain_waiting
from longshore.activities.failpoints import failpoint
from longshore.activities.funding.planning import (
    funded_by,
    read_funding,
    settlement_of,
)
from longshore.activities.funding.rows import has_budgets
from longshore.activities.funding.telling import Telling
from longshore.activities.growth import Growths
from longshore.activities.job_end_rows import end_attempt
from longshore.activities.later_starts import LaterStarts
from longshore.activities.lending import load_lendable
from longshore.activities.locality import forget_data, load_locality, note_data
from longshore.activities.metrics import SILENT, Metrics
from longshore.activities.plan_threads import PlanThreads
from longshore.activities.pool_cache import PoolCache
from longshore.activities.preemption import NOBODY, Looked, Preempting
from longshore.activities.preparations import Told, note_preparations, noted_preparations
from longshore.activities.prices.holds import NOTHING, PriceLook, keep_for_price
from longshore.activities.queue_cache import NONE, WaitingJobs, trim_left
from longshore.activities.signals import Signals
from longshore.activities.snapshot import load_pool
from longshore.activities.usage import with_usage
from longshore.models.margins import DEFAULT_MARGINS, Margins
from longshore.models.messages import CycleReply, CycleRequest, LeaseEnd
from longshore.models.node import Node
from longshore.models.placement import CyclePlan, Placement, PlacementKey
from longshore.models.pool import LEAST_INTERVAL, PoolSpec
from longshore.scheduling.funding.where_paid import where_paid
from longshore.scheduling.lending import with_lent_spares
from longshore.scheduling.order import queue_order
from longshore.scheduling.reason_updates import TELL_AT_MOST
from longshore.scheduling.unplannable_jobs import plan_without, set_aside_unread, tellable

_IDLE = timedelta(minutes=10)
_WARM = timedelta(minutes=1)
"""A pool that keeps capacity warm looks so often whether it has it."""
_FORGET_EVERY = 100
"""Cycles."""
Outcome = tuple[CycleReply, tuple[Placement, ...], PoolSpec, bool, Told, Looked]
"""What a cycle did, the placements that its jobs are to hear of, its pool, whether one of them
may be of a malleable job with fewer GPUs than it is to have, then or later, which jobs are to be
prepared where, and on whom it decided."""

P = ParamSpec("P")
T = TypeVar("T")


class CycleActivities:
    """The activity of `PoolWorkflow` on the capacity database."""

    def __init__(
        self,
        database: Database,
        signals: Signals,
        metrics: Metrics = SILENT,
        checkpoints: CheckpointActivities | None = None,
        looks: NodeLooks | None = None,
        watches: CheckpointWatches | None = None,
        margins: Margins = DEFAULT_MARGINS,
    ) -> None:
        self._metrics = metrics
        self._looks = looks
        self._watches = watches
        self._database = database
        self._signals = signals
        self._recent = RecentlyPlaced()
        self._turns = Turns()
        self._later = LaterStarts()
        self._kept = PoolCache(metrics)
        self._warming = Warming()
        self._told = Telling()
        self._blocks = BlockWakeups(database, signals)
        self._margins = margins
        self._plans = PlanThreads()
        self._preempting = Preempting(
            database, signals, checkpoints, metrics, self._kept, margins, self._plans
        )
        self._growths = Growths(database, signals, checkpoints, self._kept)

    @activity.defn
    @reports_errors
    async def run_cycle(self, request: CycleRequest) -> CycleReply:
        """Plan the pool's queue onto its nodes and carry the plan out.

        A repeat finds the committed cycle under its id and only signals again; a job ignores an
        attempt that it knows.
        """
        done, priced = await self._committed(request)
        done = done or await self._plan_and_commit(request)
        reply, placements, pool, hungry, prepares, looked = done
        if reply.placed:
            await failpoint("cycle.after-commit")
        gone = await self._signals.tell_jobs(
            "placed", [(placement.job_id, placement) for placement in placements]
        )
        await self._signals.tell_jobs("prepare", prepares)
        await self._signals.tell_jobs("waiting", priced.told)
        if priced.due:
            await self._signals.begin_pricing(request.pool)
        if self._looks:
            await self._looks.after(placements)
        if self._watches:
            await self._watches.after(placements)
        for placement in placements:
            if placement.job_id in gone:
                await self._withdraw(placement.key, gone[placement.job_id])
        turn = None
        if reply.waiting:
            turn = await self._preempting.after_cycle(request.pool, request.cycle_id, looked)
            turn = turn and max(turn, LEAST_INTERVAL)
        # What was bought ends also where buying is off.
        await self._blocks.after_cycle(request.pool)
        if reply.may_buy and (reply.waiting or reply.keeps_warm):
            await self._signals.begin_buying(request.pool)
        await self._kept.note_length(self._database, request.pool)
        if request.number % _FORGET_EVERY == 0:
            await self._forget_idle_cycles(request.pool)
        # Last: what is idle now, no job that waits wanted.
        look = await self._growths.after_cycle(pool, reply.free_gpus, hungry=hungry)
        wake = min(filter(None, (reply.next_wake, look, priced.wake, turn)))
        return reply.model_copy(update={"withdrawn": len(gone), "next_wake": wake})

    async def _committed(self, request: CycleRequest) -> tuple[Outcome | None, PriceLook]:
        """Return what came of a cycle that was committed before; None begins it.

        Its beginning is committed before the queue is read: whoever comes later pokes again. So is
        which jobs wait for a price: they are held, or are not, before anybody plans.
        """
        async with self._database.transaction() as connection:
            rows = await connection.execute(
                text("SELECT queued, placed FROM cycles WHERE id = :id"), {"id": request.cycle_id}
            )
            row = rows.mappings().first()
            if row is None:
                await begin_cycle(connection, request.pool)
                return None, await keep_for_price(connection, request.pool)
            pool = await load_pool(connection, request.pool, self._margins)
            pays = await has_budgets(connection)
            placements = await placed_in(connection, request.cycle_id, pays)
            prepares = await noted_preparations(connection, request.pool, request.cycle_id)
        reply = _reply(pool, row["queued"], row["placed"])
        return (reply, placements, pool, bool(placements), prepares, NOBODY), NOTHING

    async def _plan_and_commit(self, request: CycleRequest) -> Outcome:
        began = time.perf_counter()
        made = await self._decide(request.pool)
        async with self._database.transaction() as connection:
            commits = time.perf_counter()
            placed = await commit(
                connection, request, made.plan, made.queue, made.nodes, made.settlement
            )
            asked = [made.waiting.entries[job_id].request for job_id in placed]
            await note_data(connection, asked, made.plan, placed)
            waiting = {job.id: job for job in made.queue if job.id not in placed}
            packing = made.packing or made.pool.packing
            prepares = await note_preparations(
                connection, request.cycle_id, made.plan, waiting, packing
            )
            explains = time.perf_counter()
            waits = made.waiting
            told = await explain_waiting(
                connection, made.plan, waits.stored, made.now, waits.unheard
            )
            took = Took(*made.took, explains - commits, time.perf_counter() - explains)
            has_deadlines = await connection.scalar(text(_DEADLINES), {"pool": request.pool})
            await note_cycle(
                connection,
                {
                    "id": request.cycle_id, "pool": request.pool,
                    "queued": len(made.waiting.entries), "placed": len(placed),
                    "refused": len(made.plan.placements) - len(placed),
                    "looked_at": len(made.plan.decisions),
                    "took": (time.perf_counter() - began) * 1000, **took.in_ms(),
                },
                begun=bool(made.plan.placements),
                changed=bool(made.plan.placements or prepares),
            )  # fmt: skip
            settlement = made.settlement and made.settlement.of_those(placed)
            pays = settlement is not None
            placements = await placed_in(connection, request.cycle_id, pays) if placed else ()
            if placed:
                await failpoint("cycle.before-commit")
            written = time.perf_counter()
        seconds = time.perf_counter() - began
        took = took._replace(commit=took.commit + time.perf_counter() - written)
        self._warming.after(made.seconds)
        pool = made.pool
        measure_cycle(
            self._metrics, pool.name, made.waiting.entries, made.plan, placed, made.now, seconds,
            took,
        )  # fmt: skip
        if settlement is not None:
            measure_funding(self._metrics, pool.name, settlement.funded)
            if due := self._told.due(settlement.news, made.now):
                await failpoint("tell_paid.before-signal")
                await self._signals.tell_jobs("paid", due)
        if has_deadlines:
            late = await note_late(self._database, self._metrics, pool.name, made.now)
            told = list((dict(told) | dict(late)).items())
        await self._signals.tell_jobs("waiting", told)
        free = made.gpus.free - _newly_taken(made.nodes, placements)
        reply = _reply(pool, len(waits.entries), len(placed), waits)
        changes = settlement.next_change if settlement else None
        news = self._told.next_due(made.now)
        wake = min(filter(None, (reply.next_wake, changes, news, waits.again_in(made.now))))
        reply = reply.model_copy(
            update={"gpus": made.gpus.there, "free_gpus": free, "next_wake": wake}
        )
        hungry = any(
            made.waiting.entries[each.job_id].request.may_grow(each.gpus)
            for each in made.plan.placements
            if each.job_id in placed
        )
        return reply, placements, pool, hungry, prepares, made.looked

    async def _decide(
        self, pool_name: str, *, whole: bool = False, before: tuple[float, float] = (0.0, 0.0)
    ) -> Decided:
        """Plan the pool's queue; of a long one those that may start, with the `whole` of it all.

        `before` is what a plan of a part took, in which jobs changed their places.
        """
        began = time.perf_counter()
        async with self._database.snapshot() as connection:
            pool = await load_pool(connection, pool_name, self._margins)
            kept = await self._kept.take(connection, pool_name)
            now = await clock(connection)
            waiting = kept.queue.waiting(now)
            aside = tuple(set_aside_unread(*each) for each in waiting.unreadable.items())
            turn = self._turns.of(pool, whole=whole)
            later = self._later.due(pool_name, len(kept.nodes))
            funding = await read_funding(
                connection, pool_name, (each.request for each in waiting.entries.values())
            )
            # Who pays for one depends on who is before it: all are planned then.
            part = None if funding else kept.queue.to_plan(
                kept.nodes.open_gpus, kept.nodes.gpus, pool.packing, now,
                share=turn.share, whole=turn.whole, later=later, nodes=kept.nodes.nodes,
            )  # fmt: skip
            queue = part.jobs if part else [each.request for each in waiting.entries.values()]
            gpus = PoolGPUs(kept.nodes.gpus, kept.nodes.free_gpus)
            if not queue:
                self._kept.keep(pool_name, kept)
                took = (before[0] + time.perf_counter() - began, before[1])
                plan = CyclePlan(decisions=aside)
                settlement = settlement_of(funding, pool_name, plan, queue, (), now)
                return Decided(
                    pool, waiting, queue, (), plan, now, gpus, took, settlement=settlement
                )
            spares = await load_lendable(connection, pool_name) if funding else ()
            recent = await self._recent.of(connection, pool)
            queue, data = await load_locality(connection, pool_name, pool.packing, queue)
            packing = (await with_usage(connection, pool)).packing
            if funding:
                ordered = queue_order(queue, packing, now, kept.nodes.nodes, kept.nodes.running)
                packing = funded_by(packing, pool_name, funding, ordered, now)
                queue = where_paid(queue, packing.funding)
        kept.nodes.hold_data(data)
        plans = time.perf_counter()
        wanted, mix = (part.wanted, turn.mix) if part else (None, None)
        planning = Planning(
            kept.nodes, packing, now, recent, wanted, mix, later,
            funding.walls if funding else (), part.later_until if part else None,
        )  # fmt: skip
        decided, seconds = await self._plans.run(pool_name, _timed, plan_without, planning, queue)
        if part and decided.rearranged and not turn.whole:
            self._kept.keep(pool_name, kept)
            self._turns.note_in_vain(pool)
            took = (plans - began, time.perf_counter() - plans)
            return await self._decide(pool_name, whole=True, before=took)
        if planning.mix is not None:
            self._turns.note(pool, planning.mix, learnt=mix is None)
        decided = self._later.taken_in(pool_name, decided, later, now)
        kept.queue.were_told(decision.job_id for decision in decided.decisions)
        if spares:
            places = {spare.node_id for spare in spares}
            homes = dict(zip(places, kept.nodes.named(places), strict=True))
            decided = with_lent_spares(decided, queue, homes, spares, packing, now)
        decided = tellable(decided)
        if aside:
            decided = decided.model_copy(update={"decisions": (*decided.decisions, *aside)})
        used = {node_id for decision in decided.placements for node_id, _ in decision.held}
        nodes = kept.nodes.named(used)
        self._kept.keep(pool_name, kept)
        took = (before[0] + plans - began, before[1] + time.perf_counter() - plans)
        return Decided(
            pool, waiting, queue, nodes, decided, now, gpus, took, planning.mix, seconds,
            settlement_of(funding, pool_name, decided, queue, nodes, now, packing.funding),
            packing,
        )  # fmt: skip

    async def _forget_idle_cycles(self, pool: str) -> None:
        async with self._database.transaction() as connection:
            await forget_data(connection, pool)
            await trim_left(connection, pool)
            await forget_runs(connection)
            await forget_cycles(connection, pool, 2 * _FORGET_EVERY)

    async def _withdraw(self, key: PlacementKey, why: str) -> None:
        async with self._database.transaction() as connection:
            await end_attempt(connection, key, LeaseEnd.WITHDRAWN.value, why)


def _newly_taken(nodes: Sequence[Node], placements: Sequence[Placement]) -> int:
    """Return how many GPUs that were free are so no more."""
    free = {(node.id, gpu.index) for node in nodes for gpu in node.gpus if gpu.is_free}
    taken = {
        (rank.node_id, index)
        for placement in placements
        for rank in (*placement.by_rank, *placement.spares)
        for index in rank.gpu_indices
    }
    return len(free & taken)


def _timed(plan: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    """Return what `plan` returns, and the seconds of the processor that it took.

    Not seconds of a clock: on a busy machine every plan would look like a long one.
    """
    began = time.thread_time()
    return plan(*args, **kwargs), time.thread_time() - began


def _reply(pool: PoolSpec, queued: int, placed: int, waits: WaitingJobs = NONE) -> CycleReply:
    waiting = queued - placed
    return CycleReply(
        queued=queued,
        placed=placed,
        waiting=waiting,
        set_aside=waits.set_aside,
        # A version without that bound took less.
        next_wake=max(pool.interval, LEAST_INTERVAL)
        if waiting or len(waits.unheard) > TELL_AT_MOST
        else _WARM
        if pool.buying.keeps_warm
        else _IDLE,
        may_buy=pool.buying.enabled,
        keeps_warm=pool.buying.keeps_warm,
    )


_DEADLINES = f"SELECT {HAS_DEADLINES}"
