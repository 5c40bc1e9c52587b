"""The benchmark of prices on a small book. How fast it is, is not judged here."""

import pytest

from benchmarks import pricing


@pytest.fixture(autouse=True)
def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pricing.REPEATS, 10, 3)
    monkeypatch.setitem(pricing.BATCH, 10, 10)  # one alone would be too short for the clock


def test_both_sides_agree_and_are_measured():
    row = pricing.measure(10)
    assert row.levels == 10
    assert min(row.plain_ms, row.in_order_ms, row.core_ms, row.columns_ms, row.price_ms) > 0
    assert row.ratio == pytest.approx(row.plain_ms / row.core_ms)


def test_it_ends_when_the_two_sides_differ(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pricing, "plain_loop", lambda asks, needed: (1, 0))
    with pytest.raises(SystemExit, match="decided differently"):
        pricing.measure(10)
