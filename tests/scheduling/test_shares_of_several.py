"""Shares of several GPUs of a node: which ones a job gets, and what it never breaks."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import (
    Decision,
    GPUChoice,
    PackingPolicy,
    PackingRule,
    PlacementKind,
    RejectionCode,
)
from longshore.models.topology import LinkClass, NodeTopology
from longshore.scheduling.cycle import plan
from longshore.scheduling.packer import check, place
from longshore.scheduling.placement.feasibility import could_ever_hold
from longshore.scheduling.placement.gpus import mask_of
from longshore.scheduling.placement.parts import Left, choose_share
from longshore.scheduling.placement.state import with_job, without_job
from tests.scheduling.test_parts import H100, node_of
from tests.support import reference_machine
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node, running
from tests.support.packing_scenes import applied, running_job, topologies

NV, PCIE = LinkClass.NVLINK, LinkClass.PCIE4


def a_wide_share(
    gpus: int = 2, milli: int = 500, vram: float = 20, name: str = "wide", **fields: Any
) -> JobRequest:
    fields = {"cpus": 1, "ram": 1} | fields
    return a_job(name, gpus, milli=milli, vram_per_gpu=vram, **fields)


def used(milli: int, vram: float = 10) -> dict[str, Any]:
    return {"milli_used": milli, "vram_used": vram}


def pairs_linked(*pairs: tuple[int, int], count: int = 4) -> NodeTopology:
    """GPUs of which these are linked by NVLink, all others by PCIe."""
    fast = {frozenset(pair) for pair in pairs}
    links = tuple(
        tuple(None if a == b else NV if frozenset((a, b)) in fast else PCIE for b in range(count))
        for a in range(count)
    )
    return NodeTopology(gpus=tuple(range(count)), links=links)


def chosen_on(node: Node, job: JobRequest) -> Decision:
    return place(job, [node], POLICY, NOW)


def test_it_takes_the_fullest_gpus_that_each_suffice():
    node = node_of({}, used(300), used(600), used(100))
    assert chosen_on(node, a_wide_share(2, 400)).gpu_indices == (1, 2)
    assert chosen_on(node, a_wide_share(2, 500)).gpu_indices == (1, 3)
    assert chosen_on(node, a_wide_share(4, 400)).gpu_indices == (0, 1, 2, 3)
    # By memory, where as many thousandths are left.
    node = node_of(used(300, 10), used(300, 50), used(300, 30))
    assert chosen_on(node, a_wide_share(2)).gpu_indices == (1, 2)
    assert chosen_on(node, a_wide_share(2, vram=40)).gpu_indices == (0, 2)


def test_of_equally_full_gpus_the_best_linked_are_taken():
    node = node_of({}, {}, {}, {}).model_copy(
        update={"topology": pairs_linked((0, 2), (1, 3), (2, 3))}
    )
    found = chosen_on(node, a_wide_share(2))
    assert found.gpu_indices == (2, 3)  # of three pairs the closest
    assert found.reason.startswith(
        "node-a, 500/1000 of each of GPUs 2-3 linked by nvlink (450 GB/s): the best of"
    )
    # The fullest are taken before the links are looked at; GPU 0 goes beside by its link.
    node = node_of({}, {}, used(100), {}).model_copy(update={"topology": pairs_linked((0, 2))})
    assert chosen_on(node, a_wide_share(2)).gpu_indices == (0, 2)
    node = node_of(used(100), {}, used(100), {}).model_copy(
        update={"topology": pairs_linked((0, 1))}
    )
    assert chosen_on(node, a_wide_share(2)).gpu_indices == (0, 2)


def test_empty_gpus_are_opened_where_the_longest_runs_stay():
    assert chosen_on(a_node(busy=[3]), a_wide_share(2)).gpu_indices == (0, 1)
    first = PackingPolicy(gpu_choice=GPUChoice.FIRST_FREE)
    node = node_of({}, used(300), used(600))
    assert place(a_wide_share(2, 100), [node], first, NOW).gpu_indices == (0, 1)


def test_what_is_missing_is_said_with_how_many_gpus_have_it():
    job = a_wide_share(3, vram=40)
    short = check(node_of(used(600), used(100, 50), {}, {}), job, POLICY, NOW)
    assert short is not None
    assert short.code is RejectionCode.SHARES_BUSY
    assert short.reason == "has 500/1000 and 40GB left on 2 of 4 GPUs, job wants that on 3"
    assert not short.permanent
    few = check(node_of({}, {}, {"mig": H100}), job, POLICY, NOW)
    assert few is not None
    assert (few.code, few.permanent) == (RejectionCode.GPU_COUNT, True)
    small = check(a_node(gpus=3), a_wide_share(3, vram=81), POLICY, NOW)
    assert small is not None
    assert (small.code, small.permanent) == (RejectionCode.VRAM, True)
    assert could_ever_hold(node_of(used(900), used(900), used(900)), job)


def test_an_agent_of_before_gives_none_of_them():
    old = node_of({}, {}).model_copy(update={"serves": False})
    assert check(old, a_wide_share(1), POLICY, NOW) is None
    refused = check(old, a_wide_share(2, serves=True), POLICY, NOW)
    assert refused is not None
    assert refused.reason == (
        "has an agent of a version that gives no share of several GPUs, job wants one"
    )


def test_it_waits_until_each_of_its_gpus_has_room_and_keeps_them():
    node = node_of(used(700, 30), used(700, 30), name="n", cpus_used=2)
    at_work = [
        running("short", "n", [0], HOUR, milli=700, vram_per_gpu=30, cpus=1),
        running("long", "n", [1], 2 * HOUR, milli=700, vram_per_gpu=30, cpus=1),
    ]
    wide = a_wide_share(2, priority=9)
    late = a_wide_share(1, 600, name="late", expected_duration=3 * HOUR)
    quick = a_wide_share(1, 300, name="quick", expected_duration=timedelta(minutes=10))
    made = plan([wide, late, quick], [node], at_work, POLICY, NOW)
    decided = {each.job_id: each for each in made.decisions}
    assert "it waits for 500/1000 of each of GPUs 0-1 of n until" in decided["wide"].reason
    starts = {kept.job_id: (kept.gpu_indices, kept.start - NOW) for kept in made.reservations}
    assert starts["wide"] == ((0, 1), 2 * HOUR)
    assert starts["late"][1] >= 3 * HOUR  # not in the way of what is kept
    assert decided["quick"].kind is PlacementKind.EXISTING_NODE


def test_a_share_of_several_that_runs_holds_its_part_of_each():
    node = node_of(used(600, 30), used(600, 30), name="n", cpus_used=1)
    at_work = [running("wide", "n", [0, 1], HOUR, milli=600, vram_per_gpu=30, cpus=1)]
    whole = a_job("whole", 2, priority=9)
    made = plan([whole, a_wide_share(1, 500, name="half")], [node], at_work, POLICY, NOW)
    starts = {kept.job_id: kept.start - NOW for kept in made.reservations}
    assert starts["whole"] == HOUR
    assert made.decisions[1].kind is not PlacementKind.EXISTING_NODE


def test_what_it_took_it_gives_back():
    node = node_of(used(100), used(200), {})
    job = a_wide_share(3)
    held = with_job(node, job, [0, 1, 2])
    assert [gpu.milli_used for gpu in held.gpus] == [600, 700, 500]
    assert [gpu.vram_used for gpu in held.gpus] == [30, 30, 20]
    assert without_job(held, running_job(job, node.id, (0, 1, 2))) == node


def test_a_start_is_made_for_it_by_moving_a_share_of_the_same_plan():
    """The node with room for it is the fuller one, and so gets what comes first."""
    nodes = [
        node_of(used(250), used(250), {}, name="a", cpus=64),
        node_of(*[{"vram_used": 30}] * 4, name="b", cpus=64),
    ]
    queue = [a_wide_share(1, 600, name="small", priority=9), a_wide_share(3, 700, 60)]
    tight = PackingPolicy(rule=PackingRule.TIGHT)
    made = plan(queue, nodes, [], tight, NOW)
    assert {each.job_id: each.node_id for each in made.placements} == {"small": "b", "wide": "a"}
    assert made.rearranged
    one_by_one = plan(queue, nodes, [], tight, NOW, as_a_set=False)
    assert [each.node_id for each in one_by_one.placements] == ["a"]


lefts = st.lists(
    st.tuples(st.sampled_from([100, 500, 999, 1000]), st.sampled_from([20.0, 40.0, 80.0])),
    min_size=2,
    max_size=7,
)


@given(lefts, st.data(), st.sampled_from(GPUChoice))
def test_the_choice_is_that_of_all_sets_compared(
    found: list[tuple[int, float]], data: st.DataObject, by: GPUChoice
):
    count = data.draw(st.integers(1, len(found)))
    topology = data.draw(st.none() | topologies(len(found)))
    empty = {index for index, (milli, _) in enumerate(found) if milli == 1000}
    chosen = choose_share(
        [Left(milli, vram, index) for index, (milli, vram) in enumerate(found)],
        mask_of(empty), by, count, topology,
    )  # fmt: skip
    plain = reference_machine.fullest(dict(enumerate(found)), empty, by, count, topology)
    assert chosen.indices == plain
    assert chosen.mask == mask_of(plain)


wishes = st.lists(
    st.tuples(
        st.integers(1, 4), st.sampled_from([1, 250, 400, 600, 999]), st.sampled_from([5, 30, 79])
    ),
    max_size=14,
)


@given(wishes, st.integers(1, 3), st.booleans())
def test_no_gpu_is_ever_over_and_the_order_of_what_comes_is_none_of_it(
    wanted: list[tuple[int, int, float]], count: int, compiled: bool
):
    nodes = [a_node(f"node-{i}", gpus=4, cpus=64) for i in range(count)]
    queue = [
        a_wide_share(gpus, milli, vram, name=f"job-{i:02}")
        for i, (gpus, milli, vram) in enumerate(wanted)
    ]
    made = plan(queue, nodes, [], POLICY, NOW, compiled=compiled)
    for node in applied(nodes, queue, made):
        for gpu in node.gpus:
            assert gpu.milli_used <= 1000
            assert gpu.vram_used <= gpu.vram + 1e-6
    assert plan(queue[::-1], nodes, [], POLICY, NOW, compiled=not compiled) == made
    jobs = {job.id: job for job in queue}
    for decision in made.placements:
        assert len(set(decision.gpu_indices)) == jobs[decision.job_id].gpus


@pytest.mark.parametrize("gpus", [2, 3])
def test_a_state_file_explains_one(gpus: int):
    reason = chosen_on(node_of({}, used(500), {}), a_wide_share(gpus)).reason
    assert "500/1000 of each of GPUs" in reason
