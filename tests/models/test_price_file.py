"""A series of prices from a file of others: read exactly, or refused with every mistake."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.errors import SpecError
from longshore.models.price_file import MOST_BYTES, read_series
from longshore.models.price_series import MOST_POINTS

HOUR = timedelta(hours=1)
START = datetime(2026, 11, 20, 8, tzinfo=UTC)


def iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def as_csv(points: list[tuple[datetime, str]]) -> bytes:
    return "".join(f"{iso(at)},{price}\n" for at, price in points).encode()


def as_named_csv(points: list[tuple[datetime, str]]) -> bytes:
    return b"time,price\n" + as_csv(points)


def as_json(points: list[tuple[datetime, str]]) -> bytes:
    return json.dumps([[iso(at), float(price)] for at, price in points]).encode()


def as_named_json(points: list[tuple[datetime, str]]) -> bytes:
    return json.dumps([{"price": price, "time": iso(at)} for at, price in points]).encode()


def problems(data: bytes, longest_step: timedelta = HOUR) -> tuple[str, ...]:
    with pytest.raises(SpecError) as refused:
        read_series(data, "prices.csv", longest_step)
    return refused.value.problems


@pytest.mark.parametrize("write", [as_csv, as_named_csv, as_json, as_named_json])
@given(
    st.lists(st.tuples(st.integers(1, 3600), st.integers(0, 100_000_000)), min_size=1, max_size=30)
)
def test_what_was_written_is_read(
    write: Callable[[list[tuple[datetime, str]]], bytes], steps: list[tuple[int, int]]
):
    at, points = START, list[tuple[datetime, str]]()
    for seconds, micro in steps:
        at += timedelta(seconds=seconds)
        points.append((at, f"{micro / 1e6:.6f}"))
    series = read_series(write(points), "x", HOUR)
    assert list(series.points) == [
        (at, micro) for (at, _), (_, micro) in zip(points, steps, strict=True)
    ]
    last = timedelta(seconds=steps[-1][0]) if len(steps) > 1 else HOUR
    assert series.ends_at == points[-1][0] + last


def test_a_hole_is_told_with_its_line_its_times_and_what_would_be_right():
    (told,) = problems(as_csv([(START, "2"), (START + HOUR, "2"), (START + 5 * HOUR, "2")]))
    assert told == (
        "prices.csv: line 3: a hole of 4h between 2026-11-20T09:00:00Z (line 2) and "
        "2026-11-20T13:00:00Z: two times may be 1h apart; add the prices between, or allow it "
        "(longest_step=4h)"
    )
    assert len(read_series(as_csv([(START, "2"), (START + 4 * HOUR, "2")]), "x", 4 * HOUR).points)


def test_every_mistake_is_told_at_once():
    told = problems(
        b"time,price\n"
        b"2026-11-20T08:00:00Z,NaN\n"
        b"2026-11-20T08:00:00Z,-1\n"
        b"2026-11-20T07:30:00Z,Infinity\n"
        b"2026-11-20T07:45:00,2\n"
        b"noon,2\n"
    )
    expected = (
        ("line 2", "expected dollars for a GPU-hour such as 2.10, not 'NaN'"),
        ("line 3", "is there twice, first in line 2"),
        ("line 3", "a price cannot be below 0, got '-1'"),
        ("line 4", "2026-11-20T07:30:00Z is before 2026-11-20T08:00:00Z in line 3"),
        ("line 4", "expected dollars for a GPU-hour such as 2.10, not 'Infinity'"),
        ("line 5", "a time needs its zone: 2026-11-20T07:45:00Z is UTC"),
        ("line 6", "expected a time such as 2026-11-20T08:00:00Z, not 'noon'"),
    )
    assert len(told) == len(expected)
    for each, (where, what) in zip(told, expected, strict=True):
        assert each.startswith(f"prices.csv: {where}: ")
        assert what in each


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "holds no price"),
        (b"\n# nothing\n", "holds no price"),
        (b"[]", "holds no price"),
        (b'{"prices": []}', "must be a list such as"),
        (b"[[", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b'[["2026-11-20T08:00:00Z", NaN]]', "not 'NaN'"),
        (b'[["2026-11-20T08:00:00Z", 1e400]]', "a price is $1,000,000,000 at most"),
        (b'[["2026-11-20T08:00:00Z", true]]', "not True"),
        (b'[["2026-11-20T08:00:00Z"]]', 'entry 1: expected ["2026-11-20T08:00:00Z", 2.10]'),
        (b'[{"time": "2026-11-20T08:00:00Z", "cost": 2}]', "entry 1: expected"),
        (b"2026-11-20T08:00:00Z;2\n", "line 1: expected a time and a price"),
        (b"2026-11-20T08:00:00Z,1e999999999\n", "a price is $1,000,000,000 at most"),
        (b"9999-12-31T23:00:00-10:00,2\n", "before 2100"),
        (b"\xff\xfe2", "line 1: is not UTF-8 text"),
        (b"x" * (MOST_BYTES + 1), "has more than 2,000,000 bytes"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_series_is_refused(data: bytes, told: str):
    assert any(told in each for each in problems(data))


def test_a_series_has_a_bound():
    step = timedelta(seconds=1)
    many = [(START + number * step, "1") for number in range(MOST_POINTS + 1)]
    assert len(read_series(as_csv(many[:-1]), "x", HOUR).points) == MOST_POINTS
    assert problems(as_csv(many)) == (
        "prices.csv: has more than 20,000 prices: leave out what is long past",
    )
