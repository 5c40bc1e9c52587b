"""The answer in dollars and hours, and books in files."""

from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.book_document import BookDocument
from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.market import NoQuote, NoQuoteReason
from longshore.models.money import micro_of
from longshore.models.orderbook_response import OrderbookResponse
from longshore.models.price import PriceNeed
from longshore.scheduling.prices.price import price
from tests.support.prices import BIDS, NOW, a_book, a_level, priced

HOUR = timedelta(hours=1)


def a_response(gpus: int = 64) -> OrderbookResponse:
    known = a_book(bids=BIDS)
    answer = price(known, PriceNeed(gpus=gpus), NOW)
    return OrderbookResponse.of(
        answer, gpus // 8, 8, instance_type="8xH100", now=NOW + HOUR, book=known
    )


def test_prices_are_dollars() -> None:
    said = a_response()
    assert (said.optimal_price, said.optimal_index, said.spread) == (25.0, 2, 1.0)
    assert (said.marginal_price, said.average_price) == (24.5, 24.25)
    assert (said.cost_per_hour, said.worst_per_hour) == (1552.0, 1600.0)
    assert (said.total_ask_liquidity, said.total_bid_liquidity) == (432, 120)
    assert said.asks[2].price == said.optimal_price
    assert said.metadata.model_dump() == {
        "required_gpus": 64, "node_count": 8, "gpus_per_node": 8
    }  # fmt: skip
    assert (said.last_updated, said.no_quote) == (NOW, None)


def test_a_level_lasts_from_its_start_or_from_the_moment_of_the_book() -> None:
    levels = [
        a_level("1", 8, start=NOW + HOUR, end=NOW + 3 * HOUR),
        a_level("2", 8, end=NOW + 3 * HOUR),
        a_level("3", 8, duration=1.5 * HOUR),
        a_level("4", 8, start=NOW, duration=5 * HOUR),
        a_level("5", 8),
    ]
    answer = priced(a_book(levels), 8)
    said = OrderbookResponse.of(answer, 1, 8, instance_type="8xH100", now=NOW)
    assert [ask.duration_hours for ask in said.asks] == [2.0, 3.0, 1.5, 5.0, None]
    assert said.asks[3].end == NOW + 5 * HOUR


def test_without_a_quote_the_bids_are_there_still() -> None:
    said = a_response(gpus=0)
    assert said.no_quote is not None
    assert said.no_quote.reason is NoQuoteReason.NOTHING_NEEDED
    assert (said.optimal_price, said.optimal_index, said.sufficient) == (None, None, False)
    assert said.asks == ()
    assert [bid.price for bid in said.bids] == [23.0, 22.5, 22.0, 21.0]
    assert said.total_bid_liquidity == 120
    assert said.last_updated == NOW


def test_an_unreachable_market_has_no_book_at_all() -> None:
    away = NoQuote(reason=NoQuoteReason.UNREACHABLE, detail="market: no answer")
    said = OrderbookResponse.of(away, 1, 8, instance_type="8xH100", now=NOW)
    assert (said.bids, said.last_updated, said.reason) == ((), NOW, "market: no answer")


@given(st.decimals(0, 10**6, places=6))
def test_prices_are_read_as_they_are_written(dollars: Decimal) -> None:
    document = (
        f'{{"instance_type": "8xH100", "asks": [{{"price": {dollars}, "quantity_gpus": 8}}]}}'
    )
    book = load_document(document, "book", BookDocument).book(NOW)
    assert book.asks[0].price == micro_of(dollars)


def test_a_saved_answer_is_a_book_again() -> None:
    said = a_response()
    read = load_document(said.model_dump_json(), "saved", BookDocument).book(NOW + HOUR)
    assert read.provider == "market"
    again = price(read, PriceNeed(gpus=64), NOW)
    assert OrderbookResponse.of(again, 8, 8, instance_type="8xH100", now=NOW, book=read) == said


def test_everything_that_is_answered_is_known_to_the_file() -> None:
    assert set(OrderbookResponse.model_fields) <= set(BookDocument.model_fields)


@pytest.mark.parametrize(("kind", "gpus"), [("8xH100", 8), ("4xA100-80GB", 4), ("cluster", 8)])
def test_a_node_is_what_the_type_says(kind: str, gpus: int) -> None:
    assert BookDocument(instance_type=kind, asks=()).book(NOW).gpus_per_node == gpus


@pytest.mark.parametrize("level", ["{price: 1, quantity_gpus: 8, quantity: 3}", "{price: 1}", "8"])
def test_a_wrong_level_is_refused(level: str) -> None:
    with pytest.raises(SpecError, match=r"book:1: asks\[0\]"):
        load_document(f"{{instance_type: 8xH100, asks: [{level}]}}", "book", BookDocument)
