"""How much of a DAG waits for each of its jobs."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.dag import DagSpec
from longshore.scheduling.dag import Graph
from longshore.scheduling.dag_paths import expected_seconds, paths_behind


def behind(jobs: dict[str, dict[str, Any]]) -> dict[str, float]:
    named = {name: {"command": "true", **job} for name, job in jobs.items()}
    spec = DagSpec.model_validate({"name": "d", "jobs": named})
    return paths_behind(Graph.of(spec), expected_seconds(spec))


def test_a_chain_counts_what_is_behind_each_by_expected_durations() -> None:
    """Of 6 hours the last 5 are behind `prepare`; what says no duration counts as the hour that is
    assumed of every job."""
    assert behind(
        {
            "prepare": {},
            "train": {"after": "prepare", "expected_duration": "4h"},
            "report": {"after": "train"},
            "alone": {"expected_duration": "30m"},
        }
    ) == pytest.approx({"prepare": 5 / 6, "train": 1 / 6, "report": 0, "alone": 0})


def test_the_longer_of_two_ways_counts() -> None:
    assert behind(
        {
            "a": {},
            "short": {"after": "a", "expected_duration": "1h"},
            "long": {"after": "a", "expected_duration": "2h"},
            "end": {"after": ["short", "long"]},
        }
    ) == pytest.approx({"a": 3 / 4, "short": 1 / 4, "long": 1 / 4, "end": 0})


def test_an_array_takes_as_many_rounds_as_its_limit_asks_for() -> None:
    """9 elements, 2 at a time, are 5 rounds; without a limit they are one."""
    found = behind({"a": {}, "b": {"after": "a", "array": "0-8%2"}, "c": {"after": "b"}})
    assert found == pytest.approx({"a": 6 / 7, "b": 1 / 7, "c": 0})
    found = behind({"a": {}, "b": {"after": "a", "array": "0-8"}, "c": {"after": "b"}})
    assert found == pytest.approx({"a": 2 / 3, "b": 1 / 3, "c": 0})


def test_jobs_that_take_no_time_have_nothing_behind_them() -> None:
    none = {"expected_duration": 0}
    assert behind({"a": none, "b": {"after": "a", **none}}) == {"a": 0, "b": 0}


@given(st.lists(st.tuples(st.integers(1, 9), st.sets(st.integers(0, 6))), min_size=1, max_size=7))
def test_it_is_what_walking_every_path_finds(drawn: list[tuple[int, set[int]]]) -> None:
    jobs = {
        f"j{n}": {
            "expected_duration": hours * 3600,
            "after": [f"j{up}" for up in sorted(after) if up < n],
        }
        for n, (hours, after) in enumerate(drawn)
    }

    def walk(name: str) -> int:
        """Return the hours of the longest path from this job to an end of the DAG."""
        here = jobs[name]["expected_duration"] // 3600
        return here + max((walk(b) for b, job in jobs.items() if name in job["after"]), default=0)

    longest = max(map(walk, jobs))
    hours = {name: walk(name) - job["expected_duration"] // 3600 for name, job in jobs.items()}
    found = behind(jobs)
    assert found == pytest.approx({name: each / longest for name, each in hours.items()})
    for name, other in itertools.permutations(jobs, 2):
        if other in jobs[name]["after"]:
            assert found[other] > found[name]
