"""Which jobs of a queue wait for the price to fall: they are held, and let in again.

It is the hold that is there: whoever plans, buys, prepares or stops asks for rows that are not
held, and learns no other condition. `queue.price_since` says that a row is held for its price
alone, and since when. A row whose user, or `begin`, holds it has none.
"""

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.prices.rows import StoredPrices, load_prices
from longshore.activities.queue_rows import take_over_each
from longshore.activities.snapshot import load_pool
from longshore.models.errors import StoredError
from longshore.models.gpu_hour_price import says_price_wait
from longshore.models.messages import Waiting
from longshore.models.pool import PoolSpec
from longshore.models.price_series import Unknown
from longshore.scheduling.prices.series import (
    changes_at,
    has_to_wait,
    price_at,
    says_now,
    threshold,
)

_SOONEST = timedelta(milliseconds=200)
"""Clocks differ by some milliseconds: a look that came too early comes again."""
_TELL_AT_MOST = 50
WAITS = "held AND price_since IS NOT NULL"
"""Of a row of the queue: it waits for its price alone."""
MAY_WAIT = """(attempt = 1 AND (start_below IS NOT NULL OR coalesce((
    SELECT jsonb_exists(spec, 'start_below') FROM pools WHERE name = queue.pool), false)))"""
"""Of a row of the queue: it has a threshold, or its pool has. It comes in, or out of a hold of its
user, waiting for its price: the next cycle knows that, and lets it in before it plans. Later
attempts have started once."""


WAITED_FOR_PRICE = "greatest(clock_timestamp() - price_since, interval '0')"
"""Of a row of the queue: for how long it has waited for its price until now."""
AGE_STOOD_STILL = """
    submitted_at = submitted_at + span,
    request = CASE WHEN jsonb_typeof(request) = 'object'
                   THEN jsonb_set(request, '{submitted_at}', to_jsonb(submitted_at + span))
                   ELSE request END"""
"""What an update of rows of the queue sets that have waited for their price for a `span`: that is
no wait for GPUs, and their age goes on from there."""


class PriceLook(NamedTuple):
    """What came of a look at the price."""

    due: bool = False
    """The price is to be read again."""
    wake: timedelta | None = None
    """When to look again, for the jobs that wait or would."""
    told: tuple[tuple[str, Waiting], ...] = ()
    """Jobs that are to hear why they wait."""
    released: int = 0


NOTHING = PriceLook()


async def keep_for_price(connection: AsyncConnection, pool: str) -> PriceLook:
    """Hold the jobs whose price is too high now, and let in those whose price has come."""
    if not await connection.scalar(text(_CONCERNS), {"pool": pool}):
        return NOTHING
    try:
        spec = await load_pool(connection, pool)
    except StoredError:  # nothing is planned by settings that cannot be read
        return NOTHING
    now = await clock(connection)
    stored = await prices_of(connection, spec, now)
    found = price_at(stored.series if stored else None, now)
    unknown = spec.price.unknown if spec.price else Unknown.START
    values: dict[str, Any] = {
        "pool": pool, "now": now, "price": found.price, "of_pool": spec.start_below,
        "waits": found.price is None and unknown is Unknown.WAIT,
    }  # fmt: skip
    released = (await connection.scalars(text(_RELEASE), values)).all()
    if released and spec.packing.by_rank:
        await take_over_each(connection, released)
    if found.price is not None or unknown is Unknown.WAIT:
        everyone = has_to_wait(spec.start_below, found.price, unknown)
        await connection.execute(text(_HOLD.format(who="true" if everyone else _OWN)), values)
    waiting = (await connection.execute(text(_THRESHOLDS), {"pool": pool})).all()
    below = {threshold(row.start_below, spec.start_below) for row in waiting}
    own = spec.start_below
    known = {each for each in (*below, own) if each is not None}
    due_in = read_due_in(spec, stored, now)
    told = await _tell(connection, pool, own, says_now(found, now), now)
    wakes: list[timedelta] = []
    if waiting:
        at = changes_at(stored.series if stored else None, known, now, unknown)
        wakes += [at - now] if at is not None else []
        wakes += [due_in] if due_in is not None else []
    return PriceLook(
        due=due_in is not None and due_in <= timedelta(0),
        wake=max(min(wakes), _SOONEST) if wakes else None,
        told=told,
        released=len(released),
    )


async def prices_of(
    connection: AsyncConnection, spec: PoolSpec, now: datetime, ahead: int | None = None
) -> StoredPrices | None:
    """Return what is stored of the source that the pool names; None where nothing is."""
    if spec.price is None:
        return None
    more = () if ahead is None else (ahead,)
    stored = await load_prices(connection, spec.name, now, *more)
    return stored if stored is not None and stored.source == spec.price.source else None


