"""What a retry of a DAG runs again."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from longshore.models.dag_view import StepState
from longshore.scheduling.dag import EdgeState, Graph, others_of

_WENT_WRONG = frozenset({StepState.FAILED, StepState.CANCELLED, StepState.WITHDRAWN})


@dataclass(frozen=True)
class Reopened:
    """What a retry runs again."""

    jobs: tuple[str, ...]
    """Upstream first."""
    whole: frozenset[str]
    """Those of which nothing stays: of the others, elements of arrays that succeeded do."""


def reopened(
    graph: Graph, states: Mapping[str, StepState], anew: Collection[str] = ()
) -> Reopened:
    """Return what a retry runs again: the jobs that did not succeed, or are to run `anew`, and
    each that an edge from one of these had satisfied, or that gets the output of one, and so on.

    Nothing where none failed, was cancelled or is to run `anew`: what was only skipped would be
    skipped again. An element that succeeded stays where only its array did not, and so do those
    behind it.
    """
    if not anew and not any(state in _WENT_WRONG for state in states.values()):
        return Reopened((), frozenset())
    again: set[str] = set()
    whole: set[str] = set()
    for name in graph.order:
        satisfied = (
            up in again and worth is EdgeState.SATISFIED
            for up, worth in others_of(graph, name, states).items()
        )
        partners = (up in whole for up in graph.partners.get(name, ()))
        inputs = not again.isdisjoint(graph.inputs.get(name, ()))
        if name in anew or inputs or any(satisfied) or any(partners):
            whole.add(name)
        if name in whole or states[name] is not StepState.SUCCEEDED:
            again.add(name)
    return Reopened(tuple(name for name in graph.order if name in again), frozenset(whole))
