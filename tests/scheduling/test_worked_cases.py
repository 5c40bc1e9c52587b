"""The worked cases of the packing documents, with the numbers that Longshore settled on."""

from datetime import timedelta

import pytest

from longshore.models.job import Tier
from longshore.models.job_request import RecentJobs
from longshore.models.node import GPU, Node
from longshore.models.placement import (
    Decision,
    GPUChoice,
    PackingPolicy,
    PlacementKind,
    RejectionCode,
    ScoreWeights,
)
from longshore.models.pool import PoolPacking
from longshore.scheduling.packer import check, place
from longshore.scheduling.placement.gpus import average_gap, indices_of
from longshore.scheduling.placement.scoring import score
from longshore.scheduling.placement.state import view_node
from longshore.scheduling.words import format_terms
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node

WEIGHTS = ScoreWeights()


def total_of(decision: Decision) -> float:
    assert decision.terms is not None
    return decision.terms.total


def node_with_used(name: str, used_gb: float, **fields: object) -> Node:
    """A node of 640 GB in which `used_gb` is in use on its last GPUs, held by jobs."""
    full, rest = divmod(used_gb, 80)
    used = [80.0] * int(full) + ([rest] if rest else [])
    gpus = tuple(
        GPU(index=7 - i, vram=80, vram_used=gb, job_id="other") for i, gb in enumerate(used)
    )
    free = tuple(GPU(index=i, vram=80) for i in range(8 - len(used)))
    return a_node(name).model_copy(update={"gpus": free + gpus, **fields})


def test_s1_small_job_on_an_empty_prime_node_scores_0145_on_the_first_gpus() -> None:
    decision = place(a_job(), [a_node(provider="prime", expires_in=10 * HOUR)], POLICY, NOW)
    assert decision.kind is PlacementKind.EXISTING_NODE
    assert decision.gpu_indices == (0, 1)
    assert total_of(decision) == pytest.approx(0.145)


def test_s2_utilisation_counts_what_is_used_and_what_the_job_adds() -> None:
    node = node_with_used("node-a", 160)
    assert score(node, a_job(gpus=4), (0, 1, 2, 3), WEIGHTS, NOW).utilization == 0.5


@pytest.mark.parametrize(
    ("indices", "gap"),
    [((0, 1, 2, 3), 0.0), ((0, 2, 4, 6), 1.0), ((5,), 0.0), ((), 0.0), ((0, 3), 2.0)],
)
def test_s3_fragmentation_is_the_average_gap(indices: tuple[int, ...], gap: float) -> None:
    assert average_gap(indices) == gap


def test_s4_contiguous_gpus_win_over_fragmented_ones() -> None:
    fragmented, contiguous = a_node("a", busy={1, 3, 5, 7}), a_node("b", busy={4, 5, 6, 7})
    job = a_job(gpus=4, vram_per_gpu=0)
    decision = place(job, [fragmented, contiguous], POLICY, NOW)
    assert decision.node_id == "b"
    assert [c.terms.total for c in decision.candidates] == pytest.approx([0.5, 0.0])


def test_s4_contiguous_gpus_win_by_the_rule_of_a_pool_that_names_none() -> None:
    fragmented, contiguous = a_node("a", busy={1, 3, 5, 7}), a_node("b", busy={4, 5, 6, 7})
    for lately in ([], [RecentJobs(request=a_job("r", gpus=n), count=9, ended=9) for n in (2, 8)]):
        for job in (a_job(gpus=4, vram_per_gpu=0), a_job(gpus=2)):
            decision = place(job, [fragmented, contiguous], PoolPacking(), NOW, recent=lately)
            assert (decision.node_id, decision.terms and decision.terms.fragmentation) == ("b", 0)
    assert "gaps between its GPUs -" in format_terms(decision.candidates[1].terms)


def test_s5_the_fullest_of_three_nodes_wins_with_settled_scores() -> None:
    nodes = [
        node_with_used(name, used, provider="prime")
        for name, used in (("a", 0), ("b", 320), ("c", 480))
    ]
    decision = place(a_job(), nodes, POLICY, NOW)
    assert [(c.node_id, c.terms.total) for c in decision.candidates] == [
        ("c", pytest.approx(0.895)),
        ("b", pytest.approx(0.645)),
        ("a", pytest.approx(0.145)),
    ]


def half_used_gpu_2() -> Node:
    gpus = tuple(GPU(index=i, vram=80, vram_used=40 if i == 2 else 0) for i in range(8))
    return a_node().model_copy(update={"gpus": gpus})


def test_s6_a_gpu_with_memory_in_use_and_no_job_counts_by_what_is_left() -> None:
    view = view_node(half_used_gpu_2(), (), NOW)
    assert indices_of(view.free & view.rooms.roomy(60)) == (0, 1, 3, 4, 5, 6, 7)
    assert indices_of(view.free & view.rooms.roomy(40)) == tuple(range(8))


