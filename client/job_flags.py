"""The everyday flags of a job: each puts a value over the job file's."""

import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import typer

from longshore.models.data import job_of
from longshore.models.document import Override
from longshore.models.errors import SpecError
from longshore.models.labels import parse_label
from longshore.models.text import format_duration
from longshore.models.units import parse_time_limit
from longshore.models.visible import brief, shown

_WHOSE, _NEEDS, _RUNS = "Whose job, and where", "What it needs", "What it runs"

NAME = Annotated[str | None, typer.Option(help="Name of the job.", rich_help_panel=_WHOSE)]
POOL = Annotated[str | None, typer.Option(help="Pool that it waits in.", rich_help_panel=_WHOSE)]
TENANT = Annotated[
    str | None, typer.Option(help="Tenant that it is accounted to.", rich_help_panel=_WHOSE)
]
PRIORITY = Annotated[
    str | None,
    typer.Option(
        metavar="0-10", help="Priority; higher goes first.", rich_help_panel=_WHOSE
    ),
]  # fmt: skip
LABELS = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="NAME=VALUE",
        help="A label to select it by, e.g. sweep=7. Repeatable.",
        rich_help_panel=_WHOSE,
    ),
]
GPUS = Annotated[
    str | None, typer.Option(metavar="N", help="GPUs, all on one node.", rich_help_panel=_NEEDS)
]
CPUS = Annotated[
    str | None, typer.Option(metavar="N", help="CPU cores, in total.", rich_help_panel=_NEEDS)
]
RAM = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Main memory, in total: 64GB.", rich_help_panel=_NEEDS),
]
TIME = Annotated[
    str | None,
    typer.Option(
        metavar="LIMIT",
        help="Its time limit (max_duration), for each attempt: 90m, 2h; or as in Slurm minutes, "
        "minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes[:seconds].",
        rich_help_panel=_NEEDS,
    ),
]
BEGIN = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN",
        help="Earliest start: 2h from now, or 2026-11-20T08:00:00Z.",
        rich_help_panel=_NEEDS,
    ),
]
DEADLINE = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN",
        help="Time by which it should end: 8h from now, or 2026-11-20T18:00:00Z. A late job is "
        "reported, not stopped.",
        rich_help_panel=_NEEDS,
    ),
]
START_BELOW = Annotated[
    str | None,
    typer.Option(
        metavar="PRICE",
        help="Start only while the price of its pool is below this: '$2.10/gpu-hour'.",
        rich_help_panel=_NEEDS,
    ),
]
SENSITIVE = Annotated[
    bool,
    typer.Option(
        "--sensitive",
        help="Exclusive nodes, only ones whose fingerprint is known.",
        rich_help_panel=_NEEDS,
    ),
]
CONSTRAINTS = Annotated[
    list[str] | None,
    typer.Option(
        "--constraint",
        metavar="LABEL=VALUE",
        help="Required node labels, in place of the file's `constraints`: "
        "zone=a, zone!=b, 'zone in (a, b)', ib, '!ib'. Repeatable.",
        rich_help_panel=_NEEDS,
    ),
]
IMAGE = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Container image to run it in.", rich_help_panel=_RUNS
    ),
]  # fmt: skip
ENV = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="An environment variable. Repeatable.",
        rich_help_panel=_RUNS,
    ),
]
ENVIRONMENT = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Its Python packages, built once on a node: requirements.txt, uv.lock, "
        "environment.yml or a setup.sh of the code, a list, e.g. '\\[numpy, torch]', current "
        "for those of this Python, or none.",
        rich_help_panel=_RUNS,
    ),
]
OUTPUTS = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        metavar="PATTERN",
        help="Files of its folder to store for `longshore pull`: results, or '*.pt'. Repeatable.",
        rich_help_panel=_RUNS,
    ),
]
DATA = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="NAME=URL",
        help="A data set that nodes fetch before it starts, e.g. digits=s3://bucket/digits/. "
        "Repeatable.",
        rich_help_panel=_RUNS,
    ),
]
CHECKPOINT = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Checkpoint folder: saved there on SIGTERM, resumed from there.",
        rich_help_panel=_RUNS,
    ),
]
ARRAY = Annotated[
    str | None,
    typer.Option(
        metavar="0-99%8",
        help="Run it once for each index, here at most 8 at a time; or for each row of a "
        "table, e.g. params.csv%8.",
        rich_help_panel=_RUNS,
    ),
]
VALUES = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Override a value of the file, e.g. --set priority=8 or --set env.SEED=7. "
        "`longshore schema job` lists the fields.",
    ),
]

_AS_YAML = ("gpus", "cpus", "ram", "priority")
"""Flags whose values are read as in a file; those of the others are texts."""


def plain(given: dict[str, str | None]) -> list[Override]:
    """Return the overrides of flags that are named as their fields."""
    return [
        Override(field, text if field in _AS_YAML else json.dumps(text), f"--{field} {text}")
        for field, text in given.items()
        if text is not None
    ]


