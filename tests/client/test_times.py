"""Times as the command line shows them: in the zone of whoever reads them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import typer

from longshore.client import past_times
from longshore.client.past_times import past_time
from longshore.client.words import cell, clock, moment, period

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("zone_name", "today", "period_said"),
    [
        ("UTC", "12:00:00 UTC", "11:00:00 to 2026-11-21 12:00 UTC"),
        ("Europe/Berlin", "13:00:00 CET", "12:00:00 to 2026-11-21 13:00 CET"),
        ("Asia/Kathmandu", "17:45:00 +0545", "16:45:00 to 2026-11-21 17:45 +0545"),
    ],
)
def test_times_are_the_readers_and_name_their_zone(
    in_zone: Callable[[str], None], zone_name: str, today: str, period_said: str
) -> None:
    in_zone(zone_name)
    assert clock(NOW, NOW) == today
    assert cell(NOW, NOW) == today.rpartition(" ")[0]
    assert moment(NOW) == f"2026-11-20 {today}"
    assert period(NOW - 60 * MINUTE, NOW + timedelta(days=1), NOW) == period_said


@pytest.mark.parametrize("day", ["2026-10-25", "2026-03-29"])
def test_the_last_hour_of_a_clock_is_one_of_the_calendar(
    in_zone: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, day: str
) -> None:
    """The clocks were changed in the night before."""
    in_zone("Europe/Berlin")
    now = datetime.fromisoformat(f"{day}T09:00").astimezone()
    monkeypatch.setattr(past_times, "now", lambda: now)
    before = (now.date() - timedelta(days=1)).isoformat()
    assert past_time("--since", "23:00") == past_time("--since", f"{before}T23:00")
    assert past_time("--since", "08:59") == now - MINUTE


@pytest.mark.parametrize(
    ("text", "at"),
    [("9:05", "09:05:00"), ("09:05", "09:05:00"), ("0:00", "00:00:00"), ("9:05:07", "09:05:07")],
)
def test_an_hour_of_one_digit_is_a_time_of_the_day(
    in_zone: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, text: str, at: str
) -> None:
    """It was taken for nine hours and five minutes ago."""
    in_zone("UTC")
    monkeypatch.setattr(past_times, "now", lambda: NOW)
    assert past_time("--since", text) == datetime.fromisoformat(f"2026-11-20T{at}+00:00")


@pytest.mark.parametrize("text", ["99:00", "24:00", "100:00", "9:60", "9:05:60"])
def test_a_clock_that_there_is_none_of_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no time of a day"):
        past_time("--since", text)


@pytest.mark.parametrize("text", ["3", "0", "1.5", " 30 "])
def test_a_number_without_a_unit_is_refused(text: str) -> None:
    """It was taken for seconds: `usage --since 3` was of nothing."""
    with pytest.raises(typer.BadParameter, match=f"has no unit; say {text.strip()}s, "):
        past_time("--since", text)


def test_a_period_that_began_on_another_day_has_both_dates(in_zone: Callable[[str], None]) -> None:
    in_zone("UTC")
    week = period(NOW - timedelta(days=7), NOW, NOW)
    assert week == "2026-11-13 12:00 to 2026-11-20 12:00 UTC"
    assert period(NOW - 60 * MINUTE, NOW, NOW) == "11:00:00 to 12:00:00 UTC"


def test_a_cell_names_its_zone_where_it_is_another_than_now(
    in_zone: Callable[[str], None],
) -> None:
    in_zone("Europe/Berlin")
    assert cell(NOW - timedelta(days=60), NOW) == "2026-09-21 14:00 CEST"
