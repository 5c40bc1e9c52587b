"""The worked cases B1 to B5 of backfill, in their own numbers: nodes of 8 GPUs, jobs of whole
nodes. B6 to B8 are in `test_score.py` and `test_score_order.py`."""

from datetime import timedelta

from longshore.models.job_request import JobRequest
from longshore.models.placement import CyclePlan, PlacementKind, RunningJob
from longshore.models.topology import Gang
from longshore.scheduling.cycle import plan
from tests.support.packing import NOW, POLICY, a_job, a_node, running

HOUR = timedelta(hours=1)


def of_nodes(name: str, nodes: int, hours: float, minute: int = 0) -> JobRequest:
    """Return a job of whole nodes, submitted so many minutes after the first."""
    return a_job(
        name, 8 * nodes, gang=Gang(group_gpus=8, unlabelled_nodes=True), cpus=8 * nodes, ram=nodes,
        expected_duration=hours * HOUR, submitted_at=NOW + timedelta(minutes=minute - 60),
    )  # fmt: skip


def planned(there: int, ends: list[float], *jobs: JobRequest) -> CyclePlan:
    """Return a plan where the first nodes are busy for so many hours, and the others free."""
    nodes = [a_node(f"n{i}", busy=range(8 if i < len(ends) else 0)) for i in range(there)]
    works: list[RunningJob] = [
        running(f"on-n{i}", f"n{i}", range(8), hours * HOUR, vram_per_gpu=80)
        for i, hours in enumerate(ends)
    ]
    return plan(jobs, nodes, works, POLICY, NOW)


def starts(made: CyclePlan, name: str) -> bool:
    (found,) = (each for each in made.decisions if each.job_id == name)
    return found.kind is PlacementKind.EXISTING_NODE


def kept(made: CyclePlan, name: str) -> tuple[int, timedelta]:
    """Return how many nodes are kept for a job, and from when on."""
    mine = [each for each in made.reservations if each.job_id == name]
    (start,) = {each.start for each in mine}
    return len({each.node_id for each in mine}), start - NOW


def test_b1_a_short_job_runs_beside_a_start_that_is_kept():
    made = planned(10, [2] * 8, of_nodes("head", 8, 4), of_nodes("short", 2, 1, 1))
    assert kept(made, "head") == (8, 2 * HOUR)
    assert starts(made, "short")


def test_b2_a_job_that_would_delay_it_stays_pending():
    made = planned(8, [1] * 4, of_nodes("head", 6, 4), of_nodes("long", 4, 2, 1))
    assert kept(made, "head") == (6, HOUR)
    assert not starts(made, "long")


def test_b3_a_job_runs_on_nodes_that_the_kept_start_does_not_need():
    made = planned(8, [1] * 4, of_nodes("head", 6, 4), of_nodes("spare", 2, 2, 1))
    assert kept(made, "head") == (6, HOUR)
    assert starts(made, "spare")


def test_b4_the_start_is_kept_at_the_earliest_release():
    made = planned(8, [1, 1, 1, 1, 3, 3, 3, 3], of_nodes("head", 4, 4))
    assert kept(made, "head") == (4, HOUR)


def test_b5_a_wide_job_starts_by_its_kept_start_whoever_comes():
    """The narrow ones behind it, which have come endlessly, run an hour each."""
    narrow = [of_nodes(f"narrow-{i}", 1, 1, i + 1) for i in range(40)]
    made = planned(8, [0.5] * 4, of_nodes("wide", 8, 4), *narrow)
    assert kept(made, "wide") == (8, HOUR / 2)
    assert not any(starts(made, job.id) for job in narrow), "each would end after that"
    later = planned(8, [], of_nodes("wide", 8, 4), *narrow)
    assert starts(later, "wide")
