"""After a cycle: has a running malleable job grow onto GPUs that nobody else wants.

Nothing is stored: what is decided is told to the job's workflow at once, which hears of it for one
attempt and only once. Who dies in between decides again, from the same rows. Since when GPUs are
idle, and when a job changed its size, placements say (`activities.growth_inputs`).
"""

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.checkpoints.rows import CheckpointActivities
from longshore.activities.database import Database, clock
from longshore.activities.failpoints import failpoint
from longshore.activities.funding.planning import with_funding
from longshore.activities.growth_inputs import load_elastic, load_idle, running_malleable
from longshore.activities.locality import with_locality
from longshore.activities.pool_cache import CachedPool, PoolCache
from longshore.activities.preemption import why_store_is_away
from longshore.activities.signals import Signals
from longshore.activities.snapshot import (
    load_nodes,
    load_pool,
    load_queue,
    load_recent,
    load_running,
)
from longshore.activities.usage import with_usage
from longshore.models.base import as_reason
from longshore.models.growth import Elastic, Growing, GrowthDecision
from longshore.models.margins import Margins
from longshore.models.pool import PoolSpec
from longshore.scheduling.funding.sizes import MayGrow
from longshore.scheduling.funding.where_paid import where_paid
from longshore.scheduling.growth import Foreseen, Look, Pool

_SURE_FOR = 600.0
"""Seconds after a look that what it found holds, but for what cycles of this process place."""
_LONGEST_INTERVAL = timedelta(minutes=10)
"""Between two polls of a pool with a job that might grow."""
_DECIDE_WITHIN = 5.0
"""Seconds: a look is a part of a cycle, which has more in all."""
_LONGEST_STOP = timedelta(minutes=1)
"""Beside its grace, until a job that grows counts as one that did not hear of it."""

_FIRST_REFUSED, _LONGEST_REFUSED = 1200.0, 6 * 3600.0
"""Seconds in which a job that was told to grow, and did not, is told nothing."""

_log = logging.getLogger(__name__)


@dataclass
class _Known:
    """What this process knows of a pool; without it, it looks."""

    looked_at: float
    """By the clock since boot, as all here."""
    some: bool
    """Whether a job there might grow, some time."""
    every: float
    """Seconds between two looks."""
    next_at: float = 0.0
    stopping: "_Told | None" = None
    """The attempt that was told to grow."""
    refused: Mapping[str, "_Refused"] = field(default_factory=dict[str, "_Refused"])
    """Jobs that kept their size though they were told to grow, by id: others come first."""


class _Told(NamedTuple):
    """An attempt that was told to grow, and until when it counts as about to."""

    job_id: str
    attempt: int
    changes: int
    """How often its ranks had changed by then."""
    until: float


class _Refused(NamedTuple):
    """An attempt that did not grow: until when it is told nothing, and how long that is."""

    attempt: int
    until: float
    backoff: float


