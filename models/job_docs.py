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
    parts = [_HEAD]
    sections: list[tuple[str, str, type[BaseModel], dict[str, Any]]] = [
        ("Fields", _FIELDS, JobSpec, {**example, **OF_OTHERS}),
        ("array", _ARRAY, ArraySpec, {"indices": "0-99", "limit": 8, "table": "params.csv"}),
        ("code", _CODE, Code, example["code"]),
        ("environment", _PACKAGES, JobEnvironment, _AN_ENVIRONMENT),
        ("data", _DATA, DataSet, example["data"]["imagenet"]),
        ("gang", _GANG, Gang, example["gang"]),
        ("malleable", _MALLEABLE, Malleable, example["malleable"]),
        ("conformance", f"{Conformance.__doc__}\n", Conformance, example["conformance"]),
        ("checkpoint", _CHECKPOINT, CheckpointContract, example["checkpoint"]),
        (
            "funding",
            f"{FundingTerms.__doc__} See docs/funding.md.\n",
            FundingTerms,
            example["funding"],
        ),
        ("retry", _RETRY, RetryPolicy, no_example),
        ("A retry rule", _RULE, RetryRule, example["retry"]["user"]),
    ]
    for title, before, model, values in sections:
        parts.append(f"## {title}\n\n{before}")
        parts += _fields_of(model, values, title)
    parts.append(f"{_CLASSES}\n{_table('class', FailureClass)}\n")
    parts.append(f"{_STATES}\n{_table('state', JobState)}\n")
    parts.append(f"{_ENVIRONMENT}")
    parts.append(f"{_WRONG}```yaml\n{WRONG_EXAMPLE}```\n\n```console\n{_refusal()}\n```\n")
    parts.append(f"{_ERRORS}\n{_errors()}\n")
    parts.append(f"{_FULL}\n```yaml\n{FULL_EXAMPLE}```\n")
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

_CODE = """\
A folder, or a commit of a Git repository: the job runs in a copy of it ([code](code.md)).
"""

_DATA = """\
What the job reads, by name. Where `from` says where it is, nodes fetch it while the job waits, and
keep it for the next ([data](data.md)): the name is a file name then, letters, digits, `.`, `_` and
`-`. A URL alone is `from`, a size alone is `size`. `from: job:ID` is what another job
[gave back](data.md#files-of-another-job).
"""

_PACKAGES = """\
The Python packages of the job, built once on a node ([environments](environments.md)).
"""

_AN_ENVIRONMENT: dict[str, Any] = {
    "requirements": "requirements.txt", "lock": "uv.lock", "conda": "environment.yml",
    "script": "setup.sh", "files": ["data/words.txt"], "python": "3.11",
}  # fmt: skip

_HEAD = """\
# The job file

A job file is YAML or JSON and describes one job: what to run, what it needs, and how patient it
is.

```console
$ longshore submit examples/hello.yaml
$ longshore submit examples/hello.yaml --set priority=8 --set env.SEED=7    # over the file's
$ longshore submit --gpus 2 --set gpu_type=H100 -- nvidia-smi -L    # without a file
$ longshore submit examples/hello.yaml --time 2h --label sweep=7    # its time limit; see --help
$ longshore schema job > job.schema.json    # JSON Schema, for completion in an editor
```

The smallest one is a name and a command; it gets one GPU of any kind:

```yaml
name: hello
command: nvidia-smi -L
```

A relative `workdir` counts from the folder of the job file, on the machine where you submit it.
It comes along: the job runs in a copy of it ([code](code.md)). An absolute one has to be on the
node.

**Sizes** are text with a unit, or a number of GB: `80GB`, `512MB`, `64GiB`, `80`. GB is 10^9
bytes. **Bandwidth** is a size a second, `10GB/s` or `500MB/s`; a number is GB/s. **Power** is
`700W` or `10.2kW`; a number is watts.

A flag goes before the file. Two flags that say the same field, as `--priority 8 --set
priority=8`, are refused. `--time` is `max_duration`, as Slurm writes it or as below: `90` is
minutes there.

**Prices of a GPU-hour** are in dollars: `$2.10/gpu-hour`, or `$2.10`. In a shell they need
single quotes.

**Times** are as in ISO 8601 with their zone: `2026-11-20T08:00:00Z`,
`2026-11-20 09:00+01:00`.

**Durations** are text with units, `hours:minutes[:seconds]`, or a number of seconds: `90s`,
`1h30m`, `2d`, `01:30:00`, `90`.

A job has at most 1,000,000 bytes as JSON in UTF-8, with the defaults of what it does not say: put
what is long into a file on the nodes, and name that.

YAML is read as its version 1.2 means it: `no` is text. Anchors,
tags and fields that nobody knows are refused.

This page is made from the models by `make docs`.
"""

_FIELDS = """\
Only `name` and one of `command` and `image` are required. A FAST job runs on nodes of the tier
FAST, a FLEX job on nodes of the tier FLEX. For a job that no node can hold a pool buys nodes where
its policy allows that ([buying](buying.md)); else it waits, and `longshore why` says what is
missing.
"""

_ARRAY = """\
Runs the command once for each index or row. [Arrays](arrays.md) explains it with examples. A text
alone is the indices with their limit, as in `array: 0-99%8`, or the name of a table, as in
`array: params.csv%8`.
"""

_GANG = """\
Lets a job span nodes. [Topology and gangs](topology.md) explains it with examples; without `gang`
all GPUs of a job are on one node.
"""

_MALLEABLE = """\
The sizes of a job that can run on fewer or more GPUs. [Elastic jobs](elastic.md) explains it with
examples; without `malleable` a job runs on exactly `gpus`.
"""

