"""How a DAG looks in the terminal: as a tree, as a list, and change by change."""

from collections.abc import Sequence
from datetime import datetime
from textwrap import shorten, wrap

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text as RichText

from longshore.client.terminal import (
    WIDE,
    SeveralLines,
    Text,
    a_table,
    heading,
    pairs,
    width_of_ids,
)
from longshore.client.words import SIMULATED
from longshore.models.dag import Join
from longshore.models.dag_edges import Condition, Edge
from longshore.models.dag_view import DagJobView, DagState, DagSummary, DagView, StepState
from longshore.models.job_status import JobState
from longshore.models.text import ago, count, format_dollars, span
from longshore.scheduling.dag import Graph, uncaught

_STYLES = {
    StepState.WAITING: "yellow", StepState.SUBMITTED: "green", StepState.SUCCEEDED: "bold green",
    StepState.FAILED: "bold red", StepState.CANCELLED: "dim", StepState.WITHDRAWN: "dim",
    StepState.SKIPPED: "dim", DagState.RUNNING: "green", DagState.CANCELLED: "dim",
}  # fmt: skip
_DEEPEST = 36
"""Columns that a job is drawn to the right at most: a chain may have a thousand jobs."""
_MOST_NAMED = 120
"""Characters of a line that names what a job comes after: a pipe is thousands wide."""
_MOST_REMARK = 90
"""Characters of a remark on a narrow screen, where it folds."""
_MARKS: dict[str, str] = {Condition.SUCCESS: "", Condition.ANY: " (any end)"}


def _mark(edge: Edge) -> str:
    return _MARKS.get(edge.shown, f" ({edge.shown})")


def styled(state: StepState | DagState) -> Text:
    """Return a state in its colour."""
    return Text(state.value, style=_STYLES.get(state) or _STYLES[StepState(state.value)])


def job_state(step: DagJobView) -> str:
    """Return the state of the job where it was submitted, else that of its step."""
    if step.step is StepState.SUBMITTED:
        return step.state.value if step.state else "SUBMITTED"
    return step.step.value


def dags_table(dags: Sequence[DagSummary], now: datetime, width: int) -> Table:
    """Return a line for each DAG."""
    table = a_table(
        ["dag", "state", "jobs", "done", "ago", "reason"], right=("jobs", "done", "ago"),
        fold=("reason",), widest={"dag": width_of_ids(width)},
    )  # fmt: skip
    for dag in dags:
        done = sum(number for state, number in dag.counts.items() if state.ended)
        remark = dag.reason or ("held" if dag.held and not dag.state.ended else told(dag))
        since = dag.ended_at or dag.submitted_at
        table.add_row(
            dag.id, styled(dag.state), str(dag.jobs), str(done), span(now - since, units=1),
            Text(remark, no_wrap=True, overflow="ellipsis"),
        )  # fmt: skip
    return table


def told(dag: DagSummary) -> str:
    """Return ``3 SUCCEEDED, 1 RUNNING, 5 WAITING``; of what was submitted the states of the
    jobs."""
    parts: list[str] = []
    for state in reversed(StepState):
        number = dag.counts.get(state, 0)
        if state is StepState.SUBMITTED:
            live = {each: dag.submitted[each] for each in JobState if dag.submitted.get(each)}
            parts += [f"{jobs} {each.value}" for each, jobs in live.items()]
            number -= sum(live.values())
        if number > 0:
            parts.append(f"{number} {state.value}")
    return ", ".join(parts)


