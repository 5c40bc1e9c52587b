"""A cycle over a whole queue: order, reservations, and what the reasons say."""

from datetime import timedelta

import pytest

from longshore.models.job import Tier
from longshore.models.node import GPU, Node, NodeState
from longshore.models.placement import PackingPolicy, PlacementKind, RejectionCode
from longshore.scheduling.cycle import plan
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node, running

NOT_READY = a_node("cordoned", state=NodeState.DRAINING)

MINUTE = timedelta(minutes=1)


def test_each_job_sees_what_the_jobs_before_it_took() -> None:
    queue = [a_job("a", gpus=4), a_job("b", gpus=4), a_job("c", gpus=1)]
    decisions = plan(queue, [a_node()], [], POLICY, NOW).decisions
    assert [d.gpu_indices for d in decisions] == [(0, 1, 2, 3), (4, 5, 6, 7), ()]
    assert decisions[1].terms is not None
    assert decisions[1].terms.utilization == 0.5
    assert decisions[2].rejected == {RejectionCode.GPUS_BUSY: 1}


def test_cores_and_memory_run_out_too() -> None:
    queue = [a_job(f"j{i}", gpus=1, cpus=30, ram=10) for i in range(3)]
    plan_ = plan(queue, [a_node()], [], POLICY, NOW)
    assert [d.job_id for d in plan_.placements] == ["j0", "j1"]
    assert plan_.decisions[2].rejected == {RejectionCode.CPU: 1}


def test_a_decision_in_a_cycle_keeps_the_best_alternatives_only() -> None:
    nodes = [a_node(f"n{i}", busy=range(i)) for i in range(8)]
    decision = plan([a_job()], nodes, [], POLICY, NOW).decisions[0]
    assert [c.node_id for c in decision.candidates] == ["n6", "n5", "n4", "n3"]
    assert (decision.rejected, decision.rejections) == ({RejectionCode.GPUS_BUSY: 1}, ())
    assert decision.reason == "n6, GPUs 6-7: the best of 7 candidates, score 0.875"


def test_a_deferred_wide_job_gets_the_node_that_is_free_first() -> None:
    nodes = [a_node("slow", busy=range(8)), a_node("soon", busy=range(4))]
    at_work = [
        running("on-slow", "slow", range(8), 3 * HOUR),
        running("on-soon", "soon", range(4), 2 * HOUR),
    ]
    queue = [
        a_job("wide", gpus=8, submitted_at=NOW - HOUR),
        a_job("short", gpus=4, expected_duration=2 * HOUR),
        a_job("long", gpus=4, expected_duration=2 * HOUR + MINUTE),
    ]
    result = plan(queue, nodes, at_work, POLICY, NOW)
    wide, long, short = result.decisions
    assert (wide.kind, wide.estimated_start) == (
        PlacementKind.REQUEST_MORE_CAPACITY,
        NOW + 2 * HOUR,
    )
    assert wide.reason == (
        "no node can take it now (2 nodes: 2 gpus-busy); "
        "it waits for GPUs 0-7 of soon until about 2026-11-20 14:00:00 UTC"
    )
    assert long.rejected == {RejectionCode.GPUS_BUSY: 1, RejectionCode.RESERVED: 1}
    assert short.node_id == "soon"


def test_a_long_job_may_use_what_the_reservation_leaves() -> None:
    at_work = [running("w", "node-a", range(4), HOUR)]
    queue = [
        a_job("wide", gpus=6, submitted_at=NOW - HOUR),
        a_job("narrow", gpus=2, expected_duration=10 * HOUR),
        a_job("next", gpus=1, expected_duration=10 * HOUR),
    ]
    result = plan(queue, [a_node(busy=range(4))], at_work, POLICY, NOW)
    reserved = set(result.reservations[0].gpu_indices)
    placed = {index for d in result.placements for index in d.gpu_indices}
    assert [d.job_id for d in result.placements] == ["narrow"]
    assert len(reserved) == 6
    assert not reserved & placed


def test_a_reservation_keeps_cores_as_well() -> None:
    node = a_node(busy={0}, cpus_used=60)
    at_work = [running("w", "node-a", {0}, HOUR, cpus=60)]
    queue = [
        a_job("heavy", gpus=1, cpus=64, submitted_at=NOW - HOUR),
        a_job("light", gpus=1, cpus=1, expected_duration=2 * HOUR),
        a_job("brief", gpus=1, cpus=1, expected_duration=HOUR),
    ]
    result = plan(queue, [node], at_work, POLICY, NOW)
    assert [d.job_id for d in result.placements] == ["brief"]
    assert result.decisions[0].estimated_start == NOW + HOUR


def test_jobs_of_another_tier_are_not_held_up() -> None:
    nodes = [a_node("fast", busy={0}), a_node("flex", tier=Tier.FLEX)]
    at_work = [running("w", "fast", {0}, HOUR)]
    queue = [
        a_job("wide", gpus=8, submitted_at=NOW - HOUR),
        a_job("other", tier=Tier.FLEX, expected_duration=9 * HOUR),
    ]
    assert plan(queue, nodes, at_work, POLICY, NOW).decisions[1].node_id == "flex"


