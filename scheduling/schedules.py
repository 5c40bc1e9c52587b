"""What is wrong with the times of a schedule, and on which days the clock makes them odd.

The server parses cron lines and starts the runs. Here is what it takes and should not, and a walk
over the days on which the clock changes, against which the server's own times are held.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from longshore.models.schedule import (
    LONGEST_LINE,
    MOST_LINES,
    OddDay,
    Oddity,
    ScheduleTimes,
)
from longshore.models.text import count, format_duration
from longshore.models.visible import shown

SHORTEST = timedelta(minutes=1)
AROUND = timedelta(hours=26)
"""On either side of a change of the clock: the whole local day that it is in."""
_WORDS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
"""That stand for a line, as in cron."""
_HOUR = timedelta(hours=1)
_MINUTE = timedelta(minutes=1)
_ALL_HOURS = frozenset(range(24))
_ALL_DAYS = frozenset(range(1, 32))
_ALL_WEEKDAYS = frozenset(range(7))


@dataclass(frozen=True)
class Calendar:
    """A cron line as the server has read it. A time fits where all of its parts do."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    years: frozenset[int] = frozenset()
    """All years where it has none."""

    def fits(self, wall: datetime) -> bool:
        """Return whether it names a local time."""
        return (
            wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.day in self.days
            and wall.month in self.months
            and wall.isoweekday() % 7 in self.weekdays
            and (not self.years or wall.year in self.years)
        )

    @property
    def each_hour(self) -> bool:
        """Whether it follows the hours that pass, and not the time of the day."""
        return self.hours == _ALL_HOURS

    @property
    def by_both_days(self) -> bool:
        """Whether it names days of the month and days of the week."""
        return self.days < _ALL_DAYS and self.weekdays < _ALL_WEEKDAYS


def refusals(times: ScheduleTimes) -> tuple[str, ...]:
    """Return what is wrong with the times of a schedule, as far as the server does not say it."""
    found: list[str] = []
    if bool(times.cron) is (times.every is not None):
        found.append("give cron lines or an interval: --cron '0 2 * * *', or --every 6h")
    if len(times.cron) > MOST_LINES:
        found.append(f"cron: has {len(times.cron):,} lines; {MOST_LINES} is the most")
    for line in times.cron[:MOST_LINES]:
        if len(line) > LONGEST_LINE:
            has = f"has {len(line):,} characters; {LONGEST_LINE} is the most"
            found.append(f"cron {shown(line)} {has}")
            continue
        found += _refusals_of_line(line)
    if times.every is not None:
        found += _refusals_of_interval(times, times.every)
    elif times.offset:
        found.append("offset: is added to an interval: give --every, or leave it out")
    if times.timezone is not None and (why := _zone_refusal(times.timezone)):
        found.append(why)
    return tuple(found)


def _refusals_of_line(line: str) -> Iterator[str]:
    where = f"cron {shown(line)}:"
    fields = line.split()
    if "#" in line:
        at = " ".join(fields[:2])
        yield (
            f"{where} the server takes # for the begin of a comment, so MON#2 would be every "
            f"Monday. The second Monday is: {at} 8-14 * MON"
        )
    elif "TZ=" in line:
        yield f"{where} give the time zone as --timezone"
    elif line.strip().startswith("@every"):
        yield f"{where} give an interval as --every"
    elif line.strip().startswith("@"):
        if line.strip().lower() not in _WORDS:
            yield f"{where} is none of the words that stand for a line: {', '.join(_WORDS)}"
    elif len(fields) < 5:
        yield (
            f"{where} has {count(len(fields), 'field')}, and wants five: minute, hour, day of the "
            "month, month, day of the week, as in '0 2 * * *'"
        )
    elif len(fields) > 7:
        yield f"{where} has {len(fields)} fields, and wants five, or six with a year last"
    elif len(fields) == 7:
        yield f"{where} has 7 fields: runs begin at whole minutes, leave the seconds out"
    elif not (line.isascii() and line.isprintable()):
        yield f"{where} has characters that no cron line has"


def _refusals_of_interval(times: ScheduleTimes, every: timedelta) -> Iterator[str]:
    if every < SHORTEST:
        yield f"every: {format_duration(every)} is too short: a minute is the least"
    if every.microseconds or times.offset.microseconds:
        yield "every: whole seconds are wanted"
    if times.offset and not timedelta(0) <= times.offset < every:
        yield (
            f"offset: {format_duration(times.offset)} must be shorter than the interval, "
            f"{format_duration(every)}"
        )
    if times.timezone is not None:
        yield (
            "timezone: an interval has none: 24h is a day of UTC. For a time of the day "
            "give --cron, as in --cron '0 2 * * *'"
        )


def _zone_refusal(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = get_close_matches(name, available_timezones(), 1, 0.5)
        instead = f"; did you mean {near[0]}?" if near else ": give one such as Europe/Berlin"
        return f"timezone: no zone {shown(name)}{instead}"
    return ""


def clock_changes(zone: ZoneInfo, start: datetime, end: datetime) -> tuple[datetime, ...]:
    """Return the first whole hour in UTC after each change of a zone's offset."""
    found: list[datetime] = []
    at = start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    offset = at.astimezone(zone).utcoffset()
    while at < end:
        at += _HOUR
        if (now := at.astimezone(zone).utcoffset()) != offset:
            offset = now
            found.append(at)
    return tuple(found)


def odd_days(
    calendars: Sequence[Calendar],
    zone: ZoneInfo,
    fires: Sequence[datetime],
    start: datetime,
    end: datetime,
) -> tuple[OddDay, ...]:
    """Return the days between two instants on which the server does not start what the lines say.

    `fires` are the times at which it does, within these. A line with the hour `*` is to run once
    in each hour that passes; any other once at each time of the day that it names.
    """
    local = [each.astimezone(zone).replace(tzinfo=None) for each in (start, end)]
    ran = Counter(each.astimezone(zone).replace(tzinfo=None, fold=0) for each in fires)
    wanted = dict(_wanted(calendars, zone, local[0], local[1]))
    odd: dict[tuple[date, Oddity], list[str]] = {}
    for wall in sorted({*ran, *wanted}):
        least, most = wanted.get(wall, (0, 0))
        if least <= ran[wall] <= most:
            continue
        oddity = Oddity.TWICE if ran[wall] > most else Oddity.ONCE if ran[wall] else Oddity.NEVER
        odd.setdefault((wall.date(), oddity), []).append(f"{wall:%H:%M}")
    return tuple(
        OddDay(day=day, oddity=oddity, times=tuple(times)) for (day, oddity), times in odd.items()
    )


def _wanted(
    calendars: Sequence[Calendar], zone: ZoneInfo, start: datetime, end: datetime
) -> Iterator[tuple[datetime, tuple[int, int]]]:
    """Yield each local time after `start` that lines name, with how many runs it is to have."""
    wall = start.replace(second=0, microsecond=0)
    while (wall := wall + _MINUTE) <= end:
        fitting = [each for each in calendars if each.fits(wall)]
        if fitting:
            times = _times_that_it_comes(wall, zone)
            yield wall, (times, times) if any(each.each_hour for each in fitting) else (1, 1)


def _times_that_it_comes(wall: datetime, zone: ZoneInfo) -> int:
    """Return how often a local time comes: never in a gap, twice where the clock goes back."""
    instants = {wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)}
    return sum(each.astimezone(zone).replace(tzinfo=None, fold=0) == wall for each in instants)
