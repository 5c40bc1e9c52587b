"""Reads a series of prices from a file of others, and names every mistake with its line.

CSV: lines of a time with its zone, and dollars for a GPU-hour; a first line may name the two
columns `time` and `price`. JSON: a list of `[time, price]`, or of `{"time": ..., "price": ...}`.
"""

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple, NoReturn, cast

from longshore.models.errors import SpecError
from longshore.models.moment import LATEST
from longshore.models.money import MICRO, MOST, micro_of
from longshore.models.price_series import MOST_POINTS, PricePoint, PriceSeries
from longshore.models.problems import bounded
from longshore.models.text import format_duration
from longshore.models.visible import shown

MOST_BYTES = 2_000_000
_TIME = "2026-11-20T08:00:00Z"
_COLUMNS = ["time", "price"]
_NAMES = sorted(_COLUMNS)


class _Entry(NamedTuple):
    where: str
    """``line 3`` or ``entry 3``."""
    time: object
    price: object


def read_series(
    data: bytes, source: str, longest_step: timedelta, whence: str = ""
) -> PriceSeries:
    """Return the series in a file. Raises SpecError with what is wrong in each line, and what
    would be right; `source` is what the messages call it."""
    if len(data) > MOST_BYTES:
        _refuse(source, f"has more than {MOST_BYTES:,} bytes: leave out what is long past")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        _refuse(source, f"line {line}: is not UTF-8 text; save it as UTF-8")
    entries = _json(text, source) if text.lstrip()[:1] in ("[", "{") else _csv(text, source)
    points, problems = _points(entries, longest_step)
    if problems:
        raise SpecError(source, bounded([f"{source}: {each}" for each in problems]))
    if not points:
        _refuse(source, f"holds no price: give lines such as {_TIME},2.10")
    return PriceSeries.of(tuple(points), longest_step, whence or source)


def _points(
    entries: Iterator[_Entry], longest_step: timedelta
) -> tuple[list[PricePoint], list[str]]:
    """Return the points, and what is wrong with them."""
    points: list[PricePoint] = []
    problems: list[str] = []
    before: tuple[str, datetime] | None = None
    for number, entry in enumerate(entries, 1):
        if number > MOST_POINTS:
            problems.append(f"has more than {MOST_POINTS:,} prices: leave out what is long past")
            break
        try:
            at = _time_of(entry.time)
        except ValueError as error:
            problems.append(f"{entry.where}: {error}")
            before = None
            continue
        if before and (wrong := _why_not_after(at, *before, longest_step)):
            problems.append(f"{entry.where}: {wrong}")
        before = entry.where, at
        try:
            points.append(PricePoint(at, _price_of(entry.price)))
        except ValueError as error:
            problems.append(f"{entry.where}: {error}")
    return points, problems


def _why_not_after(at: datetime, where: str, before: datetime, longest_step: timedelta) -> str:
    if at == before:
        return f"{_iso(at)} is there twice, first in {where}: keep one of the two"
    if at < before:
        return f"{_iso(at)} is before {_iso(before)} in {where}: put the times in order"
    if at - before > longest_step:
        return (
            f"a hole of {format_duration(at - before)} between {_iso(before)} ({where}) and "
            f"{_iso(at)}: two times may be {format_duration(longest_step)} apart; add the prices "
            f"between, or allow it (longest_step={format_duration(at - before)})"
        )
    return ""


def _time_of(value: object) -> datetime:
    written = value.strip() if isinstance(value, str) and len(value) <= 100 else None
    try:
        found = datetime.fromisoformat(written or "")
    except ValueError:
        raise ValueError(f"expected a time such as {_TIME}, not {shown(value)}") from None
    if found.tzinfo is None:
        raise ValueError(f"a time needs its zone: {written}Z is UTC")
    try:
        found = found.astimezone(UTC)
    except OverflowError:
        found = LATEST
    if not 1970 <= found.year < LATEST.year:
        raise ValueError(f"a time has to be after 1970 and before 2100, not {shown(value)}")
    return found


def _price_of(value: object) -> int:
    expected = f"expected dollars for a GPU-hour such as 2.10, not {shown(value)}"
    if isinstance(value, str):
        value = value.strip().removeprefix("$").removesuffix("/gpu-hour")
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise ValueError(expected)
    if isinstance(value, str) and len(value) > 100:
        raise ValueError(expected)
    try:
        dollars = Decimal(value)
        # First: of 1e999999999 nobody can say how many micro-dollars it has.
        if dollars.is_finite() and dollars > MOST // MICRO:
            raise ValueError(f"a price is ${MOST // MICRO:,} at most, got {shown(str(value))}")
        if dollars.is_finite() and dollars < 0:
            raise ValueError(f"a price cannot be below 0, got {shown(str(value))}")
    except ArithmeticError:
        raise ValueError(expected) from None
    try:
        return micro_of(value)
    except ValueError:
        raise ValueError(expected) from None


def _csv(text: str, source: str) -> Iterator[_Entry]:
    rows = csv.reader(text.splitlines(), strict=True, skipinitialspace=True)
    first = True
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells) or cells[0].startswith("#"):
                continue
            if first and [cell.casefold() for cell in cells] == _COLUMNS:
                first = False
                continue
            first = False
            where = f"line {rows.line_num}"
            if len(cells) != 2:
                said = f"{where}: expected a time and a price ({_TIME},2.10), not {shown(row)}"
                _refuse(source, said)
            yield _Entry(where, cells[0], cells[1])
    except csv.Error as error:
        _refuse(source, f"line {rows.line_num}: is no CSV: {error}")


def _json(text: str, source: str) -> Iterator[_Entry]:
    try:
        found = json.loads(text, parse_float=Decimal, parse_constant=str)
    except (ValueError, RecursionError) as error:
        _refuse(source, f"is no JSON: {error}")
    if not isinstance(found, list):
        _refuse(source, f'must be a list such as [["{_TIME}", 2.10]]')
    for number, each in enumerate(cast("list[object]", found), 1):
        where = f"entry {number}"
        pair = _pair_of(each)
        if len(pair) != 2:
            _refuse(source, f'{where}: expected ["{_TIME}", 2.10], not {shown(each)}')
        yield _Entry(where, *pair)


def _pair_of(entry: object) -> list[object]:
    """Return the time and the price of an entry; something else where it has not just these."""
    if isinstance(entry, dict):
        named = cast("dict[str, object]", entry)
        return [named[name] for name in _COLUMNS] if sorted(named) == _NAMES else []
    return cast("list[object]", entry) if isinstance(entry, list) else []


def _iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _refuse(source: str, problem: str) -> NoReturn:
    raise SpecError(source, (f"{source}: {problem}",))
