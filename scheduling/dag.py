"""What a DAG does next: which jobs start, which are skipped, and whether it has ended.

An edge is open, satisfied or dead (`edge_state`); nothing else decides. A failure is caught where
an edge with the condition `failure` was satisfied by it and that edge's job runs, or ran.
"""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from longshore.models.dag import DagJob, DagSpec, Join, OnFailure
from longshore.models.dag_edges import Condition, Edge, Extra
from longshore.models.dag_view import DagState, StepState
from longshore.models.text import count

Edges = Mapping[str, Mapping[str, Edge]]
"""For each job the jobs that it comes after."""

MOST_NAMED = 3


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
    # To the array as a whole; each element asks for its own partner.
    Condition.CORRESPONDING: frozenset({StepState.SUCCEEDED}),
}


def edge_state(condition: Condition, upstream: StepState) -> EdgeState:
    """Return what an edge is worth while its upstream job is in this state."""
    if not upstream.ended:
        return EdgeState.OPEN
    return EdgeState.SATISFIED if upstream in _SATISFIES[condition] else EdgeState.DEAD


def joined(join: Join, found: Collection[EdgeState]) -> EdgeState:
    """Return what the edges of a job, or of one element, are worth together: it starts where
    that is SATISFIED, and is skipped where it is DEAD."""
    first, second = EdgeState.DEAD, EdgeState.SATISFIED
    if join is Join.ANY and found:
        first, second = second, first
    if first in found:
        return first
    return EdgeState.OPEN if EdgeState.OPEN in found else second


@dataclass(frozen=True)
class Elements:
    """The elements of an array that come after those of other arrays, as many as are alike."""

    alike: Mapping[tuple[EdgeState | None, ...], int]
    """How many have partners in these states, in the order of `Graph.partners`; None for no
    partner."""
    kept: int = 0
    """Elements that succeeded before a retry, and stay."""


NO_ELEMENTS: Mapping[str, Elements] = {}
NONE_WITHDRAWN: Mapping[str, str] = {}


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
    """For each job those whose output, or files, it gets."""
    partners: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """For each array whose elements come after those of others, these arrays, sorted."""

    @classmethod
    def of(cls, spec: DagSpec) -> "Graph":
        """Return the graph of a spec in which `problems` finds none."""
        bare = cls.of_edges(
            {name: job.after for name, job in spec.jobs.items()},
            {name: job.join for name, job in spec.jobs.items()},
        )
        return replace(
            bare,
            inputs={name: got for name, job in spec.jobs.items() if (got := given_by(job))},
            partners={
                name: found for name, job in spec.jobs.items() if (found := partners_of(job))
            },
        )

    @classmethod
    def of_edges(cls, edges: Edges, joins: Mapping[str, Join]) -> "Graph":
        """Return the graph of these edges alone, among which is no cycle."""
        downstream: dict[str, list[str]] = {name: [] for name in edges}
        for name, after in edges.items():
            for upstream in after:
                downstream[upstream].append(name)
        return cls(
            edges=edges,
            joins=joins,
            order=_upstream_first(edges, downstream),
            downstream={name: tuple(behind) for name, behind in downstream.items()},
        )


def given_by(job: DagJob) -> tuple[str, ...]:
    """Return the jobs whose output, or files, a job gets, sorted."""
    return tuple(sorted({*job.inputs, *job.data_jobs.values()}))


def partners_of(job: DagJob) -> tuple[str, ...]:
    """Return the arrays after whose elements those of an array come, sorted."""
    return tuple(
        sorted(up for up, e in job.after.items() if e.condition is Condition.CORRESPONDING)
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
    withdrawn: Mapping[str, str] = NONE_WITHDRAWN,
    elements: Mapping[str, Elements] = NO_ELEMENTS,
) -> DagPlan:
    """Return what a DAG does next.

    `known` has the state of each job, `elements` those of each array that waits and whose
    elements come after those of others, `stopped_by` the failure by which an earlier plan stopped
    it, `cancelled` why somebody cancelled it, `withdrawn` single jobs that somebody cancelled,
    with why: those that wait end now, and the others are for the caller to end. A DAG that is
    `held` skips jobs and starts none.
    """
    states = dict(known)
    if cancelled is not None:
        return _cancelled(graph, states, cancelled)
    gone = {name: why for name, why in withdrawn.items() if states.get(name) is StepState.WAITING}
    states.update(dict.fromkeys(gone, StepState.WITHDRAWN))
    start, skip = _follow(graph, states, elements)
    skip |= gone
    if on_failure is OnFailure.STOP and stopped_by is None:
        stopped_by = next(iter(uncaught(graph, states)), None)
    cancel: tuple[str, ...] = ()
    if stopped_by is not None:
        why = why_stopped(stopped_by)
        kept = _answers(graph, stopped_by, states)
        for name in graph.order:
            if states[name] is StepState.WAITING and name not in kept:
                states[name], skip[name] = StepState.SKIPPED, why
        # What is skipped settles edges of those that stay.
        start, more = _follow(graph, states, elements)
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


