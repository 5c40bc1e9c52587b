"""Dollars and micro-dollars."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from longshore.models.money import MICRO, Money, dollars_of, micro_of
from longshore.models.text import format_dollars

amounts = st.integers(-(10**15), 10**15)


@pytest.mark.parametrize(
    ("dollars", "micro"),
    [
        ("16.80", 16_800_000),
        ("24.1", 24_100_000),
        (24, 24_000_000),
        (Decimal("0.000001"), 1),
        ("-2.5", -2_500_000),
        ("0", 0),
        ("1e3", 1_000_000_000),
    ],
)
def test_dollars_become_micro_dollars(dollars: Decimal | str | int, micro: int) -> None:
    assert micro_of(dollars) == micro


@pytest.mark.parametrize(
    ("dollars", "nearest", "down", "up"),
    [
        ("0.0000005", 0, 0, 1),  # a half goes to the even neighbour
        ("0.0000015", 2, 1, 2),
        ("2.1234567", 2_123_457, 2_123_456, 2_123_457),
        ("-0.0000007", -1, -1, 0),
    ],
)
def test_rounding(dollars: str, nearest: int, down: int, up: int) -> None:
    assert micro_of(dollars) == nearest
    assert micro_of(dollars, rounding="down") == down
    assert micro_of(dollars, rounding="up") == up


@pytest.mark.parametrize("text", ["", "$2", "two", "NaN", "inf", "-Infinity", "1,000"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="amount in dollars"):
        micro_of(text)


@pytest.mark.parametrize("amount", ["$1,000,000,000.01", 10**15 + 1])
def test_an_amount_beyond_all_bounds_is_refused_in_dollars(amount: str | int) -> None:
    with pytest.raises(ValueError, match=r"an amount is \$1,000,000,000\.00 at most"):
        TypeAdapter(Money).validate_python(amount)
    assert TypeAdapter(Money).json_schema()["anyOf"][0]["maximum"] == 10**15


@given(amounts)
def test_micro_dollars_survive_the_way_through_dollars(micro: int) -> None:
    assert micro_of(dollars_of(micro)) == micro
    assert micro_of(str(dollars_of(micro))) == micro
    assert dollars_of(micro) * MICRO == micro


@given(amounts)
def test_what_is_shown_is_exact(micro: int) -> None:
    shown = format_dollars(micro)
    assert shown.lstrip("-").startswith("$")
    assert micro_of(shown.replace("$", "").replace(",", "")) == micro


@given(amounts, amounts)
def test_down_never_exceeds_up(whole: int, part: int) -> None:
    dollars = dollars_of(whole) + dollars_of(part) / 10**7
    down, up = micro_of(dollars, rounding="down"), micro_of(dollars, rounding="up")
    assert down <= dollars * MICRO <= up
    assert up - down <= 1
    assert micro_of(dollars) in (down, up)


@pytest.mark.parametrize(
    ("micro", "shown"),
    [
        (2_100_000, "$2.10"),
        (1_234_500_000, "$1,234.50"),
        (24_333_333, "$24.333333"),
        (0, "$0.00"),
        (-500_000, "-$0.50"),
        (1, "$0.000001"),
    ],
)
def test_amounts_are_shown_with_at_least_two_places(micro: int, shown: str) -> None:
    assert format_dollars(micro) == shown


def test_less_than_nothing_is_refused_in_dollars():
    with pytest.raises(ValidationError, match=r"must be at least \$0, got '\$-1'"):
        TypeAdapter(Money).validate_python("$-1")
