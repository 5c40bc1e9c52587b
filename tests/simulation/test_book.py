"""The exchange's matching: what holds for every book and every order."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.models.market import Side
from longshore.simulation.market.book import Book, BookOrder, Trade
from longshore.simulation.market.schedule import Schedule

windows = st.tuples(st.integers(0, 8), st.integers(1, 8)).map(
    lambda pair: (pair[0], pair[0] + pair[1])
)
rectangles = st.tuples(windows, st.integers(1, 6)).map(
    lambda drawn: Schedule.of(*drawn[0], drawn[1])
)
schedules = st.lists(rectangles, max_size=4).map(lambda parts: sum_of(parts))
orders = st.lists(
    st.tuples(st.sampled_from(Side), st.integers(90, 110), rectangles, st.booleans()), max_size=14
)
quick = settings(max_examples=120, deadline=None)
Entry = tuple[Side, int, Schedule, bool]


def sum_of(parts: Sequence[Schedule]) -> Schedule:
    total = Schedule()
    for part in parts:
        total = total.plus(part)
    return total


def order(
    number: int, side: Side, price: int, wanted: Schedule, divisible: bool = True
) -> BookOrder:
    return BookOrder(f"o{number}", f"owner-{number}", side, price, number, wanted, divisible)


def play(entries: Sequence[Entry]) -> tuple[Book, list[Trade], dict[str, Schedule]]:
    """Return the book after all have arrived and rest, the trades, and what each wanted."""
    book, trades, wanted = Book(), list[Trade](), dict[str, Schedule]()
    for number, entry in enumerate(entries):
        arriving = order(number, *entry)
        wanted[arriving.id] = arriving.remaining
        trades += book.match(arriving)
        if arriving.remaining:
            trades += book.rest(arriving)
    return book, trades, wanted


@quick
@given(schedules, schedules)
def test_schedules_add_up_minute_by_minute(one: Schedule, other: Schedule):
    for minute in range(20):
        assert one.plus(other).at(minute) == one.at(minute) + other.at(minute)
        assert one.overlap(other).at(minute) == min(one.at(minute), other.at(minute))
    assert one.plus(other).minus(other) == one
    assert one.plus(other).covers(one)
    assert one.plus(other).node_minutes == one.node_minutes + other.node_minutes


@quick
@given(schedules, windows)
def test_the_least_of_a_window_is_there_in_every_minute(nodes: Schedule, window: tuple[int, int]):
    assert nodes.least(*window) == min(nodes.at(minute) for minute in range(*window))


@quick
@given(schedules, st.integers(0, 20))
def test_past_time_is_cut_off_and_nothing_else(nodes: Schedule, now: int):
    kept = nodes.from_minute(now)
    assert all(kept.at(m) == (nodes.at(m) if m >= now else 0) for m in range(20))


def test_no_more_can_be_taken_than_there_is():
    with pytest.raises(ValueError, match="more nodes"):
        Schedule.of(0, 5, 2).minus(Schedule.of(4, 6, 1))


@quick
@given(orders)
def test_quantity_is_conserved(entries: list[Entry]):
    book, trades, wanted = play(entries)
    resting = {each.id: each.remaining for side in Side for each in book.orders(side)}
    for order_id, whole in wanted.items():
        traded = sum_of([t.schedule for t in trades if order_id in (t.buy.id, t.sell.id)])
        assert traded.plus(resting.get(order_id, Schedule())) == whole


@quick
@given(orders)
def test_nobody_trades_through_their_limit_and_the_older_sets_the_price(entries: list[Entry]):
    for trade in play(entries)[1]:
        assert trade.sell.price <= trade.price <= trade.buy.price
        assert trade.price == min(trade.buy, trade.sell, key=lambda each: each.arrival).price
        assert trade.cost == trade.price * trade.schedule.node_minutes


@quick
@given(orders)
def test_all_or_nothing_is_kept(entries: list[Entry]):
    book, trades, wanted = play(entries)
    for side in Side:
        for each in book.orders(side):
            assert each.divisible or each.remaining == wanted[each.id]
    assert trades == play(entries)[1]  # and all of it again, the same


@quick
@given(orders, rectangles, st.integers(90, 110))
def test_a_taker_leaves_nothing_better_behind(entries: list[Entry], wanted: Schedule, limit: int):
    makers = [(Side.SELL, price, nodes, True) for _, price, nodes, _ in entries]
    book, _, _ = play(makers)
    before = {each.id: each.remaining for each in book.orders(Side.SELL)}
    taker = order(99, Side.BUY, limit, wanted)
    trades = book.match(taker)
    taken = [trade.sell.id for trade in trades]
    ranked = [o.id for o in sorted((t.sell for t in trades), key=lambda o: (o.price, o.arrival))]
    assert taken == ranked
    for each in book.orders(Side.SELL):
        if each.price <= limit:  # what still fits would have been taken
            assert not each.remaining.overlap(taker.remaining)
            assert before[each.id].covers(each.remaining)


def test_the_cheapest_ask_goes_first_and_among_equals_the_oldest():
    book = Book()
    for number, price in enumerate((105, 100, 100)):
        book.rest(order(number, Side.SELL, price, Schedule.of(0, 60, 2)))
    trades = book.match(order(9, Side.BUY, 110, Schedule.of(0, 60, 5)))
    assert [(t.sell.id, t.price, t.schedule.most) for t in trades] == [
        ("o1", 100, 2),
        ("o2", 100, 2),
        ("o0", 105, 1),
    ]
    assert book.depth(Side.SELL, 0, 60) == [(105, 1)]


def test_all_or_nothing_takes_from_asks_that_cover_the_window_alone():
    book = Book()
    book.rest(order(0, Side.SELL, 100, Schedule.of(0, 30, 4)))
    book.rest(order(1, Side.SELL, 100, Schedule.of(30, 60, 4)))
    whole = order(2, Side.BUY, 110, Schedule.of(0, 60, 4), divisible=False)
    assert book.match(whole) == []
    piecemeal = order(3, Side.BUY, 110, Schedule.of(0, 60, 4))
    assert len(book.match(piecemeal)) == 2
    assert not piecemeal.remaining


def test_what_is_left_of_an_ask_in_time_and_nodes_stays_for_sale():
    book = Book()
    book.rest(order(0, Side.SELL, 100, Schedule.of(0, 100, 4)))
    book.match(order(1, Side.BUY, 100, Schedule.of(20, 50, 3), divisible=False))
    (left,) = book.orders(Side.SELL)
    assert list(left.remaining) == [(0, 20, 4), (20, 50, 1), (50, 100, 4)]


def test_an_older_order_that_wants_all_is_served_when_there_is_enough():
    book = Book()
    waiting = order(0, Side.BUY, 110, Schedule.of(0, 60, 4), divisible=False)
    assert book.rest(waiting) == []
    first = order(1, Side.SELL, 100, Schedule.of(0, 60, 2))
    assert book.match(first) == []
    assert book.rest(first) == []
    second = order(2, Side.SELL, 105, Schedule.of(0, 60, 3))
    assert book.match(second) == []
    trades = book.rest(second)
    assert [(t.sell.id, t.price) for t in trades] == [("o1", 110), ("o2", 110)]
    assert [(o.id, o.remaining.most) for o in book.orders(Side.SELL)] == [("o2", 1)]
    assert book.orders(Side.BUY) == ()


def test_nobody_trades_with_themselves():
    book = Book()
    sale = order(0, Side.SELL, 100, Schedule.of(0, 60, 2))
    book.rest(sale)
    mine = order(1, Side.BUY, 110, Schedule.of(0, 60, 2))
    mine.owner = sale.owner
    assert book.match(mine) == []


def test_past_time_leaves_the_book():
    book = Book()
    book.rest(order(0, Side.SELL, 100, Schedule.of(0, 60, 2)))
    book.forget_before(59)
    assert [list(each.remaining) for each in book.orders(Side.SELL)] == [[(59, 60, 2)]]
    book.forget_before(60)
    assert book.orders(Side.SELL) == ()
