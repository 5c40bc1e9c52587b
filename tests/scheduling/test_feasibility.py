"""Every constraint: its code, its words, and whether it is for good."""

from datetime import timedelta

import pytest

from longshore.models.departures import Margins
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, Node, NodeState
from longshore.models.placement import PackingPolicy, Rejection, RejectionCode
from longshore.models.topology import Conformance
from longshore.scheduling.packer import check, place
from longshore.scheduling.placement.feasibility import could_ever_hold
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node


def rejection(node: Node, job: JobRequest) -> Rejection:
    found = check(node, job, POLICY, NOW)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("node", "job", "code", "permanent", "reason"),
    [
        (a_node(state=NodeState.DRAINING), a_job(), RejectionCode.STATE, False, "is draining"),
        (
            a_node(state=NodeState.DRAINING, cordoned=True),
            a_job(),
            RejectionCode.STATE,
            False,
            "is cordoned",
        ),
        (a_node(state=NodeState.LOST), a_job(), RejectionCode.STATE, False, "is lost"),
        (a_node(state=NodeState.GONE), a_job(), RejectionCode.STATE, True, "is gone"),
        (
            a_node(tier=Tier.FLEX),
            a_job(),
            RejectionCode.TIER,
            True,
            "is a FLEX node, job is FAST",
        ),
        (
            a_node(gpu_type="A100"),
            a_job(gpu_type="h100"),
            RejectionCode.GPU_TYPE,
            True,
            "has A100 GPUs, job wants H100",
        ),
        (
            a_node(),
            a_job(needs_container=True),
            RejectionCode.CONTAINER_RUNTIME,
            True,
            "has no container runtime, job runs an image",
        ),
        (
            a_node(fetches=False),
            a_job(data={"data s3://sets/set/ of default": 1.0}),
            RejectionCode.FETCHING,
            True,
            "has an agent of a version that fetches no data and knows no conda, job needs that",
        ),
        (
            a_node(),
            a_job(conformance=Conformance(allowed=("f1",))),
            RejectionCode.CONFORMANCE,
            True,
            "has not said what driver and kernel parameters it has, the job requires it",
        ),
        (
            a_node(conformance="f9"),
            a_job(conformance=Conformance(allowed=("f4", "f1", "f3", "f2", "f5"))),
            RejectionCode.NOT_ALLOWED,
            True,
            "has the fingerprint f9, job allows f1, f2, f3 and 2 more",
        ),
        (
            a_node(expires_in=timedelta(minutes=30, microseconds=5)),
            a_job(),
            RejectionCode.EXPIRY,
            False,
            "has 30m left, job wants 1h and a margin of 5m",
        ),
        (
            a_node(expires_in=-HOUR),
            a_job(),
            RejectionCode.EXPIRY,
            False,
            "has no time left, job wants 1h and a margin of 5m",
        ),
        (
            a_node(cpus_used=40),
            a_job(cpus=32),
            RejectionCode.CPU,
            False,
            "has 24 of 64 cores free, job wants 32",
        ),
        (
            a_node(),
            a_job(cpus=65),
            RejectionCode.CPU,
            True,
            "has 64 of 64 cores free, job wants 65",
        ),
        (
            a_node(storage_bandwidth=10, storage_used=8),
            a_job(storage_bandwidth=4),
            RejectionCode.STORAGE,
            False,
            "has 2GB/s of 10GB/s storage bandwidth free, job wants 4GB/s",
        ),
        (
            a_node(storage_bandwidth=0.5),
            a_job(storage_bandwidth=4),
            RejectionCode.STORAGE,
            True,
            "has 500MB/s of 500MB/s storage bandwidth free, job wants 4GB/s",
        ),
        (
            a_node(power=2000, power_used=1400, gpu_power=700),
            a_job(gpus=1),
            RejectionCode.POWER,
            False,
            "has 600W of 2000W power left, job draws 700W for 1 GPU",
        ),
        (
            a_node(power=10_200, power_used=9000, gpu_power=700),
            a_job(gpus=4, power_per_gpu=350),
            RejectionCode.POWER,
            False,
            "has 1200W of 10.2kW power left, job draws 1400W for 4 GPUs",
        ),
        (
            a_node(power=100, gpu_power=700),
            a_job(gpus=1, milli=500),
            RejectionCode.POWER,
            True,
            "has 100W of 100W power left, job draws 350W",
        ),
        (
            a_node(ram_used=500),
            a_job(ram=32),
            RejectionCode.RAM,
            False,
            "has 12GB of 512GB RAM free, job wants 32GB",
        ),
        (
            a_node(),
            a_job(ram=513),
            RejectionCode.RAM,
            True,
            "has 512GB of 512GB RAM free, job wants 513GB",
        ),
        (
            a_node(gpus=1),
            a_job(gpus=2),
            RejectionCode.GPU_COUNT,
            True,
            "has 1 GPU, job wants 2",
        ),
        (
            a_node(),
            a_job(vram_per_gpu=100),
            RejectionCode.VRAM,
            True,
            "has 0 of 8 GPUs with 100GB of memory to be had (the most is 80GB), job wants 2",
        ),
        (
            a_node(busy=range(1, 8)),
            a_job(),
            RejectionCode.GPUS_BUSY,
            False,
            "has 1 of 8 GPUs with 40GB free, job wants 2",
        ),
        (
            a_node(busy=range(8)),
            a_job(vram_per_gpu=0),
            RejectionCode.GPUS_BUSY,
            False,
            "has 0 of 8 GPUs free, job wants 2",
        ),
    ],
)
def test_each_constraint_says_what_was_wanted_and_had(
    node: Node, job: JobRequest, code: RejectionCode, permanent: bool, reason: str
) -> None:
    found = rejection(node, job)
    assert (found.code, found.permanent, found.reason) == (code, permanent, reason)
    assert could_ever_hold(node, job) is not permanent


