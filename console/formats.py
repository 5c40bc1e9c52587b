"""Numbers and times as the pages write them."""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal

from longshore.console.escaping import escape
from longshore.models.money import MICRO, micro_of

_EXACT = re.compile(r"\$([\d,]+\.\d{3,6})")
_CENT = MICRO // 100


def places_of(prices: Iterable[int]) -> int:
    """Return how many decimals a column of prices needs: 2, or 4 where some have fractions of
    a cent. A market's own grid may be off by some millionths: they do not count."""
    return 2 if all(round(price, -2) % _CENT == 0 for price in prices) else 4


def dollars(micro: int | None, places: int = 2) -> str:
    """Return ``$1,234.50``, rounded to `places`; a dash for nothing."""
    if micro is None:
        return "–"
    sign = "-" if micro < 0 else ""
    return f"{sign}${Decimal(abs(micro)) / MICRO:,.{places}f}"


def price(micro: int | None) -> str:
    """Return a price in dollars with as many decimals as it needs, at most four."""
    return dollars(micro, 2 if micro is None else places_of([micro]))


def count(number: int) -> str:
    return f"{number:,}"


def some(number: int, what: str) -> str:
    """Return a number of things: ``1 node``, ``1,024 GPUs``."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def clock(at: datetime) -> str:
    return f"{at:%H:%M:%S} UTC"


def span(length: timedelta) -> str:
    """Return how long something holds, in its largest units: ``1w``, ``2d 3h``, ``45min``."""
    minutes = round(length / timedelta(minutes=1))
    if minutes < 60:
        return f"{minutes}min"
    hours = minutes // 60
    weeks, rest = divmod(hours, 168)
    if weeks and not rest:
        return f"{weeks}w"
    days, hours = divmod(hours, 24)
    return " ".join(
        part for part in (f"{days}d" if days else "", f"{hours}h" if hours else "") if part
    )


def percent(fraction: float) -> str:
    return f"{fraction * 100:+.1f} %"


def shorter_prices(text: str) -> str:
    """Return a sentence with the prices in it as `price` writes them."""
    return _EXACT.sub(lambda found: price(micro_of(found[1].replace(",", ""))), text)


def with_code(text: str) -> str:
    """Return escaped text in which what stands between backticks is code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{each}</code>" if n % 2 else each for n, each in enumerate(pieces))
