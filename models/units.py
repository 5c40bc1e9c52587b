"""Sizes and durations as people write them: ``80GB``, ``512 MB``, ``2h``, ``1h30m``, ``700W``.

Inside Longshore memory is a float of GB (10^9 bytes, as in the specs of GPUs), bandwidth one of
GB/s, power one of watts, and a duration is a ``timedelta``. The annotated types `GB`,
`GBPerSecond`, `Watts` and `Duration` accept both forms and show the human form again in JSON
Schema examples.
"""

import math
import re
from datetime import timedelta
from typing import Annotated, Any, TypeGuard

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from longshore.models.text import format_duration
from longshore.models.visible import shown

MOST = 1e9
"""GB, GB/s or watts: an exabyte, or a large power station. Nothing that people mean is more."""
MOST_CPUS = 1_000_000
"""Cores of a job, or of a node."""
LONGEST = timedelta(days=3653)
"""Ten years: no duration is longer, so that what is reckoned from it is in the calendar."""

_LONGEST_TEXT = 1000
"""Characters of a size or duration as it is written."""

# ASCII: else other scripts' digits are digits too, and an s may be written as ſ.
_IN_ANY_CASE = re.ASCII | re.IGNORECASE

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGTP]i?B|B)?\s*$", _IN_ANY_CASE)
_SIZE_UNITS = {
    "b": 1e-9, "kb": 1e-6, "mb": 1e-3, "gb": 1.0, "tb": 1e3, "pb": 1e6,
    "kib": 2**10 / 1e9, "mib": 2**20 / 1e9, "gib": 2**30 / 1e9,
    "tib": 2**40 / 1e9, "pib": 2**50 / 1e9,
}  # fmt: skip

_POWER = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KM]?W)?\s*$", _IN_ANY_CASE)
_POWER_UNITS = {"w": 1.0, "kw": 1e3, "mw": 1e6}
_PER_SECOND = re.compile(r"\s*/\s*s\s*$", _IN_ANY_CASE)

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", _IN_ANY_CASE)
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_CLOCK = re.compile(r"^(\d+):([0-5]\d)(?::([0-5]\d))?$", re.ASCII)


