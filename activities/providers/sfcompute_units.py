"""San Francisco Compute's units: dollars per node-hour as text, unix seconds, schedules.

A rate is a whole number of millionths of a dollar per node-minute (0.000060 dollars per
node-hour): here an int of that. Limits are rounded to the safe side, so that no order may cost
more, or bring less, than was asked for; prices that are read round to the side on which an order
at that price still meets them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

from longshore.activities.providers.sfcompute_shapes import ScheduleEntry
from longshore.models.market import Side, Window
from longshore.models.money import MICRO

GRAIN = timedelta(minutes=1)
"""Starts and ends are multiples of this."""
_MINUTES = 60


@dataclass(frozen=True)
class Span:
    """So many nodes from `start` to `end`; without an end, from then on."""

    start: datetime
    end: datetime | None
    nodes: int

    @property
    def window(self) -> Window | None:
        return Window(start=self.start, end=self.end) if self.end else None


def native_limit(limit: int, gpus_per_node: int, side: Side) -> str:
    """Return micro-dollars per GPU-hour as dollars per node-hour, an exact multiple of the grain.

    Never above the limit for a buy, never below it for a sale.
    """
    per_node_hour = limit * gpus_per_node
    rounded_up = side is Side.SELL and per_node_hour % _MINUTES != 0
    micro = (per_node_hour // _MINUTES + rounded_up) * _MINUTES
    return f"{micro // MICRO}.{micro % MICRO:06d}"


def gpu_hour_price(rate: Decimal, gpus_per_node: int, rounding: str = ROUND_HALF_EVEN) -> int:
    """Return dollars per node-hour as micro-dollars per GPU-hour."""
    return int((rate * MICRO / gpus_per_node).to_integral_value(rounding))


def ask_price(rate: Decimal, gpus_per_node: int) -> int:
    """Return a seller's rate such that a buy at that limit meets it."""
    return gpu_hour_price(rate, gpus_per_node, ROUND_CEILING)


def bid_price(rate: Decimal, gpus_per_node: int) -> int:
    """Return a buyer's rate such that a sale at that limit meets it."""
    return gpu_hour_price(rate, gpus_per_node, ROUND_FLOOR)


def cost(rate: Decimal, nodes: int, length: timedelta) -> int:
    """Return micro-dollars for nodes over a time, exact where rate and time are on the grain."""
    node_hours = Decimal(nodes * (length // timedelta(seconds=1))) / 3600
    return int((rate * MICRO * node_hours).to_integral_value(ROUND_HALF_EVEN))


def seconds(moment: datetime) -> int:
    """Return unix seconds."""
    return int(moment.timestamp())


def moment(unix_seconds: int) -> datetime:
    """Return the time of unix seconds."""
    return datetime.fromtimestamp(unix_seconds, UTC)


def is_aligned(window: Window) -> bool:
    """Return whether both ends are whole minutes."""
    return all(at.timestamp() % 60 == 0 for at in (window.start, window.end))


def around(window: Window) -> Window:
    """Return the shortest window of whole minutes that covers this one."""
    start, end = window.start.timestamp() // 60 * 60, -(-window.end.timestamp() // 60) * 60
    return Window(start=moment(int(start)), end=moment(int(end)))


def next_hour(now: datetime) -> Window:
    """Return the hour that begins next."""
    start = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    return Window(start=start, end=start + timedelta(hours=1))


def spans(schedule: Sequence[ScheduleEntry]) -> list[Span]:
    """Return a schedule with every end written out; gaps and zeros are left out.

    An entry without an end lasts until the next begins; the last one may be open.
    """
    found: list[Span] = []
    for number, entry in enumerate(schedule):
        end = entry.end_at
        if end is None and number + 1 < len(schedule):
            end = schedule[number + 1].start_at
        if entry.node_count > 0 and (end is None or end > entry.start_at):
            ends = moment(end) if end is not None else None
            found.append(Span(moment(entry.start_at), ends, entry.node_count))
    return found


def rectangles(schedule: Sequence[ScheduleEntry]) -> list[Span]:
    """Return a schedule cut into constant pieces that last as long as can be.

    Three nodes for an hour and one for another are one node for two hours and two for one:
    who needs a node for two hours sees it.
    """
    return [piece for run in _runs(spans(schedule)) for piece in _cut(run)]


def nodes_throughout(schedule: Sequence[ScheduleEntry], window: Window) -> int:
    """Return how many nodes a schedule has for the whole of a window."""
    held = [
        piece.nodes
        for piece in rectangles(schedule)
        if piece.start <= window.start and (piece.end is None or piece.end >= window.end)
    ]
    return sum(held)


def _runs(pieces: list[Span]) -> list[list[Span]]:
    """Return the pieces in groups without a gap."""
    runs: list[list[Span]] = []
    for piece in pieces:
        if runs and runs[-1][-1].end == piece.start:
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return runs


def _cut(run: list[Span]) -> list[Span]:
    """Return the widest rectangle under a run without a gap, and those above it."""
    lowest = min(piece.nodes for piece in run)
    above = [Span(p.start, p.end, p.nodes - lowest) for p in run if p.nodes > lowest]
    base = Span(run[0].start, run[-1].end, lowest)
    return [base, *(piece for rest in _runs(above) for piece in _cut(rest))]
