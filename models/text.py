"""How durations, amounts of money, numbers of things and GPUs read: the same on the command line,
on the pages and in the reasons of decisions.

What people write is read by `models.units` (durations) and `models.money` (dollars). Sizes, which
have a unit of their own, are in `models.units` both ways.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal

from longshore.models.mig import first_slice
from longshore.models.money import CENT, MICRO

MOST_NODES = 4
"""That a sentence names with their GPUs."""
NONE = "–"
"""Stands for an amount that there is not."""

_FEW = 10
"""Hours or days that the next smaller unit is told with."""
_UNITS = (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1))


def span(duration: timedelta, *, units: int = 2) -> str:
    """Return a duration in two units: ``45s``, ``3m 12s``, ``2h 5m``, ``3d 4h``; with `units` 1
    as `ago` has it."""
    seconds = max(int(duration.total_seconds()), 0)
    if units == 1:
        return _short(seconds)
    for unit, size, smaller, smaller_size in _UNITS:
        if seconds >= size:
            rest = seconds % size // smaller_size
            return f"{seconds // size}{unit}" + (f" {rest}{smaller}" if rest else "")
    return f"{seconds}s"


def ago(instant: datetime, now: datetime) -> str:
    """Return ``3m ago``, ``in 1h 59m`` or ``in 38h``: in one unit, and in two where a part of it
    would be missed."""
    seconds = int((now - instant).total_seconds())
    if abs(seconds) < 2:
        return "now"
    length = _short(abs(seconds))
    return f"{length} ago" if seconds > 0 else f"in {length}"


def _short(seconds: int) -> str:
    """Return about how long: rounded, and within a twentieth from an hour on."""
    for unit, size, smaller, smaller_size in _UNITS:
        if seconds + smaller_size / 2 < (2 * size if unit == "d" else size):
            continue  # it is less also once it is rounded
        if unit != "m" and seconds < _FEW * size:
            whole, rest = divmod(_rounded(seconds, smaller_size), size // smaller_size)
            return f"{whole}{unit}" + (f" {rest}{smaller}" if rest else "")
        return f"{_rounded(seconds, size)}{unit}"
    return f"{seconds}s"


def _rounded(seconds: int, size: int) -> int:
    return (seconds + size // 2) // size


def format_duration(duration: timedelta) -> str:
    """Return a duration exact to the microsecond, as `parse_duration` reads it: ``1h30m``,
    ``45s``, ``250ms``, ``0s``."""
    microseconds = round(abs(duration) / timedelta(microseconds=1))
    sign = "-" if duration < timedelta(0) else ""
    if microseconds < 1_000_000:
        return f"{sign}{microseconds / 1000:g}ms" if microseconds else "0s"
    parts = ""
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        number, microseconds = divmod(microseconds, seconds * 1_000_000)
        parts += f"{number}{unit}" if number else ""
    if microseconds:
        parts += f"{microseconds / 1e6:.6f}".rstrip("0").rstrip(".") + "s"
    return sign + parts


def in_seconds(duration: timedelta) -> str:
    """Return a duration as `format_duration` does, rounded to seconds."""
    return format_duration(timedelta(seconds=round(duration.total_seconds())))


def dollars(micro: int | None, places: int = 2) -> str:
    """Return ``$1,234.50``, rounded to `places`; a dash for None."""
    if micro is None:
        return NONE
    sign = "-" if micro < 0 else ""
    return f"{sign}${Decimal(abs(micro)) / MICRO:,.{places}f}"


def at_most(micro: int) -> str:
    """Return an amount rounded up to cents: what a cap has to be for it."""
    return dollars(-(-micro // CENT) * CENT)


def amount(micro: int) -> str:
    """Return an amount in dollars and cents, with four places below a cent."""
    return dollars(micro, 4 if 0 < abs(micro) < CENT else 2)


def price(micro: int | None) -> str:
    """Return a price in dollars with as many places as it needs, at most four."""
    return dollars(micro, 2 if micro is None else places_of([micro]))


def places_of(prices: Iterable[int]) -> int:
    """Return how many places a column of prices needs: 2, or 4 where some have fractions of a
    cent. A market's own grid may be off by some millionths: they do not count."""
    return 2 if all(round(price, -2) % CENT == 0 for price in prices) else 4


def format_dollars(micro: int) -> str:
    """Return ``$2.10``, ``$1,234.50``, with up to six places where the amount has them."""
    sign = "-" if micro < 0 else ""
    whole, rest = divmod(abs(micro), MICRO)
    places = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}${whole:,}.{places}"


def count(number: float, noun: str = "") -> str:
    """Return ``1 node``, ``1,024 GPUs``, ``0.5 GPUs``, or without a noun ``1,024``."""
    said = f"{number:,.0f}" if number == int(number) else f"{number:,}"
    return f"{said} {noun}{'' if number == 1 else 's'}" if noun else said


def and_more(number: int, noun: str = "") -> str:
    """Return ``and 3 more`` or ``and 1 more node``; empty where there is no more."""
    if number <= 0:
        return ""
    return f"and {count(number, f'more {noun}')}" if noun else f"and {number:,} more"


def listed(
    names: Sequence[str], most: int, noun: str = "", *, between: Literal[", ", "; "] = ", "
) -> str:
    """Return ``a, b and 3 more``, or with a noun ``a, b and 3 more nodes``: the first `most`
    names, and how many more there are. Names that have commas of their own stand between
    semicolons: ``a; b; and 3 more``."""
    more = and_more(len(names) - most, noun)
    named = between.join(names[:most])
    if not more:
        return named
    return f"{named}{' ' if between == ', ' else between}{more}"


def format_gpus(indices: Sequence[int]) -> str:
    """Return ``GPU 3``, ``GPUs 0-3`` or ``GPUs 0-1,4``."""
    if not indices:
        return "no GPU"
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"{'GPU' if len(indices) == 1 else 'GPUs'} {','.join(parts)}"


def format_slices(slices: int) -> str:
    """Return ``slice 6`` or ``slices 4-7`` for the set of slices of a MIG instance."""
    first = first_slice(slices)
    last = first + slices.bit_count() - 1
    return f"slice {first}" if first == last else f"slices {first}-{last}"


def format_places(places: Sequence[tuple[str, Sequence[int]]]) -> str:
    """Return ``node-a GPUs 0-7, node-b GPUs 0-3``, each node with its GPUs; of many nodes the
    first few, and how many more there are."""
    named = [
        f"{node_id} {format_gpus(indices)}" if indices else node_id
        for node_id, indices in places[:MOST_NODES]
    ]
    others = places[MOST_NODES:]
    if not others:
        return ", ".join(named)
    gpus = sum(len(indices) for _, indices in others)
    with_gpus = f" with {count(gpus, 'GPU')}" if gpus else ""
    return f"{', '.join(named)} {and_more(len(others), 'node')}{with_gpus}"
