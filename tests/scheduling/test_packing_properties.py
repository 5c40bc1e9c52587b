"""What must hold for every cluster and every queue."""

from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job_request import JobRequest
from longshore.models.placement import (
    Candidate,
    CyclePlan,
    GPUChoice,
    PackingPolicy,
    PackingRule,
    Rejection,
    RejectionCode,
)
from longshore.models.resources import NOTHING
from longshore.scheduling.cycle import plan
from longshore.scheduling.order import queue_order
from longshore.scheduling.packer import check, place
from longshore.scheduling.placement.feasibility import could_ever_hold
from longshore.scheduling.placement.state import with_job
from tests.support.packing import NOW, POLICY, a_job, a_node
from tests.support.packing_scenes import Scene, applied, scenes

SECOND = timedelta(seconds=1)


def lasts(job: JobRequest) -> timedelta:
    """A job that says it takes no time holds what it has for a second."""
    return max(job.expected_duration, SECOND)


def plan_of(scene: Scene, policy: PackingPolicy = POLICY) -> CyclePlan:
    return plan(scene.queue, scene.nodes, scene.running, policy, NOW)


@given(scenes(), st.sampled_from(GPUChoice))
def test_capacity_is_never_exceeded(scene: Scene, choice: GPUChoice) -> None:
    made = plan_of(scene, PackingPolicy(gpu_choice=choice))
    for node in applied(scene.nodes, scene.queue, made):
        assert all(used <= size for used, size in zip(node.host_used, node.host, strict=True))
        assert all(gpu.vram_used <= gpu.vram for gpu in node.gpus)


