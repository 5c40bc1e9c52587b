"""Prices worked out by hand: the formula's cases, filters, lots, and what stands beside."""

from datetime import timedelta

import pytest

from longshore.models.market import NoQuoteReason, Window
from longshore.models.money import micro_of
from tests.support.prices import (
    ASKS,
    BIDS,
    NOW,
    a_book,
    a_level,
    not_priced,
    plain_price,
    priced,
)

HOUR = timedelta(hours=1)
SMALL = (("24", 32), ("24.5", 64), ("25", 128))
DEEP = (("24", 16), ("24.5", 32), ("25", 64), ("25.5", 8), ("26", 96))
TODAY = Window(start=NOW, end=NOW + 24 * HOUR)


@pytest.mark.parametrize(
    ("asks", "gpus", "limit", "index", "average", "marginal"),
    [
        pytest.param(SMALL, 8, "24", 0, "24", "24", id="O1"),
        pytest.param(SMALL, 16, "24", 0, "24", "24", id="O2"),
        pytest.param(SMALL, 64, "25", 2, "24.25", "24.5", id="O3"),
        pytest.param(SMALL, 128, "25", 2, "24.5", "25", id="O4"),
        pytest.param(ASKS, 64, "25", 2, "24.25", "24.5", id="O7"),
        pytest.param(ASKS, 8, "24", 0, "24", "24", id="O8"),
        pytest.param(DEEP, 80, "26", 4, "24.6", "25", id="O13"),
        pytest.param((("30", 100),), 100, "30", 0, "30", "30", id="one ask, exactly enough"),
    ],
)
def test_the_limit_and_the_prices_beside_it(
    asks: tuple[tuple[str, int], ...],
    gpus: int,
    limit: str,
    index: int,
    average: str,
    marginal: str,
) -> None:
    answer = priced(a_book(asks), gpus)
    assert (answer.limit, answer.index) == (micro_of(limit), index)
    assert (answer.average, answer.marginal) == (micro_of(average), micro_of(marginal))
    assert answer.cost_per_hour == micro_of(average) * gpus
    assert answer.worst_per_hour == micro_of(limit) * gpus
    assert (answer.sufficient, answer.bought, answer.needed) == (True, gpus, gpus)
    assert plain_price([(float(p), g) for p, g in asks], gpus) == (float(limit), index)


def test_of_equal_scores_the_cheapest_wins_whatever_floats_make_of_them() -> None:
    asks = (("4", 3), ("12", 16), ("18", 8), ("22", 2), ("36", 8))
    answer = priced(a_book(asks), 20)
    assert (answer.limit, answer.index) == (micro_of("18"), 2)


@pytest.mark.parametrize(
    ("asks", "gpus", "scores"),
    [
        (SMALL, 8, [1.5, 1.4918, 1.484]),
        (SMALL, 64, [1.2, 1.492]),
        (SMALL, 128, [1.3]),
        (ASKS, 64, [1.2, 1.492, 1.3343, 1.4769, 1.3630]),
        (DEEP, 80, [1.12, 1.0122, 1.4246]),
    ],
)
def test_scores(asks: tuple[tuple[str, int], ...], gpus: int, scores: list[float]) -> None:
    answer = priced(a_book(asks), gpus)
    assert [level.score for level in answer.scored] == pytest.approx(scores, abs=5e-5)
    first = answer.scored[0]
    assert first.cumulative >= gpus
    assert first.value == 1


@pytest.mark.parametrize(("between", "index"), [(4, 5), (5, 2)])
def test_the_fifth_ask_behind_the_first_viable_one_is_the_last_scored(
    between: int, index: int
) -> None:
    small = [(f"{10 + position / 100}", 1) for position in range(1, between + 1)]
    deep = ("11", 800)  # the best of all, where it takes part
    answer = priced(a_book([("10", 2), *small, deep]), 2)
    assert len(answer.scored) == 6
    assert answer.index == index


def test_of_equal_scores_the_first_wins() -> None:
    answer = priced(a_book([("5", 16), ("5", 16)]), 8)
    first, second = (level.score for level in answer.scored)
    assert first == second
    assert answer.index == 0


def test_too_little_gives_the_lowest_ask() -> None:
    answer = priced(a_book(SMALL), 500)  # O5
    assert (answer.limit, answer.index, answer.sufficient) == (micro_of("24"), 0, False)
    assert (answer.marginal, answer.average, answer.cost_per_hour) == (None, None, None)
    assert answer.worst_per_hour == micro_of("24") * 500
    assert answer.scored == ()
    assert answer.warnings[0] == "insufficient: the asks hold 224 of the 500 GPUs needed"
    assert "224 of 500" in answer.reason


