"""What is wrong with the edges of a DAG: unknown jobs, cycles, arrays that correspond to none."""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from longshore.models.dag_edges import Condition
from longshore.scheduling.dag import Edges
from longshore.scheduling.dag_cycles import cycles

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
    known: dict[str, list[str]] = {}
    guesses = 0
    for name, after in edges.items():
        known[name] = []
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
                known[name].append(upstream)
    return (*found, *_cycles(edges, known))


def _meant(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _cycles(edges: Edges, known: Mapping[str, Sequence[str]]) -> Iterator[GraphProblem]:
    """Yield the cycles, edge by edge; of very many the first, and that there are others."""
    found = cycles(known, _MOST_CYCLES)
    for cycle in found.found:
        pairs = [*zip(cycle, (*cycle[1:], cycle[0]), strict=True)]
        steps = "; ".join(_told(edges, name, up) for name, up in pairs[:_LONGEST_CYCLE])
        more = f"; and {len(pairs) - _LONGEST_CYCLE} more" if len(pairs) > _LONGEST_CYCLE else ""
        yield GraphProblem(("jobs", cycle[0], "after", cycle[1]), f"a cycle: {steps}{more}")
    if found.left_out:
        # Below all that are named in a file: none of these begins with the last job of its own.
        *_, last = (name for name in known if name in found.beside)
        why = f"the {len(found.found)} named leave out that {_told(edges, *found.left_out)}"
        yield GraphProblem(("jobs", last), f"there may be more cycles: {why}")


def _told(edges: Edges, name: str, up: str) -> str:
    return f"{name} comes after {up} ({edges[name][up].shown})"


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
