"""The price of a pool at a moment, and who waits for another. Nothing else decides either."""

from bisect import bisect_right
from collections.abc import Iterable
from datetime import datetime

from longshore.models.gpu_hour_price import says_price, says_price_wait
from longshore.models.moment import said_at
from longshore.models.price_series import PriceNow, PriceSeries, Unknown


def price_at(series: PriceSeries | None, now: datetime) -> PriceNow:
    """Return the price at `now`, or why there is none: each price holds from its time until the
    next, and the last one until the series ends."""
    if series is None:
        return PriceNow(why="it has not been read yet")
    whence, points = series.whence, series.points
    place = bisect_right(points, now, key=lambda point: point[0])
    if not place:
        begins = points[0][0] if points else series.ends_at
        why = f"{whence} begins at {_said(begins, now)}"
        return PriceNow(why=why, until=begins, whence=whence)
    if now >= series.ends_at:
        return PriceNow(why=f"{whence} ended at {_said(series.ends_at, now)}", whence=whence)
    at, price = points[place - 1]
    until = points[place][0] if place < len(points) else series.ends_at
    return PriceNow(price=price, at=at, until=until, whence=whence)


def says_now(found: PriceNow, now: datetime) -> str:
    """Return ``$2.60 (file prices.csv, 14:00 UTC)``, or ``not known: file prices.csv ended at
    ...``."""
    if found.price is None or found.at is None:
        return f"not known: {found.why}"
    return says_price(found.price, found.whence, found.at, now)


def next_prices(
    series: PriceSeries | None, now: datetime, most: int
) -> tuple[tuple[datetime, int], ...]:
    """Return the next prices after `now`, at most so many."""
    if series is None:
        return ()
    place = bisect_right(series.points, now, key=lambda point: point[0])
    return series.points[place : place + most]


def threshold(own: int | None, of_pool: int | None) -> int | None:
    """Return below which price a job may start: the lower of its own and its pool's."""
    known = [each for each in (own, of_pool) if each is not None]
    return min(known, default=None)


def has_to_wait(below: int | None, price: int | None, unknown: Unknown) -> bool:
    """Return whether a job with this threshold has to wait at this price, None where nobody knows
    it."""
    if below is None:
        return False
    return unknown is Unknown.WAIT if price is None else price >= below


def why_price_wait(below: int, found: PriceNow, now: datetime) -> str:
    """Return why a job waits, in a sentence."""
    return says_price_wait(below, says_now(found, now))


def changes_at(
    series: PriceSeries | None, thresholds: Iterable[int], now: datetime, unknown: Unknown
) -> datetime | None:
    """Return when, after `now`, a job with one of these thresholds has to wait that has not to
    now, or the other way round, as far as the series says; None where it does not say so."""
    if series is None:
        return None
    below = sorted(set(thresholds))

    def waits(price: int | None) -> list[bool]:
        return [has_to_wait(each, price, unknown) for each in below]

    before = waits(price_at(series, now).price)
    for at, price in next_prices(series, now, len(series.points)):
        if waits(price) != before:
            return at
    return series.ends_at if series.ends_at > now and waits(None) != before else None


def energy_term(price: int | None, reference: int | None) -> float | None:
    """Return how dear it is now, from 0 to 1, as a part of the reference price; None where either
    is not known. For the term `energy` of a score."""
    if price is None or not reference:
        return None
    return min(price / reference, 1.0)


def _said(at: datetime, now: datetime) -> str:
    return said_at(at.replace(microsecond=0), now)
