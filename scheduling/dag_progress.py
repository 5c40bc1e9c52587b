"""Where a DAG is, in one view: its state, its counts, and what its next job waits for."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime

from longshore.models.dag_messages import DagProgress
from longshore.models.dag_view import StepState
from longshore.scheduling.dag import DagPlan, Graph, waits_for, why_stopped


def progress(
    graph: Graph,
    plan: DagPlan,
    excluded: Mapping[str, str],
    *,
    held: bool,
    more: bool,
    ended_at: datetime | None,
) -> DagProgress:
    """Return where a DAG is; `excluded` has what jobs say that wait for a mutex."""
    submitted = frozenset(plan.start)
    states = {
        name: StepState.SUBMITTED if name in submitted else state
        for name, state in plan.states.items()
    }
    waiting = next((n for n in graph.order if states[n] is StepState.WAITING), None)
    # One that waits for nothing but a mutex is nearer to its start.
    waiting = next((n for n in graph.order if excluded.get(n)), waiting)
    told = ""
    if waiting is not None:
        told = excluded.get(waiting) or waits_for(graph, waiting, states, held=held)
    return DagProgress(
        state=plan.state,
        counts=Counter(states.values()),
        reason=plan.reason or (why_stopped(plan.stopped_by) if plan.stopped_by else ""),
        next=told and f"{waiting} {told}",
        more=more,
        ended_at=ended_at,
    )
