"""Arrays as people give them: one job, run once for each of many indices or rows of a table."""

import re
from typing import Annotated, Any, NamedTuple, Self, cast

from pydantic import Field, StringConstraints, field_validator, model_validator

from longshore.models.base import Frozen, ShortText, Text
from longshore.models.bounds import Most
from longshore.models.counts import DIGITS
from longshore.models.mistakes import Mistake, Place, refuse
from longshore.models.text import count
from longshore.models.visible import brief

MOST_ELEMENTS = 1_000_000
"""Whatever the setting says."""
MOST_INDEX = 999_999_999
_MOST_RANGES = 1_000
_WRITTEN = "0-99, 1-10:3 for each third, 1,5,7, and 0-99%50 for at most 50 at once"
_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*(?::\s*(\d{1,9})\s*)?)?", re.ASCII)
_LIMITED = re.compile(r"(?P<what>[^%]*)(?:%\s*(?P<limit>[^%]*?)\s*)?", re.DOTALL)
_TABLE = re.compile(r".*\.(csv|jsonl)", re.DOTALL | re.IGNORECASE)
_OURS = ("LONGSHORE_", "SLURM_ARRAY_", "CUDA_")

_MOST_ROWS = Most(MOST_ELEMENTS, "submit several arrays")
_MOST_COLUMNS = Most(100, "put what is long into a file")
Column = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)
]  # fmt: skip


class IndexRange(NamedTuple):
    """Indices from `first` to `last` by `step`, counted and not listed."""

    first: int
    last: int
    step: int = 1

    @property
    def number(self) -> int:
        return (self.last - self.first) // self.step + 1

    @property
    def indices(self) -> range:
        return range(self.first, self.last + 1, self.step)

    def __str__(self) -> str:
        if self.number == 1:
            return str(self.first)
        return f"{self.first}-{self.last}" + (f":{self.step}" if self.step > 1 else "")


def parse_indices(text: str) -> tuple[IndexRange, ...]:
    """Return the ranges of a text such as ``0-9,20,30-40:5``. Raises ValueError."""
    parts = text.split(",")
    if len(parts) > _MOST_RANGES:
        raise ValueError(f"has {len(parts):,} ranges; {_MOST_RANGES:,} is the most")
    return tuple(_range(part) for part in parts)


def _range(text: str) -> IndexRange:
    match = _RANGE.fullmatch(text)
    if (
        match is None
        and (large := re.search(r"[0-9]{10,}", text))
        and re.fullmatch(r"[0-9\s:-]+", text, re.ASCII)
    ):
        raise ValueError(
            f"{brief(large[0])} is too large for an index: {MOST_INDEX:,} is the most"
        )
    if match is None:
        raise ValueError(f"{brief(text)!r} is no index or range: expected {_WRITTEN}")
    first = int(match[1])
    last, step = int(match[2] or first), int(match[3] or 1)
    if step < 1:
        raise ValueError(f"{text.strip()!r} has the step 0: 1 is the least")
    if last < first:
        raise ValueError(f"{text.strip()!r} ends before it begins, and has no index")
    return IndexRange(first, last, step)


def expanded(ranges: tuple[IndexRange, ...]) -> tuple[int, ...]:
    """Return the indices in order, each once. To be called once their number is known to be
    bearable."""
    return tuple(sorted({index for each in ranges for index in each.indices}))


def ranges_text(indices: tuple[int, ...], most: int = 8) -> str:
    """Return sorted indices in short: ``0-3,7 and 5 others``."""
    ranges: list[list[int]] = []
    for index in indices:
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    told = ",".join(
        f"{first}-{last}" if last > first else f"{first}" for first, last in ranges[:most]
    )
    left = sum(last - first + 1 for first, last in ranges[most:])
    return f"{told} and {left} others" if left else told