def test_an_empty_book_has_no_price() -> None:
    assert not_priced(a_book([], BIDS), 16).reason is NoQuoteReason.EMPTY  # O6


@pytest.mark.parametrize("gpus", [0, -8])
def test_nothing_needed_has_no_price(gpus: int) -> None:
    assert not_priced(a_book(), gpus).reason is NoQuoteReason.NOTHING_NEEDED  # O14


def test_spread_and_liquidity() -> None:
    answer = priced(a_book(ASKS, BIDS), 64)
    assert answer.spread == micro_of("1.00")
    assert (answer.ask_liquidity, answer.bid_liquidity) == (432, 120)
    assert [one.cumulative for one in answer.asks] == [32, 96, 224, 272, 368, 432]
    assert [one.cumulative for one in answer.bids] == [16, 40, 88, 120]
    assert priced(a_book(ASKS), 64).spread is None


def test_bids_come_dearest_first_in_any_order() -> None:
    assert priced(a_book(ASKS, BIDS[::-1]), 64).bids == priced(a_book(ASKS, BIDS), 64).bids


def test_levels_of_one_price_keep_the_order_of_the_market() -> None:
    levels = [(str(1 + position % 3), 1 + position) for position in range(300)]
    answer = priced(a_book(levels, levels), 8)
    by_price = sorted(levels, key=lambda level: level[0])
    assert [one.level.gpus for one in answer.asks] == [gpus for _, gpus in by_price]
    dearest_first = sorted(levels, key=lambda level: -int(level[0]))
    assert [one.level.gpus for one in answer.bids] == [gpus for _, gpus in dearest_first]


def test_only_asks_for_the_whole_window_count() -> None:
    asks = [
        a_level("1", 8, start=NOW + HOUR),
        a_level("2", 8, end=NOW + 23 * HOUR),
        a_level("3", 8, start=NOW, duration=23 * HOUR),
        a_level("4", 8, duration=23 * HOUR),
        a_level("5", 8, start=NOW, duration=24 * HOUR),
        a_level("6", 8, duration=24 * HOUR),
        a_level("7", 8, start=NOW - HOUR, end=NOW + 24 * HOUR),
        a_level("8", 8),
    ]
    answer = priced(a_book(asks), 8, window=TODAY)
    assert [one.level.price for one in answer.asks] == [micro_of(str(d)) for d in (5, 6, 7, 8)]
    assert answer.left_out == {"window": 4}
    assert len(priced(a_book(asks), 8).asks) == 8


def test_a_book_for_a_window_serves_no_longer_one() -> None:
    book = a_book(ASKS, window=TODAY)
    assert priced(book, 8, window=TODAY).left_out == {}
    longer = Window(start=NOW, end=NOW + 25 * HOUR)
    assert not_priced(book, 8, window=longer).left_out == {"window": 6}
    earlier = Window(start=NOW - HOUR, end=NOW + HOUR)
    assert not_priced(book, 8, window=earlier).left_out == {"window": 6}


def test_a_duration_in_a_book_for_a_window_counts_from_its_start() -> None:
    later = Window(start=NOW + 10 * HOUR, end=NOW + 34 * HOUR)
    book = a_book([a_level("1", 8, duration=23 * HOUR), a_level("2", 8)], window=later)
    assert [one.level.price for one in priced(book, 8, window=later).asks] == [micro_of("2")]


def test_only_asks_of_the_type_count() -> None:
    asks = [
        a_level("1", 8, instance_type="8xA100"),
        a_level("2", 8, instance_type="4xH100"),
        a_level("3", 8, instance_type="8xh100-80GB"),
        a_level("4", 8),
    ]
    answer = priced(a_book(asks), 8, instance_type="8xH100")
    assert [one.level.price for one in answer.asks] == [micro_of("3"), micro_of("4")]
    assert answer.left_out == {"instance_type": 2}
    nothing = not_priced(a_book(asks), 8, instance_type="8xB200")
    assert (nothing.reason, nothing.left_out) == (NoQuoteReason.LEFT_OUT, {"instance_type": 4})
    assert nothing.detail == "no ask counts: 4 asks that are of another instance type"