class Growths:
    """Decides and signals growth, pool by pool."""

    def __init__(
        self,
        database: Database,
        signals: Signals,
        checkpoints: CheckpointActivities | None = None,
        kept: PoolCache | None = None,
    ) -> None:
        self._database = database
        self._signals = signals
        self._checkpoints = checkpoints
        self._kept = kept or PoolCache()
        self._known: dict[str, _Known] = {}

    async def after_cycle(
        self, spec: PoolSpec, free_gpus: int | None, *, hungry: bool
    ) -> timedelta | None:
        """Tell at most one job of a pool to grow; return when to look again, None where no job
        there might.

        `free_gpus` are those that nobody has, None where that is not known; `hungry` says whether
        this cycle may have placed a malleable job that has fewer GPUs than it is to have, or may
        have later. The end of a job wakes no pool where none waits: so a pool with such a job
        looks by itself.
        """
        if not spec.grow_after:
            return None
        now, known = time.monotonic(), self._known.get(spec.name)
        if known is not None and known.every == _every(spec) and (known.some or not hungry):
            sure = now - known.looked_at < _SURE_FOR
            if sure and not known.some:
                return None
            if sure and free_gpus == 0:
                known.next_at = now + known.every
            if now < known.next_at:
                return timedelta(seconds=known.next_at - now)
        every = _every(spec)
        # Also where the look fails: a cycle that is tried again looks no more.
        self._known[spec.name] = _Known(now, some=True, every=every, next_at=now + every)
        try:
            async with asyncio.timeout(_DECIDE_WITHIN):
                self._known[spec.name] = await self._look(spec, known)
        except Exception:
            # A fault of ours, of one job, or of the database: the pool's cycles go on.
            _log.exception("pool %s: growth cannot be decided", spec.name)
        known = self._known[spec.name]
        return timedelta(seconds=max(known.next_at - now, 0)) if known.some else None

    async def _look(self, spec: PoolSpec, known: _Known | None) -> _Known:
        pool, every, now = spec.name, _every(spec), time.monotonic()
        async with self._database.transaction() as connection:
            ids = await running_malleable(connection, pool)
        nobody = _Known(now, some=False, every=every)
        if not ids:
            return nobody
        # One that goes on without a lost node has fewer GPUs, and no cycle that placed it so.
        nobody = replace(nobody, some=any(ids.values()), next_at=now + every)
        store_away = await why_store_is_away(self._checkpoints, pool)
        async with self._database.snapshot() as connection:
            kept = await self._kept.take(connection, pool)
            seen = await _read(connection, spec, ids, store_away, kept)
        self._kept.keep(pool, kept)
        if seen is None:
            return nobody
        again = _Known(now, some=True, every=every, next_at=now + every)
        if known and (stopping := known.stopping) and _still(stopping, seen.jobs, now):
            return replace(again, stopping=stopping, refused=known.refused)
        again = replace(again, refused=_refusals(known, seen.jobs, now))
        jobs = tuple(job for job in seen.jobs if not _backs_off(again.refused, job, now))
        decisions = await self._decide(replace(seen, jobs=jobs))
        grown = next((each for each in decisions if each.grows), None)
        if grown is not None:
            await self._tell(grown)
            grace = next(job.asked.grace for job in seen.jobs if job.id == grown.job_id)
            until = now + (grace + _LONGEST_STOP).total_seconds()
            changes = next(len(job.rank_changes) for job in seen.jobs if job.id == grown.job_id)
            told = _Told(grown.job_id, grown.attempt, changes, until)
            return replace(again, stopping=told)
        if len(decisions) == len(seen.jobs) and all(each.settled for each in decisions):
            return nobody
        due = [(each.again - seen.now).total_seconds() for each in decisions if each.again]
        return replace(again, next_at=now + min([every, *(max(each, 0.0) for each in due)]))

    async def _decide(self, seen: "_Seen") -> list[GrowthDecision]:
        """Return the decisions, up to the first job that grows."""
        decisions: list[GrowthDecision] = []
        answers = seen.look.answers(seen.jobs)
        while (answer := await _next(seen.spec.name, answers)) is not None:
            if isinstance(answer, Foreseen):
                async with self._database.transaction() as connection:
                    answer = await _decided(connection, seen, answer)
            decisions.append(answer)
            if answer.grows:
                break
        return decisions

    async def _tell(self, decided: GrowthDecision) -> None:
        assert decided.to is not None
        growing = Growing(
            attempt=decided.attempt, gpus_before=decided.gpus, gpus=decided.to,
            reason=as_reason(decided.reason),
        )  # fmt: skip
        await failpoint("grow.before-signal")
        await self._signals.tell_jobs("grow", [(decided.job_id, growing)])
        await failpoint("grow.after-signal")


@dataclass
class _Seen:
    """A pool in one snapshot, with its jobs that might grow."""

    spec: PoolSpec
    now: datetime
    jobs: tuple[Elastic, ...]
    look: Look


async def _next(
    pool: str, answers: Iterator[GrowthDecision | Foreseen]
) -> GrowthDecision | Foreseen | None:
    """Return the next answer, made in a thread; None after the last."""
    try:
        return await asyncio.to_thread(next, answers, None)
    except Exception:
        # A fault of ours, or of one job: the pool's cycles go on, and nobody grows.
        _log.exception("pool %s: growth cannot be planned", pool)
        return None


async def room_to_grow(
    database: Database, pool: str, job_id: str, gpus: int, margins: Margins
) -> Foreseen | str:
    """Return what a job that runs, and grows to so many GPUs in place, gets now; or why that does
    not hold any more."""
    async with database.snapshot() as connection:
        spec = await with_usage(connection, await load_pool(connection, pool, margins))
        seen = await _read(connection, spec, [job_id])
        if seen is None:
            return "it has all the GPUs that it is to have, or does not run"
        answer = await asyncio.to_thread(next, seen.look.answers(seen.jobs))
        if isinstance(answer, GrowthDecision):
            return answer.reason
        idle = await load_idle(connection, spec, answer.nodes)
    return await asyncio.to_thread(seen.look.room_for, answer, gpus, idle)