_CHECKPOINT = """\
How the job saves and goes on. [Checkpoints](checkpoints.md) explains it with examples.
`interval` only informs: nothing acts on it yet.
"""

_RETRY = """\
A rule for each class of failure that a retry can help. What is not named keeps its default. A job
that was held, or had to leave its node, has not failed: it uses up no retry and keeps its place.
"""

_RULE = """\
The wait before retry n is `backoff` x `multiplier`^(n - 1), and at most `max_backoff`.
"""

_CLASSES = """\
## Classes of failure

Every attempt without success gets one of these; those that `retry` names may be tried again.
"""

_STATES = """\
## States of a job

`longshore jobs` and `longshore job` show them.
"""

_ENVIRONMENT = """\
## What the process finds

It runs in `workdir`, or in an empty folder of the job's own that stays the same between attempts
on one node; with `code`, in its copy of that. Of the agent's environment it gets what programs
need everywhere (`PATH`, `HOME`, `LANG`, proxies and the like) and no secret. On `PATH` is nothing
of the Python environment that the agent runs in. Then come `env`, and these, which `env` cannot
change:

| variable | what |
|---|---|
| `CUDA_VISIBLE_DEVICES` | the job's GPUs or MIG instance, by UUID; on simulated nodes by index |
| `CUDA_DEVICE_ORDER` | `PCI_BUS_ID` |
| `LONGSHORE_JOB_ID`, `LONGSHORE_JOB_NAME` | id and name |
| `LONGSHORE_ATTEMPT` | number of this attempt, from 1 |
| `LONGSHORE_NODE_ID` | the node that it runs on |
| `LONGSHORE_GPU_INDICES`, `LONGSHORE_GPU_COUNT` | its GPUs by index, `2,3`, and how many |
| `LONGSHORE_GPUS` | with `malleable`: the GPUs of this attempt on all nodes, its size |
| `LONGSHORE_GPUS_BEFORE` | with `malleable`: the size before this attempt, or before it joined |
| `LONGSHORE_GPUS_MIN`, `LONGSHORE_GPUS_MAX` | with `malleable`: its smallest and largest size |
| `LONGSHORE_RESIZE_FILE` | with `in_place`: the file that says the size once it has changed |
| `LONGSHORE_RANKS` | with `in_place`: the numbers of the ranks that are there, `0,1,3` |
| `LONGSHORE_GPU_MILLI`, `LONGSHORE_GPU_VRAM` | with `milli`: thousandths and GB of each GPU |
| `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` | with `milli`: for CUDA's MPS ([sharing](sharing.md)) |
| `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` | with `milli`: the memory of each GPU, for CUDA's MPS |
| `LONGSHORE_MIG_PROFILE` | with `mig`: the profile |
| `LONGSHORE_TENANT`, `LONGSHORE_POOL` | as in the file |
| `LONGSHORE_PROGRESS_FILE` | where to write how far it is ([progress](progress.md)) |
| `LONGSHORE_OUTPUT` | where to write JSON for jobs behind it ([DAGs](dags.md#outputs)) |
| `LONGSHORE_CHECKPOINT_DIR` | the checkpoint folder, made already; only with `checkpoint` |
| `LONGSHORE_SAVED` | where to add the line `saved, step N` after saving; only with `checkpoint` |
| `LONGSHORE_SAVE_REQUEST` | a file that appears when the job is to save; only with `save_file` |
| `LONGSHORE_DATA_DIR` | a folder with an entry for each data set; only with `from` |
| `LONGSHORE_DATA_<NAME>` | the path of one: `LONGSHORE_DATA_IMAGENET_1K` of `imagenet-1k` |
| `LONGSHORE_DATA_MISSING` | what of its data could not be had; only where something lacks |
| `LONGSHORE_CODE_DIR` | the folder of its code; only with `code` |
| `VIRTUAL_ENV` | its Python environment, first on `PATH` too; only with `environment` |
| `LONGSHORE_RESUME` | `1` where the folder holds a checkpoint to go on from |
| `LONGSHORE_CHECKPOINT_STEP` | its step, where the job has told one |
| `LONGSHORE_ARRAY_ID`, `LONGSHORE_ARRAY_INDEX` | of an element ([arrays](arrays.md)) |
| `LONGSHORE_ARRAY_COUNT` | how many elements its array has |
| `LONGSHORE_ARRAY_MIN`, `LONGSHORE_ARRAY_MAX` | the lowest and the highest index |
| `LONGSHORE_ELEMENT_ATTEMPT` | of an element: the number of its attempt, from 1 |
| `LONGSHORE_NODE_EXPIRES_AT` | when the node ends; only where it does |
| `LONGSHORE_SIMULATED_GPUS` | `1` where the GPUs are simulated |
| `LONGSHORE_AGENT_ID` | marks the process as the agent's; not for the job |
"""

_WRONG = """\
## When a file is wrong

All mistakes come at once, with file, line and field; the exit code is 65, and nothing is
submitted. For this `job.yaml`

<!-- file: job.yaml -->
"""

_ERRORS = """\
## Errors

The command line prints one line and ends with the code of the error; in Python they are exceptions
of `longshore.models.errors`. With `--wait` the exit code is the job's own where it failed, 130
where it was cancelled, 75 where its queue timeout passed, 124 where its time limit did, 70 for
other failures.
`LONGSHORE_DEBUG=1` shows where an error comes from.
"""

_FULL = """\
## A full example

Every field once. Most jobs need a handful.
"""


def main() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
