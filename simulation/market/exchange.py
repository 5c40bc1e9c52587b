"""The exchange: orders of the account against those of strangers. Money and time add up."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil

from longshore.models.market import Side
from longshore.simulation.market.background import EVERY, Background, Profile, Stranger
from longshore.simulation.market.book import Book, BookOrder, Trade
from longshore.simulation.market.catalogue import SKU
from longshore.simulation.market.faults import SFCOMPUTE
from longshore.simulation.market.instances import Instances, Pool
from longshore.simulation.market.ledger import Ledger
from longshore.simulation.market.rates import Rate, per_gpu_hour
from longshore.simulation.market.schedule import Schedule
from longshore.simulation.market.world import World

OURS = "account"
STRANGERS = "strangers"
SCRIPTED = "scripted"
FEE_BPS = 400
"""Of what a sale brings."""
_FINAL = ("filled", "cancelled", "rejected")
_FILLS_KEPT = 2000


class NothingToSellError(Exception):
    """The pool does not hold the time, or it is on sale already."""


@dataclass(frozen=True)
class FillRecord:
    contract: str
    at: float
    schedule: Schedule
    price: Rate


@dataclass(frozen=True)
class PublicFill:
    """A trade as everybody may see it."""

    sku: str
    at: float
    schedule: Schedule
    price: Rate


@dataclass
class OrderRecord:
    """An order of the account."""

    id: str
    side: Side
    pool: Pool
    sku: SKU
    wanted: Schedule
    limit: Rate
    standing: bool
    partial: bool
    created_at: float
    book: BookOrder
    status: str = "pending"
    fills: list[FillRecord] = field(default_factory=list[FillRecord])
    filled_at: float | None = None
    cancelled_at: float | None = None

    @property
    def over(self) -> bool:
        return self.status in _FINAL

    @property
    def remaining(self) -> Schedule:
        return self.book.remaining

    @property
    def proceeds(self) -> int:
        """What its fills come to, in micro-dollars."""
        return sum(fill.price * fill.schedule.node_minutes for fill in self.fills)

    @property
    def filled(self) -> Schedule:
        total = Schedule()
        for fill in self.fills:
            total = total.plus(fill.schedule)
        return total


class Exchange:
    """Books per SKU, the account's orders, and its money."""

    def __init__(
        self,
        world: World,
        instances: Instances,
        ledger: Ledger,
        skus: Sequence[SKU],
        background: Background,
    ) -> None:
        self._world = world
        self._instances = instances
        self.ledger = ledger
        self.skus = {sku.id: sku for sku in skus}
        self.books = {sku.id: Book() for sku in skus}
        self.orders: dict[str, OrderRecord] = {}
        self.public_fills: list[PublicFill] = []
        self._background = background
        self._arrivals = itertools.count(1)
        self._enter(background.opening(world.clock.minute))
        self._world.clock.after(EVERY * 60, self._round)

    def place(
        self,
        side: Side,
        pool: Pool,
        sku: SKU,
        wanted: Schedule,
        limit: Rate,
        *,
        standing: bool = False,
        partial: bool = False,
    ) -> OrderRecord:
        """Take an order for one rectangle of time; it is matched a moment later.

        Raises ShortError when a buy could cost more than there is, NothingToSellError when the
        pool does not hold what is to be sold.
        """
        if side is Side.SELL and not self.sellable(pool, sku.id).covers(wanted):
            raise NothingToSellError
        order_id = self._world.new_id("ordr")
        if side is Side.BUY:
            self.ledger.hold(order_id, limit * wanted.node_minutes)
        book_order = BookOrder(
            order_id, OURS, side, limit, next(self._arrivals), wanted, divisible=partial
        )
        order = OrderRecord(
            order_id, side, pool, sku, wanted, limit, standing, partial,
            self._world.clock.now, book_order,
        )  # fmt: skip
        self.orders[order_id] = order
        self._later(lambda: self._settle(order))
        self._world.clock.at(wanted.end * 60, lambda: self._cancel(order))
        return order

    def cancel(self, order: OrderRecord) -> None:
        """Ask for the end of an order; it may fill until that takes effect."""
        if self._world.faults.take("cancel_race", SFCOMPUTE):
            self._world.clock.after(0, lambda: self._last_fill(order))
        self._later(lambda: self._cancel(order))

    def script(
        self, sku: str, side: Side, price: Rate, schedule: Schedule, *, divisible: bool = True
    ) -> str:
        """Put a stranger's order on a book, to stay until its time is past; return its id."""
        order = self._stranger(SCRIPTED, side, price, schedule)
        order.divisible = divisible
        self._arrive(sku, order)
        return order.id

    def send_strangers_away(self) -> None:
        """Take every stranger's order off the books, for good; the account's orders stay."""
        self._background.profile = Profile.EMPTY
        for book in self.books.values():
            book.clear((STRANGERS, SCRIPTED))

    def spike(self) -> None:
        """Strangers think again: all of them leave, and ask and bid for more."""
        for book in self.books.values():
            book.clear((STRANGERS,))
        self._background.spike()
        self._enter(self._background.opening(self._world.clock.minute))

    def book(self, sku: str) -> Book:
        """Return a book without past time."""
        book = self.books[sku]
        book.forget_before(self._world.clock.minute)
        return book

    def open_orders(self, pool: Pool) -> list[OrderRecord]:
        return [o for o in self.orders.values() if o.pool is pool and not o.over]

    def sellable(self, pool: Pool, sku: str) -> Schedule:
        held = pool.of(sku).from_minute(self._world.clock.minute)
        for order in self.open_orders(pool):
            if order.side is Side.SELL and order.sku.id == sku:
                held = held.minus(order.remaining.overlap(held))
        return held

    def _settle(self, order: OrderRecord) -> None:
        if order.over:
            return
        if self._world.faults.take("order_rejected", SFCOMPUTE):
            self._finish(order, "rejected")
            return
        book = self.book(order.sku.id)
        order.book.remaining = order.remaining.from_minute(self._world.clock.minute)
        self._record(order.sku.id, self._matched(order, book))
        if order.over:
            return
        if order.standing:
            order.status = "partially_filled" if order.fills else "standing"
            self._record(order.sku.id, book.rest(order.book))
        elif order.fills:
            order.status = "partially_filled"
            self._later(lambda: self._cancel(order))
        else:
            self._finish(order, "cancelled")

    def _matched(self, order: OrderRecord, book: Book) -> list[Trade]:
        if self._world.faults.take("order_unfilled", SFCOMPUTE):
            return []
        if not order.partial or not self._world.faults.take("order_partial", SFCOMPUTE):
            return book.match(order.book)
        halved = Schedule(
            tuple((start, end, ceil(nodes / 2)) for start, end, nodes in order.remaining)
        )
        rest = order.remaining.minus(halved)
        order.book.remaining = halved
        trades = book.match(order.book)
        order.book.remaining = order.remaining.plus(rest)
        return trades

    def _last_fill(self, order: OrderRecord) -> None:
        """Have a stranger take a cancelled order up before the cancellation takes effect."""
        self.book(order.sku.id)
        if order.over or not order.remaining:
            return
        start, end, nodes = order.remaining.steps[0]
        taken = Schedule.of(start, end, ceil(nodes / 2)) if order.partial else order.remaining
        side = Side.SELL if order.side is Side.BUY else Side.BUY
        stranger = self._stranger(STRANGERS, side, order.limit, taken)
        buy, sell = (order.book, stranger) if order.side is Side.BUY else (stranger, order.book)
        order.book.remaining = order.remaining.minus(taken)
        self._record(order.sku.id, [Trade(buy, sell, order.limit, taken)])

    def _cancel(self, order: OrderRecord) -> None:
        if not order.over:
            self._finish(order, "cancelled")

    def _finish(self, order: OrderRecord, status: str) -> None:
        order.status = status
        self.books[order.sku.id].remove(order.id)
        self.ledger.change_hold(order.id, 0)
        if status != "filled":
            order.cancelled_at = self._world.clock.now

    def _record(self, sku: str, trades: Iterable[Trade]) -> None:
        for trade in trades:
            self.public_fills.append(
                PublicFill(sku, self._world.clock.now, trade.schedule, trade.price)
            )
            del self.public_fills[:-_FILLS_KEPT]
            self._tell(sku, trade)
            for side in (trade.buy, trade.sell):
                if order := self.orders.get(side.id):
                    self._fill(order, trade)

    def _fill(self, order: OrderRecord, trade: Trade) -> None:
        now = self._world.clock.now
        contract = self._world.new_id("cont")
        order.fills.append(FillRecord(contract, now, trade.schedule, trade.price))
        if order.side is Side.BUY:
            self.ledger.move("buy_order", -trade.cost, order.id, now)
            self.ledger.change_hold(order.id, order.limit * order.remaining.node_minutes)
            self._instances.gain(order.pool, order.sku.id, trade.schedule)
        else:
            self.ledger.move("sell_order", trade.cost, order.id, now)
            # By all that it brought: each fill rounded by itself would make another sum.
            fee = fee_of(order.proceeds) - fee_of(order.proceeds - trade.cost)
            self.ledger.move("fee", -fee, order.id, now)
            self._instances.lose(order.pool, order.sku.id, trade.schedule)
        if order.remaining:
            order.status = "partially_filled"
            return
        order.filled_at = now
        self._finish(order, "filled")

    def _round(self) -> None:
        for sku in self.books:
            self.book(sku)
        self._enter(self._background.round(self._world.clock.minute))
        self._world.clock.after(EVERY * 60, self._round)

    def _enter(self, strangers: Iterable[Stranger]) -> None:
        for each in strangers:
            order = self._stranger(STRANGERS, each.side, each.price, each.schedule)
            book = self.books[each.sku]
            self._world.clock.at(each.until * 60, _removal(book, order.id))
            self._arrive(each.sku, order)

    def _stranger(self, kind: str, side: Side, price: Rate, schedule: Schedule) -> BookOrder:
        number = next(self._arrivals)
        return BookOrder(f"stranger-{number}", f"{kind}/{number}", side, price, number, schedule)

    def _arrive(self, sku: str, order: BookOrder) -> None:
        book = self.book(sku)
        order.remaining = order.remaining.from_minute(self._world.clock.minute)
        self._record(sku, book.match(order))
        if order.remaining:
            self._record(sku, book.rest(order))

    def _tell(self, sku: str, trade: Trade) -> None:
        start, end, nodes = trade.schedule.steps[0]
        price = per_gpu_hour(trade.price, self.skus[sku].gpus)
        ours = " (yours)" if OURS in (trade.buy.owner, trade.sell.owner) else ""
        self._world.say(
            f"simulated trade{ours}: {nodes} nodes of {self.skus[sku].alias} for "
            f"{(end - start) / 60:.3g} h at {price} a GPU-hour"
        )

    def _later(self, do: Callable[[], object]) -> None:
        self._world.clock.after(self._world.knobs.settle_seconds, do)


def fee_of(proceeds: int) -> int:
    """Return the resale fee in micro-dollars."""
    return proceeds * FEE_BPS // 10_000


def _removal(book: Book, order_id: str) -> Callable[[], None]:
    return lambda: book.remove(order_id)
