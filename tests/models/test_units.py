"""Sizes and durations as people write them."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.models.addresses import parse_address
from longshore.models.market import InstanceType
from longshore.models.mig import profile_gb
from longshore.models.money import micro_of
from longshore.models.text import format_duration
from longshore.models.units import (
    LONGEST,
    format_cores,
    format_gb,
    format_gb_per_second,
    format_limits,
    format_watts,
    parse_duration,
    parse_gb,
    parse_gb_per_second,
    parse_watts,
)


@pytest.mark.parametrize(
    ("text", "gb"),
    [
        (80, 80.0),
        (0.5, 0.5),
        ("80", 80.0),
        ("80GB", 80.0),
        (" 80 gb ", 80.0),
        ("512MB", 0.512),
        ("1.5TB", 1500.0),
        ("64GiB", 68.719476736),
        ("0", 0.0),
    ],
)
def test_sizes_are_read(text: object, gb: float) -> None:
    assert parse_gb(text) == pytest.approx(gb)


@pytest.mark.parametrize("text", ["", "GB", "80XB", "-1GB", "8 0GB", True, None, [], "1e3GB"])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_gb(text)


@pytest.mark.parametrize(
    ("text", "rate", "shown"),
    [
        (10, 10, "10GB/s"),
        ("10GB/s", 10, "10GB/s"),
        ("500 MB / s", 0.5, "500MB/s"),
        ("2TB/s", 2000, "2000GB/s"),
        ("4GB", 4, "4GB/s"),
    ],
)
def test_bandwidths_are_read_and_shown(text: object, rate: float, shown: str) -> None:
    assert parse_gb_per_second(text) == pytest.approx(rate)
    assert format_gb_per_second(rate) == shown


@pytest.mark.parametrize("text", ["", "fast", "10GB/m", "-1GB/s", True, None, float("inf")])
def test_what_is_no_bandwidth_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected a bandwidth such as 10GB/s"):
        parse_gb_per_second(text)


@pytest.mark.parametrize(
    ("text", "watts", "shown"),
    [
        (700, 700, "700W"),
        ("700W", 700, "700W"),
        ("5.6 kw", 5600, "5600W"),
        ("10.2kW", 10_200, "10.2kW"),
        ("1MW", 1e6, "1000kW"),
    ],
)
def test_powers_are_read_and_shown(text: object, watts: float, shown: str) -> None:
    assert parse_watts(text) == pytest.approx(watts)
    assert format_watts(watts) == shown


@pytest.mark.parametrize("text", ["", "W", "700V", "-1W", True, None])
def test_what_is_no_power_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected a power such as 700W"):
        parse_watts(text)


def test_what_a_job_wants_of_storage_and_power_is_said_where_it_says_so() -> None:
    assert format_limits(0, None) == ""
    assert format_limits(4, 500) == ", 4GB/s of storage, 500W a GPU"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_only_finite_sizes_and_durations(number: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        parse_gb(number)
    with pytest.raises(ValueError, match="finite"):
        parse_duration(number)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90),
        (0.5, 0.5),
        ("90", 90),
        ("90s", 90),
        ("30m", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
        ("250ms", 0.25),
        ("01:30:00", 5400),
        ("01:30", 5400),
        ("100:00:00", 360000),
        ("PT1H", 3600),
        ("P1DT2H", 93600),
    ],
)
def test_durations_are_read(text: object, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "h", "soon", "1:75", "-5m", "5 parsecs", True, None, []])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(text)


@settings(deadline=None, derandomize=True, database=None)
@given(st.timedeltas(min_value=timedelta(0), max_value=LONGEST))
def test_every_duration_survives_its_human_form(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("gb", "text"),
    [
        (80, "80GB"), (0.512, "512MB"), (0, "0GB"), (1500, "1500GB"), (0.1, "100MB"),
        (1023.999, "1023.999GB"), (1234567.8, "1234567.8GB"), (1e9, "1000000000GB"),
    ],
)  # fmt: skip
def test_sizes_are_written_short(gb: float, text: str) -> None:
    assert format_gb(gb) == text
    assert parse_gb(text) == pytest.approx(gb)


def test_no_amount_has_an_exponent_and_as_many_digits_as_are_asked_for() -> None:
    assert format_gb(79.9996) == "80GB"
    assert format_gb(79.9996, 6) == "79.9996GB"
    assert format_watts(1e9) == "1000000kW"
    assert format_cores(1e6) == "1000000 cores"
    assert format_gb_per_second(1.25) == "1.25GB/s"
    assert format_gb(-1e-7) == "0MB"


_READ: tuple[tuple[Callable[[str], object], str], ...] = (
    (parse_gb, "80GB"), (parse_gb, "64.5 KiB"), (parse_gb_per_second, "500MB/s"),
    (parse_watts, "10.2kW"), (parse_duration, "90"), (parse_duration, "1h30m"),
    (parse_duration, "250ms"), (parse_duration, "01:30:00"), (parse_duration, "PT1H30M5.5S"),
    (micro_of, "16.80"), (micro_of, "1e3"), (InstanceType.parse, "8xH-80GB"),
    (profile_gb, "1g.10gb"), (parse_address, "9100"),
)  # fmt: skip
_OTHERS = st.characters(categories=["Nd", "Nl", "No"], min_codepoint=128)


@pytest.mark.parametrize(("read", "text"), _READ, ids=[text for _, text in _READ])
@given(data=st.data())
def test_no_digit_but_0_to_9_is_read(
    read: Callable[[str], object], text: str, data: st.DataObject
) -> None:
    read(text)
    place = data.draw(st.sampled_from([at for at, each in enumerate(text) if each.isdigit()]))
    other = data.draw(_OTHERS | st.just("_") | st.sampled_from("\u0665\uff15\u00b2"))
    odd = text[:place] + other + text[place + data.draw(st.integers(0, 1)) :]
    with pytest.raises(ValueError, match=r"expected|must be"):
        read(odd)


@pytest.mark.parametrize(
    ("read", "text"),
    [(parse_duration, "5\u017f"), (parse_gb, "80\u212aB"), (parse_watts, "5\u212aW")],
)
def test_units_are_written_in_latin_letters(read: Callable[[str], object], text: str) -> None:
    """Unicode counts ſ as an s, and the sign for kelvin as a k."""
    with pytest.raises(ValueError, match="expected"):
        read(text)