def test_a_job_that_nothing_can_ever_hold_blocks_nobody() -> None:
    at_work = [running("w", "node-a", {0}, HOUR)]
    queue = [a_job("giant", gpus=9, priority=10), a_job("next", expected_duration=9 * HOUR)]
    result = plan(queue, [a_node(busy={0})], at_work, POLICY, NOW)
    giant, following = result.decisions
    assert (result.reservations, giant.estimated_start) == ((), None)
    assert giant.reason == "no known node could ever hold it (1 node: 1 not-enough-gpus)"
    assert following.node_id == "node-a"


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("nodes", "outlook"),
    [
        ([NOT_READY], "the node that could hold it is not ready"),
        ([NOT_READY, a_node("b", state=NodeState.LOST)],
         "each of the 2 nodes that could hold it is not ready"),
        ([NOT_READY, a_node("b", expires_in=timedelta(minutes=2))],
         "each of the 2 nodes that could hold it is not ready or too near its end"),
        ([NOT_READY, a_node("b", busy={0})], "what runs there is not known to end in time for it"),
        ([NOT_READY, a_node("b", gpus=1)], "the node that could hold it is not ready"),
        ([NOT_READY, a_node("b", cpus=4)], "the node that could hold it is not ready"),
        ([a_node("b", expires_in=timedelta(minutes=2)), a_node("c", ram=8)],
         "the node that could hold it is too near its end"),
        ([NOT_READY, a_node("b", cpus=4, expires_in=timedelta(minutes=2))],
         "the node that could hold it is not ready"),
    ],
)  # fmt: skip
def test_what_runs_there_is_named_only_where_something_runs(
    nodes: list[Node], outlook: str, compiled: bool
) -> None:
    result = plan([a_job(gpus=8)], nodes, [], POLICY, NOW, compiled=compiled)
    assert result.decisions[0].reason.partition("; ")[2] == outlook


def test_a_job_whose_node_would_expire_before_it_ends_blocks_nobody() -> None:
    node = a_node(busy={0}, expires_in=3 * HOUR)
    at_work = [running("w", "node-a", {0}, 2 * HOUR)]
    queue = [a_job("wide", gpus=8, priority=9), a_job("next", expected_duration=2 * HOUR)]
    result = plan(queue, [node], at_work, POLICY, NOW)
    assert result.reservations == ()
    assert result.decisions[0].reason.endswith("is not known to end in time for it")
    assert result.decisions[1].node_id == "node-a"


def test_a_node_that_drains_is_reserved_for_nobody() -> None:
    result = plan([a_job()], [a_node(state=NodeState.DRAINING)], [], POLICY, NOW)
    assert result.reservations == ()
    assert result.decisions[0].rejected == {RejectionCode.STATE: 1}


def test_capacity_that_no_running_job_explains_is_never_expected_back() -> None:
    result = plan([a_job(gpus=8)], [a_node(busy={0})], [], POLICY, NOW)
    assert (result.reservations, result.decisions[0].estimated_start) == ((), None)


@pytest.mark.parametrize(
    ("overrun", "left"), [(MINUTE / 2, MINUTE), (HOUR, HOUR), (50 * HOUR, 50 * HOUR)]
)
def test_who_overran_what_it_said_runs_as_long_again_as_it_has_overrun(
    overrun: timedelta, left: timedelta
) -> None:
    at_work = [running("w", "node-a", range(8), -overrun)]
    decision = plan([a_job()], [a_node(busy=range(8))], at_work, POLICY, NOW).decisions[0]
    assert decision.estimated_start == NOW + left


def test_reservations_queue_up_behind_each_other() -> None:
    at_work = [running("w", "node-a", range(8), HOUR)]
    queue = [a_job(f"j{i}", gpus=8) for i in range(3)]
    decisions = plan(queue, [a_node(busy=range(8))], at_work, POLICY, NOW).decisions
    assert [d.estimated_start for d in decisions] == [NOW + (1 + i) * HOUR for i in range(3)]


def test_reservations_are_capped_for_each_tier() -> None:
    nodes = [a_node("fast", busy=range(8)), a_node("flex", busy=range(8), tier=Tier.FLEX)]
    at_work = [running(f"w-{node.id}", node.id, range(8), HOUR) for node in nodes]
    queue = [a_job(f"{tier}{i}", gpus=8, tier=tier) for tier in Tier for i in range(3)]
    policy = PackingPolicy(max_reservations=2)
    result = plan(queue, nodes, at_work, policy, NOW)
    assert [r.job_id for r in result.reservations] == ["FAST0", "FAST1", "FLEX0", "FLEX1"]
    assert "2 FAST jobs before it have reservations" in result.decisions[2].reason


@pytest.mark.parametrize("compiled", [True, False])
def test_behind_one_start_or_none_the_words_say_so(compiled: bool) -> None:
    queue = [a_job("a", gpus=8), a_job("b", gpus=8)]
    for most, said in (
        (0, "its start is not known: this pool keeps no starts"),
        (1, "its start is not known while 1 FAST job before it has a reservation"),
    ):
        policy = PackingPolicy(max_reservations=most)
        at_work = [running("w", "node-a", range(8), HOUR)]
        made = plan(queue, [a_node(busy=range(8))], at_work, policy, NOW, compiled=compiled)
        assert made.decisions[1].reason.partition("; ")[2] == said


def test_memory_kept_under_a_running_job_is_not_promised() -> None:
    # A warm model keeps 30 GB below the running job: 50 GB is all that will ever come back.
    gpu = GPU(index=0, vram=80, vram_used=70, job_id="w")
    node = a_node(gpus=1).model_copy(update={"gpus": (gpu,)})
    at_work = [running("w", "node-a", {0}, HOUR, vram_per_gpu=40)]
    queue = [a_job("a", gpus=1, vram_per_gpu=50), a_job("b", gpus=1, vram_per_gpu=51)]
    first, second = plan(queue, [node], at_work, POLICY, NOW).decisions
    assert first.estimated_start == NOW + HOUR
    assert (second.estimated_start, second.rejected) == (None, {RejectionCode.VRAM: 1})


def test_nothing_in_nothing_out() -> None:
    assert plan([], [], [], POLICY, NOW).decisions == ()
    assert plan([], [a_node()], [], POLICY, NOW).placements == ()