class ArraySpec(Frozen):
    """Which elements an array has, and how many run at a time. As a text: Slurm's syntax, or the
    name of a table."""

    indices: ShortText | None = None
    """Ranges, steps and lists, such as 0-9,20,30-40:5; a limit may stand behind them: 0-99%50."""
    limit: Annotated[int, Field(ge=1, le=100_000), DIGITS] | None = None
    """Elements that run at a time at most; as many as the setting most_array_slots says when left
    out."""
    table: ShortText | None = None
    """A file of parameters, seen from the job file: CSV with the names in its first line, or JSON
    lines. Each row is an element, from 0 on; its values are environment variables."""
    columns: Annotated[tuple[Column, ...], _MOST_COLUMNS] = ()
    """What the table said, once it was read: the names."""
    rows: Annotated[tuple[Annotated[tuple[Text, ...], _MOST_COLUMNS], ...], _MOST_ROWS] = ()
    """A row for each element, with a value for each column."""

    @model_validator(mode="before")
    @classmethod
    def _from_a_text(cls, value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str):
            value = {
                "table" if _TABLE.fullmatch(value.partition("%")[0].strip()) else "indices": value
            }
        if not isinstance(value, dict):
            return value
        given = dict(cast("dict[str, Any]", value))
        for name in ("indices", "table"):
            text = given.get(name)
            if isinstance(text, int) and not isinstance(text, bool):
                given[name] = text = str(text)
            match = _LIMITED.fullmatch(text) if isinstance(text, str) else None
            if match and match["limit"] is not None:
                if given.get("limit") is not None:
                    raise ValueError("the limit is given twice: behind the % and as limit")
                given |= {name: match["what"].strip(), "limit": _limit(match["limit"])}
        return given

    @field_validator("indices")
    @classmethod
    def _indices_are_some(cls, indices: str | None) -> str | None:
        if indices is not None and (found := sum(r.number for r in parse_indices(indices))) > (
            MOST_ELEMENTS
        ):
            raise ValueError(
                f"has {found:,} elements; {MOST_ELEMENTS:,} is the most, and the setting "
                "most_array_elements mostly allows less: use several arrays"
            )
        return indices

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        found: list[Mistake] = []
        if (self.indices is None) == (self.table is None and not self.rows):
            sources: tuple[Place, ...] = (("indices",), ("table",), ("rows",))
            why = f"give indices or a table: {_WRITTEN}, or params.csv"
            found.append(Mistake((), why, sources))
        for position, column in enumerate(self.columns):
            place = ("columns", position)
            if column.upper().startswith(_OURS):
                found.append(Mistake(place, "is a variable of Longshore: rename the column"))
            if column in self.columns[:position]:
                found.append(Mistake(place, "two columns have this name: rename one"))
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                why = f"has {count(len(row), 'value')} for {count(len(self.columns), 'column')}"
                found.append(Mistake(("rows", number), why, (("columns",),)))
        refuse(found)
        return self

    @property
    def ranges(self) -> tuple[IndexRange, ...]:
        if self.indices is not None:
            return parse_indices(self.indices)
        return (IndexRange(0, len(self.rows) - 1),) if self.rows else ()

    @property
    def most_elements(self) -> int:
        """How many elements it has, by arithmetic: an index that is given twice counts twice."""
        return sum(each.number for each in self.ranges)

    @property
    def without_rows(self) -> "ArraySpec":
        """The same without the parameters, which are on record: to travel on."""
        if not self.rows:
            return self
        return ArraySpec(indices=f"0-{len(self.rows) - 1}", limit=self.limit)

    def parameters(self, index: int) -> dict[str, str]:
        """Return the variables of an element's row; none without a table."""
        return dict(zip(self.columns, self.rows[index], strict=True)) if self.rows else {}

    def __str__(self) -> str:
        what = ",".join(map(str, self.ranges)) or self.table or ""
        return what + (f"%{self.limit}" if self.limit else "")


def _limit(text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text, re.ASCII) or int(text) < 1:
        raise ValueError(f"%{brief(text)}: behind the % goes how many run at a time, 1 or more")
    return int(text)
