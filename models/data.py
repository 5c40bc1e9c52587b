"""Data sets that a job reads: where each comes from, how large it is, when the job may start."""

import re
from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from longshore.models.base import Frozen, Instant, Wire
from longshore.models.mistakes import Mistake, refuse
from longshore.models.units import GB
from longshore.models.visible import brief, shown

DataName = Annotated[str, StringConstraints(pattern=r"^[^\s\x00]{1,200}$", max_length=200)]
SourceUrl = Annotated[
    str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x20\x7f]+$")
]

SCHEMES: Final = ("s3", "gs", "az", "https", "http", "file")
"""Of places that nodes fetch data from, all by fsspec."""
READY: Final = 0.95
"""Part of a data set that counts as all of it where a job says nothing else (seed: staging)."""
TRIES: Final = 3
"""How often a data set is fetched before its job starts without what lacks (seed: staging)."""
_PERCENT = re.compile(r"^\s*(\d{1,3}(?:\.\d+)?)\s*%\s*$", re.ASCII)


def _part_of(value: object) -> object:
    """Return 0.8 for "80%"."""
    if isinstance(value, str):
        if match := _PERCENT.match(value):
            return float(match.group(1)) / 100
        raise ValueError(f"expected a part such as 80%, not {shown(value)}")
    return value


Part = Annotated[
    float,
    BeforeValidator(_part_of, json_schema_input_type=float | str),
    Field(ge=0, le=1, allow_inf_nan=False),
]


class DataSet(Frozen):
    """What a job reads under one name."""

    source: SourceUrl | None = Field(default=None, alias="from")
    """Where nodes fetch it: s3://bucket/prefix, gs://, az://, https:// or file://. One that ends
    in `/` or names no file is a folder. Left out, the job sees to its data itself."""
    size: GB = 0.0
    """About how large it is, such as 150GB; looked up at the source when left out."""
    start_at: Part = READY
    """The part that has to be there before the job starts, such as 80%; `longshore-wait PATH`
    waits for a file of the rest."""
    sticky: bool = False
    """Stays on nodes that have it, also when their disks are nearly full."""


def set_of(value: object) -> object:
    """Return a bare size as a data set that its job sees to itself; other values as they are."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        if isinstance(value, str) and "://" in value:
            return {"from": value}
        return {"size": value}
    return value


def _with_a_place(data: DataSet) -> DataSet:
    refuse(list(_mistakes(data)))
    return data


def _mistakes(data: DataSet) -> Iterator[Mistake]:
    if data.source is None:
        if data.start_at != READY:
            yield Mistake(("start_at",), "is for data that nodes fetch: give `from` too")
        if data.sticky:
            yield Mistake(("sticky",), "is for data that nodes fetch: give `from` too")
        return
    scheme, _, rest = data.source.partition("://")
    if scheme not in SCHEMES or not rest.strip("/"):
        known = ", ".join(f"{each}://" for each in SCHEMES)
        yield Mistake(("from",), f"{brief(data.source)} is no place of these: {known}")
    if "@" in rest.partition("/")[0]:
        yield Mistake(("from",), "may hold no user or password: nodes have their own")


DataField = Annotated[
    DataSet,
    BeforeValidator(set_of, json_schema_input_type=DataSet | GB),
    AfterValidator(_with_a_place),
]
"""A `DataSet`, its size alone, or its URL alone."""


class HeldData(Wire):
    """What a node holds of one data set, image or environment that the control plane knows."""

    name: Annotated[str, StringConstraints(max_length=300)]
    """Of data without a space in it; `image NAME` and `environment DIGEST` have one."""
    tenant: str = ""
    """Whose it is; empty for what all may use, such as an image."""
    source: str = ""
    bytes: int = Field(default=0, ge=0)
    total: int = Field(default=0, ge=0)
    """Bytes of all of it; more than `bytes` while it is being fetched."""
    used_at: Instant | None = None


class HeldReport(Wire):
    """What an agent says that its node holds, when that has changed. All of it: what is not named
    has gone."""

    held: Annotated[tuple[HeldData, ...], Field(max_length=500)] = ()
    """The most recently used first."""
