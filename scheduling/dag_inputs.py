"""The outputs that a job of a DAG gets: which jobs may be named, and as which variables."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import cast

from longshore.models.output import VARIABLE
from longshore.scheduling.dag import Edges
from longshore.scheduling.dag_problems import GraphProblem

MOST_BYTES_TOGETHER = 131_072
_LONGEST_FIELD = 4_096
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)


def variable_of(name: str) -> str:
    """Return the variable that has a job's output: ``LONGSHORE_OUTPUT_TRAIN_SMALL``."""
    return f"{VARIABLE}_{re.sub('[^A-Z0-9]', '_', name.upper())}"


def variables(outputs: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for these outputs, JSON by job.

    One for each output, whole; and one for each field of an object that is a text, a number or a
    truth value: ``LONGSHORE_OUTPUT_TRAIN__LOSS``. Long texts, and fields whose name no variable
    can have, are in the whole alone.
    """
    found: dict[str, str] = {}
    for name, content in sorted(outputs.items()):
        for field, value in _fields(content):
            found.setdefault(f"{variable_of(name)}__{field.upper()}", value)
    return found | {variable_of(name): content for name, content in outputs.items()}


def _fields(content: str) -> Iterator[tuple[str, str]]:
    document: object = json.loads(content)
    if not isinstance(document, dict):
        return
    for field, value in cast("dict[str, object]", document).items():
        if not _FIELD.fullmatch(field) or not isinstance(value, str | int | float):
            continue
        told = value if isinstance(value, str) else json.dumps(value)
        if len(told) <= _LONGEST_FIELD and "\0" not in told and _is_text(told):
            yield field, told


def _is_text(value: str) -> bool:
    """Return whether it can be written: JSON may have half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def why_too_much(outputs: Mapping[str, str]) -> str:
    """Return why a job cannot be given these outputs; empty where it can."""
    found = sum(len(content.encode()) for content in outputs.values())
    if found <= MOST_BYTES_TOGETHER:
        return ""
    return f"the outputs that it gets have {found:,} bytes; {MOST_BYTES_TOGETHER:,} is the most"


def input_problems(
    edges: Edges, inputs: Mapping[str, Collection[str]]
) -> tuple[GraphProblem, ...]:
    """Return all that is wrong with the jobs whose outputs jobs ask for."""
    found: list[GraphProblem] = []
    for name, wanted in inputs.items():
        before = _before(edges, name) if wanted else frozenset[str]()
        seen: dict[str, str] = {}
        for upstream in wanted:
            place = ("jobs", name, "inputs", upstream)
            if upstream not in edges:
                found.append(GraphProblem(place, "no such job"))
            elif upstream not in before or upstream == name:
                why = f"{upstream} does not come before {name}: name it in `after` too"
                found.append(GraphProblem(place, why))
            other = seen.setdefault(variable_of(upstream), upstream)
            if other != upstream:
                why = f"{other} has the same variable, {variable_of(other)}: rename one of them"
                found.append(GraphProblem(place, why))
    return tuple(found)


def _before(edges: Edges, name: str) -> frozenset[str]:
    """Return all jobs that a job comes after, directly or not; cycles are somebody else's."""
    seen: set[str] = set()
    todo = list(edges[name])
    while todo:
        each = todo.pop()
        if each not in seen and each in edges:
            seen.add(each)
            todo.extend(edges[each])
    return frozenset(seen)
