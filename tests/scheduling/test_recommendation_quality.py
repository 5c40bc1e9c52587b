"""Recommended limits held against later prices: worked cases, and properties of any series."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.market import Window
from longshore.models.market_memory import Judged, Recommendation, Source
from longshore.scheduling.prices.quality import HORIZON, judge, size_class, summarize

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def made(minute: int, limit: int, average: int | None, **fields: Any) -> Recommendation:
    """Return a recommendation for 8 GPUs whose marginal price is its average, unless said."""
    basics = {
        "provider": "market", "instance_type": "8xH100", "gpus": 8,
        "made_at": NOW + minute * MINUTE,
        "limit": limit, "marginal": average, "average": average, "sufficient": average is not None,
        "index": 0, "source": Source.WATCH,
    }  # fmt: skip
    return Recommendation.model_validate({**basics, **fields})


def test_a_limit_that_covers_the_walk_fills_at_once():
    first, _ = judge([made(0, 220, 200), made(10, 200, 160)])
    assert (first.at_once, first.filled_after, first.best_later) == (True, timedelta(0), 160)
    assert first.over_best == pytest.approx(0.25)


def test_a_limit_below_the_market_fills_when_the_price_comes_down():
    first, *_ = judge([made(0, 150, 200), made(10, 0, 190), made(20, 0, 150), made(30, 0, 140)])
    assert (first.at_once, first.filled_after) == (False, 20 * MINUTE)
    assert first.over_best == pytest.approx(10 / 140)


def test_the_last_gpu_decides_whether_it_fills():
    first, _ = judge([made(0, 210, 200, marginal=230), made(10, 0, 190, marginal=211)])
    assert (first.at_once, first.filled_after, first.over_best) == (False, None, None)


def test_too_few_gpus_are_no_fill_and_no_price():
    first, _ = judge([made(0, 210, None), made(10, 0, None)])
    assert (first.quotes, first.filled_after, first.best_later) == (1, None, None)


def test_only_the_hour_after_counts_and_the_same_need():
    window = Window(start=NOW, end=NOW + timedelta(hours=1))
    first, *_ = judge(
        [
            made(0, 200, 200), made(61, 0, 10), made(5, 0, 10, gpus=16),
            made(5, 0, 10, window=window), made(5, 0, 10, provider="other"),
            made(5, 0, 10, simulated=True),
        ]
    )  # fmt: skip
    assert (first.quotes, first.best_later) == (0, None)


def test_windows_are_compared_by_their_length():
    def of(hour: int) -> Window:
        start = NOW + timedelta(hours=hour)
        return Window(start=start, end=start + timedelta(hours=1))

    first, _ = judge([made(0, 200, 200, window=of(1)), made(60, 0, 190, window=of(2))])
    assert first.best_later == 190


def test_the_summary_counts_by_market_type_and_size():
    series = [made(0, 220, 200), made(10, 100, 160), made(20, 100, 150), made(0, 9, 9, gpus=64)]
    small, large = summarize(judge(series))
    assert (small.size, small.made, small.judged) == ("1-8", 3, 2)
    assert (small.at_once, small.in_time) == (1, 1)
    assert small.over_best == pytest.approx((200 - 150) / 150)
    assert (large.size, large.made, large.judged, large.over_best) == ("9-64", 1, 0, None)


def test_size_classes():
    assert [size_class(gpus) for gpus in (1, 8, 9, 64, 65)] == [
        "1-8",
        "1-8",
        "9-64",
        "9-64",
        "65+",
    ]


prices = st.integers(0, 10**9)


@st.composite
def series(draw: st.DrawFn) -> list[Recommendation]:
    def one(minute: int) -> Recommendation:
        average = draw(st.none() | prices)
        marginal = None if average is None else average + draw(st.integers(0, 10**6))
        return made(
            minute, draw(prices), average, marginal=marginal, gpus=draw(st.sampled_from([8, 64]))
        )

    minutes = draw(st.lists(st.integers(0, 240), max_size=30, unique=True))
    return [one(minute) for minute in minutes]


@given(series())
def test_each_is_judged_once_by_later_prices_alone(recommendations: list[Recommendation]):
    judged = judge(recommendations)
    assert sorted(each.recommendation.made_at for each in judged) == sorted(
        each.made_at for each in recommendations
    )
    for each in judged:
        _holds(each, recommendations)


def _holds(each: Judged, everything: Sequence[Recommendation]) -> None:
    own = each.recommendation
    later = [
        other for other in everything
        if other.gpus == own.gpus and own.made_at < other.made_at <= own.made_at + HORIZON
    ]  # fmt: skip
    assert each.quotes == len(later)
    assert each.best_later == min(
        (o.average for o in later if o.average is not None), default=None
    )
    assert each.at_once == (each.filled_after == timedelta(0))
    if each.filled_after is None:
        assert all(other.marginal is None or other.marginal > own.limit for other in later)
    elif not each.at_once:
        filler = next(o for o in later if o.made_at == own.made_at + each.filled_after)
        assert filler.marginal is not None
        assert filler.marginal <= own.limit
        earlier = [o for o in (own, *later) if o.made_at < filler.made_at]
        assert all(o.marginal is None or o.marginal > own.limit for o in earlier)


@given(series(), st.integers(0, 10**6))
def test_a_higher_limit_never_fills_later(recommendations: list[Recommendation], more: int):
    raised = [each.model_copy(update={"limit": each.limit + more}) for each in recommendations]
    for low, high in zip(judge(recommendations), judge(raised), strict=True):
        if low.filled_after is not None:
            assert high.filled_after is not None
            assert high.filled_after <= low.filled_after


@given(series(), st.randoms())
def test_the_order_of_the_rows_does_not_matter(recommendations: list[Recommendation], random: Any):
    shuffled = list(recommendations)
    random.shuffle(shuffled)
    assert summarize(judge(shuffled)) == summarize(judge(recommendations))


@given(series())
def test_counts_add_up(recommendations: list[Recommendation]):
    summary = summarize(judge(recommendations))
    assert sum(each.made for each in summary) == len(recommendations)
    for each in summary:
        assert each.at_once <= each.in_time <= each.judged <= each.made
