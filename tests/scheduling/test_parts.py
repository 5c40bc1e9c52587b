"""Parts of GPUs by example: shares beside each other, MIG instances, whole jobs beside both."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given

from longshore.models.job_request import JobRequest
from longshore.models.mig import first_slice, positions_of
from longshore.models.node import GPU, GPUParts, Node
from longshore.models.placement import (
    Decision,
    GPUChoice,
    PackingPolicy,
    PlacementKind,
    RejectionCode,
)
from longshore.scheduling.cycle import plan
from longshore.scheduling.packer import check, place
from longshore.scheduling.placement.feasibility import could_ever_hold
from longshore.scheduling.placement.state import with_job, without_job
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node, running
from tests.support.packing_scenes import Scene, applied, running_job, scenes

H100 = positions_of("H100", 80)


def a_share(name: str = "share", milli: int = 500, vram: float = 20, **fields: Any) -> JobRequest:
    return a_job(name, 1, milli=milli, vram_per_gpu=vram, cpus=1, ram=1, **fields)


def an_instance(name: str = "mig", profile: str = "1g.10gb", **fields: Any) -> JobRequest:
    return a_job(name, 1, mig=profile, vram_per_gpu=0, cpus=1, ram=1, **fields)


def node_of(*gpus: dict[str, Any], **fields: Any) -> Node:
    """Return a node with these GPUs of 80 GB: what is in use of each, and in MIG mode."""
    made = tuple(
        GPU(
            index=i,
            vram=80,
            vram_used=gpu.pop("vram_used", 0),
            parts=GPUParts(**gpu) if gpu else None,
        )
        for i, gpu in enumerate(map(dict[str, Any], gpus))
    )
    return a_node(**fields).model_copy(update={"gpus": made})


def decided(queue: Sequence[JobRequest], *nodes: Node) -> dict[str, Decision]:
    return {d.job_id: d for d in plan(queue, nodes, [], POLICY, NOW).decisions}


def test_two_halves_share_one_gpu_and_the_others_stay_whole():
    found = decided([a_share("a"), a_share("b"), a_share("c")], a_node())
    assert found["a"].gpu_indices == found["b"].gpu_indices
    assert found["c"].gpu_indices != found["a"].gpu_indices
    assert "500/1000 of GPU" in found["a"].reason


def test_memory_is_counted_on_each_gpu_never_in_total():
    """74.49 GiB, 14.685 GiB and 39 GiB fit no GPU of 80 GB together, whatever two have left."""
    sizes = {"a": 74.49, "b": 14.685, "c": 39.0}
    jobs = [a_share(name, 100, gib * 2**30 / 1e9) for name, gib in sizes.items()]
    found = decided(jobs, a_node(gpus=1))
    assert found["a"].node_id is not None
    assert found["b"].rejected == found["c"].rejected == {RejectionCode.SHARES_BUSY: 1}
    # 40 GB are left in all, but no GPU has more than 20.
    shared = {"milli_used": 500, "vram_used": 60}
    reason = check(node_of(shared, shared), a_share(vram=40), POLICY, NOW)
    assert reason is not None
    assert reason.reason == (
        "has 20GB at most on a GPU with 500/1000 left (GPU 0), job wants 500/1000 and 40GB of "
        "one GPU"
    )


def test_an_engine_is_refused_by_its_memory_and_by_its_part_where_that_is_what_lacks():
    def why(used: dict[str, int], gpus: int) -> str | None:
        engine = a_job("e", gpus, milli=500, vram_per_gpu=40, loads_within=timedelta(minutes=5))
        refused = check(node_of(used, used), engine, POLICY, NOW)
        return refused and refused.reason

    full = {"milli_used": 750, "vram_used": 60}
    assert why(full, 1) == "has 20GB at most (GPU 0), job wants 40GB of one GPU"
    assert why(full, 2) == "has 40GB left on 0 of 2 GPUs, job wants that on 2"
    busy = {"milli_used": 600, "vram_used": 10}
    assert why(busy, 1) == (
        "has 400/1000 left at most (GPU 0), job wants 500/1000 and 40GB of one GPU"
    )
    assert why({"milli_used": 500, "vram_used": 40}, 2) is None


def test_the_fullest_gpu_that_suffices_is_shared():
    node = node_of({}, {"milli_used": 300, "vram_used": 10}, {"milli_used": 600, "vram_used": 10})
    assert place(a_share(milli=400), [node], POLICY, NOW).gpu_indices == (2,)
    assert place(a_share(milli=500), [node], POLICY, NOW).gpu_indices == (1,)
    assert place(a_share(milli=800), [node], POLICY, NOW).gpu_indices == (0,)
    first = PackingPolicy(gpu_choice=GPUChoice.FIRST_FREE)
    assert place(a_share(milli=400), [node], first, NOW).gpu_indices == (0,)


def test_an_empty_gpu_is_opened_where_the_longest_runs_stay():
    assert place(a_share(), [a_node(busy=[3])], POLICY, NOW).gpu_indices == (0,)
    assert place(a_share(), [a_node(busy=[1])], POLICY, NOW).gpu_indices == (0,)


def test_a_whole_job_takes_no_gpu_that_is_shared_or_in_mig_mode():
    node = node_of({}, {"milli_used": 1, "vram_used": 1}, {"mig": H100}, {})
    assert place(a_job(gpus=2), [node], POLICY, NOW).gpu_indices == (0, 3)
    busy = check(node, a_job(gpus=3), POLICY, NOW)
    assert busy is not None
    assert (busy.code, busy.permanent) == (RejectionCode.GPUS_BUSY, False)
    few = check(node, a_job(gpus=4), POLICY, NOW)
    assert few is not None
    assert few.reason == "has 3 GPUs beside 1 GPU in MIG mode, job wants 4"
    assert few.permanent


def test_what_a_share_raises_is_the_memory_in_use():
    decision = place(a_share(vram=20), [a_node(gpus=4)], POLICY, NOW)
    assert decision.terms is not None
    assert decision.terms.utilization == 20 / 320
    decision = place(an_instance(profile="2g.20gb"), [node_of({"mig": H100})], POLICY, NOW)
    assert decision.terms is not None
    assert decision.terms.utilization == 20 / 80


@pytest.mark.parametrize(
    ("queue", "starts"),
    [
        (["1g.10gb"] * 7, [6, 4, 5, 0, 1, 2, 3]),
        (["3g.40gb", "3g.40gb"], [4, 0]),
        (["4g.40gb", "3g.40gb"], [0, 4]),
        (["1g.10gb", "4g.40gb", "2g.20gb"], [6, 0, 4]),
        (["2g.20gb", "2g.20gb", "2g.20gb", "1g.10gb"], [4, 0, 2, 6]),
        (["7g.80gb"], [0]),
    ],
)
def test_instances_are_put_where_most_of_the_largest_profiles_stay_possible(
    queue: list[str], starts: list[int]
):
    jobs = [an_instance(f"job-{i}", profile) for i, profile in enumerate(queue)]
    found = decided(jobs, node_of({"mig": H100}))
    assert [first_slice(found[job.id].slices) for job in jobs] == starts


def test_the_fullest_gpu_in_mig_mode_is_filled_first():
    node = node_of({"mig": H100}, {"mig": H100, "slices_used": 0b1111})
    found = place(an_instance(profile="3g.40gb"), [node], POLICY, NOW)
    assert (found.gpu_indices, found.slices) == ((1,), 0b11110000)
    assert found.reason.startswith("node-a, 3g.40gb at slice 4 of GPU 1: the best of")
    assert place(an_instance(profile="4g.40gb"), [node], POLICY, NOW).gpu_indices == (0,)


def test_of_a_real_gpu_only_the_instances_that_are_there_are_used():
    node = node_of({"mig": {"1g.10gb": (0b100,), "3g.40gb": (0b11110000,)}})
    found = decided([an_instance("a"), an_instance("b")], node)
    assert found["a"].slices == 0b100
    assert found["b"].rejected == {RejectionCode.MIG_BUSY: 1}
    missing = check(node, an_instance(profile="2g.20gb"), POLICY, NOW)
    assert missing is not None
    assert missing.code is RejectionCode.MIG_PROFILE
    assert missing.reason == "has 1g.10gb, 3g.40gb on its GPUs in MIG mode, job wants 2g.20gb"
    assert missing.permanent


def test_a_node_that_has_no_such_gpu_never_holds_the_job():
    assert not could_ever_hold(a_node(), an_instance())
    assert not could_ever_hold(node_of({"mig": H100}), a_share())
    assert not could_ever_hold(node_of({"mig": H100}), a_job(gpus=1))
    assert could_ever_hold(node_of({"mig": H100}), an_instance())
    assert could_ever_hold(a_node(busy=range(8)), a_share())


def test_a_share_waits_for_the_share_before_it_and_a_whole_job_for_both():
    node = node_of({"milli_used": 700, "vram_used": 30}, name="n", cpus_used=2)
    at_work = [
        running("long", "n", [0], 3 * HOUR, milli=300, vram_per_gpu=10, cpus=1),
        running("short", "n", [0], HOUR, milli=400, vram_per_gpu=20, cpus=1),
    ]
    half, whole = a_share("half", 600), a_job("whole", 1, priority=1)
    made = plan([half, whole], [node], at_work, POLICY, NOW)
    starts = {kept.job_id: kept.start - NOW for kept in made.reservations}
    assert starts == {"half": HOUR, "whole": 3 * HOUR}
    assert "it waits for 600/1000 of GPU 0 of n until" in made.decisions[0].reason


def test_a_small_share_passes_a_deferred_whole_job_only_where_it_is_over_in_time():
    node = node_of({"milli_used": 400, "vram_used": 10}, name="n")
    at_work = [running("old", "n", [0], HOUR, milli=400, vram_per_gpu=10)]
    whole = a_job("whole", 1, priority=9)
    quick = a_share("quick", expected_duration=timedelta(minutes=30))
    slow = a_share("slow", milli=100, expected_duration=2 * HOUR)
    queue = [whole, quick, slow]
    made = {d.job_id: d for d in plan(queue, [node], at_work, POLICY, NOW).decisions}
    assert made["whole"].estimated_start == NOW + HOUR
    assert made["quick"].kind is PlacementKind.EXISTING_NODE
    assert made["slow"].rejected == {RejectionCode.RESERVED: 1}


def test_an_instance_waits_for_slices_that_are_known_to_end():
    node = node_of({"mig": H100, "slices_used": 0b11111111}, name="n")
    at_work = [running("old", "n", [0], HOUR, milli=0, slices=0b11110000)]
    made = plan([an_instance(profile="3g.40gb")], [node], at_work, POLICY, NOW)
    (kept,) = made.reservations
    assert (kept.start, kept.slices) == (NOW + HOUR, 0b11110000)
    whole = plan([an_instance(profile="7g.80gb")], [node], at_work, POLICY, NOW)
    assert whole.reservations == ()


def test_what_a_job_took_it_gives_back():
    node = node_of({"milli_used": 100, "vram_used": 5}, {"mig": H100, "slices_used": 1})
    for job, index, slices in ((a_share(), 0, 0), (an_instance(), 1, 0b10)):
        held = with_job(node, job, [index], slices)
        assert held != node
        back = without_job(held, running_job(job, node.id, (index,), slices))
        assert back == node


@given(scenes(mixed=True))
def test_no_plan_breaks_a_gpu(scene: Scene):
    """Whole jobs, shares and instances together never have more of a GPU than it is."""
    made = plan(scene.queue, scene.nodes, scene.running, POLICY, NOW)
    for node in applied(scene.nodes, scene.queue, made):
        for gpu in node.gpus:
            assert gpu.milli_used <= 1000
            assert gpu.vram_used <= gpu.vram + 1e-6
            assert not (gpu.job_id and gpu.milli_used)


@given(scenes(mixed=True))
def test_the_same_arguments_give_the_same_plan_in_any_order(scene: Scene):
    one = plan(scene.queue, scene.nodes, scene.running, POLICY, NOW)
    other = plan(scene.queue[::-1], scene.nodes, scene.running[::-1], POLICY, NOW)
    assert one == other
