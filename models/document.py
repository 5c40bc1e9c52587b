"""Reads YAML and JSON documents into models, and names the file, line and field of each mistake.

YAML is read as its version 1.2 means it: `no` is text, `01:30:00` is text (a duration, not a
number to base 60), `1e3` is a number. Anchors and tags are refused: a document says what it says.
"""

import difflib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from longshore.models.bounds import GIVEN
from longshore.models.dag import DagJob, DagSpec
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.plain_yaml import Located, parse_yaml
from longshore.models.problems import Problem, bounded, known_fields
from longshore.models.readable import find_all
from longshore.models.visible import brief

M = TypeVar("M", bound=BaseModel)
MOST_BYTES = 10_000_000
"""Of a file: each million of YAML takes 1 s and 55 MB (a state file of 11,000 nodes)."""
_FEW = 8
"""Fields that are all named where somebody gives one that is not there."""
_TOO_LARGE = f"has more than {MOST_BYTES:,} bytes; that is the most"


class Override(NamedTuple):
    """A value that goes before what a document says."""

    field: str
    """Name, with dots into mappings: ``gpus``, ``env.SEED``."""
    text: str
    """The value as YAML."""
    given_by: str
    """Where it comes from, for messages: ``--set gpus=4``."""
    names: tuple[str, ...] = ()
    """The field name by name, where one of them has dots of its own."""

    @property
    def place(self) -> tuple[str, ...]:
        """The field, name by name."""
        return self.names or tuple(self.field.split("."))


Check = Callable[[object], Sequence[Problem]]
"""What is wrong with a document beside what its model refuses, given its plain content, which may
be of any form."""


class _Line(NamedTuple):
    """A mistake as it is told, behind what it is sorted by."""

    line: int
    place: list[str]
    text: str


def read_document(
    path: str | Path,
    model: type[M],
    overrides: Sequence[Override] = (),
    check: Check | None = None,
) -> M:
    """Return the model that the file at `path` describes, with `overrides` over it.

    Raises SpecError when the file cannot be read as text, and as `load_document` does.
    """
    source = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        _refuse(source, None, "no such file")
    except IsADirectoryError:
        _refuse(source, None, "is a folder, not a file")
    except OSError as error:
        _refuse(source, None, f"cannot be read: {error.strerror or error}")
    except ValueError:
        _refuse(source, None, "is not the name of a file")
    if len(data) > MOST_BYTES:
        _refuse(source, None, _TOO_LARGE)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        _refuse(source, line, "is not UTF-8 text; save it as UTF-8")
    return load_document(text, source, model, overrides, check)


def read_stdin() -> str:
    """Return what comes on stdin. Raises SpecError where that is more than a document may have."""
    text = sys.stdin.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        _refuse("stdin", None, _TOO_LARGE)
    return text


def text_of(path: str | Path) -> str | None:
    """Return the text of a file; None of one that `read_document` refuses before it is parsed."""
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, ValueError):
        return None
    return text if len(text) <= MOST_BYTES else None


def load_document(
    text: str,
    source: str,
    model: type[M],
    overrides: Sequence[Override] = (),
    check: Check | None = None,
) -> M:
    """Return the model that a YAML or JSON text describes, with `overrides` over it.

    `source` is the name that the messages use. Raises SpecError with every problem at once, in
    the order of the lines, as ``job.yaml:7: gpus: must be at least 1, got 0``.
    """
    root, content = _parse(text, source)
    _refuse_other_kind(root, source, model)
    twice = [
        _Line(line, [field], f"{source}:{line}: {field}: is given twice")
        for line, field in root.repeats()
    ]
    for override in overrides:
        _put_over(root, override)
    if overrides:
        content = json.dumps(root.plain())
    plain = root.plain()
    problems = [*check(plain)] if check else []
    try:
        found = model.model_validate_json(content, strict=True, context=GIVEN)
    except ValidationError as error:
        problems += find_all(error, plain, model)
    else:
        if not (problems or twice):
            return found
    said = sorted([*twice, *_located(problems, root, source, model)], key=lambda each: each[:2])
    raise SpecError(source, bounded([each.text for each in said]))