def dag_screen(dag: DagView, now: datetime, width: int) -> RenderableType:
    """Return a DAG in full for a screen of so many columns: its state, its tree, and what it
    cost."""
    lasted = (dag.ended_at or now) - dag.submitted_at
    simulated = f"  ({SIMULATED} GPUs)" if dag.simulated else ""
    held = "  held: submits no further job" if dag.held and not dag.state.ended else ""
    held = held if dag.followed else "  no workflow follows it"
    facts: list[tuple[str, RenderableType]] = [
        ("tenant", dag.tenant),
        ("submitted", ago(dag.submitted_at, now)),
        ("jobs", f"{dag.jobs}: {told(dag)}"),
        ("GPU time", cost_of(dag)),
    ]
    if dag.generation > 1:
        facts.append(("retries", str(dag.generation - 1)))
    if dag.reason:
        facts.append(("why", dag.reason))
    return Group(
        Text.assemble(
            (dag.id, "bold"), "  ", styled(dag.state), f" {span(lasted)}{simulated}", held
        ),
        Text(),
        pairs(facts),
        Text(),
        heading("Jobs, upstream first"),
        tree_table(dag, now, width),
        Text(),
        Text(f"Next: {_next_step(dag)}", style="dim"),
    )


def cost_of(part: DagView | DagJobView) -> str:
    """Return ``2h 5m, $3.10 booked``."""
    booked = f", {format_dollars(part.booked_micro_usd)} booked" if part.booked_micro_usd else ""
    return f"{span(part.gpu_time)}{booked}"


