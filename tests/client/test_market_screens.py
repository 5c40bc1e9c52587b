"""How prices over time look on a terminal, for fixed points."""

from datetime import timedelta
from typing import Any

from longshore.client.market_view import abilities, history_lines, history_screen, quotes_in_place
from longshore.client.markets import Quote
from longshore.models.market import Capabilities, InstanceType, NoQuote, NoQuoteReason, OrderBook
from longshore.models.market_memory import HistoryPoint, Quality
from longshore.models.price import PriceAnswer, PriceNeed
from longshore.scheduling.prices.price import price
from tests.support.market_books import NOW, a_book, levels
from tests.support.screens import drawn

MINUTE = timedelta(minutes=1)


def a_point(minute: int, ask: int | None, **fields: Any) -> HistoryPoint:
    basics = {"at": NOW + minute * MINUTE, "books": 1, "provider": "market", "ask": ask}
    return HistoryPoint.model_validate({**basics, **fields})


def test_a_chart_is_as_high_as_its_prices() -> None:
    points = [a_point(n, ask * 1_000_000) for n, ask in enumerate((2, 4, 3, 2))]
    lines = drawn(history_screen(points, (), 80, NOW))
    assert lines[0] == "market"
    top, bottom = lines[1], lines[6]
    assert top == "$4.00  █"
    assert bottom.startswith("$2.00 ")
    columns = bottom.removeprefix("$2.00 ")
    assert columns[1:3] == "██"
    assert columns[0] == columns[3] != "█"
    assert lines[7].endswith("lowest ask per GPU-hour")


def test_a_chart_fits_its_width_and_shows_the_newest() -> None:
    points = [a_point(n, 1_000_000 + n) for n in range(300)]
    lines = drawn(history_screen(points, (), 60, NOW + 300 * MINUTE), 60)
    assert max(map(len, lines)) <= 60
    assert lines[1].rstrip().endswith("█")  # the newest are the dearest


def test_one_price_and_none_can_be_drawn() -> None:
    assert "$2.00" in "\n".join(drawn(history_screen([a_point(0, 2_000_000)], (), 80, NOW)))
    assert drawn(history_screen([a_point(0, None)], (), 80, NOW))[1] == "no asks"


def test_simulated_prices_and_limits_say_so() -> None:
    quality = Quality(
        provider="market", instance_type="8xH100", size="1-8", simulated=True, made=4, judged=2,
        at_once=1, in_time=2, over_best=0.1,
    )  # fmt: skip
    points = [a_point(0, 2_000_000, simulated=True, ask_low=2_000_000, ask_high=2_000_000)]
    text = "\n".join(drawn(history_screen(points, [quality], 140, NOW), 140))
    assert text.splitlines()[0] == "market (simulated)"
    assert text.splitlines()[-1].split()[:8] == [
        "market", "(simulated)", "8xH100", "1-8", "4", "2", "50%", "100%",
    ]  # fmt: skip
    assert "+10.0%" in text
    assert "headroom" in text
    assert "bought" not in text  # nothing tells what was bought on a limit
    assert "paid over best" not in text
    assert history_lines(points) == [
        "2026-11-20T12:30:00Z  market (simulated)  ask $2.00 ($2.00 to $2.00)  bid –  "
        "0 GPUs asked  1 books"
    ]


def test_a_live_screen_fits_the_terminal_and_keeps_what_matters() -> None:
    deep = levels(*((f"{200 - number}.00", 8) for number in range(60)))
    full, empty = (
        Quote(provider=name, instance_type=InstanceType.parse("8xH100"), gpus=8, answer=answer,
              book=book, at=NOW)
        for name, answer, book in (
            ("market", *_priced(a_book(asks=deep, bids=deep, simulated=True))),
            ("empty", NoQuote(reason=NoQuoteReason.EMPTY, detail="nobody sells"), None),
        )
    )  # fmt: skip
    for height in (32, 40, 80):
        lines = drawn(quotes_in_place([empty, full], NOW, height), 100)
        assert len(lines) <= height
        assert lines[0] == "8 GPUs of 8xH100 at empty: no quote, nobody sells"
        assert lines[1].startswith(" SIMULATED ")
        assert any(line.endswith("← limit") for line in lines)
        assert any(line.startswith("updated ") for line in lines)


def _priced(book: OrderBook) -> tuple[PriceAnswer | NoQuote, OrderBook]:
    return price(book, PriceNeed(gpus=8), NOW), book


def test_abilities_are_words() -> None:
    can = Capabilities(order_book=True, idempotent=True, lot_gpus=8, grain=MINUTE)
    assert abilities(can) == [
        "order book", "idempotent orders", "lots of 8 GPUs", "in steps of 1m",
    ]  # fmt: skip