def test_s7_the_contiguous_run_is_taken_and_the_first_free_only_on_request() -> None:
    job = a_job(gpus=4, vram_per_gpu=60)
    decision = place(job, [half_used_gpu_2()], POLICY, NOW)
    assert decision.terms is not None
    # 3-6 is as close, but would leave GPU 7 alone.
    assert (decision.gpu_indices, decision.terms.fragmentation) == ((4, 5, 6, 7), 0.0)
    first_free = PackingPolicy(gpu_choice=GPUChoice.FIRST_FREE)
    decision = place(job, [half_used_gpu_2()], first_free, NOW)
    assert decision.gpu_indices == (0, 1, 3, 4)
    assert decision.terms is not None
    assert decision.terms.fragmentation == pytest.approx(1 / 3)


def test_s8_a_whole_empty_sfcompute_node_scores_104() -> None:
    node = a_node(provider="sfcompute")
    decision = place(a_job(gpus=8, vram_per_gpu=80), [node], POLICY, NOW)
    assert total_of(decision) == pytest.approx(1.04)


def test_s9_s10_provider_bonus_follows_the_size_of_the_job() -> None:
    def bonus(provider: str, gpus: int) -> float:
        node = a_node(provider=provider)
        return score(node, a_job(gpus=gpus), range(gpus), WEIGHTS, NOW).provider

    assert bonus("sfcompute", 8) == 0.2
    assert bonus("sfcompute", 7) == 0.0
    assert bonus("prime", 7) == 0.1
    assert bonus("prime", 8) == 0.0
    assert bonus("own", 8) == 0.0


def test_s11_the_expiring_node_of_the_example_is_rejected_before_its_penalty_counts() -> None:
    half_an_hour = timedelta(minutes=30)
    node = a_node(expires_in=half_an_hour)
    assert score(node, a_job(), (0, 1), WEIGHTS, NOW).expiry == 0.75
    rejection = check(node, a_job(), POLICY, NOW)
    assert rejection is not None
    assert rejection.code is RejectionCode.EXPIRY
    assert not rejection.permanent


def test_s12_the_margin_is_kept_to_the_second() -> None:
    enough = HOUR + timedelta(seconds=300)
    assert check(a_node(expires_in=enough), a_job(), POLICY, NOW) is None
    assert check(a_node(expires_in=enough - timedelta(seconds=1)), a_job(), POLICY, NOW)


@pytest.mark.parametrize(
    ("tier", "kind"),
    [
        (Tier.FAST, PlacementKind.REQUEST_MORE_CAPACITY),
        (Tier.FLEX, PlacementKind.QUEUE_FOR_FLEX),
    ],
)
def test_s13_a_job_wider_than_every_node_asks_or_queues_by_tier(
    tier: Tier, kind: PlacementKind
) -> None:
    decision = place(a_job(gpus=10, tier=tier), [a_node(tier=tier)], POLICY, NOW)
    assert (decision.kind, decision.provider_hint) == (kind, "sfcompute")
    assert "no known node could ever hold it" in decision.reason


@pytest.mark.parametrize(
    ("job", "node"),
    [
        (a_job(vram_per_gpu=100), a_node()),
        (a_job(cpus=100), a_node()),
        (a_job(ram=600), a_node()),
        (a_job(), a_node(expires_in=timedelta(minutes=5))),
        (a_job(), a_node(tier=Tier.FLEX)),
    ],
)
def test_s14_no_node_when_one_dimension_is_short(job: object, node: Node) -> None:
    decision = place(job, [node], POLICY, NOW)  # pyright: ignore[reportArgumentType]
    assert decision.kind is PlacementKind.REQUEST_MORE_CAPACITY
    assert (decision.node_id, decision.gpu_indices) == (None, ())
    assert decision.provider_hint == "prime"


def test_s15_memory_in_use_sends_the_job_to_the_empty_node() -> None:
    warm = tuple(GPU(index=i, vram=80, vram_used=60) for i in range(8))
    nodes = [a_node("a").model_copy(update={"gpus": warm}), a_node("b")]
    decision = place(a_job(), nodes, POLICY, NOW)
    assert decision.node_id == "b"
    assert decision.rejections[0].reason == (
        "has 0 of 8 GPUs with 40GB of memory to be had (the most is 20GB), job wants 2"
    )


def test_s16_a_flex_job_without_nodes_queues() -> None:
    decision = place(a_job(tier=Tier.FLEX), [], POLICY, NOW)
    assert decision.kind is PlacementKind.QUEUE_FOR_FLEX
    assert decision.reason == "no node can take it now; there are no nodes"
