"""Jobs that hold their nodes alone: placing, gangs, reservations, stops, growth, buying."""

from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.elastic import Malleable
from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, GPUParts, Node
from longshore.models.placement import PackingPolicy, PackingRule, RejectionCode, RunningJob
from longshore.models.topology import Gang
from longshore.scheduling.advice import advice
from longshore.scheduling.cycle import foresee, plan
from longshore.scheduling.packer import check
from longshore.scheduling.placement.feasibility import could_ever_hold
from longshore.scheduling.placement.state import (
    idle_gpus,
    running_job,
    view_nodes,
    with_job,
    without_job,
)
from longshore.scheduling.preemption.plan import plan_preemption
from longshore.scheduling.preemption.what_if import held_by
from tests.support.buying import a_job as buyable
from tests.support.buying import decided, exchange
from tests.support.gangs import a_gang, in_domain
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node
from tests.support.packing_scenes import H100, Scene, scenes
from tests.support.preemption import MINUTE, RULES, a_work, nodes_with, saved

ANY_RULE = st.sampled_from(
    [PackingRule.KEEP_ROOM, PackingRule.SEED_SCORE, PackingRule.PACK_TO_EMPTY]
)


def known(name: str = "a", **fields: Any) -> Node:
    return a_node(name, conformance="new", **fields)


def alone(name: str = "alone", gpus: int = 2, **fields: Any) -> JobRequest:
    return a_job(name, gpus, sensitive=True, **fields)


def with_running(node: Node, *jobs: JobRequest) -> tuple[Node, list[RunningJob]]:
    running: list[RunningJob] = []
    for number, job in enumerate(jobs):
        running.append(running_job(job, node, (number,), 0, NOW + (number + 1) * HOUR))
        node = with_job(node, job, (number,))
    return node, running


