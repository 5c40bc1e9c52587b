"""What people are shown of prices: those of pools, and of the jobs that wait for one."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.prices.holds import WAITS, prices_of
from longshore.activities.snapshot import load_pool
from longshore.models.errors import StoredError
from longshore.models.pool import PoolSpec
from longshore.models.price_series import PriceNow, PriceView, Unknown
from longshore.models.views import JobView
from longshore.scheduling.prices.series import (
    has_to_wait,
    next_prices,
    price_at,
    says_now,
    threshold,
    why_price_wait,
)

_NEXT = 5


async def price_now(connection: AsyncConnection, spec: PoolSpec, now: datetime) -> PriceNow:
    """Return the price of a pool, or why nobody knows it."""
    if spec.price is None:
        return PriceNow(why=f"pool {spec.name} names no price (`longshore pool set --price`)")
    stored = await prices_of(connection, spec, now, 1)
    if stored is not None and stored.series is None:
        return PriceNow(why=f"it could not be read: {stored.trouble}")
    return price_at(stored.series if stored else None, now)


async def price_view(
    connection: AsyncConnection, spec: PoolSpec, now: datetime, most: int = _NEXT
) -> PriceView | None:
    """Return the price of a pool with the next few; None where it names none."""
    if spec.price is None:
        return None
    stored = await prices_of(connection, spec, now, most)
    found = await price_now(connection, spec, now)
    waiting = await connection.scalar(
        text(f"SELECT count(*) FROM queue WHERE pool = :pool AND {WAITS}"), {"pool": spec.name}
    )
    series = stored.series if stored else None
    return PriceView(
        source=spec.price.source, price=found.price, at=found.at, says=says_now(found, now),
        next=next_prices(series, now, most), ends_at=series.ends_at if series else None,
        read_at=stored.read_at if stored else None, trouble=stored.trouble if stored else "",
        waiting=waiting or 0,
    )  # fmt: skip


async def why_waits(
    connection: AsyncConnection, spec: PoolSpec, own: int | None, now: datetime
) -> str:
    """Return why a job with this threshold would wait for its price now; empty where it would
    not."""
    below = threshold(own, spec.start_below)
    if below is None:
        return ""
    found = await price_now(connection, spec, now)
    unknown = spec.price.unknown if spec.price else Unknown.START
    return why_price_wait(below, found, now) if has_to_wait(below, found.price, unknown) else ""


async def why_unpriced(connection: AsyncConnection, spec: PoolSpec, job: JobView) -> str:
    """Return why nobody knows the price below which a job is to start; empty where that is known,
    or it has no such price."""
    if job.attempt > 1 or threshold(job.start_below, spec.start_below) is None:
        return ""
    return (await price_now(connection, spec, await clock(connection))).why


async def with_prices(connection: AsyncConnection, jobs: Sequence[JobView]) -> tuple[JobView, ...]:
    """Return the jobs, those that wait for a price with the price that it is now."""
    waiting = {job.id for job in jobs if job.waits_for_price} | await _arrays(connection, jobs)
    if not waiting:
        return tuple(jobs)
    now = await clock(connection)
    known: dict[str, tuple[int | None, PriceNow]] = {}
    told: list[JobView] = []
    for job in jobs:
        if job.id in waiting and job.pool not in known:
            known[job.pool] = await _of_pool(connection, job.pool, now)
        told.append(_with_price(job, *known[job.pool], now) if job.id in waiting else job)
    return tuple(told)


def _with_price(job: JobView, of_pool: int | None, found: PriceNow, now: datetime) -> JobView:
    below = threshold(job.start_below, of_pool)
    if below is None:  # its pool has lost its own since: the next cycle lets it in
        return job.model_copy(update={"reason": "its price has come"})
    reason = why_price_wait(below, found, now)
    return job.model_copy(update={"start_below": below, "waits_for_price": True, "reason": reason})


async def _of_pool(
    connection: AsyncConnection, pool: str, now: datetime
) -> tuple[int | None, PriceNow]:
    try:
        spec = await load_pool(connection, pool)
    except StoredError as error:
        return None, PriceNow(why=str(error))
    return spec.start_below, await price_now(connection, spec, now)


async def _arrays(connection: AsyncConnection, jobs: Sequence[JobView]) -> set[str]:
    """Return those that are arrays of which slots wait for a price, and none runs."""
    asked = [job.id for job in jobs if job.elements is not None and job.state.value == "QUEUED"]
    if not asked:
        return set()
    return set(await connection.scalars(text(_WAITING_ARRAYS), {"ids": asked}))


_WAITING_ARRAYS = """
    SELECT DISTINCT s.array_id FROM array_slots s JOIN queue q ON q.job_id = s.job_id
     WHERE s.array_id = ANY(:ids) AND q.held AND q.price_since IS NOT NULL
"""
