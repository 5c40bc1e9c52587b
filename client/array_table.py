"""Reads the table of an array: a row of parameters for each element."""

import csv
import io
import json
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

from pydantic import ValidationError

from longshore.models.array import ArraySpec
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.mistakes import Place
from longshore.models.problems import bounded, find
from longshore.models.text import count
from longshore.models.visible import shown

_NO_PATH = (
    "column 'PATH': would take the place of the list of folders in which commands are looked "
    "for: rename the column, or set env.PATH for all elements"
)


class _Table(NamedTuple):
    """What a file holds, and what is wrong with it: a line and what, each."""

    columns: list[str]
    rows: list[list[str]]
    lines: list[int]
    """Of the rows."""
    wrong: list[tuple[int, str]]
    first: int = 1
    """The line of the names."""


def with_table(spec: JobSpec, base: Path) -> JobSpec:
    """Return a job whose array has the rows of its table, which is seen from `base`.

    Raises SpecError with every mistake of the table: the file, the line and what is wrong there.
    """
    if spec.array is None or spec.array.table is None:
        return spec
    read = read_table(spec.array, base)
    return JobSpec.model_validate(
        {**{name: getattr(spec, name) for name in spec.model_fields_set}, "array": read}
    )


def read_table(array: ArraySpec, base: Path) -> ArraySpec:
    """Return an array of a table with the table's rows. Raises as `with_table` does."""
    path = base / Path(array.table or "").expanduser()
    table = _read(path)
    if not (table.rows or table.wrong):
        _refuse(path, 1, "has no row: an array needs one element at least")
    # Here and not in the spec: an array that is under way may have one.
    wrong = [*table.wrong, *((table.first, _NO_PATH) for name in table.columns if name == "PATH")]
    given = {"columns": table.columns, "rows": table.rows or [[""] * len(table.columns)]}
    try:
        read = ArraySpec.model_validate({**given, "limit": array.limit})
    except ValidationError as error:
        wrong += (_located(table, each.place, each.message) for each in find(error, given))
    else:
        if not wrong:
            return read
    told = [f"{path}:{line}: {why}" for line, why in sorted(wrong, key=lambda each: each[0])]
    raise SpecError(str(path), bounded(told))


def _located(table: _Table, place: Place, why: str) -> tuple[int, str]:
    """Return the line of a mistake, and what it is, with the name of the column."""
    positions = [part for part in place if isinstance(part, int)]
    if place[:1] == ("rows",) and positions and table.rows:
        column = f"column {shown(table.columns[positions[1]])}: " if len(positions) > 1 else ""
        return table.lines[positions[0]], column + why
    column = f"column {shown(table.columns[positions[0]])}: " if positions else ""
    return table.first, column + why


def _read(path: Path) -> _Table:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        _refuse(path, None, "no such file (the table of the array)")
    except UnicodeDecodeError:
        _refuse(path, None, "is not UTF-8 text")
    except OSError as error:
        _refuse(path, None, f"cannot be read: {error.strerror or error}")
    return _json_lines(text) if path.suffix.lower() == ".jsonl" else _csv(text)


def _csv(text: str) -> _Table:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns, first = list[str](), 1
    rows, lines, wrong = list[list[str]](), list[int](), list[tuple[int, str]]()
    try:
        for row in reader:
            if not row:
                continue
            if not columns:
                columns, first = [name.strip() for name in row], reader.line_num
            elif len(row) != len(columns):
                names = f"{count(len(columns), 'name')} in the first line"
                wrong.append((reader.line_num, f"has {count(len(row), 'value')} for the {names}"))
            else:
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:  # what is behind that cannot be read
        wrong.append((reader.line_num, f"is no CSV: {error}"))
    return _Table(columns, rows, lines, wrong, first)


def _json_lines(text: str) -> _Table:
    columns, first = list[str](), 1
    rows, lines, wrong = list[list[str]](), list[int](), list[tuple[int, str]]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        found, why = _json_object(line)
        if why:
            wrong.append((number, why))
            continue
        if not columns:
            columns, first = list(found), number
        if set(found) != set(columns):
            wrong.append((number, f"has other names than line {first}: {', '.join(columns)}"))
            continue
        odd = [name for name in columns if not isinstance(found[name], str | bool | int | float)]
        wrong += ((number, f"{name}: a value is a text, a number, true or false") for name in odd)
        if not odd:
            rows.append([_text_of(found[name]) for name in columns])
            lines.append(number)
    return _Table(columns, rows, lines, wrong, first)


def _json_object(line: str) -> tuple[dict[str, Any], str]:
    """Return what a line holds, or why it is no object."""
    try:
        found: object = json.loads(line)
    except ValueError as error:
        return {}, f"is no JSON: {error}"
    if not isinstance(found, dict):
        return {}, 'is no object, such as {"LR": 0.1}'
    return cast("dict[str, Any]", found), ""


def _text_of(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _refuse(path: Path, line: int | None, problem: str) -> NoReturn:
    where = f"{path}:{line}" if line else str(path)
    raise SpecError(str(path), (f"{where}: {problem}",))
