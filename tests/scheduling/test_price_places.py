"""A market that fills an order in one place: each place is priced by itself."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.market import Level, NoQuote, NoQuoteReason, OrderBook
from longshore.models.price import LeftOut, PriceAnswer, PriceNeed
from longshore.scheduling.prices.price import in_place, price
from tests.support.prices import NOW

WHERE = {"sku-1": "north", "sku-2": "south"}


def level(dollars: float, gpus: int, place: str) -> Level:
    return Level(price=round(dollars * 1_000_000), gpus=gpus, place=place)


def a_book(asks: list[Level], bids: list[Level] | None = None) -> OrderBook:
    return OrderBook(
        provider="market", instance_type="8xH100", lot=8, asks=tuple(asks),
        bids=tuple(bids or ()), observed_at=NOW, places=WHERE,
    )  # fmt: skip


def answered(book: OrderBook, gpus: int) -> PriceAnswer:
    answer = price(book, PriceNeed(gpus=gpus), NOW)
    assert isinstance(answer, PriceAnswer)
    return answer


def test_asks_and_bids_elsewhere_do_not_count() -> None:
    book = a_book([level(2.0, 64, "sku-1"), level(3.0, 64, "sku-2")], [level(2.5, 64, "sku-2")])
    answer = answered(book, 8)
    assert (answer.place, answer.place_name) == ("sku-1", "north")
    assert [one.level.place for one in answer.asks] == ["sku-1"]
    assert answer.bids == ()
    assert answer.left_out == {LeftOut.PLACE.value: 1}
    assert answer.warnings == ("one seller: there is a single ask",), "not crossed"


def test_the_place_that_holds_enough_goes_before_the_cheaper_one() -> None:
    book = a_book([level(2.0, 8, "sku-1"), level(3.0, 64, "sku-2")])
    assert answered(book, 8).place == "sku-1"
    assert answered(book, 64).place == "sku-2"


def test_where_none_holds_enough_the_one_with_most_is_told() -> None:
    book = a_book([level(2.0, 8, "sku-1"), level(3.0, 64, "sku-2")])
    answer = answered(book, 640)
    assert (answer.place, answer.sufficient) == ("sku-2", False)


def test_places_without_a_fitting_ask_are_no_quote() -> None:
    answer = price(
        a_book([level(2.0, 4, "sku-1"), level(2.0, 4, "sku-2")]), PriceNeed(gpus=8), NOW
    )
    assert isinstance(answer, NoQuote)
    assert answer.reason is NoQuoteReason.LEFT_OUT


@given(
    st.lists(
        st.tuples(
            st.integers(1_000_000, 4_000_000), st.integers(1, 10), st.sampled_from(list(WHERE))
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 80),
)
def test_no_place_alone_would_serve_the_need_at_less(
    rows: list[tuple[int, int, str]], gpus: int
) -> None:
    book = a_book([Level(price=ask, gpus=8 * nodes, place=place) for ask, nodes, place in rows])
    answer = answered(book, gpus)
    for place in {row[2] for row in rows}:
        alone = answered(in_place(book, place), gpus)
        assert answer.sufficient or not alone.sufficient
        if alone.cost_per_hour is not None:
            assert answer.cost_per_hour is not None
            assert answer.cost_per_hour <= alone.cost_per_hour