@given(
    scenes(mixed=True, linked=True, gangs=True, sensitive=True), ANY_RULE, st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_no_job_is_ever_beside_a_sensitive_one_and_its_nodes_are_known(
    scene: Scene, rule: PackingRule, compiled: bool, as_a_set: bool
) -> None:
    policy = PackingPolicy(rule=rule)
    made = plan(
        scene.queue, scene.nodes, scene.running, policy, NOW, compiled=compiled, as_a_set=as_a_set
    )
    jobs = {job.id: job for job in scene.queue}
    nodes = {node.id: node for node in scene.nodes}
    on: dict[str, set[str]] = defaultdict(set)
    for share in scene.running:
        on[share.node_id].add(share.job_id)
    for decision in made.placements:
        for node_id, _ in decision.held:
            on[node_id].add(decision.job_id)
    for decision in made.placements:
        if not jobs[decision.job_id].sensitive:
            continue
        for node_id, gpus in decision.held:
            node = nodes[node_id]
            assert on[node_id] == {decision.job_id}
            assert all(gpu.is_free for gpu in node.gpus)
            assert all(gpu.mig is None for gpu in node.gpus)
            assert node.conformance
            assert not node.changed
            assert set(gpus) <= {gpu.index for gpu in node.gpus}
    for one in made.reservations:
        for other in made.reservations:
            if one.node_id != other.node_id or one.job_id == other.job_id:
                continue
            if jobs[one.job_id].sensitive:
                assert one.end <= other.start or other.end <= one.start


@given(scenes(mixed=True, linked=True, gangs=True, sensitive=True), ANY_RULE)
def test_a_compiled_plan_is_the_same(scene: Scene, rule: PackingRule) -> None:
    policy = PackingPolicy(rule=rule)
    one, other = (
        plan(scene.queue, scene.nodes, scene.running, policy, NOW, compiled=compiled)
        for compiled in (False, True)
    )
    assert one == other


def test_it_gets_what_it_asked_for_and_the_rest_of_the_node_is_nobodys() -> None:
    queue = [alone(), a_job("other", 1)]
    made = plan(queue, [known()], [], POLICY, NOW)
    (placed,) = made.placements
    assert (placed.job_id, len(placed.gpu_indices)) == ("alone", 2)
    assert made.decisions[1].rejected == {RejectionCode.GPUS_BUSY: 1}
    assert made.decisions[1].estimated_start == NOW + HOUR
    node = with_job(known(), queue[0], placed.gpu_indices)
    assert all(gpu.job_id == "alone" for gpu in node.gpus)
    assert sum(gpu.vram_used for gpu in node.gpus) == 80
    assert len(idle_gpus(queue[0], node, placed.gpu_indices)) == 6
    share = running_job(queue[0], known(), placed.gpu_indices, 0, NOW + HOUR)
    assert without_job(node, share) == known()


def test_why_names_the_jobs_there_and_what_would_help() -> None:
    node, running = with_running(known(), *(a_job(f"job-{n}", 1) for n in range(3)))
    found = foresee(alone(), [], [node], running, POLICY, NOW)
    (rejection,) = found.decision.rejections
    assert (rejection.code, rejection.permanent) == (RejectionCode.NOT_ALONE, False)
    assert rejection.reason == "runs 3 other jobs: a sensitive job holds its nodes alone"
    assert found.decision.estimated_start == NOW + 3 * HOUR
    told = " ".join(advice(alone(), found.decision.rejections, [node], NOW, pool="default"))
    assert "node" in told


def test_gpus_in_mig_mode_are_held_by_nobody_whole() -> None:
    node = known()
    mig = (*node.gpus[:7], GPU(index=7, vram=80, parts=GPUParts(mig=H100)))
    node = node.model_copy(update={"gpus": mig})
    assert not could_ever_hold(node, alone())
    found = check(node, alone(), POLICY, NOW)
    assert found is not None
    assert (found.code, found.permanent) == (RejectionCode.NOT_ALONE, True)
    assert found.reason.startswith("has 1 GPU in MIG mode: a sensitive job holds its nodes alone")


def test_a_job_of_unknown_origin_counts_too() -> None:
    found = check(known(busy=[3]), alone(), POLICY, NOW)
    assert found is not None
    assert found.reason == "has 1 GPU that a job holds: a sensitive job holds its nodes alone"


def test_it_takes_an_empty_node_where_a_smaller_job_would_fill_one_in_use() -> None:
    node, running = with_running(known("in-use"), a_job("old", 1))
    nodes = [node, known("empty")]
    (placed,) = plan([alone()], nodes, running, POLICY, NOW).placements
    assert placed.node_id == "empty"
    (small,) = plan([a_job("plain", 2)], nodes, running, POLICY, NOW).placements
    assert small.node_id == "in-use"


def test_of_nodes_that_suit_it_takes_the_one_with_least_to_waste() -> None:
    nodes = [known("large"), known("small", gpus=2)]
    recent = [a_job("typical", 1)]
    made = plan([alone(gpus=2), *recent], nodes, [], POLICY, NOW)
    by_id = {each.job_id: each.node_id for each in made.placements}
    assert by_id == {"alone": "small", "typical": "large"}


def test_two_of_them_do_not_share_a_node() -> None:
    made = plan([alone("a", 1), alone("b", 1)], [known()], [], POLICY, NOW)
    assert [each.job_id for each in made.placements] == ["a"]
    assert made.decisions[1].estimated_start == NOW + HOUR


def test_a_kept_start_keeps_the_whole_node_and_shorter_work_goes_before_it() -> None:
    node, running = with_running(known(), a_job("old", 1))
    short = a_job("short", 1, expected_duration=timedelta(minutes=30))
    long = a_job("long", 1, expected_duration=2 * HOUR)
    made = plan([alone(), short, long], [node], running, POLICY, NOW)
    by_id = {each.job_id: each for each in made.decisions}
    assert by_id["alone"].estimated_start == NOW + HOUR
    assert by_id["short"].node_id == "a"
    assert by_id["long"].rejected == {RejectionCode.RESERVED: 1}


@pytest.mark.parametrize("spares", [0, 4])
def test_a_gang_holds_each_of_its_nodes_and_those_of_its_spares_alone(spares: int) -> None:
    nodes = [in_domain("d", name, conformance="new") for name in ("n1", "n2", "n3", "n4")]
    held, running = with_running(nodes[0], a_job("old", 1))
    gang = Gang(group_gpus=12, spares_per_group=spares)
    job = a_gang(12, sensitive=True).model_copy(update={"gang": gang})
    queue = [job, *(a_job(f"s{n}", 1, submitted_at=NOW + HOUR) for n in range(20))]
    made = plan(queue, [held, *nodes[1:]], running, POLICY, NOW)
    wide = made.decisions[0]
    mine = {node_id for node_id, _ in wide.held}
    assert len(mine) == 2 + bool(spares)
    assert "n1" not in mine
    others = {node_id for each in made.placements[1:] for node_id, _ in each.held}
    assert others == {"n1", "n2", "n3", "n4"} - mine


def test_who_gives_way_leaves_the_node_whole_also_one_that_could_shrink() -> None:
    sizes = Malleable(min=1, max=4)
    small = a_work("small", {"a": [0]}, priority=1, checkpoint=saved(MINUTE))
    elastic = a_work("elastic", {"a": [1, 2, 3, 4]}, priority=1, checkpoint=saved(MINUTE))
    asked = elastic.request.model_copy(update={"malleable": sizes})
    works = [small, elastic.model_copy(update={"request": asked})]
    nodes = nodes_with(works, [known()])
    urgent = a_job("urgent", 2, priority=8, expected_duration=HOUR, sensitive=True)
    eager = RULES.model_copy(update={"class_factor": 10.0})
    made = plan_preemption(urgent, nodes, works, eager, POLICY, NOW)
    assert {victim.job_id for victim in made.victims} == {"small", "elastic"}
    assert all(victim.gpus_left is None for victim in made.victims)
    # While they save, their places are kept for it, the whole node.
    (share,) = [held_by(urgent, gain, NOW + HOUR, nodes[0]) for gain in made.gains]
    assert share.gpu_indices == tuple(range(8))
    beside = urgent.model_copy(update={"sensitive": False})
    assert not plan_preemption(beside, nodes, works, eager, POLICY, NOW).preempts


def test_a_machine_is_bought_for_each_and_not_for_two_together() -> None:
    book = exchange(("2.00", 64))
    jobs = [buyable(name, gpus=2, sensitive=True) for name in "abc"]
    assert sum(plan.nodes for plan in decided(jobs, book).plans) == 3
    plain = [buyable(name, gpus=2) for name in "abc"]
    assert sum(plan.nodes for plan in decided(plain, book).plans) == 1


def test_others_do_not_grow_onto_what_it_only_holds() -> None:
    node = with_job(known(), alone(), (0, 1))
    share = running_job(alone(), known(), (0, 1), 0, NOW + HOUR)
    (view,) = view_nodes([node], [share], NOW)
    assert view.free == 0
