"""How durations, money, numbers of things and GPUs read."""

from datetime import UTC, datetime, timedelta

import pytest

from longshore.models.text import (
    ago,
    amount,
    and_more,
    at_most,
    count,
    dollars,
    format_gpus,
    format_places,
    format_slices,
    listed,
    price,
    span,
)

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def test_spans_and_moments() -> None:
    spans = {
        0: "0s", 59: "59s", 60: "1m", 125: "2m 5s", 3600: "1h", 7500: "2h 5m",
        200_000: "2d 7h", 604_800: "7d",
    }  # fmt: skip
    assert {seconds: span(timedelta(seconds=seconds)) for seconds in spans} == spans
    assert span(-MINUTE) == "0s"
    short = {
        59: "59s", 60: "1m", 89: "1m", 90: "2m", 3569: "59m", 3570: "1h", 7169: "1h 59m",
        7170: "2h", 7500: "2h 5m", 35_000: "9h 43m", 35_999: "10h", 37_799: "10h", 37_800: "11h",
        170_999: "47h", 171_000: "2d", 176_400: "2d 1h", 863_999: "10d", 950_400: "11d",
    }  # fmt: skip
    assert {seconds: span(timedelta(seconds=seconds), units=1) for seconds in short} == short
    assert ago(NOW - 3 * MINUTE, NOW) == "3m ago"
    assert ago(NOW + 120 * MINUTE, NOW) == "in 2h"
    assert ago(NOW + 119 * MINUTE, NOW) == "in 1h 59m"
    assert ago(NOW - 119 * MINUTE, NOW) == "1h 59m ago"
    assert ago(NOW, NOW) == "now"


def test_money_is_rounded_to_cents_and_a_cap_up() -> None:
    assert [dollars(micro) for micro in (2_104_999, -1_234_500_000, 0, None)] == [
        "$2.10", "-$1,234.50", "$0.00", "–",
    ]  # fmt: skip
    assert [at_most(micro) for micro in (2_100_000, 2_100_001)] == ["$2.10", "$2.11"]


def test_what_is_below_a_cent_and_a_price_with_parts_of_one_have_four_places() -> None:
    assert [amount(micro) for micro in (9_999, 10_000, 0)] == ["$0.0100", "$0.01", "$0.00"]
    assert [price(micro) for micro in (2_099_998, 2_123_400, None)] == ["$2.10", "$2.1234", "–"]


def test_things_are_counted() -> None:
    assert [count(number, "GPU") for number in (0, 1, 1024, 0.5)] == [
        "0 GPUs", "1 GPU", "1,024 GPUs", "0.5 GPUs",
    ]  # fmt: skip
    assert count(1024) == "1,024"


def test_gpus_are_written_as_runs() -> None:
    assert [format_gpus(i) for i in ((), (3,), (0, 1, 2, 3), (6, 0, 1))] == [
        "no GPU", "GPU 3", "GPUs 0-3", "GPUs 0-1,6",
    ]  # fmt: skip
    assert [format_slices(slices) for slices in (0b0100_0000, 0b1111_0000)] == [
        "slice 6", "slices 4-7",
    ]  # fmt: skip


def test_of_many_places_the_first_few_are_named() -> None:
    places = [(f"n{number}", (0, 1)) for number in range(6)]
    assert format_places([*places[:1], ("old", ())]) == "n0 GPUs 0-1, old"
    assert format_places(places).endswith("n3 GPUs 0-1 and 2 more nodes with 4 GPUs")


@pytest.mark.parametrize(
    ("names", "says"),
    [("a", "a"), ("ab", "a, b"), ("abc", "a, b and 1 more"), ("abcd", "a, b and 2 more")],
)
def test_of_many_names_the_first_few_and_the_number_of_the_rest(names: str, says: str):
    assert listed(list(names), 2) == says


def test_parts_with_commas_of_their_own_stand_between_semicolons():
    assert listed(["a, x", "b"], 2, between="; ") == "a, x; b"
    assert listed(["a, x", "b", "c"], 2, between="; ") == "a, x; b; and 1 more"


def test_what_the_rest_is_can_be_named():
    assert listed(list("abc"), 2, "node") == "a, b and 1 more node"
    assert and_more(1024, "node") == "and 1,024 more nodes"
    assert (and_more(0), and_more(-1, "node")) == ("", "")
