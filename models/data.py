"""Data sets that a job reads: where each comes from, how large it is, when the job may start."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    TypeAdapter,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
)

from longshore.models.base import JOB_ID, Frozen, Instant, Wire
from longshore.models.bounds import Most, is_given
from longshore.models.mistakes import Mistake, refuse
from longshore.models.units import GB, format_bytes, parse_gb
from longshore.models.visible import brief, shown

DataName = Annotated[str, StringConstraints(pattern=r"^[^\s\x00]{1,200}$", max_length=200)]
_LONGEST_URL: Final = 2000
_URL: Final = r"^[^\x00-\x20\x7f]+$"
SourceUrl = Annotated[str, StringConstraints(min_length=1, max_length=_LONGEST_URL, pattern=_URL)]

SCHEMES: Final = ("s3", "gs", "az", "https", "http", "file")
"""Of places that nodes fetch data from, all by fsspec."""
OF_A_JOB: Final = "job:"
"""Before the id of a job, or in a DAG before its name: what it gave back."""
READY: Final = 0.95
"""Part of a data set that counts as all of it where a job says nothing else (seed: staging)."""
TRIES: Final = 3
"""How often a data set is fetched before its job starts without what lacks (seed: staging)."""
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,10})?) ?%", re.ASCII)


def job_of(source: str | None) -> str | None:
    """Return the job whose outputs a source is: ``train`` of job:train; None of another one."""
    if source is None or not source.startswith(OF_A_JOB) or source.startswith(f"{OF_A_JOB}//"):
        return None
    return source.removeprefix(OF_A_JOB)


def _part_of(value: object) -> object:
    """Return 0.8 for "80%"."""
    if isinstance(value, str):
        if match := _PERCENT.fullmatch(value):
            if float(match.group(1)) > 100:
                raise ValueError(f"must be at most 100%, got {shown(value)}")
            return float(match.group(1)) / 100
        raise ValueError(f"expected a part such as 80%, not {shown(value)}")
    return value


_WrittenPart = Annotated[str, Field(max_length=20)]
Part = Annotated[
    float,
    Field(ge=0, le=1, allow_inf_nan=False),
    BeforeValidator(
        _part_of, json_schema_input_type=Annotated[float, Field(ge=0, le=1)] | _WrittenPart
    ),
]


class DataSet(Frozen):
    """What a job reads under one name."""

    source: SourceUrl | None = Field(default=None, alias="from")
    """Where nodes fetch it: s3://bucket/prefix, gs://, az://, https:// or file://. One that ends
    in `/` or names no file is a folder. `job:ID` is the `outputs` of a job that has ended, and in
    a DAG `job:NAME` those of a job before it. Left out, the job sees to its data itself."""
    size: GB = 0.0
    """About how large it is, such as 150GB; looked up at the source when left out."""
    start_at: Part = READY
    """The part that has to be there before the job starts, such as 80%; `longshore-wait PATH`
    waits for a file of the rest."""
    sticky: bool = False
    """Stays on nodes that have it, also when their disks are nearly full."""

    @property
    def job(self) -> str | None:
        """The job whose outputs it is; None of other data."""
        return job_of(self.source)

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> float | dict[str, Any]:
        """Write a bare size for what nodes do not fetch: agents and histories of before `from` was
        there read that."""
        if self.source is None:
            return self.size
        written = handler(self)
        source = written.pop("source", None) or written.pop("from", self.source)
        return {"from": source, **written}


_SIZE: Final[TypeAdapter[float]] = TypeAdapter(GB)


def _set_of(value: object, handler: ValidatorFunctionWrapHandler) -> DataSet:
    """Read a size alone, a URL alone, or a mapping; a mistake of a size alone stands at the name
    of the data set."""
    if isinstance(value, dict | DataSet):
        return handler(value)
    if isinstance(value, str) and ("://" in value or job_of(value) is not None):
        return handler({"from": value})
    if isinstance(value, str):
        try:
            parse_gb(value)
        except ValueError:
            raise ValueError(
                "expected a size such as 150GB, where nodes fetch it such as s3://bucket/folder/ "
                f"or job:train, or both as {{from: URL, size: 150GB}}, not {shown(value)}"
            ) from None
    return handler({"size": _SIZE.validate_python(value)})


def _with_a_place(data: DataSet, info: ValidationInfo) -> DataSet:
    refuse(list(_mistakes(data)))
    if data.source is not None and is_given(info) and (why := why_no_host(data.source)):
        refuse([Mistake(("from",), why)])
    return data


def _mistakes(data: DataSet) -> Iterator[Mistake]:
    if data.source is None:
        if data.start_at != READY:
            yield Mistake(("start_at",), "is for data that nodes fetch: give `from` too")
        if data.sticky:
            yield Mistake(("sticky",), "is for data that nodes fetch: give `from` too")
        return
    if data.job is not None:
        if not JOB_ID.fullmatch(data.job):
            why = f"write {OF_A_JOB}ID, and in a DAG {OF_A_JOB}NAME"
            yield Mistake(("from",), f"{brief(data.source)} names no job: {why}")
        return
    for why in why_not_fetched(data.source, OF_A_JOB):
        yield Mistake(("from",), why)


def why_not_fetched(url: str, instead: str) -> Iterator[str]:
    """Yield why nodes cannot fetch data from a URL; `instead` is what else may stand there."""
    scheme, _, rest = url.partition("://")
    if len(url) > _LONGEST_URL:
        yield f"has {len(url):,} characters: a URL may have {_LONGEST_URL:,}"
    elif not re.search(_URL, url):
        yield f"{brief(url)} is a URL, and may hold no blank: write %20"
    if scheme not in SCHEMES or not rest.strip("/"):
        known = ", ".join((*(f"{each}://" for each in SCHEMES), instead))
        yield f"{brief(url)} is no place of these: {known}"
    if "::" in re.sub(r"\[[^\]]*\]", "", rest, count=1):  # an IPv6 address may have it
        yield "may not lead from one place to another by `::`"
    if "@" in rest.partition("/")[0]:
        yield "may hold no user or password: nodes have their own"


def why_no_host(url: str) -> str:
    """Return why a URL over HTTP names no host; "" where it names one. Jobs of before may have
    such a URL: nothing can be fetched from there."""
    if not url.startswith(("http:", "https:")):
        return ""
    try:
        split = urlsplit(url)
        split.port  # noqa: B018 (it is read for what it raises)
    except ValueError as error:
        return f"{brief(url)} is no URL: {error}"
    return "" if split.hostname else f"{brief(url)} names no host"


DataField = Annotated[
    DataSet,
    AfterValidator(_with_a_place),
    WrapValidator(_set_of, json_schema_input_type=DataSet | GB | SourceUrl),
]
"""A `DataSet`, its size alone, or its URL alone."""


STATE: Final = ".state"
"""Folder beside the data sets of a job: what is known of each."""
SEPARATOR: Final = "\037"
"""In the lines of `failed` there, between a path and why: a shell drops spaces before a line."""


def variable_of(name: str) -> str:
    """Return the variable in which a process finds the path of a data set:
    ``LONGSHORE_DATA_IMAGENET_1K`` for imagenet-1k."""
    return f"LONGSHORE_DATA_{re.sub('[^A-Z0-9]', '_', name.upper())}"


_TAKEN_NAMES: Final = ("dir", "missing")
"""Of variables that say something else."""
_FILE_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]+", re.ASCII)


def data_of(value: object) -> object:
    """Return a list of names as names whose sizes are not known; another value as it is."""
    if isinstance(value, list | tuple):
        names: list[object] = [*value]  # pyright: ignore[reportUnknownVariableType]
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a list holds names alone; with sizes write {imagenet: 150GB}")
        return dict.fromkeys(names, 0.0)
    return value


def _named_apart(data: dict[str, DataSet]) -> dict[str, DataSet]:
    refuse(list(_mistakes_of_names([name for name, each in data.items() if each.source])))
    return data


def _mistakes_of_names(fetched: list[str]) -> Iterator[Mistake]:
    """Look at the names of what nodes fetch: each is a folder and a variable of the process."""
    seen: dict[str, str] = {}
    for name in fetched:
        if not _FILE_NAME.fullmatch(name):
            why = "is the name of a folder on the node: letters, digits, `.`, `_` and `-`, no dot "
            yield Mistake((name,), f"{why}first")
        elif variable_of(name) in map(variable_of, _TAKEN_NAMES):
            yield Mistake((name,), f"{variable_of(name)} says something else: take another name")
        elif other := seen.get(variable_of(name)):
            why = f"has the variable {variable_of(name)}, as {other} has: take another name"
            yield Mistake((name,), why, ((other,),))
        seen.setdefault(variable_of(name), name)


Data = Annotated[
    dict[DataName, DataField],
    BeforeValidator(data_of, json_schema_input_type=dict[DataName, DataField] | list[DataName]),
    AfterValidator(_named_apart),
    Most(10_000, "put what is long into a file"),
]
"""What a job reads, by name."""


PYTHON = "python3"
"""The first word of the name under which a node says which Python its jobs have."""


def name_of_python(version: str, platform: str) -> str:
    """Return ``python3 3.11.7 linux-x86_64``."""
    return f"{PYTHON} {version} {platform}"


def python_of_name(name: str) -> tuple[str, str] | None:
    """Return version and platform from such a name; None of another one."""
    words = name.split()
    return (words[1], words[2]) if len(words) == 3 and words[0] == PYTHON else None


def name_of_environment(digest: str) -> str:
    """Return ``environment 1f0c...``: by the digest of what jobs bring for it."""
    return f"environment {digest}"


class HeldData(Wire):
    """What a node holds of one data set, image or environment that the control plane knows."""

    name: Annotated[str, StringConstraints(max_length=300)]
    """Of data without a space in it; `image NAME` and `environment DIGEST` have one."""
    tenant: Annotated[str, StringConstraints(max_length=63)] = ""
    """Whose it is; empty for what all may use, such as an image."""
    source: Annotated[str, StringConstraints(max_length=2000)] = ""
    """Where it was fetched; empty of images and environments."""
    bytes: int = Field(default=0, ge=0, le=2**63 - 1)
    total: int = Field(default=0, ge=0, le=2**63 - 1)
    """Bytes of all of it; more than `bytes` while it is being fetched."""
    used_at: Instant | None = None


class StagedData(Wire):
    """How much of a data set of a job is on a node where it runs, or is expected to start."""

    name: str
    node_id: str
    bytes: int = 0
    total: int = 0
    """Bytes of all of it; as the job says, where no node has begun; 0 where nobody knows."""
    expected_start: Instant | None = None
    """Of a job that waits."""

    @property
    def words(self) -> str:
        """``imagenet: 40 % of 150.0GB on node-3, in front of the start at 14:20 UTC``."""
        size = format_bytes(self.total) if self.total else "a size that is not known yet"
        part = f"{100 * self.bytes // self.total} %" if self.total else format_bytes(self.bytes)
        said = f"{self.name}: {part} of {size} on {self.node_id}"
        if self.expected_start is None:
            return said
        return f"{said}, in front of the start at {self.expected_start:%H:%M} UTC"


class HeldReport(Wire):
    """What an agent says that its node holds, when that has changed. All of it: what is not named
    has gone."""

    held: Annotated[tuple[HeldData, ...], Field(max_length=500)] = ()
    """The most recently used first."""
