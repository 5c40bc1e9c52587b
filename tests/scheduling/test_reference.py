"""The packer against the reference: other code, written from the description, same decisions."""

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.gang import GangPacking
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.mig import slices_gb
from longshore.models.node import GPU, GPUParts, Node
from longshore.models.placement import (
    CyclePlan,
    Decision,
    GPUChoice,
    PackingPolicy,
    RejectionCode,
    RunningJob,
    ScoreWeights,
)
from longshore.models.topology import LinkClass
from longshore.scheduling.cycle import plan
from tests.support.gangs import islands
from tests.support.packing import NOW, a_job, one_by_one
from tests.support.packing_scenes import H100, PROFILES, Scene, scenes
from tests.support.reference_packer import reference_plan
from tests.support.searches import seeds

MINUTE = timedelta(minutes=1)
EVEN_AND_ODD = islands(
    (0, 2, 4, 6), (1, 3, 5, 7), within=LinkClass.NVLINK, between=LinkClass.PCIE4
)

policies = st.builds(
    PackingPolicy,
    gpu_choice=st.sampled_from(GPUChoice),
    max_reservations=st.sampled_from([0, 1, 8]),
    gang_packing=st.sampled_from(GangPacking),
    weights=st.sampled_from(
        [
            ScoreWeights(),
            ScoreWeights(utilization=-1, fragmentation=0),
            ScoreWeights(separation=1, locality=0),
            ScoreWeights(separation=0.3),
        ]
    ),
)


@given(scenes(), policies)
def test_every_plan_is_that_of_the_reference(scene: Scene, policy: PackingPolicy) -> None:
    expected = reference_plan(scene.queue, scene.nodes, scene.running, policy, NOW)
    assert plan_without_words(scene, policy) == expected


@given(scenes(mixed=True), policies)
def test_plans_of_whole_gpus_shares_and_mig_are_those_of_the_reference(
    scene: Scene, policy: PackingPolicy
) -> None:
    expected = reference_plan(scene.queue, scene.nodes, scene.running, policy, NOW)
    assert plan_without_words(scene, policy) == expected


@given(scenes(mixed=True, linked=True), policies)
def test_plans_on_nodes_with_links_are_those_of_the_reference(
    scene: Scene, policy: PackingPolicy
) -> None:
    expected = reference_plan(scene.queue, scene.nodes, scene.running, policy, NOW)
    assert plan_without_words(scene, policy) == expected


@given(scenes(mixed=True, linked=True, gangs=True), policies)
def test_plans_with_gangs_are_those_of_the_reference(scene: Scene, policy: PackingPolicy) -> None:
    expected = reference_plan(scene.queue, scene.nodes, scene.running, policy, NOW)
    assert plan_without_words(scene, policy) == expected


@given(scenes(mixed=True, linked=True, gangs=True, sensitive=True), policies, st.booleans())
def test_plans_with_sensitive_jobs_are_those_of_the_reference(
    scene: Scene, policy: PackingPolicy, compiled: bool
) -> None:
    expected = reference_plan(scene.queue, scene.nodes, scene.running, policy, NOW)
    assert plan_without_words(scene, policy, compiled) == expected


@pytest.mark.exhaustive
def test_long_mixed_queues_on_crowded_nodes_are_planned_as_by_the_reference() -> None:
    placed: Counter[str] = Counter()
    reserved: Counter[str] = Counter()
    passed_over: set[RejectionCode] = set()
    for seed in seeds(8):
        scene = crowded_in_parts(random.Random(seed))
        expected = reference_plan(scene.queue, scene.nodes, scene.running, PackingPolicy(), NOW)
        for compiled in (False, True):
            assert plan_without_words(scene, PackingPolicy(), compiled) == expected
        kinds = {job.id: "mig" if job.mig else str(job.gpu.whole) for job in scene.queue}
        placed.update(kinds[decision.job_id] for decision in expected.placements)
        reserved.update(kinds[reservation.job_id] for reservation in expected.reservations)
        passed_over |= {code for d in expected.decisions for code in d.rejected}
    # The comparison means something only where all of these happen.
    assert min(placed[kind] for kind in ("True", "False", "mig")) > 20
    assert min(reserved[kind] for kind in ("True", "False", "mig")) > 3
    assert {
        RejectionCode.MIG_BUSY, RejectionCode.MIG_PROFILE, RejectionCode.SHARES_BUSY,
        RejectionCode.RESERVED,
    } <= passed_over  # fmt: skip