def _is_written(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT


def parse_gb(value: object) -> float:
    """Return GB from ``80``, ``"80GB"``, ``"512MB"`` or ``"64GiB"``; a bare number is GB.

    Raises ValueError with the accepted forms when `value` is none of them.
    """
    if isinstance(value, bool):
        raise ValueError("expected a size such as 80GB, not true or false")
    if isinstance(value, int | float):
        return _finite(value, "size")
    if _is_written(value) and (match := _SIZE.match(value)):
        unit = (match.group(2) or "GB").lower()
        return _finite(float(match.group(1)) * _SIZE_UNITS[unit], "size")
    raise ValueError(f"expected a size such as 80GB, 512MB or 64GiB, not {shown(value)}")


def plain(number: float, digits: int = 3) -> str:
    """Return a number with at most so many digits behind the point, and never an exponent."""
    written = f"{number:.{digits}f}"
    short = written.rstrip("0").rstrip(".") if digits else written
    return "0" if short == "-0" else short


def format_gb(gb: float, digits: int = 3) -> str:
    """Return the shortest human form with at most so many digits: ``80GB``, ``512MB``."""
    return f"{plain(gb * 1000, digits)}MB" if 0 < abs(gb) < 1 else f"{plain(gb, digits)}GB"


def parse_gb_per_second(value: object) -> float:
    """Return GB/s from ``10``, ``"10GB/s"`` or ``"500MB/s"``; a bare number is GB/s.

    Raises ValueError with the accepted forms when `value` is none of them.
    """
    try:
        return parse_gb(_PER_SECOND.sub("", value) if _is_written(value) else value)
    except ValueError:
        raise ValueError(
            f"expected a bandwidth such as 10GB/s or 500MB/s, not {shown(value)}"
        ) from None


def format_gb_per_second(rate: float, digits: int = 3) -> str:
    """Return ``10GB/s`` or ``500MB/s``."""
    return f"{format_gb(rate, digits)}/s"


def parse_watts(value: object) -> float:
    """Return watts from ``700``, ``"700W"`` or ``"10.2kW"``; a bare number is watts.

    Raises ValueError with the accepted forms when `value` is none of them.
    """
    if isinstance(value, bool):
        raise ValueError("expected a power such as 700W, not true or false")
    if isinstance(value, int | float):
        return _finite(value, "power")
    if _is_written(value) and (match := _POWER.match(value)):
        watts = float(match.group(1)) * _POWER_UNITS[(match.group(2) or "W").lower()]
        return _finite(watts, "power")
    raise ValueError(f"expected a power such as 700W or 10.2kW, not {shown(value)}")


def format_watts(watts: float) -> str:
    """Return ``700W``, or from 10,000 W on ``10.2kW``."""
    return f"{plain(watts / 1000, 6)}kW" if abs(watts) >= 10_000 else f"{plain(watts)}W"


def format_cores(number: float) -> str:
    """Return ``1 core`` or ``2.5 cores``."""
    return "1 core" if number == 1 else f"{plain(number, 6)} cores"


def format_bytes(count: int) -> str:
    """Return a number of bytes as people say it: ``42B``, ``1.3MB``, ``70.2GB``."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{count}B" if unit == "B" else f"{size:.1f}{unit}"


def format_limits(storage: float, power: float | None) -> str:
    """Return what a job wants of storage and power, ``, 4GB/s of storage, 500W a GPU``; nothing
    where it does not say. GB/s, and watts for each GPU."""
    wants = f", {format_gb_per_second(storage)} of storage" if storage else ""
    return wants + (f", {format_watts(power)} a GPU" if power is not None else "")


def parse_duration(value: object) -> timedelta:
    """Return a timedelta from seconds, ``"90s"``, ``"1h30m"``, ``"2d"`` or ``"01:30:00"``.

    ISO 8601 durations (``PT1H``) are accepted too: that is how they travel in JSON.
    Raises ValueError with the accepted forms when `value` is none of them.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool):
        raise ValueError("expected a duration such as 2h, not true or false")
    if isinstance(value, int | float):
        return _of_seconds(_finite(value, "duration"))
    if _is_written(value):
        text = value.strip()
        if clock := _CLOCK.match(text):
            hours, minutes, seconds = (float(part) for part in clock.groups(default="0"))
            return _of_seconds(3600 * hours + 60 * minutes + seconds)
        if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
            return _of_seconds(float(text))
        if re.fullmatch(rf"(?:{_DURATION_PART.pattern}\s*)+", text, _IN_ANY_CASE):
            parts = _DURATION_PART.findall(text)
            return _of_seconds(sum(float(n) * _DURATION_UNITS[u.lower()] for n, u in parts))
        if iso := _ISO.fullmatch(text):
            days, hours, minutes, seconds = (float(part or 0) for part in iso.groups())
            return _of_seconds(86400 * days + 3600 * hours + 60 * minutes + seconds)
    raise ValueError(f"expected a duration such as 90s, 30m, 2h or 1h30m, not {shown(value)}")


def parse_time_limit(text: str) -> timedelta:
    """Return a time limit as Slurm's `--time` writes it, or as `parse_duration` reads it.

    A bare number is minutes; then come ``minutes:seconds``, ``hours:minutes:seconds``,
    ``days-hours``, ``days-hours:minutes`` and ``days-hours:minutes:seconds`` (man sbatch).
    Raises ValueError with the accepted forms when `text` is none of them.
    """
    if len(text) <= _LONGEST_TEXT and (found := _SLURM.fullmatch(text.strip())):
        return _more_than_nothing(_of_seconds(_slurm_seconds(*found.groups())))
    if re.fullmatch(r"unlimited|infinite", text.strip(), _IN_ANY_CASE):
        raise ValueError("leave it out for no limit but that of the pool")
    if ":" not in text:
        try:
            return _more_than_nothing(_in_bounds(parse_duration(text)))
        except ValueError as error:
            if str(error) in (_NOTHING, TOO_LONG):
                raise
    raise ValueError(
        "expected a time such as 90m or 2h, or as in Slurm 90 (minutes), 90:00 "
        f"(minutes:seconds), 1:30:00, 1-12 (days-hours) or 1-12:00, not {shown(text)}"
    )


