"""A DAG as a Mermaid flow chart."""

from longshore.client.dag_view import job_state
from longshore.models.dag import Join
from longshore.models.dag_edges import Condition, Edge
from longshore.models.dag_view import DagJobView, DagView, StepState
from longshore.models.job_status import JobState

_RUNS, _WAITS, _LEFT = "fill:#d7e6fa", "fill:#f6edcd", "fill:#e8e8e8"
_FILLS: dict[str, str] = {
    StepState.SUCCEEDED: "fill:#d5f0dc", StepState.FAILED: "fill:#f7d4d4",
    StepState.SKIPPED: _LEFT, StepState.WITHDRAWN: _LEFT, StepState.CANCELLED: _LEFT,
    JobState.RUNNING: _RUNS, JobState.STOPPING: _RUNS,
}  # fmt: skip
"""Fills by state; one that is not here waits."""


def mermaid(dag: DagView) -> str:
    """Return the graph as a Mermaid flow chart with the DAG's id as its title, and with the state
    of each job, as `dag show` has it, as its class."""
    numbers = {step.name: f"j{number}" for number, step in enumerate(dag.steps)}
    lines = [
        "---", f'title: "{dag.id}"', "---", "flowchart TD",
        *(f'    {numbers[each.name]}["{_words(each)}"]' for each in dag.steps),
    ]  # fmt: skip
    for step in dag.steps:
        arrow = "-->" if step.join is Join.ALL else "-.->"
        for up, edge in step.after.items():
            lines.append(f"    {numbers[up]} {arrow}{_label(edge)} {numbers[step.name]}")
    members: dict[str, list[str]] = {}
    for step in dag.steps:
        members.setdefault(job_state(step), []).append(numbers[step.name])
    for state, names in members.items():
        lines.append(f"    class {','.join(names)} {state}")
        lines.append(f"    classDef {state} {_FILLS.get(state, _WAITS)}")
    return "\n".join(lines)


def _words(step: DagJobView) -> str:
    array = f" [{step.array}]" if step.array else ""
    mutex = f"<br/>mutex {', '.join(step.mutex)}" if step.mutex else ""
    return f"{step.name}{array}<br/>{job_state(step)}{mutex}"


def _label(edge: Edge) -> str:
    return "" if edge.shown == Condition.SUCCESS else f"|{edge.shown}|"
