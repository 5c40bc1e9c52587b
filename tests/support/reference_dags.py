"""Random DAGs, and by a table and a loop how they have to end; without `scheduling.dag`."""

import random
from collections.abc import Collection, Mapping
from typing import Any

from longshore.models.dag import DagSpec
from longshore.models.dag_view import DagState, StepState

S, F, C, N, K = (
    StepState.SUCCEEDED, StepState.FAILED, StepState.CANCELLED, StepState.WITHDRAWN,
    StepState.SKIPPED,
)  # fmt: skip
_SATISFIED_BY = {"success": {S}, "failure": {F, C}, "any": {S, F, C, N, K}}
"""Table 2.1: how a job has to end for an edge of this condition; else the edge is dead."""


def a_random_dag(chance: random.Random, most: int, **fields: Any) -> DagSpec:
    """Return a DAG of up to `most` jobs, each after up to three others; `fields` are its own."""
    names = [f"j{number}" for number in range(chance.randint(1, most))]
    jobs: dict[str, Any] = {}
    for number, name in enumerate(names):
        ups = chance.sample(names[:number], min(number, chance.choice((0, 1, 1, 2, 3))))
        after = {
            up: {"condition": chance.choice(("success", "failure", "any")),
                 "catch": chance.random() < 0.7}
            for up in ups
        }  # fmt: skip
        jobs[name] = {"command": "true", "after": after, "join": chance.choice(("all", "any"))}
    chance.shuffle(names)  # a file names its jobs in any order
    return DagSpec.model_validate(
        {"name": "random", "jobs": {name: jobs[name] for name in names}, **fields}
    )


def final_states(
    spec: DagSpec, ends: Mapping[str, StepState], kept: Collection[str] = ()
) -> dict[str, StepState]:
    """Return how each job of a DAG ends that nobody stops. `ends` says how those end that run, and
    `kept` those that have succeeded before. Raises KeyError where another one runs."""
    found = dict.fromkeys(kept, S)
    while len(found) < len(spec.jobs):
        for name, job in spec.jobs.items():
            if name in found or not job.after.keys() <= found.keys():
                continue
            worth = [found[up] in _SATISFIED_BY[edge.condition] for up, edge in job.after.items()]
            runs = not worth or (all(worth) if job.join == "all" else any(worth))
            found[name] = ends[name] if runs else K
    return found


def final_state(spec: DagSpec, states: Mapping[str, StepState]) -> DagState:
    """Return how the DAG ends: it failed where a job that did not succeed, and was not skipped, is
    caught by none that ran because of it."""

    def caught(name: str) -> bool:
        return any(
            edge.condition == "failure" and edge.catch and states[name] in (F, C)
            and states[behind] in (S, F, C)
            for behind, job in spec.jobs.items()
            if (edge := job.after.get(name))
        )  # fmt: skip

    bad = [name for name, state in states.items() if state in (F, C, N) and not caught(name)]
    return DagState.FAILED if bad else DagState.SUCCEEDED


def run_again(spec: DagSpec, states: Mapping[str, StepState]) -> set[str]:
    """Return the jobs of a retry: what did not succeed, what ran because of that, and so on; none
    where nothing failed or was cancelled."""
    if set(states.values()) <= {S, StepState.SKIPPED}:
        return set()
    again = {name for name, state in states.items() if state is not S}
    while True:
        more = {
            name
            for name, job in spec.jobs.items()
            for up, edge in job.after.items()
            if up in again and states[up] in _SATISFIED_BY[edge.condition]
        }
        if more <= again:
            return again
        again |= more
