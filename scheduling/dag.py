"""What a DAG does next: which jobs start, which are skipped, and whether it has ended.

An edge is open, satisfied or dead (`edge_state`); nothing else decides. A failure is caught where
an edge with the condition `failure` was satisfied by it and that edge's job runs, or ran.
"""

import difflib
import heapq
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from graphlib import CycleError, TopologicalSorter

from longshore.models.dag import (
    Condition,
    DagSpec,
    DagState,
    Edge,
    Join,
    OnFailure,
    StepState,
)
from longshore.models.text import count

Edges = Mapping[str, Mapping[str, Edge]]
"""For each job the jobs that it comes after."""

MOST_NAMED = 3
_MOST_MEANT = 10
"""Unknown names for which a known one is looked for: each takes milliseconds beside 1,000 jobs."""
_MOST_CYCLES = 20
_LONGEST_CYCLE = 20
"""Edges of a cycle that are told."""
_RETRY = re.compile(r"\.r\d+$")
"""Ends the id of a job that a retry of its DAG runs again."""


class EdgeState(Enum):
    OPEN = "open"
    """The upstream job has not ended."""
    SATISFIED = "satisfied"
    DEAD = "dead"
    """It has ended otherwise."""


_SATISFIES: Mapping[Condition, frozenset[StepState]] = {
    Condition.SUCCESS: frozenset({StepState.SUCCEEDED}),
    # A job that was cancelled before it started has not failed at anything: Flux's rule.
    Condition.FAILURE: frozenset({StepState.FAILED, StepState.CANCELLED}),
    Condition.ANY: frozenset(state for state in StepState if state.ended),
}


def edge_state(condition: Condition, upstream: StepState) -> EdgeState:
    """Return what an edge is worth while its upstream job is in this state."""
    if not upstream.ended:
        return EdgeState.OPEN
    return EdgeState.SATISFIED if upstream in _SATISFIES[condition] else EdgeState.DEAD


@dataclass(frozen=True)
class Graph:
    """The jobs of a DAG and their edges; without a cycle."""

    edges: Edges
    joins: Mapping[str, Join]
    order: tuple[str, ...]
    """Upstream first; otherwise as in the file."""
    downstream: Mapping[str, tuple[str, ...]]
    """For each job those that come after it."""
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """For each job those whose outputs it gets."""

    @classmethod
    def of(cls, spec: DagSpec) -> "Graph":
        """Return the graph of a spec in which `problems` finds none."""
        edges = {name: job.after for name, job in spec.jobs.items()}
        downstream: dict[str, list[str]] = {name: [] for name in edges}
        for name, after in edges.items():
            for upstream in after:
                downstream[upstream].append(name)
        return cls(
            edges=edges,
            joins={name: job.join for name, job in spec.jobs.items()},
            order=_upstream_first(edges, downstream),
            downstream={name: tuple(behind) for name, behind in downstream.items()},
            inputs={name: job.inputs for name, job in spec.jobs.items() if job.inputs},
        )