def sensitive(given: bool) -> list[Override]:
    """Return what `--sensitive` puts over `sensitive`."""
    return [Override("sensitive", "true", "--sensitive")] if given else []


def time_limit(text: str | None) -> list[Override]:
    """Return what `--time` puts over `max_duration`. Raises SpecError."""
    if text is None:
        return []
    try:
        limit = parse_time_limit(text)
    except ValueError as error:
        said = f"--time {brief(text)}: {error}"
        raise SpecError("--time", (said,)) from None
    return [Override("max_duration", json.dumps(format_duration(limit)), f"--time {text}")]


def environment(given: str | None) -> list[Override]:
    """Return what `--environment` puts over `environment`."""
    if given is None:
        return []
    as_written = given.startswith(("[", "{"))  # as in a job file
    text = given if as_written else json.dumps(None if given == "none" else given)
    return [Override("environment", text, f"--environment {given}")]


def outputs(given: Sequence[str] | None) -> list[Override]:
    """Return what `--output` puts over `outputs`: all of them together."""
    if not given:
        return []
    by = " ".join(f"--output {shlex.quote(each)}" for each in given)
    return [Override("outputs", json.dumps(given), by)]


def constraints(given: Sequence[str] | None) -> list[Override]:
    """Return what `--constraint` puts over `constraints`: all of them together."""
    if not given:
        return []
    by = " ".join(f"--constraint {shlex.quote(each)}" for each in given)
    return [Override("constraints", json.dumps(given), by)]


def variables(given: Sequence[str] | None) -> list[Override]:
    """Return what `--env` puts over entries of `env`; no message has a value. Raises SpecError."""
    return _entries("env", "--env", given, _variable)


def labels(given: Sequence[str] | None) -> list[Override]:
    """Return what `--label` puts over entries of `labels`. Raises SpecError."""
    return _entries("labels", "--label", given, parse_label)


def data(given: Sequence[str] | None) -> list[Override]:
    """Return what `--data` puts over entries of `data`: `--set` may add to each, so it goes behind
    these. Raises SpecError."""
    return _entries("data", "--data", given, _data_set)


def checkpoint(given: str | None) -> list[Override]:
    """Return what `--checkpoint` puts over `checkpoint.folder`."""
    if given is None:
        return []
    return [Override("checkpoint.folder", json.dumps(given), f"--checkpoint {given}")]


def values(given: Sequence[str] | None) -> list[Override]:
    """Return what `--set` puts over its fields."""
    return [_value(text) for text in given or ()]


def refuse_repeats(overrides: Iterable[Override]) -> None:
    """Raise SpecError where two flags say the same field: nobody can tell which of them counts."""
    problems = tuple(
        f"{brief(one.given_by)} and {brief(other.given_by)} both say `{_shorter(one, other)}`: "
        "give one of them"
        for one, other in itertools.combinations(overrides, 2)
        if _same(one, other)
    )
    if problems:
        raise SpecError("options", problems)


def _same(one: Override, other: Override) -> bool:
    both = min(len(one.place), len(other.place))
    return one.place[:both] == other.place[:both] and not _adds(one, other)


def _adds(one: Override, other: Override) -> bool:
    """Return whether `other` says of a data set of `--data` what that does not: all but `from`."""
    of_data = one.place[:1] == ("data",) and one.given_by.startswith("--data ")
    return of_data and len(other.place) > 2 and other.place[2] != "from"


def _shorter(one: Override, other: Override) -> str:
    return min(one.field, other.field, key=len)


def _entries(
    field: str,
    flag: str,
    given: Sequence[str] | None,
    parse: Callable[[str], tuple[str, object]],
) -> list[Override]:
    found, problems = list[Override](), list[str]()
    for text in given or ():
        try:
            name, value = parse(text)
        except ValueError as error:
            problems.append(f"{flag}: {error}")
            continue
        found.append(
            Override(f"{field}.{name}", json.dumps(value), f"{flag} {name}", (field, name))
        )
    if problems:
        raise SpecError(flag, tuple(problems))
    return found


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(
            f"expected NAME=VALUE, such as SEED=7, with letters, digits and underscores in the "
            f"name, not {shown(name)}"
        )
    return name, value


def _data_set(text: str) -> tuple[str, object]:
    name, equals, url = text.partition("=")
    if not (name and equals and ("://" in url or job_of(url))):
        raise ValueError(
            "expected NAME=URL, such as digits=s3://bucket/digits/ or model=job:ID, "
            f"not {shown(text)}"
        )
    return name, {"from": url}


def _value(text: str) -> Override:
    field, equals, value = text.partition("=")
    if not (field and equals):
        raise typer.BadParameter(
            f"--set {brief(text)}: give a field and a value, as in --set gpus=2"
        )
    return Override(field, value, f"--set {text}")