def _parse(text: str, source: str) -> tuple[Located, str]:
    """Return the document with the line of each part, and its content as JSON."""
    try:
        content = _as_json(text)
        # JSON may be indented with tabs, YAML may not; text inside JSON strings has none.
        root = parse_yaml(text.replace("\t", " ") if content else text)
    except yaml.MarkedYAMLError as error:
        _refuse(source, *_yaml_mistake(error))
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line = before.count("\n") + 1
        _refuse(source, line, f"character {chr(cast(int, error.character))!a} is not allowed here")
    except RecursionError:
        _refuse(source, None, "is nested too deeply")
    if root is None:
        _refuse(source, None, "is empty")
    if not isinstance(root.value, dict):
        what = "a list" if isinstance(root.value, list) else "a single value"
        _refuse(source, root.line, f"must hold one mapping (name: value lines), not {what}")
    return root, content or json.dumps(root.plain())


def _put_over(root: Located, override: Override) -> None:
    """Put one value over the document. Raises SpecError where it is not YAML or has no place."""
    override = override._replace(given_by=brief(override.given_by))
    *outer, name = override.place
    here = root
    for part in outer:
        here = _mapping_in(here, part, override)
    if not isinstance(here.value, dict):
        _refuse(override.given_by, None, f"{override.field} is inside a value that holds no names")
    try:
        value = parse_yaml(override.text) or Located(None, 0)
    except yaml.YAMLError as error:
        what = getattr(error, "problem", None) or "it cannot be read"
        _refuse(override.given_by, None, f"is not a YAML value: {what}")
    value.given_by = override.given_by
    here.value[name] = value


def _mapping_in(here: Located, part: str, override: Override) -> Located:
    if not isinstance(here.value, dict):
        _refuse(override.given_by, None, f"{override.field} is inside a value that holds no names")
    inner = here.value.get(part)
    if inner is None or inner.value is None:
        inner = here.value[part] = Located({}, 0, given_by=override.given_by)
    return inner


def _as_json(text: str) -> str | None:
    """Return the text where it is JSON already, else None."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        json.loads(text)
    except ValueError:
        return None
    return text


def _yaml_mistake(error: yaml.MarkedYAMLError) -> tuple[int | None, str]:
    mark = error.problem_mark or error.context_mark
    what = error.problem or error.context or "is not YAML"
    if "another document" in what:
        return mark and mark.line + 1, "holds several documents; give each a file of its own"
    if mark is None:
        return None, f"is not valid YAML: {what}"
    return mark.line + 1, f"column {mark.column + 1}: is not valid YAML: {what}"


def _located(
    problems: Sequence[Problem], root: Located, source: str, model: type[BaseModel]
) -> list[_Line]:
    found: list[_Line] = []
    for problem in problems:
        _, node = root.follow(problem.place)
        if problem.unknown:
            outer = problem.place[:-1]
            if issubclass(model, DagSpec) and outer[:1] == ("defaults",):
                known = known_fields(DagJob, outer[1:])
            else:
                known = known_fields(model, outer)
            close = _did_you_mean(str(problem.place[-1]), known)
            problem = problem._replace(message=problem.message + close)
        # Where a whole mapping is refused for a field of it, the message begins with that.
        field = problem.message.partition(": ")[0]
        node = node.value.get(field, node) if isinstance(node.value, dict) else node
        where = node.given_by or f"{source}:{node.line}"
        found.append(_Line(node.line, list(map(str, problem.place)), f"{where}: {problem}"))
    return found


def _refuse_other_kind(root: Located, source: str, model: type[BaseModel]) -> None:
    """Raise SpecError for a DAG where a job is wanted, and for a job where a DAG is: its fields
    are no mistakes of its own."""
    fields = cast("dict[str, Located]", root.value)
    jobs = fields.get("jobs")
    if issubclass(model, DagSpec):
        if jobs is None and any(name in fields for name in ("command", "image")):
            _refuse(source, None, "is a job file, not a DAG file, which has jobs: submit it with "
                    "`longshore submit`")  # fmt: skip
    elif issubclass(model, JobSpec) and jobs is not None and isinstance(jobs.value, dict):
        _refuse(source, None, "is a DAG file, which has jobs, and not a job file: submit it with "
                "`longshore dag submit`")  # fmt: skip


def _did_you_mean(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(known)}" if 1 < len(known) <= _FEW else ""


def _refuse(source: str, line: int | None, problem: str) -> NoReturn:
    where = source if line is None else f"{source}:{line}"
    raise SpecError(source, (f"{where}: {problem}",))