def test_a_type_that_is_a_name_only_is_compared_as_text() -> None:
    book = a_book(ASKS, instance_type="cluster-7")
    assert priced(book, 8, instance_type="Cluster-7").left_out == {}
    assert not_priced(book, 8, instance_type="cluster-8").reason is NoQuoteReason.LEFT_OUT


def test_whole_lots_are_bought() -> None:
    answer = priced(a_book([("24", 16), ("25", 32)], lot=8), 20)
    assert (answer.needed, answer.bought, answer.marginal) == (20, 24, micro_of("25"))
    assert answer.cost_per_hour == 16 * micro_of("24") + 8 * micro_of("25")
    assert answer.average == 24_333_333
    assert answer.worst_per_hour == answer.limit * 24


def test_the_score_is_made_of_the_gpus_needed() -> None:
    in_lots, single = priced(a_book(ASKS, lot=8), 60), priced(a_book(ASKS), 60)
    assert in_lots.scored == single.scored
    assert (in_lots.bought, single.bought) == (64, 60)


def test_what_is_less_than_a_lot_does_not_count() -> None:
    asks = [a_level("1", 7), a_level("2", 12), a_level("3", 0, lot=1), a_level("4", 3, lot=1)]
    answer = priced(a_book(asks, lot=8), 8)
    assert [(one.level.gpus, one.cumulative) for one in answer.asks] == [(8, 8), (3, 11)]
    assert answer.left_out == {"lot": 2}
    assert answer.ask_liquidity == 11


def test_an_ask_without_a_price_is_no_offer() -> None:
    assert priced(a_book([("0", 64), ("2", 8)]), 8).left_out == {"price": 1}


def test_each_ask_is_left_out_for_one_reason() -> None:
    asks = [a_level("0", 0, instance_type="8xA100", end=NOW), a_level("0", 0, end=NOW)]
    nothing = not_priced(a_book(asks), 8, instance_type="8xH100", window=TODAY)
    assert nothing.left_out == {"instance_type": 1, "window": 1}


@pytest.mark.parametrize(
    ("asks", "bids", "gpus", "warnings"),
    [
        (ASKS, BIDS, 64, []),
        (ASKS, BIDS, 216, []),
        (ASKS, BIDS, 217, ["thin: the asks hold 432 GPUs, less than twice the 217 needed"]),
        ([("2", 8)], [], 4, ["one seller: there is a single ask"]),
        ([("2", 8), ("3", 9)], [], 4, ["one seller: a single ask holds 53% of the GPUs on offer"]),
        ([("2", 8), ("3", 8)], [("1.8", 1)], 4, []),
        (
            [("2", 8), ("3", 8)],
            [("1.79", 1)],
            4,
            ["wide spread: the highest bid, $1.79, is 10% below the lowest ask, $2.00"],
        ),
        (
            [("2", 8), ("3", 8)],
            [("2.5", 1)],
            4,
            ["crossed book: the highest bid, $2.50, is above the lowest ask, $2.00"],
        ),
    ],
)
def test_warnings(
    asks: list[tuple[str, int]], bids: list[tuple[str, int]], gpus: int, warnings: list[str]
) -> None:
    assert list(priced(a_book(asks, bids), gpus).warnings) == warnings


def test_slippage_doubles_lots_up_to_the_whole_book() -> None:
    answer = priced(a_book(ASKS, lot=8), 60)
    assert [one.gpus for one in answer.slippage] == [8, 16, 32, 64, 128, 256, 432]
    whole = answer.slippage[-1]
    assert (whole.average, whole.marginal) == (25_425_926, micro_of("27"))
    assert whole.over_best == pytest.approx(25.425926 / 24 - 1)
    assert answer.slippage[0].over_best == 0


def test_the_reason_is_a_sentence() -> None:
    assert priced(a_book(), 64).reason == (
        "$25.00 (ask 3 of 6) scores 1.492, against 1.200 of $24.50, the first that holds enough; "
        "64 GPUs at $24.25 on average, $24.50 for the last"
    )


def test_one_gpu_costs() -> None:
    assert "; 1 GPU at $" in priced(a_book(), 1).reason


def test_sums_are_exact_beyond_64_bits() -> None:
    dear = 10**15 - 2
    book = a_book([a_level("1", 10**9).model_copy(update={"price": dear + i}) for i in range(3)])
    answer = priced(book, 3 * 10**9)
    assert answer.cost_per_hour == 10**9 * (3 * dear + 3)
    assert answer.average == dear + 1
