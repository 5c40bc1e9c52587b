"""What must hold for every book and every need."""

import random
from datetime import timedelta
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from longshore.models.market import Level, NoQuote, OrderBook, Window
from longshore.models.money import MICRO
from longshore.models.price import PriceAnswer, PriceNeed
from longshore.scheduling.prices.book import BookColumns
from longshore.scheduling.prices.limit import find_limit
from longshore.scheduling.prices.price import answer, price
from tests.support.prices import NOW, a_book, plain_price

HOUR = timedelta(hours=1)
WINDOW = Window(start=NOW + HOUR, end=NOW + 25 * HOUR)

prices = st.integers(1, 40 * MICRO)
gpu_counts = st.integers(1, 200)
needs = st.integers(1, 600)
plain_levels = st.builds(Level, price=prices, gpus=gpu_counts)
plain_asks = st.lists(plain_levels, min_size=1, max_size=20)
distinct_asks = st.lists(plain_levels, min_size=1, max_size=20, unique_by=lambda ask: ask.price)
moments = st.none() | st.integers(-2, 30).map(lambda hours: NOW + hours * HOUR)
any_levels = st.builds(
    Level,
    price=st.integers(0, 40 * MICRO),
    gpus=st.integers(0, 200),
    lot=st.none() | st.integers(1, 32),
    start=moments,
    end=moments,
    duration=st.none() | st.integers(0, 40).map(lambda hours: hours * HOUR),
    instance_type=st.sampled_from([None, "8xH100", "8xH100-80GB", "8xA100", "by-name"]),
)
books = st.builds(
    a_book,
    asks=st.lists(any_levels, max_size=20),
    bids=st.lists(any_levels, max_size=5),
    lot=st.integers(1, 16),
    window=st.none() | st.just(WINDOW),
)
any_needs = st.builds(
    PriceNeed,
    gpus=st.integers(-1, 600),
    instance_type=st.sampled_from([None, "8xH100", "8xH100-80GB", "by-name"]),
    window=st.none() | st.just(WINDOW),
)


def answered(book: OrderBook, need: PriceNeed | int) -> PriceAnswer:
    need = PriceNeed(gpus=need) if isinstance(need, int) else need
    found = price(book, need, NOW)
    assume(isinstance(found, PriceAnswer))
    assert isinstance(found, PriceAnswer)
    return found


@given(plain_asks, needs)
def test_a_book_without_lots_is_priced_as_the_formula_says(asks: list[Level], gpus: int) -> None:
    found = answered(a_book(asks), gpus)
    plain = plain_price([(ask.price, ask.gpus) for ask in asks], gpus)
    assert (found.limit, found.index) == plain


@given(distinct_asks, needs, st.randoms(use_true_random=False))
def test_the_order_of_the_market_changes_nothing(
    asks: list[Level], gpus: int, chance: random.Random
) -> None:
    first = answered(a_book(asks), gpus)
    chance.shuffle(asks)
    assert answered(a_book(asks), gpus) == first


@given(books, any_needs)
def test_the_same_question_gets_the_same_answer(book: OrderBook, need: PriceNeed) -> None:
    again = OrderBook.model_validate_json(book.model_dump_json())
    assert price(book, need, NOW).model_dump_json() == price(again, need, NOW).model_dump_json()


@given(books, any_needs)
def test_prices_stand_in_order(book: OrderBook, need: PriceNeed) -> None:
    found = answered(book, need)
    assert found.asks[found.index].level.price == found.limit
    if not found.sufficient:
        assert (found.index, found.limit) == (0, found.asks[0].level.price)
        assert found.marginal is found.average is found.cost_per_hour is None
        return
    assert found.marginal is not None
    assert found.average is not None
    assert found.cost_per_hour is not None
    assert found.asks[0].level.price <= found.average <= found.marginal <= found.limit
    assert found.cost_per_hour <= found.worst_per_hour == found.limit * found.bought
    assert abs(found.average * found.bought - found.cost_per_hour) * 2 <= found.bought


