"""Series of prices on this side: read from a file or a URL before a pool is set, and shown."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from longshore.client.terminal import a_table
from longshore.models.errors import SpecError
from longshore.models.gpu_hour_price import format_gpu_hour_price
from longshore.models.moment import said_at
from longshore.models.price_series import FILE, MARKET, PriceView
from longshore.models.text import ago, count, format_dollars, format_duration
from longshore.models.visible import in_one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from longshore.models.pool import PoolSpec
    from longshore.models.price_series import PriceSeries

_NONE = "none"


def is_file(source: str) -> bool:
    """Return whether it names a file: neither a URL, nor `market` or `none`."""
    return source not in (MARKET, _NONE) and "://" not in source


def name_of_file(source: str) -> str:
    """Return what people call a file: of where it was, nobody else knows."""
    return in_one_line(Path(source).name)[:200]


async def read_prices(source: str, spec: "PoolSpec") -> "PriceSeries | None":
    """Return the series that a pool is to have by its settings, all of it looked at; None for the
    market, whose price a control worker reads. Raises SpecError and UnavailableError."""
    if spec.price is None or source == MARKET:
        return None
    if not is_file(source):
        from longshore.activities.prices.fetch import fetch_series

        return await fetch_series(source, spec.price.longest_step)
    return _from_file(source, spec.price.longest_step)


def _from_file(path: str, longest_step: timedelta) -> "PriceSeries":
    from longshore.models.price_file import MOST_BYTES, read_series

    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SpecError(path, (f"{path}: cannot be read: {why}",)) from None
    return read_series(data, path, longest_step, f"{FILE}{name_of_file(path)}")


def price_facts(
    price: PriceView, spec: "PoolSpec", now: datetime
) -> "Sequence[tuple[str, RenderableType]]":
    """Return the price of a pool in words, and what it does."""
    facts: list[tuple[str, RenderableType]] = [("source", price.source), ("now", price.says)]
    if spec.start_below is not None:
        facts.append(("jobs start below", format_gpu_hour_price(spec.start_below)))
    if price.waiting:
        facts.append(("wait for it", count(price.waiting, "job")))
    if price.read_at is not None:
        facts.append(("read", ago(price.read_at, now)))
    if price.ends_at is not None and price.source != MARKET:
        verb = "ends" if price.ends_at > now else "ended"
        facts.append((verb, said_at(price.ends_at.replace(microsecond=0), now)))
    if price.trouble:
        facts.append(("not read since", price.trouble))
    return facts


def price_table(price: PriceView, now: datetime) -> Table:
    """Return the next changes."""
    table = a_table(("from", "a GPU-hour"), right=("a GPU-hour",))
    for at, each in price.next:
        table.add_row(said_at(at.replace(microsecond=0), now), format_dollars(each))
    return table


def price_words(spec: "PoolSpec", price: PriceView | None) -> str:
    """Return what a pool's settings say of its price, and what that is."""
    if spec.price is None:
        return "none"
    every = f", read every {format_duration(spec.price.every)}" * spec.price.is_read_again
    now = f"; now {price.says}" if price else ""
    return f"{spec.price.source}{every}{now}"
