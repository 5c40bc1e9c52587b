"""One SKU's order book: price first, then arrival; trades at the price of the older order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from longshore.models.market import Side
from longshore.simulation.market.rates import Rate
from longshore.simulation.market.schedule import Schedule

Take = tuple["BookOrder", Schedule]


@dataclass
class BookOrder:
    """An order on its way to the book, or on it."""

    id: str
    owner: str
    """Nobody trades with themselves. What stands before a slash says of which kind they are."""
    side: Side
    price: Rate
    """At most this for a buy, at least this for a sale."""
    arrival: int
    """Smaller is older."""
    remaining: Schedule
    divisible: bool = True
    """Fewer nodes, or a part of the time, will do. Else all of it or nothing."""


@dataclass(frozen=True)
class Trade:
    buy: BookOrder
    sell: BookOrder
    price: Rate
    schedule: Schedule

    @property
    def cost(self) -> int:
        """Micro-dollars, exact."""
        return self.price * self.schedule.node_minutes


class Book:
    """Resting orders of one SKU."""

    def __init__(self) -> None:
        self._sides: dict[Side, list[BookOrder]] = {Side.BUY: [], Side.SELL: []}

    def orders(self, side: Side) -> Sequence[BookOrder]:
        """Return the resting orders of a side, best first."""
        return tuple(self._sides[side])

    def match(self, taker: BookOrder) -> list[Trade]:
        """Trade an order with what rests on the other side; what is left of it does not rest."""
        takes = _takes(taker, self._sides[_other(taker.side)])
        trades = [_trade(taker, maker, schedule) for maker, schedule in takes]
        for maker, _ in takes:
            if not maker.remaining:
                self.remove(maker.id)
        return trades

    def rest(self, order: BookOrder) -> list[Trade]:
        """Put what is left of a matched order on the book.

        An older order that takes all or nothing may find enough only now: such trades are
        returned.
        """
        side = self._sides[order.side]
        side.append(order)
        side.sort(key=_priority)
        trades: list[Trade] = []
        for waiting in [each for each in self._sides[_other(order.side)] if not each.divisible]:
            found = self.match(waiting)
            trades += found
            if found and not waiting.remaining:
                self.remove(waiting.id)
        return trades

    def remove(self, order_id: str) -> None:
        for side in self._sides.values():
            side[:] = [order for order in side if order.id != order_id]

    def clear(self, kinds: Iterable[str]) -> None:
        """Remove every order whose owner is of one of these kinds."""
        gone = set(kinds)
        for side in self._sides.values():
            side[:] = [order for order in side if order.owner.partition("/")[0] not in gone]

    def forget_before(self, minute: int) -> None:
        """Past time cannot be traded: cut it off every order, and drop what has none left."""
        for side in self._sides.values():
            for order in side:
                order.remaining = order.remaining.from_minute(minute)
            side[:] = [order for order in side if order.remaining]

    def depth(self, side: Side, start: int, end: int) -> list[tuple[Rate, int]]:
        """Return (price, nodes) of a side for exactly this window, best first, summed by price."""
        levels: dict[Rate, int] = {}
        for order in self._sides[side]:
            if nodes := order.remaining.least(start, end):
                levels[order.price] = levels.get(order.price, 0) + nodes
        return list(levels.items())


def _takes(taker: BookOrder, makers: Sequence[BookOrder]) -> list[Take]:
    """Return what the taker takes of whom; nothing when it wants all and cannot have it."""
    crossing = [m for m in makers if _crosses(taker, m) and m.owner != taker.owner]
    if not taker.remaining:
        return []
    return _pieces(taker, crossing) if taker.divisible else _whole(taker, crossing)


def _pieces(taker: BookOrder, makers: Sequence[BookOrder]) -> list[Take]:
    wanted, takes = taker.remaining, list[Take]()
    for maker in makers:
        piece = wanted.overlap(maker.remaining)
        if not piece or (not maker.divisible and piece != maker.remaining):
            continue
        takes.append((maker, piece))
        wanted = wanted.minus(piece)
    return takes


def _whole(taker: BookOrder, makers: Sequence[BookOrder]) -> list[Take]:
    start, end, wanted = taker.remaining.steps[0]
    takes: list[Take] = []
    for maker in makers:
        nodes = min(maker.remaining.least(start, end), wanted)
        piece = Schedule.of(start, end, nodes)
        if not piece or (not maker.divisible and piece != maker.remaining):
            continue
        takes.append((maker, piece))
        wanted -= nodes
    return [] if wanted else takes


def _trade(taker: BookOrder, maker: BookOrder, schedule: Schedule) -> Trade:
    taker.remaining = taker.remaining.minus(schedule)
    maker.remaining = maker.remaining.minus(schedule)
    buy, sell = (taker, maker) if taker.side is Side.BUY else (maker, taker)
    older = min(taker, maker, key=lambda order: order.arrival)
    return Trade(buy, sell, older.price, schedule)


def _crosses(one: BookOrder, other: BookOrder) -> bool:
    buy, sell = (one, other) if one.side is Side.BUY else (other, one)
    return buy.price >= sell.price


def _priority(order: BookOrder) -> tuple[int, int]:
    return (-order.price if order.side is Side.BUY else order.price, order.arrival)


def _other(side: Side) -> Side:
    return Side.SELL if side is Side.BUY else Side.BUY
