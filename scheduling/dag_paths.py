"""How much of a DAG waits for each of its jobs: a pool may weigh that in its order."""

from collections.abc import Mapping

from longshore.models.dag import DagJob, DagSpec
from longshore.models.durations import Learnt
from longshore.scheduling.dag import Graph
from longshore.scheduling.deadline import LikelyDuration

_NOTHING: Mapping[str, Learnt] = {}


def paths_behind(graph: Graph, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return for each job the longest path of jobs that come after it, as a part (0 to 1) of the
    longest path through the DAG; `seconds` says how long each job takes.

    So DAGs of minutes and of days weigh alike. A job that nothing comes after has 0.
    """
    behind: dict[str, float] = {}
    for name in reversed(graph.order):
        behind[name] = max(
            (seconds[job] + behind[job] for job in graph.downstream[name]), default=0
        )
    longest = max((seconds[name] + path for name, path in behind.items()), default=0)
    return {name: path / longest if longest else 0.0 for name, path in behind.items()}


def expected_seconds(spec: DagSpec, learnt: Mapping[str, Learnt] = _NOTHING) -> dict[str, float]:
    """Return how long each job probably takes: its expected duration, else what is learnt of those
    of its name, else what is assumed."""
    return {name: _expected(job, learnt.get(name)) for name, job in spec.jobs.items()}


def _expected(job: DagJob, learnt: Learnt | None) -> float:
    """Of an array one element's, as many times as its limit has them follow one another."""
    array = job.array
    rounds = -(-array.most_elements // array.limit) if array and array.limit else 1
    likely = LikelyDuration.of(job.expected_duration, job.max_duration, learnt).likely
    return (job.likely_duration if likely is None else likely).total_seconds() * rounds