def tree_table(dag: DagView, now: datetime, width: int) -> Table:
    """Return a line for each job, drawn below the upstream job that comes last in the order; what
    else it comes after is named, on lines below where that is longer than a part of the width."""
    table = a_table(["job", "state", "GPUs", "time", "reason"], right=("time",), fold=("reason",))
    steps = {step.name: step for step in dag.steps}
    most, narrow = min(width_of_ids(width), _MOST_NAMED), width < WIDE
    deepest = min(_DEEPEST, most // 2)
    for prefix, indent, name, parent in _tree(dag.steps, deepest):
        step = steps[name]
        said = Text(remark(step), no_wrap=True, overflow="ellipsis")
        if narrow:
            brief = _without(f"{dag.id}.{name}", remark(step))
            said = Text(shorten(brief, _MOST_REMARK, placeholder=" …"))
        table.add_row(
            SeveralLines(_job_lines(step, parent, prefix, indent, most)),
            Text(job_state(step), style=_STYLES[step.step]),
            f"{step.gpus}x{step.gpu_type}" if step.gpu_type else str(step.gpus),
            _time(step, now), said,
        )  # fmt: skip
    return table


def _job_lines(
    step: DagJobView, parent: str | None, prefix: str, indent: str, most: int
) -> list[RichText]:
    """Return a job of the tree with what it comes after, in one line if that has at most `most`
    characters, else with all else on lines below its name."""
    others = [f"{up}{_mark(edge)}" for up, edge in step.after.items() if up != parent]
    edge = step.after.get(parent) if parent else None
    word = "and" if step.join is Join.ALL else "or"
    also = [f"{word} after {', '.join(others)}"] if others else []
    also += [f"mutex {', '.join(step.mutex)}"] if step.mutex else []
    array = f" [{step.array}]" if step.array else ""
    mark = f"{array}{_mark(edge)}" if edge else array
    rest = "".join(f"  {each}" for each in also)
    if len(prefix) + len(step.name) + len(mark) + len(rest) <= most:
        return [Text.assemble((prefix, "dim"), step.name, (f"{mark}{rest}", "dim"))]
    room = max(most - len(indent), 1)
    named = [*_wrapped(step.name, room), *(_wrapped(mark.strip(), room) if mark else ())]
    if len(step.name) + len(mark) <= room:
        named = [f"{step.name}{mark}"]
    lines = [*named, *(line for each in also for line in _wrapped(each, room))]
    return [
        Text.assemble(
            (prefix if number == 0 else indent, "dim"),
            line[: len(step.name)] if number == 0 else "",
            (line[len(step.name) :] if number == 0 else line, "dim"),
        )
        for number, line in enumerate(lines)
    ]


def _without(job_id: str, said: str) -> str:
    """Return a remark without the id that the lines above it and the job's name tell."""
    return "" if said == job_id else said.removesuffix(f" ({job_id})")


def _wrapped(text: str, most: int) -> list[str]:
    return wrap(text, most, break_on_hyphens=False)


def remark(step: DagJobView) -> str:
    """Return what is worth knowing of a job beside its state."""
    if step.step is StepState.SUCCEEDED:
        return step.job_id or ""
    code = f"exit code {step.exit_code}: " if step.exit_code else ""
    of = f" ({step.job_id})" if step.job_id and step.step is StepState.FAILED else ""
    return f"{code}{step.reason}{of}"


def _time(step: DagJobView, now: datetime) -> str:
    """Return how long it ran, or waits."""
    took = step.took(now)
    return "" if took is None else span(took)


def _tree(steps: Sequence[DagJobView], deepest: int) -> list[tuple[str, str, str, str | None]]:
    """Return (prefix, that of what stands below, name, upstream job that it is drawn below) for
    each job."""
    position = {step.name: number for number, step in enumerate(steps)}
    parents = {
        step.name: max(step.after, key=position.__getitem__) if step.after else None
        for step in steps
    }
    below: dict[str | None, list[str]] = {}
    for step in steps:
        below.setdefault(parents[step.name], []).append(step.name)
    lines: list[tuple[str, str, str, str | None]] = []
    # Without recursion: a chain may have a thousand jobs.
    todo = [("", "", name) for name in reversed(below.get(None, []))]
    while todo:
        prefix, indent, name = todo.pop()
        children = below.get(name, [])
        lines.append((prefix, indent + ("│  " if children else "   "), name, parents[name]))
        indent = indent[:deepest]
        for number, child in enumerate(reversed(children)):
            last = number == 0
            todo.append(
                (
                    f"{indent}{'└─ ' if last else '├─ '}",
                    f"{indent}{'   ' if last else '│  '}",
                    child,
                )
            )
    return lines


def _next_step(dag: DagView) -> str:
    if not dag.followed:
        return f"longshore dag retry {dag.id}"
    if not dag.state.ended:
        held = "longshore dag release" if dag.held else "longshore dag watch"
        return f"{held} {dag.id}"
    if dag.state is DagState.SUCCEEDED:
        return "longshore dag list"
    steps = {step.name: step for step in dag.steps}
    states = {name: step.step for name, step in steps.items()}
    graph = Graph.of_edges(
        {name: step.after for name, step in steps.items()},
        {name: step.join for name, step in steps.items()},
    )
    # A failure that some job caught is not why the DAG failed.
    whys = [steps[name] for name in uncaught(graph, states)]
    ran = next((step.job_id for step in whys if step.step.ran and step.job_id), None)
    logs = f"longshore logs {ran}, then " if ran else ""
    return f"{logs}longshore dag retry {dag.id}"


def change_lines(
    before: DagView | None, after: DagView, now: datetime
) -> list[tuple[datetime, str]]:
    """Return a line for each job whose state differs from before, and for the DAG itself, each
    with when that happened, oldest first; `now` where nobody knows.

    Without a view before: what has happened since the DAG was submitted, or since its last retry.
    """
    known = {step.name: step for step in before.steps} if before else {}
    lines: list[tuple[datetime, str]] = []
    for step in after.steps:
        last = known.get(step.name)
        if last is None and step.generation < after.generation:
            continue  # kept from before the retry
        was = (job_state(last), last.job_id) if last else ("WAITING", None)
        if was != (job_state(step), step.job_id):
            line = f"{step.name}  {job_state(step)}  {remark(step)}".rstrip()
            lines.append((_since(step, last) or now, line))
    lines.sort(key=lambda line: line[0])
    if before and before.held != after.held:
        lines.append((now, "held: no further job is submitted" if after.held else "released"))
    if after.state.ended:
        jobs = count(after.jobs, "job")
        told_of = f"{after.state.value}  {jobs}: {told(after)}"
        why = f"  {after.reason}" if after.reason else ""
        lines.append((after.ended_at or now, told_of + why))
    return lines


def _since(step: DagJobView, last: DagJobView | None) -> datetime | None:
    """Return when a job came into its state; None where that is not known."""
    if step.step.ended:
        return step.ended_at
    if last is not None and last.job_id == step.job_id and last.started_at is not None:
        return None  # what is known is when it began first
    return step.started_at if step.state is JobState.RUNNING else step.submitted_at
