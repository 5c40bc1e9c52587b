"""When something is to be: a time such as ``2026-11-20T08:00:00Z``, or a duration such as ``2h``
that counts from the submit."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from longshore.models.text import format_duration
from longshore.models.units import LONGEST, TOO_LONG, parse_duration
from longshore.models.visible import shown

_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(2100, 1, 1, tzinfo=UTC)
"""No time is later, so that what is reckoned from it is in the calendar."""
_LONGEST_TEXT = 100
_FORMS = "a duration such as 2h, which counts from the submit, or a time such as "
_EXAMPLE = "2026-11-20T08:00:00Z"
_DATED = re.compile(r"\d{4}-", re.ASCII)
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(:\d\d)?", re.ASCII)


def parse_moment(value: object) -> datetime | timedelta:
    """Return a time in UTC, or a duration. Raises ValueError with what would be right.

    A time of the day alone, which durations know as hours and minutes, is neither: who writes
    16:00 as in Slurm does not mean in 16 hours.
    """
    if isinstance(value, datetime):
        return _in_calendar(value)
    written = value.strip() if isinstance(value, str) and len(value) <= _LONGEST_TEXT else ""
    if _DATED.match(written):
        try:
            return _in_calendar(datetime.fromisoformat(written))
        except ValueError as error:
            if str(error).startswith(_OURS):
                raise
            raise ValueError(f"expected {_FORMS}{_EXAMPLE}, not {shown(value)}") from None
    if clock := _CLOCK.fullmatch(written):
        hours, minutes, _ = clock.groups()
        span = format_duration(timedelta(hours=int(hours), minutes=int(minutes)))
        raise ValueError(
            f"{written} may be a time of the day or a duration: give the time with its day and "
            f"zone, such as 2026-11-20T{hours:0>2}:{minutes}:00Z, or {span}"
        )
    try:
        found = parse_duration(value)
    except ValueError as error:
        if str(error) == TOO_LONG:
            raise
        raise ValueError(f"expected {_FORMS}{_EXAMPLE}, not {shown(value)}") from None
    if found < timedelta(0):
        raise ValueError("a duration cannot be negative")
    return found


def _in_calendar(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError(f"a time needs its zone: {value.isoformat()}Z is UTC")
    try:
        found = value.astimezone(UTC)
    except OverflowError:
        found = LATEST if value.year > 1 else datetime.min.replace(tzinfo=UTC)
    if found >= LATEST:
        raise ValueError("a time has to be before 2100")
    return found


def _dated(value: datetime) -> datetime:
    found = _in_calendar(value)
    if found < _EARLIEST:
        raise ValueError(f"a time has to be from {_EARLIEST.year} on")
    return found


Dated = Annotated[
    datetime,
    Field(description=f"From {_EARLIEST.year} on, and before {LATEST.year}"),
    AfterValidator(_dated),
]
"""A time in UTC, from which nothing is reckoned that is out of the calendar."""

_OURS = ("a time needs", "a time has")
"""How our own refusals begin."""


def format_moment(value: datetime | timedelta) -> str:
    """Return it as `parse_moment` reads it, exactly."""
    if isinstance(value, timedelta):
        return format_duration(value)
    return value.isoformat().replace("+00:00", "Z")


def at(value: datetime | timedelta, since: datetime) -> datetime:
    """Return when it is, where durations count from `since`."""
    return value if isinstance(value, datetime) else since + value


def said_at(moment: datetime, now: datetime) -> str:
    """Return a time as a sentence has it: ``08:00 UTC``, of another day ``2026-11-20 08:00 UTC``;
    with seconds where it has them."""
    day = "" if moment.date() == now.date() else f"{moment:%Y-%m-%d} "
    seconds = f":{moment:%S}" if moment.second else ""
    return f"{day}{moment:%H:%M}{seconds} UTC"


def says_begin(begins_at: datetime, now: datetime | None = None, hold: str = "") -> str:
    """Return why a job is kept out of placement whose `begin` is to come, and which somebody may
    `hold` besides; without `now` the day is said too."""
    begins = f"begins at {said_at(begins_at, now or _NO_DAY)}"
    return f"{hold}; {begins} at the earliest" if hold else begins


def why_in_vain(
    deadline: datetime | timedelta,
    begin: datetime | timedelta | None,
    takes: timedelta | None,
    submitted_at: datetime | None = None,
) -> str:
    """Return why a job cannot have ended by its deadline, whatever becomes of it; empty where it
    can.

    `takes` is how long its user says that it runs. Without `submitted_at`, as in a file, a
    duration and a time cannot be held against each other, and nothing is past.
    """
    written = format_moment(deadline)
    if submitted_at is not None:
        if isinstance(deadline, datetime) and deadline <= submitted_at:
            return (
                f"{written} is past: give a time to come, a duration such as 8h, which counts "
                "from the submit, or none"
            )
        begins_at = submitted_at if begin is None else max(at(begin, submitted_at), submitted_at)
        left = at(deadline, submitted_at) - begins_at
    elif isinstance(deadline, timedelta) and not isinstance(begin, datetime):
        left = deadline - (begin or timedelta(0))
    elif isinstance(deadline, datetime) and isinstance(begin, datetime):
        left = deadline - begin
    else:
        return ""
    since = "the submit" if begin is None else f"its begin, {format_moment(begin)}"
    if left <= timedelta(0):
        return f"{written} is not after {since}: give a later one, or none"
    if takes is None or left >= takes:
        return ""
    first = deadline + (takes - left)
    if isinstance(first, datetime) and first.microsecond:
        first = first.replace(microsecond=0) + timedelta(seconds=1)
    return (
        f"{written} is too soon: from {since} on the job takes {format_duration(takes)} "
        f"(`expected_duration`); give {format_moment(first)} or later, or a shorter "
        "`expected_duration`"
    )


_NO_DAY = datetime(1, 1, 1, tzinfo=UTC)
_Written = Annotated[
    str,
    Field(
        max_length=_LONGEST_TEXT,
        description=f"Such as 2h, after the submit, or {_EXAMPLE}; before 2100",
    ),
]
_Seconds = Annotated[float, Field(ge=0, le=LONGEST.total_seconds())]

Moment = Annotated[
    datetime | timedelta,
    BeforeValidator(parse_moment, json_schema_input_type=_Written | _Seconds),
    PlainSerializer(format_moment, return_type=str, when_used="json"),
]
"""A time, or a duration after the submit."""