def _slurm_seconds(days: str | None, first: str, second: str | None, third: str | None) -> float:
    one, two, three = (float(part or 0) for part in (first, second, third))
    if days is not None:
        return 86400 * float(days) + 3600 * one + 60 * two + three
    if third is not None:
        return 3600 * one + 60 * two + three
    return 60 * one + two


def _more_than_nothing(limit: timedelta) -> timedelta:
    if limit == timedelta(0):
        raise ValueError(_NOTHING)
    return limit


_SLURM = re.compile(r"(?:(\d+)-)?(\d+)(?::([0-5]?\d))?(?::([0-5]?\d))?", re.ASCII)
_NOTHING = "must be longer than 0: leave it out for no limit"


def _of_seconds(seconds: float) -> timedelta:
    if not abs(seconds) <= LONGEST.total_seconds():
        raise ValueError(TOO_LONG)
    return timedelta(seconds=seconds)


_ISO = re.compile(
    r"P(?:(\d+(?:\.\d+)?)D)?(?:T(?:(\d+(?:\.\d+)?)H)?(?:(\d+(?:\.\d+)?)M)?(?:(\d+(?:\.\d+)?)S)?)?",
    re.ASCII,
)


TOO_LONG = f"a duration is ten years at most ({LONGEST.days}d)"


def format_ms(milliseconds: float | None) -> str:
    """Return milliseconds, with a tenth below 10: ``3.2``, ``48``; a dash for None."""
    if milliseconds is None:
        return "–"
    return f"{milliseconds:.1f}" if milliseconds < 9.95 else f"{milliseconds:,.0f}"


def _finite(number: float, what: str) -> float:
    try:
        number = float(number)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"expected a finite {what}, not {number}")
    return number


def _in_bounds(value: timedelta) -> timedelta:
    if value < timedelta(0):
        raise ValueError("a duration cannot be negative")
    if value > LONGEST:
        raise ValueError(TOO_LONG)
    return value


def _written(form: str) -> Any:
    """Return a text as a schema tells it. Its pattern cannot say which values are too large."""
    return Annotated[str, Field(max_length=_LONGEST_TEXT, description=form)]


_Amount = Annotated[float, Field(ge=0, le=MOST)]
_Seconds = Annotated[float, Field(ge=0, le=LONGEST.total_seconds())]


GB = Annotated[
    float,
    Field(ge=0, le=MOST),
    BeforeValidator(
        parse_gb,
        json_schema_input_type=_written(f"Such as 80GB or 1.5TB; at most {MOST:,.0f} GB")
        | _Amount,
    ),
]
"""Memory in GB (10^9 bytes)."""

GBPerSecond = Annotated[
    float,
    Field(ge=0, le=MOST),
    BeforeValidator(
        parse_gb_per_second,
        json_schema_input_type=_written(f"Such as 2GB/s; at most {MOST:,.0f} GB/s") | _Amount,
    ),
]
"""Bandwidth in GB (10^9 bytes) a second."""

Watts = Annotated[
    float,
    Field(ge=0, le=MOST),
    BeforeValidator(
        parse_watts,
        json_schema_input_type=_written(f"Such as 350W; at most {MOST:,.0f} W") | _Amount,
    ),
]
"""Power in watts."""

Duration = Annotated[
    timedelta,
    BeforeValidator(
        parse_duration,
        json_schema_input_type=_written(f"Such as 90m or 2d 4h; at most {LONGEST.days}d")
        | _Seconds,
    ),
    AfterValidator(_in_bounds),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
]
"""A span of time, never negative, ten years at most."""


def limit_leaves_time(limit: timedelta | None) -> timedelta | None:
    """Return a time limit. Raises ValueError for one that leaves no time."""
    if limit == timedelta(0):
        raise ValueError("must be longer than 0: leave it out for no limit")
    return limit
