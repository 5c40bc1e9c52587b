"""One job that cannot be planned does not stop the others."""

from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from longshore.models.bounds import json_bytes
from longshore.models.job_request import JobRequest
from longshore.models.placement import CyclePlan, PlacementKind, Rank
from longshore.models.topology import CLUSTER_LABEL, DOMAIN_LABEL, REGION_LABEL, Gang
from longshore.scheduling.cycle import plan
from longshore.scheduling.unplannable_jobs import (
    OF_A_GPU,
    OF_A_NODE,
    in_one_line,
    plan_without,
    set_aside,
    set_aside_unread,
    tellable,
)
from tests.support.packing import NOW, POLICY, a_job, a_node

FABRIC = {REGION_LABEL: "eu", CLUSTER_LABEL: "c1", DOMAIN_LABEL: "a"}


class Planner:
    """Plans as a cycle does, and fails on jobs of some names."""

    def __init__(self, *poison: str) -> None:
        self.poison = set(poison)
        self.calls = 0

    def __call__(self, queue: Sequence[JobRequest]) -> CyclePlan:
        self.calls += 1
        if found := sorted(job.id for job in queue if job.id in self.poison):
            raise OverflowError(f"no room in the calendar\nfor {found[0]}")
        return plan(queue, [a_node()], [], POLICY, NOW)


def test_the_others_are_planned_as_if_it_were_not_there():
    queue = [a_job(f"j{number}", gpus=1) for number in range(20)]
    planner = Planner("j3", "j17")
    made = plan_without(planner, queue)
    rest = [job for job in queue if job.id not in planner.poison]
    *planned, third, seventeenth = made.decisions
    assert tuple(planned) == planner(rest).decisions
    assert [third.job_id, seventeenth.job_id] == ["j3", "j17"]
    assert {third.kind, seventeenth.kind} == {PlacementKind.SET_ASIDE}
    assert third.reason == (
        "set aside: it cannot be planned (OverflowError: no room in the calendar for j3); "
        "cancel it, and submit it with other values"
    )
    assert len(made.placements) == 8


def test_mistakes_in_values_are_told_in_words_and_in_one_line():
    with pytest.raises(ValidationError) as wrong:
        JobRequest.model_validate({"id": "j", "gpus": 0, "priority": "high"})
    said = "gpus: must be at least 1, got 0; priority: must be a whole number, got 'high'"
    assert set_aside("j", wrong.value).reason == (
        f"set aside: it cannot be planned ({said}); cancel it, and submit it with other values"
    )
    # Other values do not help a job whose values were taken.
    assert set_aside_unread("j", in_one_line(wrong.value)).reason == (
        f"set aside: its stored form cannot be read ({said}): another version of Longshore "
        "stored it, or somebody by hand; it waits for a version that can, or for a cancel"
    )


def test_a_good_queue_is_planned_once_and_a_bad_job_found_in_few_plans():
    queue = [a_job(f"j{number}", gpus=1) for number in range(256)]
    good = Planner()
    assert plan_without(good, queue) == good(queue)
    assert good.calls == 2  # the one above, and the one to compare with
    bad = Planner("j200")
    plan_without(bad, queue)
    assert bad.calls <= 2 + 2 * 8 + 1


@pytest.mark.parametrize("later", ["j150", "j255"])
def test_of_two_that_fail_only_together_the_later_one_is_set_aside(later: str):
    calls = 0

    def odd(queue: Sequence[JobRequest]) -> CyclePlan:
        nonlocal calls
        calls += 1
        if {"j7", later} <= {job.id for job in queue}:
            raise KeyError("one name for two")
        return plan(queue, [a_node()], [], POLICY, NOW)

    queue = [a_job(f"j{number}", gpus=1) for number in range(256)]
    made = plan_without(odd, queue)
    assert calls <= 2 + 2 * 8 + 1 + 8 + 2
    *planned, last = made.decisions
    assert tuple(planned) == odd([job for job in queue if job.id != later]).decisions
    assert (last.job_id, last.kind) == (later, PlacementKind.SET_ASIDE)
    assert last.reason.startswith(
        "set aside: it cannot be planned beside the jobs before it (KeyError: 'one name for two');"
        " it is looked at again in some minutes"
    )


def test_what_is_no_few_jobs_fault_is_raised():
    def crowded(queue: Sequence[JobRequest]) -> CyclePlan:
        if len(queue) > 2:
            raise MemoryError("too many")
        return plan(queue, [a_node()], [], POLICY, NOW)

    with pytest.raises(MemoryError, match="too many"):
        plan_without(crowded, [a_job(name) for name in "abcdefg"])


def test_a_gang_on_more_nodes_than_its_job_can_be_told_of_is_set_aside():
    nodes = [a_node(f"n{number}", gpus=1, labels=FABRIC) for number in range(1_300)]
    fits = a_job("a", gpus=100, gang=Gang())
    large = a_job("b", gpus=1_150, gang=Gang())
    planned = plan([fits, large], nodes, [], POLICY, NOW)
    assert len(planned.placements) == 2
    told = tellable(planned)
    assert told.placements == planned.placements[:1]
    assert [each.job_id for each in told.decisions] == ["a", "b"]
    assert told.decisions[1].kind is PlacementKind.SET_ASIDE
    assert told.decisions[1].reason.startswith("set aside: it would be on 1,150 nodes, of which")
    assert tellable(told) is told


@pytest.mark.parametrize("gpus", [1, 8, 1024])
def test_no_node_of_a_placement_takes_more_bytes_than_are_counted(gpus: int):
    rank = Rank(
        rank=99_999, node_id="n" * 63, epoch=2**31, gpu_indices=tuple(range(gpus)),
        address="\x01" * 253, expires_at=NOW,
    )  # fmt: skip
    assert json_bytes(rank) + 1 <= OF_A_NODE + gpus * OF_A_GPU
