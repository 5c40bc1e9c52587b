"""The outputs that a job of a DAG gets: which jobs may be named, and as which variables."""

import re
from collections.abc import Collection, Mapping

from longshore.models.dag import DagJob
from longshore.models.dag_view import DagJobView, StepState
from longshore.models.data import OF_A_JOB, DataSet
from longshore.models.job import JobSpec
from longshore.models.output import VARIABLE, field_values, variable_of_field
from longshore.scheduling.dag import Edges
from longshore.scheduling.dag_problems import GraphProblem

MOST_BYTES_TOGETHER = 131_072


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
        for field, value in field_values(content):
            found.setdefault(f"{variable_of(name)}__{variable_of_field(field)}", value)
    return found | {variable_of(name): content for name, content in outputs.items()}


def why_too_much(outputs: Mapping[str, str]) -> str:
    """Return why a job cannot be given these outputs; empty where it can."""
    found = sum(len(content.encode()) for content in outputs.values())
    if found <= MOST_BYTES_TOGETHER:
        return ""
    return f"the outputs that it gets have {found:,} bytes; {MOST_BYTES_TOGETHER:,} is the most"


def why_no_output(step: DagJobView) -> str:
    """Return why there is no output of a job of a DAG."""
    if step.step is StepState.WAITING:
        return f"it is not submitted yet, and {step.reason}"
    if step.step is StepState.SUBMITTED:
        return "it has not ended"
    if step.step is not StepState.SUCCEEDED:
        return f"it is {step.step.value}: {step.reason}"
    return (
        f"it wrote none into the file that {VARIABLE} names, or something else than one JSON "
        "document of at most 64 KB. That is a failure where another job has it as `inputs`"
    )


def input_problems(
    edges: Edges,
    inputs: Mapping[str, Collection[str]],
    data: Mapping[str, Mapping[str, str]],
    unread: Collection[str] = (),
) -> tuple[GraphProblem, ...]:
    """Return all that is wrong with the jobs whose outputs jobs ask for: as `inputs`, and as
    `data`, for each job by the name of the data set. `unread` are jobs some of whose edges cannot
    be read: nobody knows what comes before them, and before those behind them."""
    found: list[GraphProblem] = []
    for name in edges:
        wanted, files = inputs.get(name, ()), data.get(name, {})
        before = _before(edges, name) if wanted or files else frozenset[str]()
        if not before.union((name,)).isdisjoint(unread):
            before |= edges.keys() - {name}
        seen: dict[str, str] = {}
        for upstream in wanted:
            place = ("jobs", name, "inputs", upstream)
            if why := _why_not_before(edges, name, upstream, before):
                found.append(GraphProblem(place, why))
            other = seen.setdefault(variable_of(upstream), upstream)
            if other != upstream:
                why = f"{other} has the same variable, {variable_of(other)}: rename one of them"
                found.append(GraphProblem(place, why))
        for key, upstream in files.items():
            if why := _why_not_before(edges, name, upstream, before):
                said = why if upstream in edges else f"{why}: {upstream}"
                found.append(GraphProblem(("jobs", name, "data", key), said))
    return tuple(found)


def _why_not_before(edges: Edges, name: str, upstream: str, before: Collection[str]) -> str:
    """Return why a job cannot get what another puts out; empty where it can."""
    if upstream not in edges:
        return "no such job"
    if upstream not in before or upstream == name:
        return f"{upstream} does not come before {name}: name it in `after` too"
    return ""


def with_outputs(job: DagJob, given: Mapping[str, str], ran: Mapping[str, str]) -> JobSpec:
    """Return a job of a DAG as it is submitted: with the variables `given` to it, and the ids of
    the jobs whose files are data of it.

    `ran` has the ids of those that have run. Of another there are no files: that data is left out.
    """
    data: dict[str, DataSet] = {}
    for name, each in job.data.items():
        if each.job is None:
            data[name] = each
        elif each.job in ran:
            data[name] = each.model_copy(update={"source": f"{OF_A_JOB}{ran[each.job]}"})
    spec = job.spec
    if given:
        spec = spec.model_copy(update={"env": {**spec.env, **given}})
    return spec.model_copy(update={"data": data}) if job.data_jobs else spec


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