def _follow(
    graph: Graph, states: dict[str, StepState], elements: Mapping[str, Elements]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the waiting jobs that start and that are skipped; the latter are put into `states`.

    Upstream first, so that a job that is skipped settles those behind it in the same pass.
    """
    start: list[str] = []
    skip: dict[str, str] = {}
    for name in graph.order:
        if states[name] is not StepState.WAITING:
            continue
        found = others_of(graph, name, states)
        if name in graph.partners:
            worth = _worth_of_elements(graph, name, states, elements[name])
        else:
            worth = joined(graph.joins[name], found.values())
        if worth is EdgeState.SATISFIED:
            start.append(name)
        elif worth is EdgeState.DEAD:
            states[name] = StepState.SKIPPED
            dead = [up for up, each in found.items() if each is EdgeState.DEAD]
            if dead:
                skip[name] = _why_skipped(graph.edges[name], dead, states)
            else:
                skip[name] = f"no element of {' or '.join(graph.partners[name])} lets one start"
    return tuple(start), skip


def others_of(graph: Graph, name: str, states: Mapping[str, StepState]) -> Mapping[str, EdgeState]:
    """Return what the edges of a job are worth that count for all of its elements alike."""
    return {
        up: edge_state(edge.condition, states[up])
        for up, edge in graph.edges[name].items()
        if edge.condition is not Condition.CORRESPONDING
    }


def _worth_of_elements(
    graph: Graph, name: str, states: Mapping[str, StepState], elements: Elements
) -> EdgeState:
    """Return SATISFIED where an element can start, and where none can but some have succeeded
    before; OPEN while one may; else DEAD."""
    others = [*others_of(graph, name, states).values()]
    ups = graph.partners[name]
    found = {
        joined(graph.joins[name], [*others, *_partner_states(graph, name, ups, alike, states)])
        for alike in elements.alike
    }
    if EdgeState.SATISFIED in found:
        return EdgeState.SATISFIED
    if EdgeState.OPEN in found:
        return EdgeState.OPEN
    return EdgeState.SATISFIED if elements.kept else EdgeState.DEAD


def _partner_states(
    graph: Graph,
    name: str,
    ups: Sequence[str],
    alike: Sequence[EdgeState | None],
    states: Mapping[str, StepState],
) -> list[EdgeState]:
    """Return what the edges from element to element are worth to elements that are alike."""
    found: list[EdgeState] = []
    for up, partner in zip(ups, alike, strict=True):
        whole = edge_state(Condition.SUCCESS, states[up])
        if partner is None:
            if graph.edges[name][up].extra is Extra.WAIT:
                found.append(whole)
        elif partner is EdgeState.OPEN and whole is not EdgeState.OPEN:
            found.append(EdgeState.DEAD)  # it has ended, and this element of it never will
        else:
            found.append(partner)
    return found


def _why_skipped(
    edges: Mapping[str, Edge], dead: Sequence[str], states: Mapping[str, StepState]
) -> str:
    """Return ``needs the success of train, which failed``."""
    first = dead[0]
    more = f", and {count(len(dead) - 1, 'more condition')}" if len(dead) > 1 else ""
    return f"needs {_request(first, edges[first])}, which {_ENDED[states[first]]}{more}"


_ENDED = {
    StepState.SUCCEEDED: "succeeded", StepState.FAILED: "failed",
    StepState.CANCELLED: "was cancelled", StepState.WITHDRAWN: "was cancelled before it started",
    StepState.SKIPPED: "was skipped",
}  # fmt: skip


def _request(upstream: str, edge: Edge) -> str:
    what = {
        Condition.SUCCESS: "success", Condition.FAILURE: "failure", Condition.ANY: "end",
        Condition.CORRESPONDING: "success of an element",
    }  # fmt: skip
    return f"the {what[edge.condition]} of {upstream}"


def waits_for(
    graph: Graph, name: str, states: Mapping[str, StepState], *, held: bool = False
) -> str:
    """Return ``waits for the success of prepare and the end of clean``; of a join `any` with
    "or"; of a DAG that is `held`, that it is."""
    edges = graph.edges[name]
    still = [
        _request(up, edge)
        for up, edge in edges.items()
        if edge_state(edge.condition, states[up]) is EdgeState.OPEN
    ]
    if not still and held:
        return "waits for the release of the DAG, which is held"
    if not still:
        return "is about to be submitted"
    word = "and" if graph.joins[name] is Join.ALL else "or"
    named = f" {word} ".join(still[:MOST_NAMED])
    more = f" {word} {len(still) - MOST_NAMED} more" if len(still) > MOST_NAMED else ""
    then = ", and then for the release of the DAG, which is held" if held else ""
    return f"waits for {named}{more}{then}"


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