def _upstream_first(edges: Edges, downstream: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the jobs so that each follows those that it comes after; else as in the file."""
    names = list(edges)
    position = {name: number for number, name in enumerate(names)}
    open_edges = {name: len(after) for name, after in edges.items()}
    ready = [position[name] for name, number in open_edges.items() if not number]
    order: list[str] = []
    while ready:
        name = names[heapq.heappop(ready)]
        order.append(name)
        for behind in downstream[name]:
            open_edges[behind] -= 1
            if not open_edges[behind]:
                heapq.heappush(ready, position[behind])
    return tuple(order)


@dataclass(frozen=True)
class DagPlan:
    """What follows from the states of a DAG's jobs."""

    state: DagState
    states: Mapping[str, StepState]
    """Of all jobs, with those that are skipped or withdrawn now."""
    start: tuple[str, ...] = ()
    """Jobs to submit, upstream first."""
    skip: Mapping[str, str] = field(default_factory=dict[str, str])
    """Jobs whose conditions can hold no more, or that a stop or a cancel leaves out, with why."""
    cancel: tuple[str, ...] = ()
    """Submitted jobs to cancel."""
    stopped_by: str | None = None
    """The failure that stops the DAG."""
    reason: str = ""
    """How it ended, or which failure stops it."""


def decide(
    graph: Graph,
    known: Mapping[str, StepState],
    on_failure: OnFailure,
    *,
    held: bool = False,
    stopped_by: str | None = None,
    cancelled: str | None = None,
) -> DagPlan:
    """Return what a DAG does next.

    `known` has the state of each job, `stopped_by` the failure by which an earlier plan stopped
    it, `cancelled` why somebody cancelled it. A DAG that is `held` skips jobs and starts none.
    """
    states = dict(known)
    if cancelled is not None:
        return _cancelled(graph, states, cancelled)
    start, skip = _follow(graph, states)
    if on_failure is OnFailure.STOP and stopped_by is None:
        stopped_by = next(iter(uncaught(graph, states)), None)
    cancel: tuple[str, ...] = ()
    if stopped_by is not None:
        why = why_stopped(stopped_by)
        kept = _answers(graph, stopped_by, states)
        for name in graph.order:
            if states[name] is StepState.WAITING and name not in kept:
                states[name], skip[name] = StepState.SKIPPED, why
        start, more = _follow(graph, states)  # what is skipped settles edges of those that stay
        skip |= more
        cancel = tuple(
            name
            for name in graph.order
            if states[name] is StepState.SUBMITTED and name not in kept
        )
    state, reason = _state(graph, states)
    return DagPlan(
        state=state, states=states, start=() if held else start, skip=skip, cancel=cancel,
        stopped_by=stopped_by, reason=reason,
    )  # fmt: skip


def why_stopped(failed: str) -> str:
    """Return why a DAG leaves out what waits, and cancels what runs."""
    return f"{failed} failed, and the DAG stops at the first failure"


def uncaught(graph: Graph, states: Mapping[str, StepState]) -> tuple[str, ...]:
    """Return the jobs that failed, or were cancelled, and whose failure nobody deals with.

    As long as a job that catches it may yet run, it counts as caught.
    """
    return tuple(
        name
        for name in graph.order
        if states[name] in (StepState.FAILED, StepState.CANCELLED, StepState.WITHDRAWN)
        and not any(_catches(graph, name, behind, states) for behind in graph.downstream[name])
    )


def _catches(graph: Graph, upstream: str, name: str, states: Mapping[str, StepState]) -> bool:
    edge = graph.edges[name][upstream]
    satisfied = edge_state(edge.condition, states[upstream]) is EdgeState.SATISFIED
    lives = states[name].ran or not states[name].ended
    return satisfied and edge.condition is Condition.FAILURE and edge.catch and lives


def _follow(graph: Graph, states: dict[str, StepState]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the waiting jobs that start and that are skipped; the latter are put into `states`.

    Upstream first, so that a job that is skipped settles those behind it in the same pass.
    """
    start: list[str] = []
    skip: dict[str, str] = {}
    for name in graph.order:
        if states[name] is not StepState.WAITING:
            continue
        edges = graph.edges[name]
        found = {up: edge_state(edge.condition, states[up]) for up, edge in edges.items()}
        dead = [up for up, each in found.items() if each is EdgeState.DEAD]
        if graph.joins[name] is Join.ALL:
            starts = all(each is EdgeState.SATISFIED for each in found.values())
            skipped = bool(dead)
        else:
            starts = not found or EdgeState.SATISFIED in found.values()
            skipped = bool(found) and len(dead) == len(found)
        if starts:
            start.append(name)
        elif skipped:
            states[name] = StepState.SKIPPED
            skip[name] = _why_skipped(edges, dead, states)
    return tuple(start), skip


def _why_skipped(
    edges: Mapping[str, Edge], dead: Sequence[str], states: Mapping[str, StepState]
) -> str:
    """Return ``needs the success of train, which failed``."""
    first = dead[0]
    more = f", and {count(len(dead) - 1, 'more condition')}" if len(dead) > 1 else ""
    return f"needs {_wish(first, edges[first])}, which {_ENDED[states[first]]}{more}"


_ENDED = {
    StepState.SUCCEEDED: "succeeded", StepState.FAILED: "failed",
    StepState.CANCELLED: "was cancelled", StepState.WITHDRAWN: "was cancelled before it started",
    StepState.SKIPPED: "was skipped",
}  # fmt: skip


def _wish(upstream: str, edge: Edge) -> str:
    what = {Condition.SUCCESS: "success", Condition.FAILURE: "failure", Condition.ANY: "end"}
    return f"the {what[edge.condition]} of {upstream}"


def waits_for(graph: Graph, name: str, states: Mapping[str, StepState]) -> str:
    """Return ``waits for the success of prepare and the end of clean``; of a join `any` with
    "or"."""
    edges = graph.edges[name]
    still = [
        _wish(up, edge)
        for up, edge in edges.items()
        if edge_state(edge.condition, states[up]) is EdgeState.OPEN
    ]
    if not still:
        return "is about to be submitted"
    word = "and" if graph.joins[name] is Join.ALL else "or"
    named = f" {word} ".join(still[:MOST_NAMED])
    more = f" {word} {len(still) - MOST_NAMED} more" if len(still) > MOST_NAMED else ""
    return f"waits for {named}{more}"


def _answers(graph: Graph, failed: str, states: Mapping[str, StepState]) -> frozenset[str]:
    """Return the jobs that wait for just this failure: an edge from it is satisfied."""
    return frozenset(
        name
        for name in graph.downstream[failed]
        if edge_state(graph.edges[name][failed].condition, states[failed]) is EdgeState.SATISFIED
    )


def _cancelled(graph: Graph, states: dict[str, StepState], why: str) -> DagPlan:
    skip = {name: why for name in graph.order if states[name] is StepState.WAITING}
    states.update(dict.fromkeys(skip, StepState.WITHDRAWN))
    cancel = tuple(name for name in graph.order if states[name] is StepState.SUBMITTED)
    if cancel:
        return DagPlan(DagState.RUNNING, states, skip=skip, cancel=cancel, reason=why)
    state, reason = _state(graph, states)
    if {StepState.WITHDRAWN, StepState.CANCELLED} & set(states.values()):
        state, reason = DagState.CANCELLED, why
    return DagPlan(state, states, skip=skip, reason=reason)  # else all had ended before


def _state(graph: Graph, states: Mapping[str, StepState]) -> tuple[DagState, str]:
    if not all(state.ended for state in states.values()):
        return DagState.RUNNING, ""
    failed = uncaught(graph, states)
    if not failed:
        return DagState.SUCCEEDED, ""
    named = ", ".join(f"{name} {_ENDED[states[name]]}" for name in failed[:MOST_NAMED])
    more = f", and {len(failed) - MOST_NAMED} more" if len(failed) > MOST_NAMED else ""
    return DagState.FAILED, f"{named}{more}"


def reopened(
    graph: Graph, states: Mapping[str, StepState], anew: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the jobs that a retry runs again, upstream first: those that did not succeed, or are
    to run `anew`, and each that an edge from one of these had satisfied, or that gets the output
    of one, and so on."""
    again: set[str] = set()
    for name in graph.order:
        satisfied = (
            up in again and edge_state(edge.condition, states[up]) is EdgeState.SATISFIED
            for up, edge in graph.edges[name].items()
        )
        left = states[name] is not StepState.SUCCEEDED or name in anew
        if left or any(satisfied) or not again.isdisjoint(graph.inputs.get(name, ())):
            again.add(name)
    return tuple(name for name in graph.order if name in again)


# --- what is wrong with a graph --------------------------------------------------------------


@dataclass(frozen=True)
class GraphProblem:
    place: tuple[str, ...]
    """Fields and names from the whole file inwards."""
    message: str


def problems(edges: Edges, most: int) -> tuple[GraphProblem, ...]:
    """Return all that is wrong with the edges of a DAG of at most `most` jobs."""
    found: list[GraphProblem] = []
    if len(edges) > most:
        found.append(
            GraphProblem(
                ("jobs",),
                f"has {len(edges):,} jobs; {most:,} is the most (setting most_dag_jobs): use "
                "several DAGs",
            )
        )
    known: dict[str, set[str]] = {}
    guesses = 0
    for name, after in edges.items():
        known[name] = set()
        if _RETRY.search(name):
            why = "ends like the id of a retry (`.r2`): give the job another name"
            found.append(GraphProblem(("jobs", name), why))
        for upstream in after:
            place = ("jobs", name, "after", upstream)
            if upstream == name:
                found.append(GraphProblem(place, "a job cannot come after itself"))
            elif upstream not in edges:
                guesses += 1
                meant = _meant(upstream, edges) if guesses <= _MOST_MEANT else ""
                found.append(GraphProblem(place, f"no such job{meant}"))
            else:
                known[name].add(upstream)
    for cycle in _cycles(known):
        pairs = [*zip(cycle, (*cycle[1:], cycle[0]), strict=True)]
        steps = "; ".join(
            f"{name} comes after {up} ({edges[name][up].condition.value})"
            for name, up in pairs[:_LONGEST_CYCLE]
        )
        more = f"; and {len(pairs) - _LONGEST_CYCLE} more" if len(pairs) > _LONGEST_CYCLE else ""
        why = f"a cycle: {steps}{more}"
        found.append(GraphProblem(("jobs", cycle[0], "after", cycle[1]), why))
    return tuple(found)


def _meant(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _cycles(edges: Mapping[str, Collection[str]]) -> list[tuple[str, ...]]:
    """Return cycles that share no job, until none is left or they are many; each from its first
    job in the file."""
    left = {name: set(after) for name, after in edges.items()}
    position = {name: number for number, name in enumerate(edges)}
    found: list[tuple[str, ...]] = []
    while len(found) < _MOST_CYCLES:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            *cycle, _ = error.args[1]  # downstream last; the first is named again
            cycle = tuple(reversed(cycle))
            first = cycle.index(min(cycle, key=position.__getitem__))
            found.append((*cycle[first:], *cycle[:first]))
            left = {n: after - set(cycle) for n, after in left.items() if n not in cycle}
        else:
            break
    return found