def test_the_first_constraint_in_order_is_named() -> None:
    hopeless = a_node(gpus=1, tier=Tier.FLEX, busy={0}, cpus_used=64)
    assert rejection(hopeless, a_job(gpu_type="H100")).code is RejectionCode.TIER


def test_a_passing_constraint_does_not_hide_that_the_node_is_too_small() -> None:
    found = rejection(a_node(cpus_used=64), a_job(gpus=9))
    assert (found.code, found.permanent) == (RejectionCode.CPU, True)


def test_a_warm_model_leaves_the_rest_of_its_gpu() -> None:
    warm = a_node(gpus=1).model_copy(update={"gpus": (GPU(index=0, vram=80, vram_used=60),)})
    assert check(warm, a_job(gpus=1, vram_per_gpu=20), POLICY, NOW) is None
    found = rejection(warm, a_job(gpus=1, vram_per_gpu=21))
    assert (found.code, found.permanent) == (RejectionCode.VRAM, False)


def test_fractions_that_add_up_are_enough() -> None:
    node = a_node(cpus=0.3, cpus_used=0.1 + 0.1, gpus=1)
    assert check(node, a_job(gpus=1, cpus=0.1), POLICY, NOW) is None


def test_gpu_type_is_compared_without_regard_to_case() -> None:
    assert check(a_node(gpu_type="h100"), a_job(gpu_type="H100"), POLICY, NOW) is None


def test_a_node_that_never_expires_takes_the_longest_job() -> None:
    assert check(a_node(), a_job(expected_duration=1000 * 24 * HOUR), POLICY, NOW) is None


def test_without_a_margin_the_reason_names_none() -> None:
    at_once = timedelta(0)
    policy = PackingPolicy(safety_margin=at_once, margins=Margins(end=at_once, publish=at_once))
    job = a_job(grace=at_once)
    assert check(a_node(expires_in=HOUR), job, policy, NOW) is None
    found = check(a_node(expires_in=HOUR / 2), job, policy, NOW)
    assert found is not None
    assert found.reason == "has 30m left, job wants 1h"


def test_the_decision_sums_up_what_stood_in_the_way() -> None:
    nodes = [
        a_node("a", busy=range(8)),
        a_node("b", busy=range(8)),
        a_node("c", tier=Tier.FLEX),
    ]
    decision = place(a_job(), nodes, POLICY, NOW)
    assert decision.reason == (
        "no node can take it now (3 nodes: 2 gpus-busy, 1 tier-mismatch); "
        "2 nodes could hold it when empty and with time left"
    )
    assert [r.node_id for r in decision.rejections] == ["a", "b", "c"]
    assert list(decision.rejected.items()) == [
        (RejectionCode.TIER, 1),
        (RejectionCode.GPUS_BUSY, 2),
    ]


def test_ties_keep_the_order_of_the_input() -> None:
    names = ["z", "m", "a", "q"]
    decision = place(a_job(), [a_node(name) for name in names], POLICY, NOW)
    assert [c.node_id for c in decision.candidates] == names


def test_without_explanation_the_answer_is_the_same() -> None:
    nodes = [a_node(f"n{i}", busy=range(i)) for i in range(9)]
    full, short = (place(a_job(), nodes, POLICY, NOW, explain=flag) for flag in (True, False))
    assert (full.node_id, full.gpu_indices, full.terms) == (
        short.node_id,
        short.gpu_indices,
        short.terms,
    )
    assert len(full.candidates) == 7
    assert short.candidates == full.candidates[:4]
    assert (len(full.rejections), short.rejections) == (2, ())
    assert full.rejected == short.rejected


def test_a_node_without_gpu_memory_is_measured_by_gpus() -> None:
    node = a_node(vram=0, busy={0, 1})
    decision = place(a_job(vram_per_gpu=0), [node], POLICY, NOW)
    assert decision.terms is not None
    assert decision.terms.utilization == 0.5


@pytest.mark.parametrize(
    ("node", "job", "reason"),
    [
        (a_node(ram=2048, ram_used=1024.001), a_job(ram=1024),
         "has 1023.999GB of 2048GB RAM free, job wants 1024GB"),
        (a_node(cpus=64, cpus_used=32.0004), a_job(cpus=32),
         "has 31.9996 of 64 cores free, job wants 32"),
        (a_node(vram=79.9996), a_job(vram_per_gpu=80),
         "has 0 of 8 GPUs with 80GB of memory to be had (the most is 79.9996GB), job wants 2"),
        (a_node(ram=1_234_567.8), a_job(ram=1_234_568.9),
         "has 1234567.8GB of 1234567.8GB RAM free, job wants 1234568.9GB"),
    ],
)  # fmt: skip
def test_what_is_short_by_little_looks_short(node: Node, job: JobRequest, reason: str) -> None:
    assert rejection(node, job).reason == reason