def test_long_queues_on_crowded_nodes_are_planned_as_by_the_reference() -> None:
    placed = reserved = apart = 0
    passed_over: set[RejectionCode] = set()
    for seed in seeds(12):
        scene = crowded(random.Random(seed), linked=seed % 2 == 1)
        expected = reference_plan(scene.queue, scene.nodes, scene.running, PackingPolicy(), NOW)
        for compiled in (False, True):
            assert plan_without_words(scene, PackingPolicy(), compiled) == expected
        placed += len(expected.placements)
        reserved += len(expected.reservations)
        apart += sum(d.candidates[0].link is LinkClass.NVLINK for d in expected.placements)
        passed_over |= {code for d in expected.decisions for code in d.rejected}
    # The comparison means something only where all of these happen.
    assert placed > 200
    assert reserved > 50
    assert apart > 10
    assert RejectionCode.RESERVED in passed_over


def plan_without_words(
    scene: Scene, policy: PackingPolicy, compiled: bool | None = None
) -> CyclePlan:
    with one_by_one():
        made = plan(scene.queue, scene.nodes, scene.running, policy, NOW, compiled=compiled)
    wordless = tuple(without_words(decision) for decision in made.decisions)
    return made.model_copy(update={"decisions": wordless})


def without_words(decision: Decision) -> Decision:
    """The decision without its sentence, and the range of its start (`test_start_range.py`); of a
    gang that waits, without why its domains fail."""
    gang = decision.gang if decision.members else None
    return decision.model_copy(update={"reason": "", "gang": gang, "start_range": None})


def crowded(chance: random.Random, *, linked: bool = False) -> Scene:
    """Return 24 nodes with jobs on most GPUs, and 80 jobs in the queue, some needs repeated.

    When `linked`, GPUs of half of the nodes are in two islands: the even and the odd ones.
    """
    pairs = [busy_node(f"node-{i:02}", chance) for i in range(24)]
    running = [job for _, jobs in pairs for job in jobs]
    queue = [queued_job(f"job-{i:02}", chance) for i in range(80)]
    nodes = [node for node, _ in pairs]
    if linked:
        nodes[::2] = [node.model_copy(update={"topology": EVEN_AND_ODD}) for node in nodes[::2]]
    return Scene(nodes, running, queue)


def crowded_in_parts(chance: random.Random) -> Scene:
    """Return 10 nodes with shared GPUs and GPUs in MIG mode, and 90 jobs that want any."""
    pairs = [shared_node(f"node-{i:02}", chance) for i in range(10)]
    running = [job for _, jobs in pairs for job in jobs]
    queue = [mixed_job(f"job-{i:02}", chance) for i in range(90)]
    return Scene([node for node, _ in pairs], running, queue)