async def growth_of(
    database: Database, pool: str, job_id: str, margins: Margins
) -> GrowthDecision | None:
    """Return what would be decided now about a job that runs; None where it does not, or has as
    many GPUs as it is to have. What the checkpoint store says is left out."""
    async with database.snapshot() as connection:
        spec = await with_usage(connection, await load_pool(connection, pool, margins))
        seen = await _read(connection, spec, [job_id])
        if seen is None:
            return None
        answer = await asyncio.to_thread(next, seen.look.answers(seen.jobs))
        if isinstance(answer, GrowthDecision):
            return answer
        return await _decided(connection, seen, answer)


async def _decided(connection: AsyncConnection, seen: _Seen, foreseen: Foreseen) -> GrowthDecision:
    idle = await load_idle(connection, seen.spec, foreseen.nodes)
    return await asyncio.to_thread(seen.look.decide, foreseen, idle)


async def _read(
    connection: AsyncConnection,
    spec: PoolSpec,
    ids: Collection[str],
    store_away: str = "",
    kept: CachedPool | None = None,
) -> _Seen | None:
    """Return a pool in the snapshot of `connection`, None where none of these jobs might grow;
    `kept` is what is known of it there."""
    now = await clock(connection)
    running = kept.nodes.running if kept else await load_running(connection, spec.name)
    jobs = await load_elastic(connection, spec, running, ids, store_away)
    if not jobs:
        return None
    if kept is None:
        nodes = await load_nodes(connection, spec.name)
        entries = await load_queue(connection, spec.name)
        queue = [entry.request for entry in entries if not entry.held]
    else:
        nodes = kept.nodes.nodes
        waiting = kept.queue.waiting(now).entries.values()
        queue = [entry.request for entry in waiting]
    growing = [MayGrow(job.asked, job.gpus) for job in jobs]
    packing = (await with_funding(connection, spec, growing)).packing
    planned = where_paid([*queue, *(job.asked for job in jobs)], packing.funding)
    recent = await load_recent(connection, spec.name) if spec.packing.rule.learns else ()
    requests, nodes = await with_locality(connection, spec.name, spec.packing, planned, nodes)
    queue = requests[: len(queue)]
    jobs = tuple(
        job.model_copy(update={"asked": asked})
        for job, asked in zip(jobs, requests[len(queue) :], strict=True)
    )
    pool = Pool(
        nodes, running, queue, recent, packing, spec.preemption, spec.grow_after, now,
        spec.buying.keeps_warm,
    )  # fmt: skip
    return _Seen(spec, now, jobs, Look(pool))


def _every(spec: PoolSpec) -> float:
    """Return the seconds between two looks. One within `grow_after` is early enough: it finds
    since when GPUs are idle, and when that was for long enough."""
    return max(spec.interval, min(spec.grow_after, _LONGEST_INTERVAL)).total_seconds()


def _still(told: _Told, jobs: Iterable[Elastic], now: float) -> bool:
    """Return whether the attempt that was told to grow may be about to."""
    return now < told.until and any(_is(told, job) for job in jobs)


def _is(told: _Told, job: Elastic) -> bool:
    """Return whether this is the attempt that was told, as it was then."""
    is_it = job.id == told.job_id and job.asked.attempt == told.attempt + 1
    return is_it and len(job.rank_changes) == told.changes


def _refusals(known: _Known | None, jobs: Iterable[Elastic], now: float) -> dict[str, _Refused]:
    """Return who kept its size: a save is lost each time, so its backoff doubles each time."""
    if known is None:
        return {}
    attempts = {job.id: job.asked.attempt - 1 for job in jobs}
    left = {id: each for id, each in known.refused.items() if attempts.get(id) == each.attempt}
    told = known.stopping
    if told is not None and any(_is(told, job) for job in jobs):
        before = left.get(told.job_id)
        backoff = min(2 * before.backoff, _LONGEST_REFUSED) if before else _FIRST_REFUSED
        left[told.job_id] = _Refused(told.attempt, now + backoff, backoff)
    return left


def _backs_off(refused: Mapping[str, _Refused], job: Elastic, now: float) -> bool:
    return job.id in refused and now < refused[job.id].until
