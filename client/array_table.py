"""Reads the table of an array: a row of parameters for each element."""

import csv
import io
import json
from pathlib import Path
from typing import Any, NoReturn, cast

from pydantic import ValidationError

from longshore.models.array import ArraySpec
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.problems import describe_all


def with_table(spec: JobSpec, base: Path) -> JobSpec:
    """Return a job whose array has the rows of its table, which is seen from `base`.

    Raises SpecError with the file, the line and what is wrong there.
    """
    array = spec.array
    if array is None or array.table is None:
        return spec
    path = base / Path(array.table).expanduser()
    columns, rows = _read(path)
    if not rows:
        _refuse(path, 1, "has no row: an array needs one element at least")
    try:
        read = ArraySpec.model_validate({"columns": columns, "rows": rows, "limit": array.limit})
    except ValidationError as error:
        found = describe_all(error, {"columns": columns}, str(path))
        raise SpecError(str(path), tuple(f"{path}: {each}" for each in found)) from None
    return JobSpec.model_validate(
        {**{name: getattr(spec, name) for name in spec.model_fields_set}, "array": read}
    )


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        _refuse(path, None, "no such file (the table of the array)")
    except UnicodeDecodeError:
        _refuse(path, None, "is not UTF-8 text")
    except OSError as error:
        _refuse(path, None, f"cannot be read: {error.strerror or error}")
    return _json_lines(path, text) if path.suffix.lower() == ".jsonl" else _csv(path, text)


def _csv(path: Path, text: str) -> tuple[list[str], list[list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns, rows = list[str](), list[list[str]]()
    try:
        for row in reader:
            if not row:
                continue
            if not columns:
                columns = [name.strip() for name in row]
            elif len(row) != len(columns):
                names = f"{len(columns)} names in the first line"
                _refuse(path, reader.line_num, f"has {len(row)} values for the {names}")
            else:
                rows.append(row)
    except csv.Error as error:
        _refuse(path, reader.line_num, f"is no CSV: {error}")
    return columns, rows


def _json_lines(path: Path, text: str) -> tuple[list[str], list[list[str]]]:
    columns, rows = list[str](), list[list[str]]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found: object = json.loads(line)
        except ValueError as error:
            _refuse(path, number, f"is no JSON: {error}")
        if not isinstance(found, dict):
            _refuse(path, number, 'is no object, such as {"LR": 0.1}')
        row = cast("dict[str, Any]", found)
        columns = columns or list(row)
        if set(row) != set(columns):
            _refuse(path, number, f"has other names than the first line: {', '.join(columns)}")
        rows.append([_value(path, number, name, row[name]) for name in columns])
    return columns, rows


def _value(path: Path, line: int, name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, bool | int | float):
        _refuse(path, line, f"{name}: a value is a text, a number, true or false")
    return json.dumps(value)


def _refuse(path: Path, line: int | None, problem: str) -> NoReturn:
    where = f"{path}:{line}" if line else str(path)
    raise SpecError(str(path), (f"{where}: {problem}",))