@given(books, any_needs)
def test_a_walk_buys_whole_lots_from_the_cheapest_ask_on(book: OrderBook, need: PriceNeed) -> None:
    found = answered(book, need)
    assume(found.sufficient)
    left, cost, bought = need.gpus, 0, 0
    for one in found.asks:
        if left <= 0:
            break
        lot = one.level.lot or book.lot
        taken = min(one.level.gpus, -(-left // lot) * lot)
        assert taken % lot == 0
        left, cost, bought = left - taken, cost + taken * one.level.price, bought + taken
    assert (found.bought, found.cost_per_hour) == (bought, cost)
    assert need.gpus <= found.bought <= found.ask_liquidity


@given(books, any_needs)
def test_sums_and_orders_of_both_sides(book: OrderBook, need: PriceNeed) -> None:
    found = answered(book, need)
    for side, total, sign in (
        (found.asks, found.ask_liquidity, 1),
        (found.bids, found.bid_liquidity, -1),
    ):
        assert [one.level.price for one in side] == sorted(
            (one.level.price for one in side), key=lambda dollars: sign * dollars
        )
        running = 0
        for one in side:
            running += one.level.gpus
            assert one.cumulative == running
        assert total == running
    if found.bids:
        assert found.spread == found.asks[0].level.price - found.bids[0].level.price


@given(books, any_needs)
def test_every_ask_counts_or_is_left_out(book: OrderBook, need: PriceNeed) -> None:
    found = price(book, need, NOW)
    counted = len(found.asks) if isinstance(found, PriceAnswer) else 0
    if isinstance(found, NoQuote) and (need.gpus <= 0 or not book.asks):
        return
    assert counted + sum(found.left_out.values()) == len(book.asks)
    assert counted == sum(serves(ask, book, need) for ask in book.asks)


def serves(ask: Level, book: OrderBook, need: PriceNeed) -> bool:
    """Return whether an ask counts, moment by moment."""
    kind = ask.instance_type or book.instance_type
    if need.instance_type is not None:
        names = {need.instance_type, kind}
        if kind != need.instance_type and names != {"8xH100", "8xH100-80GB"}:
            return False
    if ask.price == 0 or ask.gpus < (ask.lot or book.lot):
        return False
    if need.window is None:
        return True
    start, end = ask.start, ask.end
    if start is None and book.window is not None:
        start = book.window.start
    if end is None and ask.duration is not None:
        end = (start or NOW) + ask.duration
    elif end is None and book.window is not None:
        end = book.window.end
    begins_in_time = start is None or start <= need.window.start
    return begins_in_time and (end is None or end >= need.window.end)


@given(plain_asks, st.integers(1, 16), needs, needs)
def test_more_never_costs_less(asks: list[Level], lot: int, one: int, other: int) -> None:
    fewer, more = sorted((one, other))
    book = a_book(asks, lot=lot)
    few, many = answered(book, fewer), answered(book, more)
    assume(many.sufficient)
    assert few.cost_per_hour is not None
    assert many.cost_per_hour is not None
    assert few.cost_per_hour <= many.cost_per_hour
    assert few.bought <= many.bought


@given(plain_asks, st.integers(1, 16), needs)
def test_slippage_grows_with_the_size(asks: list[Level], lot: int, gpus: int) -> None:
    sizes = answered(a_book(asks, lot=lot), gpus).slippage
    assert sizes
    for small, large in pairwise(sizes):
        assert small.gpus < large.gpus
        assert small.average <= large.average
        assert small.marginal <= large.marginal
        assert 0 <= small.over_best <= large.over_best


@given(books, any_needs, st.integers(0, 25))
def test_a_short_answer_differs_in_the_length_of_its_lists_alone(
    book: OrderBook, need: PriceNeed, levels: int
) -> None:
    whole = answered(book, need)
    priced = find_limit(BookColumns.of(book), need, NOW)
    assert not isinstance(priced, NoQuote)
    short = answer(priced, levels=levels)
    assert short.asks == whole.asks[: max(levels, whole.index + 1)]
    assert short.bids == whole.bids[:levels]
    assert short.model_copy(update={"asks": whole.asks, "bids": whole.bids}) == whole
