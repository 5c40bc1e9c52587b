"""An order book as columns of numbers, sorted once, and which of its asks count for a need."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from longshore.models.market import InstanceType, Level, OrderBook, Window
from longshore.models.price import LeftOut, PriceNeed

Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LONGEST = timedelta(days=365_000)
"""Longer is as good as for ever, and has no number of 64 bits."""
_RANGE = np.iinfo(np.int64)
_UNSET = int(_RANGE.min)
"""In a column of times: not said."""

# One call a level reads all its fields: half of what an access for each would take.
_FIELDS = ("price", "gpus", "lot", "instance_type", "start", "end", "duration")
_ROW = attrgetter(*_FIELDS)
_Column = tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """One side of a book, by price. Prices are micro-dollars per GPU-hour."""

    models: NDArray[np.object_]
    """The levels themselves, for what is chosen by numbers."""
    price: Integers
    gpus: Integers
    """GPUs that can be bought: whole lots."""
    lot: Integers
    start: Integers
    """Microseconds since 1970; the lowest number where a level holds at once."""
    end: Integers
    """The highest number where it never ends."""
    lasts: Integers | None
    """Microseconds from the present, for levels with a duration and no start; None: no such."""
    kind: Integers
    """Which of `kinds` a level is."""
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, levels: Sequence[Level], book: OrderBook, *, dearest_first: bool = False) -> Self:
        """Return levels of `book` by price; equal ones stay in order.

        What a level leaves out is the book's.
        """
        columns: Sequence[_Column] = list(zip(*map(_ROW, levels), strict=True))
        price, gpus, lots, types, starts, ends, durations = columns or ((),) * len(_FIELDS)
        prices = np.array(price, dtype=np.int64)
        lot = _numbers(lots, book.lot)
        held = np.array(gpus, dtype=np.int64)
        held -= held % lot
        start, end, lasts = _times(starts, ends, durations, book.window)
        kind, kinds = _kinds(types, book)
        # Assigning them would have numpy look into each model for a sequence.
        models = np.fromiter(levels, dtype=np.object_, count=len(levels))
        market = cls(models, prices, held, lot, start, end, lasts, kind, kinds)
        return market.taken(np.argsort(-prices if dearest_first else prices, kind="stable"))

    @property
    def levels(self) -> list[Level]:
        return self.models.tolist()

    def taken(self, entries: NDArray[np.intp] | slice) -> Self:
        """Return these entries, in this order."""
        return replace(
            self,
            models=self.models[entries],
            price=self.price[entries],
            gpus=self.gpus[entries],
            lot=self.lot[entries],
            start=self.start[entries],
            end=self.end[entries],
            lasts=None if self.lasts is None else self.lasts[entries],
            kind=self.kind[entries],
        )

    def __len__(self) -> int:
        return len(self.price)

    def ends(self, now: datetime) -> Integers:
        """Return until when each level holds that is taken `now`."""
        if self.lasts is None:
            return self.end
        return np.where(self.lasts == _UNSET, self.end, self.lasts + microseconds(now))

    def of_type(self, wanted: str | None) -> Bools | None:
        """Return which levels are of an instance type; None for all."""
        if wanted is None:
            return None
        suits = [_takes(wanted, kind) for kind in self.kinds]
        return None if all(suits) else np.array(suits)[self.kind]


@dataclass(frozen=True, slots=True, eq=False)
class BookColumns:
    """An order book as columns: made once, asked for many needs."""

    book: OrderBook
    asks: Columns
    bids: Columns

    @classmethod
    def of(cls, book: OrderBook) -> Self:
        bids = Columns.of(book.bids, book, dearest_first=True)
        return cls(book, Columns.of(book.asks, book), bids)


def counting(asks: Columns, need: PriceNeed, now: datetime) -> tuple[Columns, dict[str, int]]:
    """Return the asks that can serve the need, and how many cannot, by the first reason."""
    counts = np.ones(len(asks), dtype=np.bool_)
    left_out: dict[str, int] = {}
    for reason, fits in _tests(asks, need, now):
        before = int(np.count_nonzero(counts))
        counts &= fits
        lost = before - int(np.count_nonzero(counts))
        if lost:
            left_out[reason.value] = lost
    return asks.taken(np.flatnonzero(counts)) if left_out else asks, left_out


def microseconds(moment: datetime) -> int:
    """Return microseconds since 1970, exact."""
    return (moment - _EPOCH) // _MICROSECOND


def _tests(asks: Columns, need: PriceNeed, now: datetime) -> Iterator[tuple[LeftOut, Bools]]:
    of_type = asks.of_type(need.instance_type)
    if of_type is not None:
        yield LeftOut.INSTANCE_TYPE, of_type
    if need.window is not None:
        in_time = asks.start <= microseconds(need.window.start)
        in_time &= asks.ends(now) >= microseconds(need.window.end)
        yield LeftOut.WINDOW, in_time
    elif need.at_once:
        yield LeftOut.ENDED, asks.ends(now) > microseconds(now)
        yield LeftOut.LATER, asks.start <= microseconds(now)
    yield LeftOut.PRICE, asks.price > 0
    yield LeftOut.LOT, asks.gpus > 0


def _takes(wanted: str, offered: str) -> bool:
    try:
        return InstanceType.parse(wanted).takes(InstanceType.parse(offered))
    except ValueError:  # a market's own name for something
        return wanted.casefold() == offered.casefold()


def _times(
    starts: _Column, ends: _Column, durations: _Column, window: Window | None
) -> tuple[Integers, Integers, Integers | None]:
    """Return start, end and, where it counts from the present, how long each level lasts."""
    start = _numbers(starts, _UNSET, microseconds)
    end = _numbers(ends, _UNSET, microseconds)
    lasts = _numbers(durations, _UNSET, _microseconds_long)
    at_once, never = int(_RANGE.min), int(_RANGE.max)
    if window is not None:  # such a book is of levels for its window
        at_once, never = microseconds(window.start), microseconds(window.end)
        start = np.where(start == _UNSET, at_once, start)
    by_duration = (end == _UNSET) & (lasts != _UNSET)
    from_start = by_duration & (start != _UNSET)
    from_present = by_duration & ~from_start
    end = np.where(from_start, start + lasts, np.where(end == _UNSET, never, end))
    if not from_present.any():
        return start, end, None
    return start, end, np.where(from_present, lasts, _UNSET)


def _microseconds_long(span: timedelta) -> int:
    return min(span, _LONGEST) // _MICROSECOND


def _kinds(named: _Column, book: OrderBook) -> tuple[Integers, tuple[str, ...]]:
    if not any(named):
        return np.zeros(len(named), dtype=np.int64), (book.instance_type,)
    words: list[str] = [name or book.instance_type for name in named]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    return np.array([numbers[word] for word in words], dtype=np.int64), tuple(numbers)


def _numbers(
    column: _Column, missing: int, convert: Callable[[Any], int] | None = None
) -> Integers:
    """Return values as numbers, `missing` where there is none."""
    if column.count(None) == len(column):
        return np.full(len(column), missing, dtype=np.int64)
    if convert is None:
        known = [missing if value is None else value for value in column]
    else:
        known = [missing if value is None else convert(value) for value in column]
    return np.array(known, dtype=np.int64)