AMOUNTS = {
    "cpus": lambda amount: {"cpus": amount},
    "ram": lambda amount: {"ram": amount},
    "storage": lambda amount: {"storage_bandwidth": amount},
    "power": lambda amount: {"power_per_gpu": amount},
    "memory of a GPU": lambda amount: {"milli": 1, "vram_per_gpu": amount},
    "thousandths of a GPU": lambda amount: {"milli": amount * 10, "vram_per_gpu": 0.001},
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dimension", AMOUNTS)
@given(
    amounts=st.lists(st.integers(1, 70), max_size=12),
    size=st.integers(40, 100),
    rule=st.sampled_from(PackingRule),
)
def test_jobs_take_of_each_amount_what_there_is_and_no_more(
    amounts: list[int], size: int, dimension: str, compiled: bool, rule: PackingRule
) -> None:
    """One after the other, a job starts if and only if what the others left suffices for it."""
    wants = AMOUNTS[dimension]
    if dimension == "thousandths of a GPU":
        size = 100
    jobs = [
        a_job(f"j{i:02}", 1, **{"cpus": 0, "ram": 0, "vram_per_gpu": 0, **wants(amount)})
        for i, amount in enumerate(amounts)
    ]
    in_parts = "GPU" in dimension
    node = a_node(
        gpus=1 if in_parts else 12, cpus=size, ram=size, storage_bandwidth=size, power=size,
        vram=size if dimension == "memory of a GPU" else 80,
    )  # fmt: skip
    policy = PackingPolicy(rule=rule, max_reservations=0)
    made = plan(jobs, [node], [], policy, NOW, compiled=compiled)
    left, expected = size, list[bool]()
    for amount in amounts:
        expected.append(amount <= left)
        left -= amount if amount <= left else 0
    assert [decision.node_id is not None for decision in made.decisions] == expected


@given(scenes())
def test_every_job_is_answered_once_and_only_on_a_feasible_node(scene: Scene) -> None:
    made = plan_of(scene)
    jobs = {job.id: job for job in scene.queue}
    nodes = {node.id: node for node in scene.nodes}
    assert [d.job_id for d in made.decisions] == [
        job.id for job in queue_order(scene.queue, POLICY, NOW)
    ]
    for decision in made.placements:
        job = jobs[decision.job_id]
        assert decision.node_id is not None
        assert check(nodes[decision.node_id], job, POLICY, NOW) is None
        assert len(set(decision.gpu_indices)) == job.gpus


@given(scenes(), st.randoms(use_true_random=False))
def test_the_same_input_in_any_order_gives_the_same_plan(scene: Scene, chance: object) -> None:
    first = plan_of(scene).model_dump_json()
    chance.shuffle(scene.queue)  # pyright: ignore[reportAttributeAccessIssue]
    chance.shuffle(scene.running)  # pyright: ignore[reportAttributeAccessIssue]
    assert plan_of(scene).model_dump_json() == first


@given(
    scenes(mixed=True, linked=True), st.sampled_from(PackingRule), st.sampled_from(GPUChoice),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_the_order_of_the_nodes_settles_ties_and_nothing_else(
    scene: Scene, rule: PackingRule, choice: GPUChoice, chance: Random
) -> None:
    policy = PackingPolicy(rule=rule, gpu_choice=choice)
    shuffled = list(scene.nodes)
    chance.shuffle(shuffled)
    for job in scene.queue:
        one, other = place(job, scene.nodes, policy, NOW), place(job, shuffled, policy, NOW)
        assert sorted(one.candidates, key=by_node) == sorted(other.candidates, key=by_node)
        assert sorted(one.rejections, key=by_node) == sorted(other.rejections, key=by_node)
        values = {candidate.node_id: candidate.terms.total for candidate in one.candidates}
        order = [node.id for node in shuffled]
        best = min(values, key=lambda name: (-values[name], order.index(name)), default=None)
        assert other.node_id == best


def by_node(answer: Candidate | Rejection) -> str:
    return answer.node_id


@given(scenes())
def test_without_reservations_a_cycle_is_one_placement_after_another(scene: Scene) -> None:
    policy = PackingPolicy(max_reservations=0)
    made = plan(scene.queue, scene.nodes, [], policy, NOW)
    nodes = list(scene.nodes)
    for job, decision in zip(queue_order(scene.queue, POLICY, NOW), made.decisions, strict=True):
        alone = place(job, nodes, policy, NOW)
        assert (decision.node_id, decision.gpu_indices) == (alone.node_id, alone.gpu_indices)
        assert decision.terms == alone.terms
        assert gpus_short(decision.rejected) == gpus_short(alone.rejected)
        nodes = [
            with_job(node, job, alone.gpu_indices) if node.id == alone.node_id else node
            for node in nodes
        ]


def gpus_short(rejected: dict[RejectionCode, int]) -> dict[RejectionCode, int]:
    """With busy GPUs and small ones counted as one: on a node that is read anew, memory that was
    kept back on a GPU cannot be told from that of the job that holds it by now."""
    short = {code: count for code, count in rejected.items() if code is not RejectionCode.VRAM}
    small = rejected.get(RejectionCode.VRAM, 0)
    if small:
        short[RejectionCode.GPUS_BUSY] = short.get(RejectionCode.GPUS_BUSY, 0) + small
    return short


@given(scenes())
def test_placed_and_reserved_jobs_fit_beside_each_other_at_every_moment(scene: Scene) -> None:
    check_every_moment(scene, plan_of(scene))


def check_every_moment(scene: Scene, made: CyclePlan) -> None:
    jobs = {job.id: job for job in scene.queue}
    for node in scene.nodes:
        # One entry for each job that is known to hold something: GPUs, cores and so on, from, to.
        spans = [
            (set(r.gpu_indices), r.host, NOW, max(r.expected_end, NOW + SECOND))
            for r in scene.running
            if r.node_id == node.id
        ]
        known = [sum(amounts) for amounts in zip(NOTHING, *(s[1] for s in spans), strict=True)]
        unexplained = [max(u - k, 0) for u, k in zip(node.host_used, known, strict=True)]
        stuck = {g.index for g in node.gpus if g.job_id is not None}
        stuck -= {index for span in spans for index in span[0]}
        for d in made.placements:
            if d.node_id == node.id:
                job = jobs[d.job_id]
                end = NOW + lasts(job)
                host = job.share_of(job.gpus, node.gpu_power)
                spans.append((set(d.gpu_indices), host, NOW, end))
        for r in made.reservations:
            if r.node_id == node.id:
                job = jobs[r.job_id]
                assert r.end == r.start + lasts(job)
                if node.expires_at is not None:
                    assert r.end + POLICY.safety_margin <= node.expires_at
                assert not stuck & set(r.gpu_indices)
                host = job.share_of(job.gpus, node.gpu_power)
                spans.append((set(r.gpu_indices), host, r.start, r.end))
        for moment in [span[2] for span in spans]:
            at_once = [span for span in spans if span[2] <= moment < span[3]]
            taken = [index for span in at_once for index in span[0]]
            assert len(taken) == len(set(taken))
            hosts = zip(unexplained, *(span[1] for span in at_once), strict=True)
            for amounts, size in zip(hosts, node.host, strict=True):
                assert sum(amounts) <= size


@given(scenes(), st.data())
def test_a_job_that_nothing_can_hold_changes_nothing_for_others(
    scene: Scene, data: st.DataObject
) -> None:
    before = {d.job_id: d for d in plan_of(scene).decisions}
    giant = a_job("giant", gpus=11, priority=data.draw(st.integers(0, 10)))
    assert not any(could_ever_hold(node, giant) for node in scene.nodes)
    scene.queue.append(giant)
    after = {d.job_id: d for d in plan_of(scene).decisions}
    del after["giant"]
    assert after == before


@given(scenes())
def test_a_waiting_job_has_a_reason_and_counts_every_node(scene: Scene) -> None:
    for decision in plan_of(scene).decisions:
        if decision.node_id is None:
            assert decision.reason
            assert sum(decision.rejected.values()) == len(scene.nodes)
