"""San Francisco Compute's units: no limit is ever exceeded, and nothing is lost in schedules."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.activities.providers import sfcompute_units as units
from longshore.activities.providers.sfcompute_shapes import ScheduleEntry
from longshore.models.market import Side, Window
from longshore.models.money import MICRO

GRAIN = Decimal("0.000060")
START = datetime(2026, 9, 21, 13, tzinfo=UTC)
limits = st.integers(min_value=0, max_value=10**9)
gpu_counts = st.integers(min_value=1, max_value=16)


@pytest.mark.parametrize(
    ("limit", "side", "native"),
    [
        (2_100_000, Side.BUY, "16.800000"),
        (2_100_000, Side.SELL, "16.800000"),
        (2_100_001, Side.BUY, "16.800000"),
        (2_100_001, Side.SELL, "16.800060"),
        (1, Side.BUY, "0.000000"),
        (1_000_000_000, Side.BUY, "7999.999980"),
    ],
)
def test_limits_become_text_in_dollars_per_node_hour(limit: int, side: Side, native: str):
    assert units.native_limit(limit, 8, side) == native


@given(limits, gpu_counts)
def test_a_buy_limit_is_never_above_and_a_sale_limit_never_below(limit: int, gpus: int):
    buy = Decimal(units.native_limit(limit, gpus, Side.BUY))
    sell = Decimal(units.native_limit(limit, gpus, Side.SELL))
    asked = Decimal(limit) * gpus / MICRO
    assert buy <= asked <= sell
    assert asked - buy < GRAIN
    assert sell - asked < GRAIN
    assert buy % GRAIN == sell % GRAIN == 0


@given(limits, gpu_counts)
def test_a_limit_survives_the_way_there_and_back(limit: int, gpus: int):
    buy = units.gpu_hour_price(Decimal(units.native_limit(limit, gpus, Side.BUY)), gpus)
    sell = units.gpu_hour_price(Decimal(units.native_limit(limit, gpus, Side.SELL)), gpus)
    assert buy <= limit <= sell
    assert sell - buy <= 60 / gpus + 1


@given(st.integers(min_value=0, max_value=10**7), gpu_counts)
def test_a_limit_at_the_price_of_the_book_meets_it(grains: int, gpus: int):
    rate = grains * GRAIN
    buy = units.native_limit(units.ask_price(rate, gpus), gpus, Side.BUY)
    sell = units.native_limit(units.bid_price(rate, gpus), gpus, Side.SELL)
    assert Decimal(buy) == rate
    assert Decimal(sell) == rate


@given(
    st.integers(min_value=0, max_value=10**7),
    st.integers(min_value=0, max_value=64),
    st.integers(min_value=0, max_value=10_000),
)
def test_costs_on_the_grain_are_exact(grains: int, nodes: int, minutes: int):
    length = timedelta(minutes=minutes)
    assert units.cost(grains * GRAIN, nodes, length) == grains * nodes * minutes


def entry(start: int, end: int | None, nodes: int) -> ScheduleEntry:
    begin = int(START.timestamp())
    ends = None if end is None else begin + end * 3600
    return ScheduleEntry(start_at=begin + start * 3600, end_at=ends, node_count=nodes)


def shown(pieces: list[units.Span]) -> list[tuple[float, float | None, int]]:
    def hour(at: datetime | None) -> float | None:
        return None if at is None else (at - START) / timedelta(hours=1)

    return [(hour(p.start) or 0.0, hour(p.end), p.nodes) for p in pieces]


def test_schedules_with_gaps_left_out_ends_and_an_open_tail_are_read():
    schedule = [entry(0, None, 2), entry(1, 2, 3), entry(5, 6, 0), entry(6, None, 1)]
    assert shown(units.spans(schedule)) == [(0, 1, 2), (1, 2, 3), (6, None, 1)]


def test_schedules_are_cut_into_pieces_that_last_as_long_as_can_be():
    schedule = [entry(0, 1, 3), entry(1, 2, 1), entry(2, 3, 2), entry(4, None, 1)]
    assert shown(units.rectangles(schedule)) == [
        (0, 3, 1),
        (0, 1, 2),
        (2, 3, 1),
        (4, None, 1),
    ]


@given(st.lists(st.integers(min_value=0, max_value=5), max_size=8))
def test_cutting_keeps_every_node_hour(counts: list[int]):
    schedule = [entry(hour, hour + 1, count) for hour, count in enumerate(counts)]
    pieces = units.rectangles(schedule)
    for hour, count in enumerate(counts):
        at = START + timedelta(hours=hour)
        held = [p.nodes for p in pieces if p.start <= at and (p.end is None or at < p.end)]
        assert sum(held) == count


def test_nodes_count_only_where_they_are_there_throughout():
    schedule = [entry(0, 2, 3), entry(2, 3, 1)]
    assert units.nodes_throughout(schedule, Window(start=START, end=hours(2))) == 3
    assert units.nodes_throughout(schedule, Window(start=START, end=hours(3))) == 1
    assert units.nodes_throughout(schedule, Window(start=START, end=hours(4))) == 0


def test_windows_are_of_whole_minutes():
    odd = Window(start=START + timedelta(seconds=30), end=START + timedelta(seconds=90))
    assert not units.is_aligned(odd)
    assert units.around(odd) == Window(start=START, end=START + timedelta(minutes=2))
    assert units.is_aligned(units.around(odd))
    assert units.next_hour(START).start == hours(1)
    assert units.next_hour(START + timedelta(minutes=59)).end == hours(2)


def hours(count: int) -> datetime:
    return START + timedelta(hours=count)