def shared_node(name: str, chance: random.Random) -> tuple[Node, list[RunningJob]]:
    """Return a node of 6 GPUs: in MIG mode, shared, held or empty; half of the use is known."""
    gpus: list[GPU] = []
    running: list[RunningJob] = []
    for index in range(6):
        kind = chance.choice(["mig", "mig", "shared", "shared", "held", "empty"])
        known = chance.random() < 0.7
        end = NOW + chance.randrange(-5, 200) * MINUTE
        part: dict[str, Any] = {"milli": chance.choice([200, 500, 700]), "vram_per_gpu": 30}
        if kind == "mig":
            slices = chance.choice([0, 1, 64, 15, 240, 48])
            parts = GPUParts(mig=H100, slices_used=slices)
            used = slices_gb(80, slices)
            gpus.append(GPU(index=index, vram=80, vram_used=used, parts=parts))
            part = {"milli": 0, "slices": slices, "vram_per_gpu": slices_gb(80, slices)}
            known = known and slices > 0
        elif kind == "shared":
            more = chance.choice([0, 0, 100])
            gpus.append(
                GPU(
                    index=index,
                    vram=80,
                    vram_used=40,
                    parts=GPUParts(milli_used=part["milli"] + more),
                )
            )
        elif kind == "held":
            gpus.append(GPU(index=index, vram=80, vram_used=30, job_id="somebody"))
            part = {"vram_per_gpu": 30}
        else:
            gpus.append(GPU(index=index, vram=80))
            known = False
        if known:
            running.append(RunningJob(job_id=f"{name}-{index}", node_id=name,
                                      gpu_indices=(index,), expected_end=end, **part))  # fmt: skip
    expires_at = chance.choice([None, None, NOW + chance.randrange(60, 600) * MINUTE])
    return Node(id=name, gpus=tuple(gpus), cpus=64, ram=512, expires_at=expires_at), running


def mixed_job(name: str, chance: random.Random) -> JobRequest:
    wishes: list[dict[str, Any]] = [
        {"gpus": chance.choice([1, 2, 3]), "vram_per_gpu": chance.choice([0, 40])},
        {"gpus": 1, "milli": chance.choice([100, 300, 500, 800]),
         "vram_per_gpu": chance.choice([5, 20, 60])},
        {"gpus": 1, "mig": chance.choice(PROFILES), "vram_per_gpu": 0},
    ]  # fmt: skip
    return a_job(
        name,
        **chance.choice(wishes),
        priority=chance.randrange(3),
        cpus=chance.choice([1, 2.3]),
        ram=8,
        expected_duration=chance.choice([20, 60, 240]) * MINUTE,
        submitted_at=NOW - chance.randrange(4) * MINUTE,
    )


def busy_node(name: str, chance: random.Random) -> tuple[Node, list[RunningJob]]:
    owners = [chance.choice([None, "a", "b", "unknown"]) for _ in range(8)]
    node = Node(
        id=name,
        tier=chance.choice([Tier.FAST, Tier.FAST, Tier.FLEX]),
        provider=chance.choice(["own", "prime", "sfcompute"]),
        gpus=tuple(
            GPU(index=i, vram=80, vram_used=30, job_id=owner) if owner else GPU(index=i, vram=80)
            for i, owner in enumerate(owners)
        ),
        cpus=64,
        cpus_used=6 * sum(owner is not None for owner in owners),
        ram=512,
        expires_at=chance.choice([None, NOW + chance.randrange(60, 600) * MINUTE]),
    )
    running = [
        RunningJob(
            job_id=f"{owner}-{name}",
            node_id=name,
            gpu_indices=tuple(i for i, holder in enumerate(owners) if holder == owner),
            vram_per_gpu=chance.choice([0, 20, 30]),
            cpus=6 * owners.count(owner),
            expected_end=NOW + chance.randrange(-5, 200) * MINUTE,
        )
        for owner in ("a", "b")
        if owner in owners
    ]
    return node, running


def queued_job(name: str, chance: random.Random) -> JobRequest:
    gpus = chance.choice([1, 1, 2, 3, 4, 8])
    return a_job(
        name,
        tier=chance.choice([Tier.FAST, Tier.FAST, Tier.FLEX]),
        priority=chance.randrange(3),
        gpus=gpus,
        vram_per_gpu=chance.choice([0, 20, 60, 75.5]),
        cpus=chance.choice([1, 2.3, 6]) * gpus,
        ram=16 * gpus,
        expected_duration=chance.choice([20, 60, 240]) * MINUTE,
        submitted_at=NOW - chance.randrange(4) * MINUTE,
    )
