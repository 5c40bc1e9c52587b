"""What is written about the job file, made from the models: docs/job-file.md.

`python -m longshore.models.job_docs` writes the page; a test holds page and models equal.
"""

import json
import re
import types
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import yaml
from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from longshore.models import errors
from longshore.models import job_docs_text as texts
from longshore.models.array import ArraySpec
from longshore.models.base import Name, ShortText, Text
from longshore.models.bounds import Most
from longshore.models.code import Code, CodeField, Sha256
from longshore.models.counts import DIGITS
from longshore.models.data import Data, DataSet, Part, SourceUrl
from longshore.models.docs import field_docs, member_docs
from longshore.models.document import load_document
from longshore.models.elastic import Malleable
from longshore.models.environment import (
    EnvironmentDigest,
    EnvironmentField,
    FileOfCode,
    Files,
    JobEnvironment,
    PythonVersion,
    RequirementList,
    Requirements,
)
from longshore.models.errors import LongshoreError, SpecError
from longshore.models.funding import FundingTerms, Sponsors
from longshore.models.gpu_hour_price import GPUHourPrice
from longshore.models.job import (
    CheckpointContract,
    Environment,
    JobSpec,
    OutputPattern,
    Outputs,
    Tier,
)
from longshore.models.job_examples import FULL_EXAMPLE, OF_OTHERS, WRONG_EXAMPLE
from longshore.models.job_status import JobState
from longshore.models.labels import JobLabels
from longshore.models.mig import MigProfile
from longshore.models.moment import Moment
from longshore.models.retry import FailureClass, RetryPolicy, RetryRule
from longshore.models.serving import EngineSpec
from longshore.models.signals import SignalName
from longshore.models.text import format_duration
from longshore.models.topology import Conformance, Gang
from longshore.models.units import (
    GB,
    Duration,
    GBPerSecond,
    Watts,
    format_gb,
    format_gb_per_second,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "job-file.md"


def page() -> str:
    """Return docs/job-file.md."""
    example: dict[str, Any] = yaml.safe_load(FULL_EXAMPLE)
    no_example: dict[str, Any] = {}
    parts = [texts.HEAD]
    sections: list[tuple[str, str, type[BaseModel], dict[str, Any]]] = [
        ("Fields", texts.FIELDS, JobSpec, {**example, **OF_OTHERS}),
        ("array", texts.ARRAY, ArraySpec, {"indices": "0-99", "limit": 8, "table": "params.csv"}),
        ("code", texts.CODE, Code, example["code"]),
        ("environment", texts.PACKAGES, JobEnvironment, _AN_ENVIRONMENT),
        ("data", texts.DATA, DataSet, example["data"]["imagenet"]),
        ("gang", texts.GANG, Gang, example["gang"]),
        ("malleable", texts.MALLEABLE, Malleable, example["malleable"]),
        ("conformance", f"{Conformance.__doc__}\n", Conformance, example["conformance"]),
        ("checkpoint", texts.CHECKPOINT, CheckpointContract, example["checkpoint"]),
        (
            "funding",
            f"{FundingTerms.__doc__} See docs/funding.md.\n",
            FundingTerms,
            example["funding"],
        ),
        ("retry", texts.RETRY, RetryPolicy, no_example),
        ("A retry rule", texts.RULE, RetryRule, example["retry"]["user"]),
    ]
    for title, before, model, values in sections:
        parts.append(f"## {title}\n\n{before}")
        parts += _fields_of(model, values, title)
    parts.append(f"{texts.CLASSES}\n{_table('class', FailureClass)}\n")
    parts.append(f"{texts.STATES}\n{_table('state', JobState)}\n")
    parts.append(f"{texts.ENVIRONMENT}")
    parts.append(f"{texts.WRONG}```yaml\n{WRONG_EXAMPLE}```\n\n```console\n{_refusal()}\n```\n")
    parts.append(f"{texts.ERRORS}\n{_errors()}\n")
    parts.append(f"{texts.FULL}\n```yaml\n{FULL_EXAMPLE}```\n")
    return "\n".join(parts)


def _fields_of(model: type[BaseModel], values: dict[str, Any], title: str) -> Iterator[str]:
    """Yield a paragraph for each field: what it is for, its type, default and an example."""
    hints = get_type_hints(model, include_extras=True)
    docs = field_docs(model)
    prefix = f"{title}." if title in JobSpec.model_fields else ""
    for name, field in model.model_fields.items():
        written = field.alias or name
        facts = [_type(hints[name]) + _limits(field), _default(field, hints[name])]
        if written in values and not isinstance(values[written], dict):
            facts.append(f"for example `{written}: {_inline(values[written])}`")
        # A rule of the retry policy has no text of its own: its failure class says when it holds.
        text = " ".join((docs.get(name) or _docs_of(FailureClass)[name.upper()]).split())
        yield f"### {prefix}{written}\n\n{text}\n\n- {'; '.join(facts)}\n"


def _type(hint: Any) -> str:
    """Return what may stand in a field, in words."""
    for known, words in _TYPES:
        if hint == known:
            return words
    if get_origin(hint) is Annotated and DIGITS in hint.__metadata__:
        bounds = (each for each in hint.__metadata__ if isinstance(each, FieldInfo))
        return "".join((_type(hint.__origin__), *map(_limits, bounds)))
    if get_origin(hint) is Annotated and get_origin(get_args(hint)[0]) is tuple:
        return f"list of {_most(hint)} texts"
    if get_origin(hint) in (types.UnionType, Union):
        forms = [form for form in get_args(hint) if form is not type(None)]
        return " or ".join(_type(form) for form in forms)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return " or ".join(f"`{member.value}`" for member in hint)
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return f"mapping, see [{_SECTIONS[hint]}](#{_SECTIONS[hint].lower().replace(' ', '-')})"
    raise TypeError(f"no words for the type {hint}")


def _limits(field: FieldInfo) -> str:
    """Return ``, 0 to 10`` and the like, from the constraints of the model."""
    found: dict[type, Any] = {type(each): each for each in field.metadata}
    low, high = found.get(Ge), found.get(Le)
    if low and high:
        return f", {_number(low.ge)} to {_number(high.le)}"
    if low and field.annotation is not float:
        return f", at least {_number(low.ge)}"
    if MaxLen in found:
        return f", at most {found[MaxLen].max_length} characters"
    return ", not empty" if MinLen in found else ""


def _number(value: Any) -> str:
    return f"{value:,.0f}".replace(",", " ")


def _default(field: FieldInfo, hint: Any) -> str:
    if field.is_required():
        return "required"
    default: Any = field.default
    if default is PydanticUndefined:
        default = field.get_default(call_default_factory=True)
    if default is None or default == {}:
        return "none when left out"
    if hint == GBPerSecond:
        return f"default `{format_gb_per_second(default)}`"
    if hint == GB:
        return f"default `{format_gb(default)}`"
    if hint == Part:
        return f"default `{default:.0%}`"
    if isinstance(default, RetryRule):
        return f"default `{_inline(_rule(default))}`"
    if isinstance(default, BaseModel):
        return "default as below"
    return f"default `{_inline(default)}`"


def _rule(rule: RetryRule) -> dict[str, Any]:
    """Return a rule as it would be written: its retries, and what differs from the defaults."""
    return {"max_retries": rule.max_retries} | rule.model_dump(mode="json", exclude_defaults=True)


def _inline(value: Any) -> str:
    """Return a value as it stands in YAML on one line."""
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, StrEnum | str):
        return str(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return json.dumps(value)
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()


def _table(what: str, enum: type[StrEnum]) -> str:
    docs = _docs_of(enum)
    rows = [f"| `{member.value}` | {docs.get(member.name, '')} |" for member in enum]
    return "\n".join([f"| {what} | what |", "|---|---|", *rows])


def _docs_of(enum: type[StrEnum]) -> dict[str, str]:
    """Return the text below each member on one line, which Python itself does not keep."""
    return {name: " ".join(text.split()) for name, text in member_docs(enum).items()}


def _refusal() -> str:
    """Return what a person sees who submits the wrong example."""
    try:
        load_document(WRONG_EXAMPLE, "job.yaml", JobSpec)
    except SpecError as error:
        said = [f"error: {problem}" for problem in error.problems]
        return "\n".join(["$ longshore submit job.yaml", *said, "$ echo $?", str(error.exit_code)])
    raise AssertionError("the wrong example is right")


def _errors() -> str:
    tree = re.findall(r"─ (\w+) +(\S.*)", errors.__doc__ or "")
    rows = ["| error | exit code | what |", "|---|---:|---|"]
    for name, text in tree:
        error: type[LongshoreError] = getattr(errors, name)
        rows.append(f"| `{name}` | {error.exit_code} | {text} |")
    return "\n".join(rows)


def _most(annotated: Any) -> str:
    """Return ``at most 1 000``, from the bound of a list or mapping."""
    (bound,) = (each for each in get_args(annotated) if isinstance(each, Most))
    return f"at most {_number(bound.most)}"


_SECTIONS: dict[type[BaseModel], str] = {
    ArraySpec: "array",
    CheckpointContract: "checkpoint",
    Conformance: "conformance",
    FundingTerms: "funding",
    Gang: "gang",
    Malleable: "malleable",
    RetryPolicy: "retry",
    RetryRule: "A retry rule",
}

_TYPES: tuple[tuple[Any, str], ...] = (
    (Name, "lower-case letters, digits, dot, dash and underscore, at most 63"),
    (GB, "size"),
    (GBPerSecond, "bandwidth"),
    (Watts, "power"),
    (MigProfile, "profile"),
    (Duration, "duration"),
    (Moment, "time, or duration"),
    (GPUHourPrice, "price of a GPU-hour"),
    (Tier, "`FAST` or `FLEX`"),
    (int, "whole number"),
    (bool, "`true` or `false`"),
    (float, "number"),
    (str, "text"),
    (Text, "text"),
    (ShortText, "text"),
    (Sha256, "checksum, as 64 hexadecimal digits"),
    (EngineSpec, "mapping, as `longshore serve` makes it ([services](services.md))"),
    (CodeField, "text, a folder; or mapping, see [code](#code)"),
    (
        EnvironmentField,
        "text, a file; list of packages; or mapping, see [environment](#environment)",
    ),
    (Requirements, f"text, a file; or list of {_most(RequirementList)} packages"),
    (FileOfCode, "text, a file of the code"),
    (Files, f"list of {_most(Files)} files of the code"),
    (OutputPattern, "text, a name or pattern"),
    (Outputs, f"list of {_most(Outputs)} names or patterns"),
    (Sponsors, f"list of {_most(Sponsors)} tenants"),
    (EnvironmentDigest, "digest, as 32 hexadecimal digits"),
    (PythonVersion, "text, `3.11` or `3.11.2`"),
    (SignalName, "name of a signal, such as `SIGTERM` or `SIGUSR1`"),
    (
        JobLabels,
        f"mapping of {_most(JobLabels)} names to texts or numbers, both of letters, "
        "digits, `-`, `_` and `.`, at most 63",
    ),
    (Environment, f"mapping of {_most(Environment)} names to texts or numbers"),
    (
        Data,
        f"mapping of {_most(Data)} names to sizes, URLs or mappings, see [data](#data); "
        "or list of names",
    ),
    (SourceUrl, "URL"),
    (Part, "part, such as `80%` or `0.8`"),
)


_AN_ENVIRONMENT: dict[str, Any] = {
    "requirements": "requirements.txt", "lock": "uv.lock", "conda": "environment.yml",
    "script": "setup.sh", "files": ["data/words.txt"], "python": "3.11",
}  # fmt: skip


def main() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