async def anybody_waits(connection: AsyncConnection, pool: str) -> bool:
    """Return whether a job of a pool waits for its price."""
    query = f"SELECT EXISTS (SELECT FROM queue WHERE pool = :pool AND {WAITS})"
    return bool(await connection.scalar(text(query), {"pool": pool}))


def read_due_in(spec: PoolSpec, stored: StoredPrices | None, now: datetime) -> timedelta | None:
    """Return when the source is to be read again, not above 0 where it is due; None for never."""
    if spec.price is None or not spec.price.is_read_again:
        return None
    if stored is None:
        return timedelta(0)
    return stored.tried_at + spec.price.every - now


async def _tell(
    connection: AsyncConnection, pool: str, of_pool: int | None, price: str, now: datetime
) -> tuple[tuple[str, Waiting], ...]:
    """Note who is told that it waits for its price, once for each time that it does: a signal is
    a billed action."""
    rows = await connection.execute(text(_UNTOLD), {"pool": pool, "most": _TELL_AT_MOST})
    told: list[tuple[str, Waiting]] = []
    for row in rows:
        below = threshold(row.start_below, of_pool)
        if below is None:
            continue
        reason = says_price_wait(below, price)
        told.append((row.job_id, Waiting(attempt=row.attempt, reason=reason)))
    if told:
        values = {
            "ids": [job_id for job_id, _ in told],
            "reasons": [each.reason for _, each in told],
            "now": now,
        }
        await connection.execute(text(_TOLD), values)
    return tuple(told)


_CONCERNS = f"""
    SELECT EXISTS (SELECT FROM pools WHERE name = :pool
                      AND (jsonb_exists(spec, 'price') OR jsonb_exists(spec, 'start_below')))
        OR EXISTS (SELECT FROM queue WHERE pool = :pool AND {WAITS})
"""

_RELEASE = f"""
    WITH ready AS (
        SELECT job_id, greatest(:now - price_since, interval '0') AS span FROM queue
         WHERE pool = :pool AND {WAITS}
           AND NOT coalesce(
               CASE WHEN CAST(:price AS bigint) IS NULL
                    THEN :waits AND least(start_below, CAST(:of_pool AS bigint)) IS NOT NULL
                    ELSE least(start_below, CAST(:of_pool AS bigint)) <= CAST(:price AS bigint)
               END, false)
         ORDER BY job_id FOR UPDATE SKIP LOCKED
    )
    UPDATE queue
       SET held = false, price_since = NULL, queued_at = :now, told_reason = NULL,
           {AGE_STOOD_STILL}
      FROM ready
     WHERE queue.job_id = ready.job_id RETURNING queue.job_id
"""
"""The time that a job waited for its price is no wait for GPUs: its age goes on from there. Rows
that somebody else has under way are left to the next look, which they ask for."""

_OWN = "start_below IS NOT NULL AND (start_below <= CAST(:price AS bigint) OR :waits)"
_HOLD = """
    WITH dear AS (
        SELECT job_id FROM queue
         WHERE pool = :pool AND NOT held AND attempt = 1 AND ({who})
         ORDER BY job_id FOR UPDATE SKIP LOCKED
    ), held AS (
        UPDATE queue q
           SET held = true, begin_only = false, price_since = :now, decision = NULL,
               decided_at = NULL, preparing = NULL, told_reason = NULL,
               waited = waited + greatest(:now - queued_at, interval '0')
          FROM dear WHERE q.job_id = dear.job_id
        RETURNING q.job_id, q.attempt
    )
    DELETE FROM start_estimates e USING held
     WHERE e.job_id = held.job_id AND e.attempt = held.attempt
"""
"""What was said of its start was said of one that may start."""

_THRESHOLDS = f"SELECT DISTINCT start_below FROM queue WHERE pool = :pool AND {WAITS}"

_UNTOLD = f"""
    SELECT job_id, attempt, start_below FROM queue
     WHERE pool = :pool AND {WAITS} AND told_reason IS NULL
     ORDER BY submitted_at, job_id LIMIT :most FOR UPDATE SKIP LOCKED
"""

_TOLD = """
    UPDATE queue q SET told_at = :now, told_reason = t.reason
      FROM unnest(CAST(:ids AS text[]), CAST(:reasons AS text[])) AS t (job_id, reason)
     WHERE q.job_id = t.job_id
"""
