"""What is wrong with the edges of a DAG: unknown jobs, cycles, arrays that correspond to none."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from longshore.models.dag import Condition
from longshore.scheduling.dag import Edges

_MOST_MEANT = 10
"""Unknown names for which a known one is looked for: each takes milliseconds beside 1,000 jobs."""
_MOST_CYCLES = 20
_LONGEST_CYCLE = 20
"""Edges of a cycle that are told."""
_RETRY = re.compile(r"\.r\d+$")
"""Ends the id of a job that a retry of its DAG runs again."""


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
    cycles = _cycles(known)
    for cycle in cycles:
        pairs = [*zip(cycle, (*cycle[1:], cycle[0]), strict=True)]
        steps = "; ".join(
            f"{name} comes after {up} ({edges[name][up].shown})"
            for name, up in pairs[:_LONGEST_CYCLE]
        )
        more = f"; and {len(pairs) - _LONGEST_CYCLE} more" if len(pairs) > _LONGEST_CYCLE else ""
        why = f"a cycle: {steps}{more}"
        found.append(GraphProblem(("jobs", cycle[0], "after", cycle[1]), why))
    if len(cycles) == _MOST_CYCLES:
        found.append(GraphProblem(("jobs",), "there may be more cycles: these are the first"))
    return tuple(found)


def _meant(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _cycles(edges: Mapping[str, Collection[str]]) -> list[tuple[str, ...]]:
    """Return cycles, each with an edge that no other has, until none is left or they are many;
    each from its first job in the file."""
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
            cycle = (*cycle[first:], *cycle[:first])
            found.append(cycle)
            left[cycle[0]].discard(cycle[1])
        else:
            break
    return found


def corresponding_problems(
    edges: Edges, arrays: Collection[str], mutexes: Mapping[str, Collection[str]]
) -> tuple[GraphProblem, ...]:
    """Return what is wrong with edges from element to element."""
    found: list[GraphProblem] = []
    for name, after in edges.items():
        theirs = [up for up, edge in after.items() if edge.condition is Condition.CORRESPONDING]
        for upstream in theirs:
            none = [each for each in (name, upstream) if each in edges and each not in arrays]
            if none:
                why = (
                    f"corresponding is for two arrays, element to element, and {none[0]} is none: "
                    "give it `array:`, or make the condition success"
                )
                found.append(GraphProblem(("jobs", name, "after", upstream), why))
        if theirs and mutexes.get(name):
            # It would keep it while its elements wait, and what they wait for may ask for it too.
            why = (
                f"{name} would keep it while its elements wait for those of {theirs[0]}: make the "
                "condition success, or leave the mutex out"
            )
            found.append(GraphProblem(("jobs", name, "mutex"), why))
    return tuple(found)
