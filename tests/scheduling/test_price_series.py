"""The price of a pool at a moment, and who waits for another."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.price_series import PricePoint, PriceSeries, Unknown
from longshore.scheduling.prices.series import (
    changes_at,
    energy_term,
    has_to_wait,
    next_prices,
    price_at,
    says_now,
    threshold,
    why_price_wait,
)

HOUR = timedelta(hours=1)
START = datetime(2026, 11, 20, 8, tzinfo=UTC)
BELOW = 2_100_000


def a_series(*prices: float) -> PriceSeries:
    points = tuple(
        PricePoint(START + number * HOUR, round(each * 1e6)) for number, each in enumerate(prices)
    )
    return PriceSeries.of(points, HOUR, "file prices.csv")


SERIES = st.lists(st.integers(0, 5_000_000), min_size=1, max_size=12).map(
    lambda prices: a_series(*(price / 1e6 for price in prices))
)
MOMENTS = st.integers(-3600, 14 * 3600).map(lambda seconds: START + timedelta(seconds=seconds))


def test_each_price_holds_until_the_next_and_the_last_as_long_as_the_one_before():
    series = a_series(2.6, 2.0)
    assert price_at(series, START).price == 2_600_000
    assert price_at(series, START + HOUR - timedelta(microseconds=1)).price == 2_600_000
    assert price_at(series, START + HOUR).price == 2_000_000
    assert price_at(series, START + 2 * HOUR).why == "file prices.csv ended at 10:00 UTC"
    assert price_at(series, START - HOUR).why == "file prices.csv begins at 08:00 UTC"
    assert price_at(None, START).why == "it has not been read yet"


def test_it_is_said_in_words():
    series, now = a_series(2.6), START + HOUR / 4
    assert why_price_wait(BELOW, price_at(series, now), now) == (
        "waits for a price below $2.10 a GPU-hour; now $2.60 (file prices.csv, 08:00 UTC)"
    )
    later = START + 30 * HOUR
    said = "not known: file prices.csv ended at 2026-11-20 09:00 UTC"
    assert says_now(price_at(series, later), later) == said


@given(SERIES, MOMENTS)
def test_a_price_is_that_of_the_last_time_that_has_come(series: PriceSeries, now: datetime):
    found = price_at(series, now)
    past = [price for at, price in series.points if at <= now]
    if past and now < series.ends_at:
        assert (found.price, found.why) == (past[-1], "")
        assert found.at is not None
        assert found.until is not None
        assert found.at <= now < found.until
    else:
        assert found.price is None
        assert found.why
    assert all(at > now for at, _ in next_prices(series, now, 100))


@given(SERIES, MOMENTS, st.lists(st.integers(1, 5_000_000), max_size=3), st.sampled_from(Unknown))
def test_nothing_changes_for_anybody_before_the_next_look(
    series: PriceSeries, now: datetime, thresholds: list[int], unknown: Unknown
):
    def waits(moment: datetime) -> list[bool]:
        price = price_at(series, moment).price
        return [has_to_wait(each, price, unknown) for each in thresholds]

    at = changes_at(series, thresholds, now, unknown)
    until = START + 20 * HOUR if at is None else at
    moments = [now + (until - now) * number / 40 for number in range(40)]
    assert all(waits(moment) == waits(now) for moment in moments)
    if at is not None:
        assert at > now
        assert waits(at) != waits(now)


def test_the_lower_threshold_counts_and_a_price_has_to_be_below_it():
    assert threshold(None, None) is None
    assert threshold(3, None) == threshold(None, 3) == threshold(3, 4) == threshold(4, 3) == 3
    assert has_to_wait(BELOW, BELOW, Unknown.START)
    assert not has_to_wait(BELOW, BELOW - 1, Unknown.START)
    assert not has_to_wait(BELOW, None, Unknown.START)
    assert has_to_wait(BELOW, None, Unknown.WAIT)
    assert not has_to_wait(None, None, Unknown.WAIT)


@given(st.integers(0, 10**15), st.integers(1, 10**15))
def test_the_term_of_a_score_is_between_nothing_and_one(price: int, reference: int):
    found = energy_term(price, reference)
    assert found is not None
    assert 0 <= found <= 1
    assert energy_term(None, reference) is None
    assert energy_term(price, None) is None
